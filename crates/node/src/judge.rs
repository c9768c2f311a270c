//! The judge: evidence in, verdict out. It is plain data: each part of a recording begins with all of it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use pathproof_facts::cause::{Failure, State};
use pathproof_facts::directory::Directory;
use pathproof_facts::limits::{
    FAILED_CONNECTIONS_KEPT, IDLE_INTERVAL, SAMPLE_INTERVAL, STATE_INTERVAL,
    STATE_INTERVAL_UNHEALTHY, TABLE_INTERVAL, TABLE_LOSING_INTERVAL, TOPOLOGY_INTERVAL,
};
use pathproof_facts::switches::Switches;
use pathproof_facts::time::{Anchor, Mono};
use pathproof_judge::brake::Brake;
use pathproof_judge::damping::{Damping, UpgradeGate};
use pathproof_judge::drain::Drain;
use pathproof_judge::eligibility::{Eligibility, eligibility};
use pathproof_judge::verdict::{CountedFamilies, Inputs, LastVerdict, verdict};
use pathproof_wire::service::{FAMILIES, Family};
use pathproof_witness::coverage::Coverage;
use pathproof_witness::drops::DropLedger;
use pathproof_witness::evidence::{CountDelta, FailedConnection, Sample};
use pathproof_witness::ledger::Ledger;
use pathproof_witness::peers::PeerLedger;
use pathproof_witness::topology::{self, DatapathTopology};
use serde::{Deserialize, Serialize};

use super::readings::Lookups;
use super::sentinel::SentinelState;
use super::{Settings, Start, boot};
use crate::effect::{
    Effect, Effects, Notice, PersistedState, ReadEffect, SentinelEffect, UnservedServices,
    VerdictUpdate, WriteEffect,
};
use crate::event::{Event, KernelSample, Successor, ViewFacts};

mod answers;

/// Everything that verdicts depend on.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Judge {
    pub settings: Settings,
    /// Both clocks at the start, to translate monotonic into wall-clock times.
    pub anchor: Anchor,
    pub(crate) now: Mono,
    /// The part of the cluster view that verdicts depend on.
    pub facts: Box<ViewFacts>,
    pub(super) eligibility: Eligibility,
    pub(super) coverage: Coverage,
    pub(super) ledger: Ledger,
    pub(super) sentinel: Option<SentinelState>,
    /// The programs that translate each path.
    #[serde(rename = "shape")]
    pub topology: DatapathTopology,
    #[serde(rename = "shape_read")]
    pub(super) topology_read: Option<Mono>,
    pub(super) successor: Successor,
    #[serde(skip)]
    pub(super) drain: Drain,
    pub(super) drops: DropLedger,
    pub(super) lookups: Lookups,
    damping: Damping,
    pub brake: Brake,
    /// Limits how many nodes leave because of marks beyond KEP-3836.
    #[serde(default)]
    pub(super) leaving_brake: Brake,
    /// Annotations that require audit mode.
    pub switches: Switches,
    /// Summary of the last verdict. Before the first verdict it is the summary that a former agent stored.
    pub last: Option<LastVerdict>,
    /// The node was more than Starting in this boot, so it does not return to Starting.
    #[serde(rename = "served")]
    left_starting: bool,
    /// /healthz is 503 because of the boot: the node is Starting, or no later verdict has ended the wait.
    #[serde(rename = "waits")]
    waits_for_boot: bool,
    /// Status codes of the last answers.
    statuses: [u16; 2],
    /// Services that are broken while the node is not.
    #[serde(skip)]
    broken: UnservedServices,
    #[serde(rename = "remembered")]
    persisted_at: Option<Mono>,
    /// Keeps the agent not ready while the verdict fails, if it began to fail when this agent started.
    pub gate: UpgradeGate,
    /// The latest single failures, newest first.
    #[serde(rename = "sightings")]
    pub failed_connections: VecDeque<FailedConnection>,
}

impl Judge {
    pub(super) fn new(settings: Settings, start: Start) -> Self {
        let now = start.now;
        let known = start.persisted.as_ref();
        let brake = known.map(|known| known.brake).unwrap_or_default();
        let is_renamed =
            known.is_some_and(|known| known.node != settings.node && !known.node.is_empty());
        let switches = known.map(|known| known.switches.clone());
        let switches = match is_renamed {
            true => switches.map(Switches::without_node),
            false => switches,
        };
        let brake = Brake::restore(settings.fleet_brake, &settings.node, brake);
        let leaving = known.map(|known| known.leaving_brake).unwrap_or_default();
        let leaving_brake = Brake::restore(settings.leaving_brake, &settings.node, leaving);
        let mut limits = settings.limits;
        limits.service_stagger = brake.stagger();
        let last = known.map(|known| known.verdict);
        let before = known.map(|known| (known.verdict.state, known.written));
        let [waits_for_boot, left_starting] = known.map_or([true, false], |known| known.boot);
        let (ledger, damping, eligibility) = match start.persisted {
            None => (
                Ledger::new(limits),
                Damping::new(settings.flap_dwell),
                Eligibility::NeverSeen,
            ),
            Some(known) => (
                Ledger::restore(limits, known.ledger, start.observer.continues, now),
                Damping::restore(settings.flap_dwell, known.damping),
                match is_renamed {
                    true => Eligibility::NeverSeen,
                    false => known.eligibility,
                },
            ),
        };
        let rereads = settings.rereads;
        let sentinel = (settings.sentinel.as_ref()).map(|_| SentinelState::new(rereads));
        Self {
            anchor: Anchor {
                mono: now,
                wall: start.wall,
            },
            now,
            facts: Box::default(),
            eligibility,
            coverage: Coverage::new(start.observer, now),
            ledger,
            sentinel,
            topology: DatapathTopology::default(),
            topology_read: None,
            successor: Successor::None,
            drain: Drain::new(settings.drain_ignore.clone()),
            drops: DropLedger::default(),
            lookups: Lookups::default(),
            damping,
            brake,
            leaving_brake,
            switches: (switches.unwrap_or_default()).selecting(settings.enforce_nodes.as_ref()),
            last,
            left_starting,
            waits_for_boot,
            statuses: [0; 2],
            broken: Arc::default(),
            persisted_at: None,
            gate: UpgradeGate::new(before, now),
            failed_connections: VecDeque::new(),
            settings,
        }
    }

    /// The time of an event, never earlier than the previous one.
    pub(crate) fn advance(&mut self, now: Mono) -> Mono {
        self.now = self.now.max(now);
        self.now
    }

    /// Updates the sentinel's identity after addresses were replaced, because it is computed from
    /// addresses.
    pub(crate) fn identify_again(&mut self) {
        if let Some(identity) = self.sentinel().map(|sentinel| sentinel.identity()) {
            self.ledger.sentinel.view.identity = identity;
        }
    }

    pub(super) fn step(&mut self, event: Event, directory: &dyn Directory, effects: &mut Effects) {
        match event {
            Event::Facts(facts) => self.know(facts, effects),
            Event::Rechecked(began, differs) => self.rechecked(began, differs, effects),
            Event::Successor(successor) => return self.successor = successor,
            Event::Hooks(hooks) => self.follow_hooks(hooks, effects),
            Event::HooksRepaired(at) => {
                self.coverage.settle(at);
                return self.drain.missed(self.now);
            }
            Event::Sample(sample) => return self.sample(*sample, directory, effects),
            Event::SampleFailed(why) => {
                if self.coverage.unread(&why) {
                    effects.push(Effect::Log(Notice::Unreadable(why)));
                }
                return self.judge_and_schedule(true, effects);
            }
            Event::ClockSet(wall) => {
                let mono = self.now;
                return self.anchor = Anchor { mono, wall };
            }
            Event::Tick => return self.judge_and_schedule(true, effects),
            Event::Check => {
                self.follow_table(TABLE_INTERVAL, effects);
                let due = |at: Mono| self.now.since(at) >= TOPOLOGY_INTERVAL;
                if self.topology_read.is_none_or(due) {
                    effects.push(Effect::Read(ReadEffect::Topology(None)));
                }
                return;
            }
            Event::Table(table) => return self.read_table(table, effects),
            Event::Lookups(lookups) => return self.read_lookups(&lookups, effects),
            Event::EndpointRoutes(read) => return self.read_routes(&read),
            Event::DropWatch(watch) => return self.drops.shown.watch = watch,
            Event::Topology(facts) => return self.topology(&facts, effects),
            Event::Sentinel(event) => return self.sentinel_changed(event, effects),
            Event::Trace(trace) => return self.trace(trace, effects),
            // The view planner and the directory have handled these.
            Event::View(_)
            | Event::Installed(_)
            | Event::Full(_)
            | Event::Reread(..)
            | Event::Services(_) => return,
        }
        self.judge_and_publish(effects);
    }

    /// Replaces the facts of the cluster view.
    fn know(&mut self, facts: Box<ViewFacts>, effects: &mut Effects) {
        let before = std::mem::replace(&mut self.facts, facts);
        if let Some(node) = &self.facts.node {
            self.eligibility = eligibility(Some(node), &self.settings.terminating);
            if let Some(selector) = &self.settings.enforce_nodes {
                self.switches.select(selector.matches(&node.marks));
            }
        }
        let node = self.facts.node.as_ref();
        let node = node.map(|node| node.enforcement.as_deref());
        let service = || self.facts.sentinel.enforcement.as_deref();
        let service = self.facts.synced.then(service);
        if self.switches.read(node, service) {
            let ignored = self.switches.ignored.iter().cloned();
            effects.extend(ignored.map(|what| Effect::Log(Notice::Ignored(what))));
        }
        self.coverage.source(self.facts.silent, self.now);
        self.coverage
            .unknown_frontends(self.facts.unknown_frontends.as_ref());
        self.brake.source(self.facts.silent, self.now);
        self.leaving_brake.source(self.facts.silent, self.now);
        self.follow_sentinel(&before, effects);
        let ledger = &mut self.ledger.sentinel;
        if self.facts.synced {
            ledger.follow_source(self.facts.silent, self.facts.node.as_ref(), self.now);
        }
        if self.facts.silent {
            ledger.source_away(self.now);
        }
    }

    fn topology(&mut self, facts: &topology::TopologyFacts, effects: &mut Effects) {
        let topology = DatapathTopology::after(self.ledger.sentinel.applicability.managed, facts);
        self.topology_read = Some(self.now);
        let ledger = &mut self.ledger.sentinel;
        ledger.topology_seen(&topology, self.now);
        for (family, owners) in Family::ALL.into_iter().zip(facts.owners) {
            if let Some(owners) = owners {
                ledger.owner_seen(family, topology.owners_with(owners), self.now);
            }
        }
        if topology != self.topology {
            let change = topology.change_since(&self.topology);
            effects.extend((!change.is_empty()).then_some(Effect::Log(Notice::Topology(change))));
            self.topology = topology;
            effects.push(Effect::Sentinel(SentinelEffect::Retarget));
        }
        self.note_obstacles();
    }

    fn sample(&mut self, sample: KernelSample, directory: &dyn Directory, effects: &mut Effects) {
        let (faults, forgotten) = (&sample.faults, sample.forgotten_early);
        self.coverage.read(faults, forgotten, self.now);
        let observer = self.coverage.health(self.facts.missing, self.now);
        let unwatched = || "only the sentinel's Service is watched (--view=sentinel)".to_owned();
        let blind = match self.settings.watches_services {
            true => self.coverage.hides_outside(&observer, self.facts.synced),
            false => Some(unwatched()),
        };
        self.drain.look(&sample.outside, blind);
        for failed_connection in &sample.failed_connections {
            self.failed_connections
                .push_front(failed_connection.clone());
        }
        self.failed_connections.truncate(FAILED_CONNECTIONS_KEPT);
        let info = |delta: &CountDelta| directory.service(delta.service);
        let is_ours = |delta: &CountDelta| info(delta).is_some_and(|info| info.sentinel);
        let (mut counts, peers) = (sample.counts, sample.peers);
        if self.settings.families == CountedFamilies::Used {
            self.ledger.note_users(&counts, directory, self.now);
        }
        // UDP decides no verdict and is only reported. Its one effect is above: it counts as use of its
        // family.
        counts.retain(|delta| info(delta).is_none_or(|info| !info.udp));
        let calm = sample.failed_connections.is_empty() && counts.iter().all(is_ours);
        let loses = counts.iter().any(|delta| delta.lost > 0)
            || (sample.failed_connections.iter())
                .any(|failed_connection| failed_connection.failure == Failure::Lost);
        let unanswered = sample.unanswered.iter().any(|count| *count > 0)
            || peers.counts.iter().any(|count| count.unanswered > 0);
        self.drops.take(&sample.drops, directory, self.now);
        let sample = Sample {
            at: self.now,
            counts,
            failed_connections: sample.failed_connections,
            last_proofs: sample.last_proofs,
            unanswered: sample.unanswered,
            programming: sample.programming,
            by_uplink: sample.by_uplink,
            lost_data: sample.lost_data,
            successes: sample.successes,
            observer,
        };
        self.ledger.absorb(&sample, directory);
        self.ledger.absorb_peers(&peers, directory);
        self.look_up(effects);
        self.judge_and_schedule(calm, effects);
        if loses || unanswered {
            self.watch_drops(effects);
        }
        if self.drops.look(self.now) {
            effects.push(Effect::Read(ReadEffect::WatchDrops(false)));
        }
        if loses || self.ledger.sentinel.conntrack.is_full(self.now) {
            self.follow_table(TABLE_LOSING_INTERVAL, effects);
        }
    }

    /// The next sample is later if the last one was `calm` and all is well.
    fn judge_and_schedule(&mut self, calm: bool, effects: &mut Effects) {
        self.judge_and_publish(effects);
        let pause = match calm && self.is_well() {
            true => IDLE_INTERVAL,
            false => SAMPLE_INTERVAL,
        };
        effects.push(Effect::Read(ReadEffect::SampleAfter(pause)));
    }

    pub fn peers(&self) -> &PeerLedger {
        &self.ledger.peers
    }

    /// Whether everything is proven, nothing fails, and both answers are 200.
    fn is_well(&self) -> bool {
        let failing = |family| self.ledger.sentinel.is_failing(family);
        self.last.is_some_and(|last| last.state == State::Proven)
            && self.statuses == [200; 2]
            && !Family::ALL.into_iter().any(failing)
    }

    /// Whether the node is already Broken or Stale, even if audit mode answers 200.
    pub(super) fn is_accused(&self) -> bool {
        self.last.is_some_and(|last| last.state.fails())
    }

    /// Judges the node, and adds the verdict, the answers and the state to remember to the effects.
    pub(super) fn judge_and_publish(&mut self, effects: &mut Effects) {
        if self.coverage.blindness().is_some() {
            // Without an observer no sample arrives. An empty one records that nothing is observed.
            let sample = Sample {
                at: self.now,
                observer: self.coverage.health(self.facts.missing, self.now),
                ..Sample::default()
            };
            self.ledger.absorb(&sample, &BTreeMap::new());
        }
        self.drain.follow(&self.eligibility, self.now);
        if let Some(why) = self.coverage.blindness() {
            self.drain.cannot_see(&why);
        }
        let inputs = Inputs {
            eligibility: self.eligibility.clone(),
            view_synced: self.facts.synced,
            families: self.facts.families,
            sentinel_exists: self.sentinel().is_some_and(|sentinel| sentinel.exists()),
            booted: Mono(0),
            pods_expected: match self.left_starting {
                true => [false; FAMILIES],
                false => boot::pods_expected(&self.facts, &self.topology, &self.coverage.hooks),
            },
            network: (self.facts.node.as_ref()).and_then(|node| node.network.clone()),
            uplinks: self.coverage.hooks.uplinks().map(str::to_owned).collect(),
            usual_lag: self.ledger.sentinel.usual_lag(),
            counted: self.settings.families,
            clients_unseen: self.topology.hides_clients() || self.coverage.hides_clients(),
        };
        let mut verdict = verdict(&self.ledger, &inputs, self.now).following(self.last.as_ref());
        verdict.drops.clone_from(&self.drops.shown);
        let is_booting = self.now.since(inputs.booted) < self.settings.limits.boot_deadline;
        let (before, pods) = (
            [self.waits_for_boot, self.left_starting],
            inputs.pods_expected,
        );
        self.waits_for_boot = is_booting && boot::still_waits(before, &verdict, &self.facts, pods);
        self.left_starting |=
            is_booting && !self.waits_for_boot && boot::leaves_starting(verdict.state);
        let answers = self.answer(&verdict, effects);
        let statuses = [answers.healthz.status, answers.livez.status];
        let news = self.last != Some(LastVerdict::of(&verdict)) || self.statuses != statuses;
        self.statuses = statuses;
        self.last = Some(LastVerdict::of(&verdict));
        if self.gate.record_state(verdict.state, self.now) {
            effects.push(Effect::Log(Notice::UpgradeFailed));
        }
        self.remember(news, effects);
        effects.push(Effect::Publish(Box::new(VerdictUpdate {
            verdict,
            answers,
        })));
    }

    fn remember(&mut self, changed: bool, effects: &mut Effects) {
        let pause = match self.is_well() {
            true => STATE_INTERVAL,
            false => STATE_INTERVAL_UNHEALTHY,
        };
        let due = self
            .persisted_at
            .is_none_or(|at| self.now.since(at) >= pause);
        // A successor's evidence is newer, so this agent no longer writes its state.
        let wanted = (changed || due) && !self.successor.exists();
        let Some(verdict) = self.last.filter(|_| wanted) else {
            return;
        };
        self.persisted_at = Some(self.now);
        effects.push(Effect::Write(WriteEffect::State(Box::new(
            PersistedState {
                ledger: self.ledger.memory(),
                damping: self.damping.memory.clone(),
                brake: self.brake.memory,
                leaving_brake: self.leaving_brake.memory,
                switches: self.switches.clone(),
                verdict,
                eligibility: self.eligibility.clone(),
                node: self.settings.node.clone(),
                written: self.now,
                boot: [self.waits_for_boot, self.left_starting],
            },
        ))));
    }
}
