//! The shell around the node: takes what its sources bring, feeds it to the core as events, and
//! performs the effects that come of them. Nothing is decided here.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use agent_common::evidence::FAULTS;
use agent_common::service::FAMILIES;
use agent_core::coverage::{Hook, Hooks, ObserverStart};
use agent_core::effect::{Answers, Effect, Judged, Notice};
use agent_core::event::{Event, Parts, Successor, ViewUpdate};
use agent_core::limits::{Limits, SAMPLE_INTERVAL};
use agent_core::node::{Node, Settings, Start};
use agent_core::owners::DatapathOwners;
use agent_core::plan::MapChange;
use agent_core::report::Report;
use agent_core::report::hardening::HardeningReport;
use agent_core::time::{Mono, Wall};
use tokio::sync::watch;

use super::probing::{Message, Probing};
use crate::clock;
use crate::cluster::watch::Update;
use crate::config::Config;
use crate::datapath::Observer;
use crate::datapath::attach::Attachment;
use crate::datapath::devices::{Device, Interfaces};
use crate::datapath::shape::Seen;
use crate::lifecycle::memory;
use crate::metrics::Metrics;
use crate::port::Succeeded;
use crate::publish::Publishing;
use crate::sentinel::owners::owners;
use crate::state::Memory;
use crate::state::recordings::Recordings;

/// What others read.
pub(super) struct Published {
    pub(super) answers: watch::Receiver<Arc<Answers>>,
    pub(super) report: watch::Receiver<Option<Arc<Report>>>,
}

/// A change of so many objects leaves memory behind that is worth giving back.
const LARGE: usize = 1_000;

/// The observer as it was loaded.
#[derive(Default)]
pub(super) struct Loaded {
    pub(super) observer: Option<Observer>,
    pub(super) start: ObserverStart,
}

pub(super) struct Agent {
    pub(super) config: Config,
    pub(super) node: Node,
    pub(super) observer: Option<Observer>,
    /// The sentinel's parts, unless it is turned off.
    pub(super) probing: Option<Probing>,
    pub(super) interfaces: Interfaces,
    pub(super) succeeded: Succeeded,
    pub(super) metrics: Arc<Metrics>,
    pub(super) output: Output,
    memory: Memory,
    /// When the kernel's evidence is read again.
    next_sample: Duration,
}

/// What goes out beside metrics, and what is shown of the shell itself.
pub(super) struct Output {
    pub(super) publishing: Option<Publishing>,
    pub(super) hardening: HardeningReport,
    pub(super) started: Wall,
    pub(super) faults: Option<[u64; FAULTS]>,
    pub(super) anomalies: u64,
    answers: watch::Sender<Arc<Answers>>,
    report: watch::Sender<Option<Arc<Report>>>,
}

impl Agent {
    /// Begins where an agent of this boot stopped, if one did.
    pub(super) fn new(
        config: Config,
        loaded: Loaded,
        probing: Option<Probing>,
        limits: Limits,
        metrics: Arc<Metrics>,
    ) -> (Self, Published) {
        let memory = Memory::in_dir(config.state_dir.as_deref());
        let start = Start {
            now: clock::mono(),
            wall: clock::wall(),
            observer: loaded.start,
            remembered: memory.recall(),
        };
        let started = start.wall;
        let rereads = probing.as_ref().is_some_and(Probing::rereads);
        let node = Node::new(settings(&config, limits, rereads), start);
        let (answers, answers_seen) = watch::channel(Arc::new(Answers::before_the_first()));
        let (report, report_seen) = watch::channel(None);
        let agent = Self {
            config,
            node,
            observer: loaded.observer,
            probing,
            interfaces: Interfaces::default(),
            succeeded: Succeeded::default(),
            metrics,
            output: Output {
                publishing: None,
                hardening: HardeningReport::default(),
                started,
                faults: None,
                anomalies: 0,
                answers,
                report,
            },
            memory,
            next_sample: SAMPLE_INTERVAL,
        };
        let published = Published {
            answers: answers_seen,
            report: report_seen,
        };
        (agent, published)
    }

    pub(super) fn view_synced(&self) -> bool {
        self.node.view().is_synced()
    }

    /// The cluster view changed, or what is wrong with it did.
    pub(super) fn follow_view(&mut self, update: Update) {
        self.follow_successor();
        let changes = update.changes.len();
        self.feed(Event::View(ViewUpdate {
            problems: update.problems.iter().map(ToString::to_string).collect(),
            silent: update.problems.iter().any(|of| of.reason.is_silence()),
            ignored: update.ignored.values().sum(),
            changes: update.changes,
        }));
        if changes > 0 {
            self.metrics.retain(self.node.planner());
        }
        if changes >= LARGE {
            memory::give_back();
        }
    }

    /// Interfaces came or went. Their hooks are the successor's to keep, where there is one.
    pub(super) fn follow_interfaces(&mut self, interfaces: Interfaces) {
        self.interfaces = interfaces;
        if let Some(shape) = self.read_shape(None) {
            self.feed(shape);
        }
        self.follow_devices();
    }

    fn follow_devices(&mut self) {
        if self.follow_successor() {
            self.succeeded.postponed = true;
            return;
        }
        let (wanted, left_out) = self.watched();
        let Some(observer) = &mut self.observer else {
            return self.feed(Event::Tick);
        };
        observer.follow(&wanted);
        tracing::debug!(
            devices = wanted.len(),
            left_out,
            "the interfaces were followed"
        );
        let hooks = hooks(observer.attachments(), left_out);
        self.feed(Event::Hooks(hooks));
    }

    /// The devices that the configuration wants, and how many it leaves out. The sentinel's far ends
    /// are neither: what crosses them is on no node's way.
    fn watched(&self) -> (Vec<Device>, usize) {
        let own = self.probing.as_ref().map(Probing::far_ends);
        let of_node =
            |device: &&Device| own.as_ref().is_none_or(|ends| !ends.contains(&device.name));
        let devices = self.interfaces.devices.iter().filter(of_node);
        let (wanted, others): (Vec<&Device>, Vec<_>) =
            devices.partition(|device| self.config.interfaces.watches(&device.name));
        let wanted = wanted.into_iter().cloned().collect();
        (wanted, others.len() + self.interfaces.unfollowed)
    }

    /// Every few seconds: are the hooks still there, and first? Two agents that both insist on being
    /// first would fight, so a successor has them.
    pub(super) fn check(&mut self) {
        // What is due at a check is not, beside a successor.
        let succeeded = self.follow_successor();
        self.feed(Event::Check);
        if succeeded {
            return;
        }
        let (wanted, left_out) = self.watched();
        if let Some(observer) = &mut self.observer {
            let now = clock::mono();
            let before = observer.repairs();
            // Devices may have come while a successor had the hooks.
            if std::mem::take(&mut self.succeeded.postponed) {
                observer.follow(&wanted);
            }
            observer.check(now);
            let repaired = observer.repairs() != before;
            let hooks = hooks(observer.attachments(), left_out);
            if repaired {
                self.feed(Event::HooksRepaired(now));
            }
            self.feed(Event::Hooks(hooks));
        }
        if self.probing.as_ref().is_some_and(Probing::has_ended) {
            self.feed(Event::Parts(Parts::Ended));
        }
    }

    /// Reads the kernel's evidence. Returns when to read it again.
    pub(super) fn sample(&mut self) -> Duration {
        let now = clock::mono();
        let event = match self.observer.as_mut().map(|observer| observer.sample(now)) {
            None => Event::Tick,
            Some(Err(error)) => Event::SampleFailed(error.to_string()),
            Some(Ok(read)) => {
                let answers = read.answers.iter().map(|of| (of.service, of.after_us));
                self.metrics
                    .record_sample(&read.sample.counts, answers, self.node.planner());
                self.output.faults = Some(read.sample.faults);
                self.output.anomalies += read.sample.sightings.len() as u64;
                Event::Sample(Box::new(read.sample))
            }
        };
        self.feed_at(event, now);
        self.next_sample
    }

    /// Something came from the sentinel's parts.
    pub(super) fn take_in(&mut self, message: Message) {
        if let Some(event) = message.into_event(self.probing.as_mut()) {
            self.feed(event);
        }
    }

    pub(super) fn feed(&mut self, event: Event) {
        self.feed_at(event, clock::mono());
    }

    /// Steps the node, and on with what its effects bring, in the order in which it comes.
    fn feed_at(&mut self, event: Event, now: Mono) {
        let mut events = VecDeque::from([event]);
        let mut now = now;
        while let Some(event) = events.pop_front() {
            for effect in self.node.step(event, now) {
                self.perform(effect, &mut events);
            }
            now = clock::mono();
        }
    }

    fn perform(&mut self, effect: Effect, events: &mut VecDeque<Event>) {
        match effect {
            Effect::Program(plan) => self.program(&plan, events),
            Effect::ReadMaps => {
                self.succeeded.plan();
                let installed = self.observer.as_ref().map(Observer::installed);
                events.push_back(Event::Installed(installed.unwrap_or_default()));
            }
            Effect::Publish(judged) => self.publish(*judged),
            Effect::Remember(remembered) => {
                if !self.succeeded.ask().exists() {
                    self.memory.remember(*remembered);
                }
            }
            Effect::SaveRecording => self.save_recording(),
            Effect::SampleAfter(pause) => self.next_sample = pause,
            Effect::ReadShape(owners) => events.extend(self.read_shape(owners)),
            Effect::Probed {
                trace,
                outcome,
                lag,
            } => {
                self.metrics.record_probe(&trace, outcome.name());
                if let Some(lag) = lag {
                    self.metrics.record_rotation(trace.lane.family, lag);
                }
            }
            Effect::StaleConnection(family, age) => self.metrics.record_left(family, age),
            Effect::Log(notice) => log(&notice),
            Effect::CheckParts if self.succeeded.ask().exists() => {}
            effect => {
                if let Some(probing) = &mut self.probing {
                    events.extend(probing.perform(effect, self.observer.as_mut(), &self.node));
                }
            }
        }
    }

    fn save_recording(&self) {
        let Some(dir) = &self.config.state_dir else {
            return;
        };
        let recording = self.node.recording();
        match Recordings::below(dir).write(clock::wall(), &recording) {
            Ok(path) => {
                tracing::info!(path = %path.display(), "the events that led here are recorded")
            }
            Err(error) => tracing::warn!(%error, "the recording cannot be written"),
        }
    }

    fn program(&mut self, plan: &[MapChange], events: &mut VecDeque<Event>) {
        let Some(observer) = self.observer.as_mut().filter(|_| !plan.is_empty()) else {
            return;
        };
        let outcome = observer.apply(plan);
        if let Some(error) = &outcome.error {
            tracing::warn!(%error, "a map could not be changed");
        }
        if !outcome.full.is_empty() {
            events.push_back(Event::Full(outcome.full));
        }
    }

    /// Reads the datapath's shape; `read` are its owners where they were just read.
    fn read_shape(&self, read: Option<[DatapathOwners; FAMILIES]>) -> Option<Event> {
        let observer = self.observer.as_ref()?;
        let ends = self.probing.as_ref().map(Probing::near_ends);
        let seen = Seen {
            interfaces: &self.interfaces,
            sentinel: ends.as_ref().map_or(&[], |ends| ends),
            owners: read.unwrap_or_else(owners),
        };
        Some(Event::Shape(Box::new(observer.shape(&seen))))
    }

    fn publish(&mut self, judged: Judged) {
        let Judged {
            verdict,
            answers,
            changed,
        } = judged;
        if changed {
            tracing::info!(
                state = verdict.state.name(),
                eligibility = verdict.eligibility.name(),
                reason = %verdict.reason(),
                "the verdict changed"
            );
        }
        let report = Arc::new(self.assemble(verdict, &answers));
        self.output.answers.send_replace(Arc::new(answers));
        self.output.report.send_replace(Some(Arc::clone(&report)));
        self.metrics.update(self.snapshot(report));
    }

    /// Tells the node whether a successor is there, where that changed. Returns whether one is.
    fn follow_successor(&mut self) -> bool {
        let now = self.succeeded.ask();
        if self.succeeded.is_news(now) {
            self.feed(Event::Successor(now));
        }
        now != Successor::None
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

fn settings(config: &Config, limits: Limits, rereads: bool) -> Settings {
    Settings {
        node: config.node_name.to_string(),
        limits,
        taints: config.terminating_taints.clone(),
        unknown_policy: config.unknown_policy,
        enforcement: config.enforcement,
        flap_dwell: config.flap_dwell,
        drain_ignore: config.drain_ignore.clone(),
        watches_services: config.source.has_services(),
        sentinel: config.sentinel.as_ref().map(|of| of.rule()),
        rereads,
    }
}

fn hooks<'a>(attachments: impl Iterator<Item = &'a Attachment>, left_out: usize) -> Hooks {
    let hook = |attachment: &Attachment| Hook {
        device: attachment.device.name.clone(),
        uplink: attachment.device.uplink,
        attached: attachment.mechanism().is_some(),
        first: !attachment.first.contains(&Some(false)),
        problem: attachment.problem.clone(),
    };
    Hooks {
        devices: attachments.map(hook).collect(),
        left_out: left_out as u64,
    }
}

fn log(notice: &Notice) {
    match notice {
        Notice::ViewProblem(problem) => {
            tracing::warn!(%problem, "the cluster view has a problem; the last good view stays");
        }
        Notice::Unreadable(why) => tracing::warn!(%why, "the evidence cannot be read"),
        Notice::Altered(altered) => tracing::warn!(%altered, "the sentinel is not probed"),
        Notice::SentinelOff(why) => {
            tracing::warn!(%why, "the sentinel is off; the node is judged by real traffic alone");
        }
        Notice::SentinelOn => tracing::info!("the sentinel is on again"),
        Notice::Damaged(sentence) => {
            tracing::warn!(%sentence, "the sentinel's devices are damaged");
        }
        Notice::Detached => tracing::warn!("the sentinel's programs are put back"),
        Notice::Rechecked(differs) => tracing::warn!(?differs, "the sentinel was read uncached"),
        Notice::Shape(notes) => tracing::info!(%notes, "the datapath's shape changed"),
        Notice::Lane(outcome) => tracing::debug!(outcome, "a path begins or ceases to fail"),
        Notice::UpgradeFailed => tracing::warn!(
            "the verdict began to fail with this agent, which is therefore not ready: a rolling update stops here"
        ),
    }
}
