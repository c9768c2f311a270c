//! The state of the main loop, and what each event does to it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use agent_common::service::FAMILIES;
use tokio::sync::watch;

use super::Delivered;
use super::coverage::Eyesight;
use super::memory::Memory;
use super::probing::Probing;
use super::shape::Surroundings;
use crate::clock;
use crate::config::Config;
use crate::datapath::Observer;
use crate::datapath::devices::{Device, Interfaces};
use crate::datapath::sample::Look;
use crate::datapath::steer::Succession;
use crate::http::health::Answers;
use crate::lifecycle::memory;
use crate::metrics::Metrics;
use crate::publish::Publishing;
use agent_core::answer::{Answer, Endpoint, answer};
use agent_core::cause::State;
use agent_core::cluster::Change;
use agent_core::damping::Damping;
use agent_core::drain::Drain;
use agent_core::eligibility::{Eligibility, TerminatingTaints, eligibility};
use agent_core::evidence::{Sample, Sighting};
use agent_core::ledger::Ledger;
use agent_core::limits::Limits;
use agent_core::memory::Remembered;
use agent_core::plan::Planner;
use agent_core::report::hardening::HardeningReport;
use agent_core::report::{PortReport, Report};
use agent_core::time::{Anchor, Mono};
use agent_core::upstream::{Heard, Upstream};
use agent_core::verdict::{BootState, Inputs, LastVerdict, Verdict, verdict};
use agent_core::view::ClusterView;

mod drain;
mod look;
mod planning;

pub(super) use look::TICK;

/// What others read.
pub(super) struct Published {
    pub(super) answers: watch::Receiver<Arc<Answers>>,
    pub(super) report: watch::Receiver<Option<Arc<Report>>>,
}

/// What stands is written down at least this often while all is well, and where it is not: a kill
/// loses no more of a run of failures. A change is written at once.
const REMEMBER: Duration = Duration::from_secs(10);
const REMEMBER_TROUBLE: Duration = Duration::from_secs(1);
/// A change of so many objects leaves memory behind that is worth giving back.
const LARGE: usize = 1_000;

/// Everything the main loop knows.
pub(super) struct Agent {
    pub(super) config: Config,
    pub(super) observer: Option<Observer>,
    pub(super) view: ClusterView,
    pub(super) planner: Planner,
    pub(super) eyesight: Eyesight,
    pub(super) metrics: Arc<Metrics>,
    pub(super) problems: Vec<String>,
    /// The source of the view does not tell what happens now.
    pub(super) source_silent: bool,
    pub(super) ignored: u64,
    pub(super) view_changed: Option<Mono>,
    pub(super) view_changes: u64,
    pub(super) anomalies: u64,
    pub(super) sightings: VecDeque<Sighting>,
    pub(super) faults: Option<Look>,
    pub(super) started: agent_core::time::Wall,
    /// Both clocks at start: what turns proofs into wall-clock times.
    pub(super) anchor: Anchor,
    /// The sentinel, unless it is turned off.
    pub(super) probing: Option<Probing>,
    /// How connections to the healthz port come here.
    pub(super) port: Option<watch::Receiver<PortReport>>,
    /// What is asked for a successor, where connections are steered.
    pub(super) succession: Option<Arc<Succession>>,
    /// Devices as they came or went while a successor had the hooks.
    postponed: Option<(Vec<Device>, usize)>,
    /// A successor kept the maps since what was planned here: they are read before the next plan.
    unread_maps: bool,
    /// The datapath's shape.
    pub(super) surroundings: Surroundings,
    /// What is written to the API server, where something is.
    pub(super) publishing: Option<Publishing>,
    /// What the process has given up.
    pub(super) hardening: HardeningReport,
    /// Why there is no observer.
    blind: Option<String>,
    no_pins: Option<String>,
    /// Families with frontends.
    families: [bool; FAMILIES],
    taints: TerminatingTaints,
    eligibility: Eligibility,
    pub(super) ledger: Ledger,
    pub(super) drain: Drain,
    /// What the node's own proxy says, where it is asked.
    pub(super) upstream: Upstream,
    damping: Damping,
    last: Option<LastVerdict>,
    /// The former agent's verdict, and when that was last said.
    pub(super) former: Option<(State, Mono)>,
    /// Statuses of the last answers.
    kept: [u16; 2],
    memory: Memory,
    remembered: Option<Mono>,
    expired: Option<Mono>,
    /// What start needed was let go.
    lean: bool,
    answers: watch::Sender<Arc<Answers>>,
    report: watch::Sender<Option<Arc<Report>>>,
}

impl Agent {
    /// Begins where an agent of this boot stopped, if one did.
    pub(super) fn new(
        config: Config,
        observer: Option<Observer>,
        blind: Option<String>,
        no_pins: Option<String>,
        probing: Option<Probing>,
        metrics: Arc<Metrics>,
    ) -> (Self, Published) {
        let now = clock::mono();
        let memory = Memory::in_dir(config.state_dir.as_deref());
        let recalled = memory.recall();
        let pinned = observer.as_ref().is_some_and(Observer::continues);
        let limits = Limits::default();
        let (ledger, damping) = match &recalled {
            None => (Ledger::new(limits), Damping::new(config.flap_dwell)),
            Some(known) => (
                Ledger::restore(limits, known.ledger.clone(), pinned, now),
                Damping::restore(config.flap_dwell, known.damping.clone()),
            ),
        };
        let eligibility = recalled
            .as_ref()
            .map_or(Eligibility::NeverSeen, |known| known.eligibility.clone());
        let taints = config.terminating_taints.clone();
        let (answers, answers_seen) = watch::channel(Arc::new(unasked()));
        let (report, report_seen) = watch::channel(None);
        let wall = clock::wall();
        let mut eyesight = Eyesight::default();
        eyesight.settle(now);
        let sentinel = config.sentinel.as_ref().map(|of| of.service.clone());
        let agent = Self {
            drain: Drain::new(config.drain_ignore.clone()),
            upstream: Upstream::default(),
            probing,
            port: None,
            succession: None,
            postponed: None,
            unread_maps: false,
            surroundings: Surroundings::default(),
            publishing: None,
            hardening: HardeningReport::default(),
            config,
            observer,
            view: ClusterView::new(),
            planner: Planner::new().with_sentinel(sentinel),
            eyesight,
            metrics,
            problems: Vec::new(),
            source_silent: false,
            ignored: 0,
            view_changed: None,
            view_changes: 0,
            anomalies: 0,
            sightings: VecDeque::new(),
            faults: None,
            started: wall,
            anchor: Anchor { mono: now, wall },
            blind,
            no_pins,
            families: [false; FAMILIES],
            taints,
            eligibility,
            ledger,
            damping,
            former: recalled
                .as_ref()
                .map(|known| (known.verdict.state, known.written)),
            last: recalled.map(|known| known.verdict),
            kept: [0; 2],
            memory,
            remembered: None,
            expired: None,
            lean: false,
            answers,
            report,
        };
        (
            agent,
            Published {
                answers: answers_seen,
                report: report_seen,
            },
        )
    }

    /// State of the last verdict; before the first, that of a former agent's.
    pub(super) fn state(&self) -> Option<State> {
        self.last.as_ref().map(|last| last.state)
    }

    /// Whether everything that was there at the start has been delivered.
    pub(super) fn view_synced(&self) -> bool {
        self.view.is_synced()
    }

    /// The cluster view changed, or what is wrong with it did.
    pub(super) fn follow_view(&mut self, update: Delivered, now: Mono) {
        self.ignored = update.ignored.values().sum();
        let problems: Vec<_> = update.problems.iter().map(ToString::to_string).collect();
        for problem in problems
            .iter()
            .filter(|problem| !self.problems.contains(problem))
        {
            tracing::warn!(%problem, "the cluster view has a problem; the last good view stays");
        }
        self.problems = problems;
        self.source_silent = update.problems.iter().any(|of| of.reason.is_silence());
        self.eyesight.hear(self.source_silent, now);
        if !update.changes.is_empty() {
            self.apply(update.changes, now);
        } else if self.view.is_synced() {
            let sentinel = self.ledger.sentinel_mut();
            sentinel.follow_source(self.source_silent, self.view.node(), now);
        }
        if self.source_silent {
            self.ledger.sentinel_mut().source_away(now);
        }
        self.publish(now);
    }

    fn apply(&mut self, changes: Vec<Change>, now: Mono) {
        let large = changes.len() >= LARGE;
        self.view_changes += changes.len() as u64;
        self.view_changed = Some(now);
        let applied = self.view.apply(changes);
        if let Some(node) = self.view.node() {
            self.eligibility = eligibility(Some(node), &self.taints);
        }
        let plan = self.plan(&applied, now);
        self.program(&plan);
        self.follow_plan();
        self.follow_sentinel(now);
        tracing::debug!(
            services = self.view.service_count(),
            changes = plan.len(),
            "the cluster view changed"
        );
        drop((applied, plan));
        if large {
            memory::give_back();
        }
    }

    /// The devices that the rule wants, and how many it leaves out. The sentinel's far ends are
    /// neither: what crosses them is on no node's way.
    pub(super) fn watched(&self, interfaces: &Interfaces) -> (Vec<Device>, usize) {
        let own = self.probing.as_ref().map(Probing::far_ends);
        let of_node =
            |device: &&Device| own.as_ref().is_none_or(|ends| !ends.contains(&device.name));
        let devices: Vec<&Device> = interfaces.devices.iter().filter(of_node).collect();
        let wanted: Vec<Device> = devices
            .iter()
            .filter(|device| self.config.interfaces.watches(&device.name))
            .map(|device| (*device).clone())
            .collect();
        let left_out = devices.len() - wanted.len() + interfaces.unfollowed;
        (wanted, left_out)
    }

    /// Interfaces came or went. They are the successor's to follow, where there is one.
    pub(super) fn follow_devices(&mut self, devices: (Vec<Device>, usize), now: Mono) {
        if self.is_succeeded() {
            self.postponed = Some(devices);
            return;
        }
        self.postponed = None;
        let (wanted, left_out) = devices;
        self.eyesight.left_out = left_out;
        if let Some(observer) = &mut self.observer {
            observer.follow(&wanted);
        }
        tracing::debug!(devices = wanted.len(), left_out, "the interfaces changed");
        self.publish(now);
    }

    /// Looks whether every hook still stands. A successor has the hooks: two agents that both insist
    /// on being first would fight. One that dies gives them back.
    pub(super) fn check(&mut self, now: Mono) {
        if self.is_succeeded() {
            return;
        }
        if let Some(devices) = self.postponed.take() {
            self.follow_devices(devices, now);
        }
        if let Some(observer) = &mut self.observer {
            let before = observer.repairs();
            observer.check(now);
            if observer.repairs() != before {
                self.eyesight.settle(now);
                self.drain.missed(clock::mono());
            }
        }
        self.check_shape(now);
        self.check_sentinel(now);
    }

    /// The node's own proxy answered, or did not.
    pub(super) fn hear_upstream(&mut self, heard: Heard, now: Mono) {
        let before = self.upstream.last().map(|(_, before)| before.clone());
        if before.as_ref() != Some(&heard)
            && let Heard::Unusable(why) = &heard
        {
            tracing::warn!(%why, "--upstream: that is no health server of a proxy; it is left out");
        }
        let leaving = matches!(
            self.eligibility,
            Eligibility::Deleting | Eligibility::Tainted { .. }
        );
        self.upstream.hear(heard, leaving, now);
        self.publish(now);
    }

    /// Judges, and publishes what follows from it.
    pub(super) fn publish(&mut self, now: Mono) {
        if self.observer.is_none() {
            self.absorb_blindness(now);
        }
        self.follow_drain(now);
        let verdict = verdict(&self.ledger, &self.inputs(now), now).following(self.last.as_ref());
        self.log(&verdict);
        let served = self.damping.step(&verdict, self.config.unknown_policy);
        let of = |endpoint| {
            answer(
                endpoint,
                &verdict,
                &served,
                self.config.unknown_policy,
                self.config.enforcement,
                &self.anchor,
            )
        };
        let answers = Answers {
            healthz: of(Endpoint::Healthz),
            livez: of(Endpoint::Livez),
        };
        // What a restart must not change, beside the verdict.
        let kept = [answers.healthz.status, answers.livez.status];
        let changed = self.last != Some(LastVerdict::of(&verdict)) || self.kept != kept;
        self.kept = kept;
        self.last = Some(LastVerdict::of(&verdict));
        self.remember(&verdict, changed, now);
        let report = Arc::new(self.assemble(verdict, &answers));
        self.answers.send_replace(Arc::new(answers));
        self.report.send_replace(Some(Arc::clone(&report)));
        self.metrics.update(self.snapshot(report));
    }

    fn inputs(&self, now: Mono) -> Inputs {
        Inputs {
            eligibility: self.eligibility.clone(),
            view_synced: self.view.is_synced(),
            families: self.families,
            boot: BootState {
                sentinel_exists: self.probing.as_ref().is_some_and(Probing::exists),
                ..BootState::default()
            },
            usual_lag: self.ledger.sentinel().usual_lag(),
            upstream: self.upstream.voice(now),
        }
    }

    /// Without an observer nothing is looked at, and that is the evidence.
    fn absorb_blindness(&mut self, now: Mono) {
        let observer = self.eyesight.health(
            None,
            self.planner.missing(),
            self.blind.as_deref(),
            self.no_pins.as_deref(),
            now,
        );
        self.ledger.absorb(
            &Sample {
                at: now,
                observer,
                ..Sample::default()
            },
            &self.planner,
        );
    }

    fn log(&self, verdict: &Verdict) {
        if self.last.as_ref().is_none_or(|last| verdict.differs(last)) {
            tracing::info!(
                state = verdict.state.name(),
                eligibility = verdict.eligibility.name(),
                reason = %verdict.reason(),
                "the verdict changed"
            );
        }
    }

    fn remember(&mut self, verdict: &Verdict, changed: bool, now: Mono) {
        let pause = if self.is_well() {
            REMEMBER
        } else {
            REMEMBER_TROUBLE
        };
        let due = self.remembered.is_none_or(|at| now.since(at) >= pause);
        // What a successor has seen is newer than what is seen here.
        if (!changed && !due) || self.is_succeeded() {
            return;
        }
        self.remembered = Some(now);
        self.memory.remember(Remembered {
            ledger: self.ledger.memory(),
            damping: self.damping.memory(),
            verdict: LastVerdict::of(verdict),
            eligibility: self.eligibility.clone(),
            written: now,
        });
    }

    /// The last thing before the process ends. Pinned links stay: the next agent finds them. So do
    /// the sentinel's devices, where it uses them already.
    pub(super) async fn end(&mut self, succeeded: bool) {
        if let Some(probing) = self.probing.take() {
            probing.end(succeeded).await;
        }
        if let Some(observer) = &mut self.observer {
            observer.release();
        }
    }
}

/// Stands in the channel until the first verdict, which comes before anyone can ask.
fn unasked() -> Answers {
    let answer = |node_eligible| Answer {
        status: 200,
        healthy: true,
        node_eligible,
        families: Vec::new(),
        would_fail: false,
    };
    Answers {
        healthz: answer(Some(true)),
        livez: answer(None),
    }
}
