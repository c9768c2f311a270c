//! One node: [`Node::step`] takes an event and the time, and returns effects. All decisions of the agent
//! are made in this crate and the crates that it uses; the shell feeds events and performs effects.
//!
//! `view_planner` gets each event first: it keeps the cluster view and plans the maps. Then `judge` gets
//! it, keeps the evidence and judges. The judge does not get the view, only
//! [`ViewFacts`](crate::event::ViewFacts) and the Services behind single ids. A recording contains exactly
//! these inputs, so a replay drives the same judge.

pub mod effect;
pub mod event;
pub mod record;
pub mod replay;

mod boot;
mod departures;
mod judge;
mod programming;
mod readings;
mod sentinel;
mod view_planner;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

pub use judge::Judge;
use pathproof_facts::directory::{Directory, ServiceInfo};
use pathproof_facts::limits::Limits;
use pathproof_facts::switches::{Enforcement, NodeSelector};
use pathproof_facts::time::{Mono, Wall};
use pathproof_facts::view::ClusterView;
use pathproof_judge::answer::UnknownPolicy;
use pathproof_judge::drain::{DrainView, ProbeRanges};
use pathproof_judge::eligibility::{Eligibility, TerminatingMarks};
use pathproof_judge::verdict::CountedFamilies;
use pathproof_plan::Planner;
use pathproof_plan::expect::conflicts::SentinelConflicts;
use pathproof_plan::expect::sentinel::SentinelRule;
use pathproof_wire::service::Family;
use pathproof_witness::coverage::ObserverStart;
pub use sentinel::{Condition, SentinelStatus};
use serde::{Deserialize, Serialize};
use view_planner::ViewPlanner;
pub use view_planner::ViewState;

use crate::effect::{Effect, Effects, Notice, PersistedState, WriteEffect};
use crate::event::{Event, Service};
use crate::record::Recorder;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Settings {
    pub node: String,
    /// Thresholds and times of the rules.
    pub limits: Limits,
    /// Marks that announce the removal of a node.
    #[serde(rename = "taints")]
    pub terminating: TerminatingMarks,
    /// Answer for an unknown verdict.
    pub unknown_policy: UnknownPolicy,
    /// Whether a broken datapath changes the answers.
    pub enforcement: Enforcement,
    /// The Nodes that enforce, while all others audit; `None` for all.
    #[serde(default)]
    pub enforce_nodes: Option<NodeSelector>,
    /// Families that count for the answers.
    pub families: CountedFamilies,
    /// The first hold-down of a flapping node.
    pub flap_dwell: Duration,
    /// Maximum share of nodes that may be out of service together, in percent; `None` turns the brake off.
    pub fleet_brake: Option<u32>,
    /// The same for nodes that leave because of marks beyond KEP-3836.
    #[serde(default)]
    pub leaving_brake: Option<u32>,
    /// Source ranges of load balancers' probes.
    #[serde(skip)]
    pub drain_ignore: ProbeRanges,
    pub watches_services: bool,
    /// The sentinel; `None` if turned off.
    pub sentinel: Option<SentinelRule>,
    /// TCP ports of the agent itself, at every address of the node.
    #[serde(skip)]
    pub own_ports: Vec<u16>,
    /// Whether the sentinel can be read uncached. This requires that the view comes from an API server.
    pub rereads: bool,
}

#[derive(Clone, Debug, Default)]
pub struct Start {
    pub now: Mono,
    /// The wall clock at the same moment as `now`.
    pub wall: Wall,
    pub observer: ObserverStart,
    /// State left by an agent of the same boot.
    pub persisted: Option<PersistedState>,
}

pub struct Node {
    view_planner: ViewPlanner,
    pub(crate) judge: Judge,
    /// `None` in a replay, and if no recording is wanted.
    recorder: Option<Recorder>,
    /// The Services behind ids, in a replay.
    recorded: Option<BTreeMap<u32, ServiceInfo>>,
    /// The missing Node object was logged.
    logged_missing: bool,
    /// Number of checks since the agent started.
    checks: usize,
}

impl Node {
    /// Continues from the state that an agent of this boot stored, if there is one.
    pub fn new(settings: Settings, start: Start) -> Self {
        Self {
            view_planner: ViewPlanner::new(&settings),
            judge: Judge::new(settings, start),
            recorder: Some(Recorder::default()),
            recorded: None,
            logged_missing: false,
            checks: 0,
        }
    }

    /// Continues from the judge in a recording; the events come from the recording too.
    pub fn replay(judge: Judge) -> Self {
        Self {
            view_planner: ViewPlanner::default(),
            judge,
            recorder: None,
            recorded: Some(BTreeMap::new()),
            logged_missing: false,
            checks: 0,
        }
    }

    /// Processes one event. Time never goes back: if `now` is earlier than the latest time, the latest is
    /// used.
    pub fn step(&mut self, event: Event, now: Mono) -> Effects {
        let mut effects = Vec::new();
        let now = self.judge.advance(now);
        match self.view_planner.take(event, now, &mut effects) {
            None => {}
            Some(Event::Services(services)) => self.learn(services),
            // Most checks read the routes that are known already, so they are not recorded.
            Some(Event::EndpointRoutes(read)) if self.judge.knows_routes(&read) => {}
            Some(event) => {
                let is_check = matches!(event, Event::Check);
                if is_check
                    && self.recorded.is_none()
                    && let Some(facts) = self.view_planner.facts()
                    && facts != self.judge.facts
                {
                    self.pass(Event::Facts(facts), now, &mut effects);
                }
                self.pass(event, now, &mut effects);
                if is_check {
                    let all = (self.judge.facts.synced)
                        .then(|| self.view_planner.cached_endpoints_here());
                    self.judge.follow_routes(all, self.checks, &mut effects);
                    self.checks = self.checks.wrapping_add(1);
                }
            }
        }
        self.steer_ports(now, &mut effects);
        if !self.logged_missing
            && let Some(problem) = self.overdue_node().cloned()
        {
            self.logged_missing = true;
            effects.push(Effect::Log(Notice::ViewProblem(problem)));
        }
        effects
    }

    /// Updates the health check node ports with each verdict, once the view is complete: until then,
    /// Services may lack endpoints, and their ports may lack answers.
    fn steer_ports(&mut self, now: Mono, effects: &mut Effects) {
        if !self.judge.facts.synced {
            return;
        }
        let update = effects.iter().rev().find_map(|effect| match effect {
            Effect::Publish(update) => Some(update),
            _ => None,
        });
        let table = update.and_then(|update| self.view_planner.health_ports(&update.answers, now));
        effects.extend(table.map(|table| Effect::HealthPorts(Arc::new(table))));
    }

    fn pass(&mut self, event: Event, now: Mono, effects: &mut Effects) {
        let directory: &dyn Directory = match &self.recorded {
            Some(recorded) => recorded,
            None => &self.view_planner.planner,
        };
        let Some(recorder) = &mut self.recorder else {
            return self.judge.step(event, directory, effects);
        };
        let followed = self.judge.ledger.external_failures.ids();
        recorder.note((&event, followed), now, &self.judge, directory);
        let before = effects.len();
        self.judge.step(event, directory, effects);
        let mut shown = false;
        for effect in &effects[before..] {
            if let Effect::Publish(update) = effect {
                shown |= recorder.record_update(update);
            }
        }
        if shown {
            effects.push(Effect::Write(WriteEffect::Recording));
        }
    }

    /// Removes the flight recorder, which takes up to 1 MiB. Needed for thousands of nodes in one process.
    #[must_use]
    pub fn unrecorded(mut self) -> Self {
        self.recorder = None;
        self
    }

    /// The events of the last minutes as a file; empty without a flight recorder.
    pub fn recording(&self) -> Vec<u8> {
        self.recorder.as_ref().map_or_else(Vec::new, Recorder::file)
    }

    /// Stores the Services that a recording names.
    fn learn(&mut self, services: Vec<Service>) {
        let names = self.recorded.get_or_insert_default();
        for Service { id, known } in services {
            match known {
                Some(known) => names.insert(id, known),
                None => names.remove(&id),
            };
        }
    }

    /// Everything that verdicts depend on.
    pub fn judge(&self) -> &Judge {
        &self.judge
    }

    /// The last reported state of the cluster.
    pub fn view(&self) -> &ClusterView {
        &self.view_planner.view
    }

    /// State of the view apart from its objects.
    pub fn view_state(&self) -> &ViewState {
        &self.view_planner.state
    }

    /// Why the node's eligibility is unknown although the view is complete. A Node that was deleted is known.
    pub fn missing_node(&self) -> Option<&String> {
        let unknown = self.judge.eligibility == Eligibility::NeverSeen && self.view().is_synced();
        let missing = self.view_state().missing_node.as_ref();
        missing.filter(|_| unknown).map(|(why, _)| why)
    }

    /// The missing Node, after the time in which the kubelet of a booting node creates it.
    fn overdue_node(&self) -> Option<&String> {
        let (_, since) = self.view_state().missing_node.as_ref()?;
        let waited = self.judge.now.since(*since);
        self.missing_node()
            .filter(|_| waited >= self.judge.settings.limits.boot_deadline)
    }

    /// Problems of the view, a sentence each.
    pub fn view_problems(&self) -> impl Iterator<Item = &String> {
        self.view_state().problems.iter().chain(self.overdue_node())
    }

    /// Content of the expectation maps, and the Services behind ids.
    pub fn planner(&self) -> &Planner {
        &self.view_planner.planner
    }

    /// Services that use the destinations of the sentinel's probes.
    pub fn sentinel_conflicts(&self) -> &SentinelConflicts {
        &self.view_planner.sentinel_conflicts
    }

    /// The sentinel; `None` if turned off.
    pub fn sentinel(&self) -> Option<SentinelStatus<'_>> {
        self.judge.sentinel()
    }

    /// Connections from outside.
    pub fn drain(&self) -> &DrainView {
        self.judge.drain.view()
    }

    /// Some of this node's endpoints that need forwarding, each with the namespaces that list it.
    pub fn endpoints_here(&self, family: Family) -> Vec<(IpAddr, Vec<&str>)> {
        let listed = self.view_planner.endpoints_here();
        self.judge.to_look_up(family, listed)
    }

    pub fn uid(&self) -> Option<Arc<str>> {
        let uid = &self.view().node()?.uid;
        (!uid.is_empty()).then(|| Arc::clone(uid))
    }
}
