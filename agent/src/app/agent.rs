//! The shell around the node: feeds inputs to the core as events, and performs the resulting
//! effects. It decides nothing.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use pathproof_facts::directory::Directory as _;
use pathproof_facts::limits::{Limits, SAMPLE_INTERVAL};
use pathproof_facts::owners::OwnersRead;
use pathproof_facts::time::Mono;
use pathproof_judge::verdict::Verdict;
use pathproof_node::effect::{
    Answers, Effect, MapEffect, ReadEffect, SentinelEffect, VerdictUpdate, WriteEffect,
};
use pathproof_node::event::{Event, SentinelEvent, ViewUpdate};
use pathproof_node::{Node, Start};
use pathproof_plan::MapChange;
use pathproof_report::{self as report, BUSIEST_SHOWN, Report, SCHEMA, UDP_SHOWN};
use pathproof_wire::abi::ABI_VERSION;
use pathproof_wire::evidence::{FAULTS, Fault};
use pathproof_witness::coverage::Hooks;
use pathproof_witness::evidence::FailedConnection;
use tokio::sync::watch;

use super::changes::Changes;
use super::episodes::Episodes;
use super::probing::Probing;
use super::{Loaded, notices, settings};
use crate::clock;
use crate::cluster::Update;
use crate::config::Config;
use crate::datapath::Observer;
use crate::datapath::attach::{Attacher, Attachment};
use crate::datapath::devices::{Device, Interfaces};
use crate::datapath::topology::Seen;
use crate::lifecycle::give_back_memory;
use crate::metrics::Metrics;
use crate::netlink::ways;
use crate::port::{SteeredServices, SuccessorWatch};
use crate::publish::Publishing;
use crate::sentinel::kernel::{conntrack, owners};
use crate::state::Memory;

/// Changes of this size, as of 1,000 small objects, free enough memory to return it to the system.
const LARGE: usize = 10_000;

pub(super) struct Agent {
    pub(super) config: Config,
    pub(super) node: Node,
    pub(super) observer: Option<Observer>,
    /// The sentinel's parts, unless it is turned off.
    pub(super) probing: Option<Probing>,
    pub(super) successor: SuccessorWatch,
    /// `None` if Services' health check node ports are left to another program.
    pub(super) health_ports: Option<SteeredServices>,
    pub(super) output: Output,
    interfaces: Interfaces,
    /// Whether interfaces changed since their hooks were last updated.
    interfaces_changed: bool,
    /// When the last sample was taken.
    sampled: Mono,
    /// Time from the last sample until the next one.
    next_sample: Duration,
}

/// Recipients of verdicts, and further data for reports.
pub(super) struct Output {
    pub(super) metrics: Arc<Metrics>,
    pub(super) publishing: Option<Publishing>,
    pub(super) hardening: report::HardeningReport,
    pub(super) answers: watch::Sender<Arc<Answers>>,
    pub(super) report: watch::Sender<Option<Arc<Report>>>,
    changes: Changes,
    started: Mono,
    faults: Option<[u64; FAULTS]>,
    memory: Memory,
    pub(super) episodes: Episodes,
}

impl Agent {
    /// Starts from the state of an earlier agent of this boot, if there was one.
    pub(super) fn new(
        config: Config,
        (observer, start): Loaded,
        probing: Option<Probing>,
        limits: Limits,
        metrics: Arc<Metrics>,
    ) -> Self {
        let memory = Memory::in_dir(config.kept.state_dir.as_deref());
        let start = Start {
            now: clock::mono(),
            wall: clock::wall(),
            observer: start,
            persisted: memory.recall(),
        };
        let started = start.now;
        let rereads = probing.as_ref().is_some_and(Probing::rereads);
        let episodes = Episodes::new(&config.kept, &config.node_name, started);
        Self {
            node: Node::new(settings(&config, limits, rereads), start),
            config,
            observer,
            probing,
            successor: SuccessorWatch::default(),
            health_ports: None,
            output: Output {
                metrics,
                publishing: None,
                hardening: report::HardeningReport::default(),
                answers: watch::Sender::new(Arc::new(Answers::before_the_first())),
                report: watch::Sender::new(None),
                changes: Changes::default(),
                started,
                faults: None,
                memory,
                episodes,
            },
            interfaces: Interfaces::default(),
            interfaces_changed: false,
            sampled: started,
            next_sample: SAMPLE_INTERVAL,
        }
    }

    /// Feeds a change of the cluster view or of its problems.
    pub(super) fn follow_view(&mut self, update: Update) {
        self.follow_successor();
        let changes: usize = update.changes.iter().map(|change| change.size()).sum();
        self.feed(Event::View(Box::new(ViewUpdate {
            problems: update.problems.iter().map(ToString::to_string).collect(),
            silent: update.problems.iter().any(|problem| problem.is_silence),
            ignored: update.ignored,
            unknown_frontends: update.unknown_frontends,
            missing_node: update.missing_node,
            changes: update.changes,
        })));
        if changes > 0 {
            self.output.metrics.retain(self.node.planner());
        }
        if changes >= LARGE {
            give_back_memory();
        }
    }

    /// Feeds a change of interfaces. If there is a successor, that agent maintains their hooks.
    pub(super) fn follow_interfaces(&mut self, interfaces: Interfaces) {
        self.interfaces = interfaces;
        self.interfaces_changed = true;
        if let Some(topology) = self.read_topology(None) {
            self.feed(topology);
        }
        if !self.follow_successor() {
            self.follow_hooks(false);
        }
    }

    /// Checks that the hooks are attached and first; called every few seconds. A successor maintains the
    /// hooks instead: two agents that both require the first place would replace each other's hooks.
    pub(super) fn check(&mut self) {
        // Before the check, because a successor takes over some of its work.
        let has_successor = self.follow_successor();
        self.feed(Event::Check);
        let wall = clock::wall();
        if self.node.judge().anchor.is_off(clock::mono(), wall) {
            self.feed(Event::ClockSet(wall));
        }
        if has_successor {
            return;
        }
        self.follow_hooks(true);
        if self.probing.as_ref().is_some_and(Probing::has_ended) {
            self.feed(Event::Sentinel(SentinelEvent::Ended));
        }
    }

    /// Attaches to the devices that the configuration selects. With `checks`, also repairs hooks. The
    /// sentinel's far ends are excluded, because the node does not route packets that cross them.
    fn follow_hooks(&mut self, checks: bool) {
        let Some(observer) = &mut self.observer else {
            return;
        };
        let own = (self.probing.as_ref()).map_or_else(Default::default, Probing::far_ends);
        let devices = self.interfaces.devices.iter();
        let (wanted, others): (Vec<&Device>, Vec<_>) = devices
            .filter(|device| !own.contains(&device.name))
            .partition(|device| self.config.observer.watches(&device.name));
        let left_out = others.len() + self.interfaces.unfollowed;
        let now = clock::mono();
        if std::mem::take(&mut self.interfaces_changed) {
            tracing::debug!(devices = wanted.len(), left_out, "observing interfaces");
            let mut wanted: Vec<Device> = wanted.into_iter().cloned().collect();
            if let Some(near) = self.probing.as_ref().map(Probing::near_ends) {
                let own = (wanted.iter_mut()).filter(|device| near.contains(&device.name));
                own.for_each(|device| device.may_be_a_pods = false);
            }
            observer.follow(&wanted, now);
        }
        let before = observer.attacher.repairs;
        if checks {
            observer.check(now, || self.successor.ask().exists());
        }
        let repaired = observer.attacher.repairs != before;
        let attacher = &observer.attacher;
        let left_to_others = (attacher.attachments()).filter(|hooks| hooks.is_left_to_others());
        let (new, followed): (Vec<_>, Vec<_>) =
            (attacher.attachments()).partition(|hooks| hooks.is_new());
        let hooks = Hooks {
            devices: followed.into_iter().map(Attachment::hook).collect(),
            left_out: left_out as u64,
            unseen: left_to_others.count() as u64,
            new: new.len() as u64,
            not_pinned: attacher.not_pinned(),
        };
        if repaired {
            self.feed(Event::HooksRepaired(now));
        }
        self.feed(Event::Hooks(hooks));
    }

    /// Reads the kernel's evidence. Returns the time until the next reading.
    pub(super) fn sample(&mut self) -> Duration {
        let now = clock::mono();
        self.sampled = now;
        let event = match self.observer.as_mut().map(|observer| observer.sample(now)) {
            None => Event::Tick,
            Some(Err(error)) => Event::SampleFailed(error.to_string()),
            Some(Ok(read)) => {
                let counts = &read.sample.counts;
                self.output
                    .metrics
                    .record_sample(counts, self.node.planner());
                (self.output.episodes.journal).count(counts, self.node.planner());
                self.output.faults = Some(read.sample.faults);
                Event::Sample(Box::new(read.sample))
            }
        };
        self.feed_at(event, now);
        self.next_sample
    }

    /// The agent, ready for any input but a sample: takes a sample first if it is late by a second. After the
    /// machine was paused, no input may be judged by evidence from before the pause. The timer is not enough,
    /// because the runtime may report a readable socket before it checks its timers.
    pub(super) fn caught_up(&mut self) -> &mut Self {
        if clock::mono().since(self.sampled) > self.next_sample + Duration::from_secs(1) {
            self.sample();
        }
        self
    }

    pub(super) fn feed(&mut self, event: Event) {
        self.caught_up().feed_at(event, clock::mono());
    }

    /// Steps the node, then feeds the events that its effects cause, in order. They belong to the same moment,
    /// so that a pause of the machine among them does not make the evidence old.
    fn feed_at(&mut self, event: Event, now: Mono) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            for effect in self.node.step(event, now) {
                self.perform(effect, &mut events);
            }
        }
    }

    #[deny(clippy::wildcard_enum_match_arm)]
    fn perform(&mut self, effect: Effect, events: &mut VecDeque<Event>) {
        match effect {
            Effect::Maps(effect) => self.perform_on_maps(effect, events),
            // A successor checks the devices and writes the state instead.
            Effect::Sentinel(SentinelEffect::Check) | Effect::Write(WriteEffect::State(_))
                if self.successor.ask().exists() => {}
            Effect::Sentinel(effect) => {
                if let Some(probing) = &mut self.probing {
                    events.extend(probing.perform(effect, self.observer.as_mut(), &self.node));
                }
            }
            Effect::Read(effect) => events.extend(self.read(effect)),
            Effect::Publish(update) => self.publish(*update),
            Effect::HealthPorts(table) => {
                (self.health_ports.iter_mut()).for_each(|ports| ports.follow(&table));
            }
            Effect::Write(WriteEffect::State(state)) => self.output.memory.remember(*state),
            Effect::Write(WriteEffect::Recording) => {
                self.output
                    .episodes
                    .save_recording(|| self.node.recording());
            }
            Effect::Measure(measured) => self.output.metrics.record(&measured),
            Effect::Log(notice) => notices::log(&notice),
        }
    }

    #[deny(clippy::wildcard_enum_match_arm)]
    fn perform_on_maps(&mut self, effect: MapEffect, events: &mut VecDeque<Event>) {
        match effect {
            MapEffect::Program(plan) => self.program(&plan, events),
            MapEffect::Read => {
                self.successor.plan();
                let observer = self.observer.as_ref();
                let installed = observer.map(|observer| observer.programmer.installed());
                events.push_back(Event::Installed(installed.unwrap_or_default()));
            }
            MapEffect::ReadEndpoints(endpoints) => {
                if let Some(observer) = &mut self.observer {
                    observer.endpoints = endpoints;
                }
            }
        }
    }

    /// Reads now, or schedules the reading. Returns the result if it is available at once.
    #[deny(clippy::wildcard_enum_match_arm)]
    fn read(&mut self, effect: ReadEffect) -> Option<Event> {
        match effect {
            ReadEffect::SampleAfter(pause) => self.next_sample = pause,
            ReadEffect::Topology(owners) => return self.read_topology(owners),
            ReadEffect::Table => return Some(Event::Table(conntrack::table())),
            ReadEffect::LookUp(clients) => return Some(ways::look_up(clients, &self.node)),
            ReadEffect::Routes(ask) => return Some(ways::devices(ask, &self.interfaces.indexes())),
            ReadEffect::WatchDrops(on) => {
                return Some(Event::DropWatch(self.observer.as_mut()?.watch_drops(on)));
            }
        }
        None
    }

    fn program(&mut self, plan: &[MapChange], events: &mut VecDeque<Event>) {
        let Some(observer) = self.observer.as_mut().filter(|_| !plan.is_empty()) else {
            return;
        };
        let outcome = observer.apply(plan);
        if let Some(error) = &outcome.error {
            tracing::warn!(%error, "a BPF map could not be updated");
        }
        if !outcome.full.is_empty() {
            events.push_back(Event::Full(outcome.full));
        }
    }

    /// Reads the datapath's topology. `read` passes owners that were just read.
    fn read_topology(&self, read: Option<OwnersRead>) -> Option<Event> {
        let observer = self.observer.as_ref()?;
        let ends = self.probing.as_ref().map(Probing::near_ends);
        let seen = Seen {
            interfaces: &self.interfaces,
            sentinel: ends.as_ref().map_or(&[], |ends| ends),
            owners: read.unwrap_or_else(owners),
        };
        Some(Event::Topology(Box::new(observer.topology(&seen))))
    }

    fn publish(&mut self, update: VerdictUpdate) {
        let VerdictUpdate { verdict, answers } = update;
        let lines = self.output.changes.lines(&verdict, &answers);
        let mut report = self.assemble(verdict, &answers);
        if let Some(before) = &*self.output.report.borrow() {
            report.keep_names(before);
        }
        let report = Arc::new(report);
        self.output.answers.send_replace(Arc::new(answers));
        self.output.report.send_replace(Some(Arc::clone(&report)));
        let successor = || self.successor.ask().exists();
        self.output.episodes.judged(&report, successor);
        self.output.metrics.update(report);
        // The answers are never late because of the log.
        for line in lines {
            line.write(&self.config.node_name);
        }
    }

    /// The document behind `/verdict`.
    fn assemble(&self, verdict: Verdict, answers: &Answers) -> Report {
        let node = &self.node;
        let planner = node.planner();
        let metrics = &self.output.metrics;
        let (services, services_omitted) =
            metrics.services(planner, &verdict.services, BUSIEST_SHOWN);
        let failed_connections =
            (node.judge().failed_connections.iter()).map(|failed| self.failed_connection(failed));
        let attachers = self.observer.iter().map(|observer| &observer.attacher);
        let attachments = attachers.flat_map(Attacher::attachments);
        let missing = planner.missing();
        let refused = self.health_ports.as_ref().map(SteeredServices::refused);
        let (refused_by_owner, refused_by_owner_omitted) = refused.unwrap_or_default();
        let named = |counts: &[u64; FAULTS]| {
            Fault::ALL.map(|fault| (fault.name().to_owned(), counts[fault as usize]))
        };
        Report {
            schema: SCHEMA,
            node: self.config.node_name.to_string(),
            node_uid: node.uid(),
            written: node.judge().anchor.wall_of(verdict.at).timestamp(),
            agent: report::AgentInfo {
                version: env!("CARGO_PKG_VERSION").to_owned(),
                abi: ABI_VERSION,
                started: node.judge().anchor.wall_of(self.output.started).timestamp(),
                enforcement: answers.enforcement(),
                unknown_policy: self.config.healthz.unknown_policy,
            },
            hardening: self.output.hardening.clone(),
            answers: report::AnswersReport {
                refused_by_owner,
                refused_by_owner_omitted,
                ..answers.into()
            },
            fleet: report::FleetSeen::of(node.judge()),
            peers: report::PeersReport::of(node),
            port: self.successor.port.borrow().clone(),
            sentinel: (self.probing.as_ref())
                .map_or_else(report::SentinelReport::disabled, |probing| {
                    probing.report(node)
                }),
            services,
            services_omitted,
            udp: metrics.udp(planner, UDP_SHOWN),
            failed_connections: failed_connections.collect(),
            devices: attachments.map(Attachment::report).collect(),
            reattached: (self.observer.as_ref()).map_or(0, |observer| observer.attacher.repairs),
            datapath: node.judge().topology.clone(),
            expectations: report::ExpectationReport {
                services: node.view().service_count() as u64,
                frontends: planner.frontend_count() as u64,
                endpoints: planner.endpoint_count(),
                missing: missing.frontends + missing.endpoints + missing.sources + missing.services,
                unjudged: planner.unjudged(),
            },
            conflicts: report::ConflictsReport::of(node),
            cluster: self.cluster(),
            publish: (self.output.publishing.as_ref())
                .map(Publishing::report)
                .unwrap_or_default(),
            faults: self.output.faults.iter().flat_map(named).collect(),
            drain: node.drain().clone(),
            verdict,
        }
    }

    fn failed_connection(&self, failed: &FailedConnection) -> report::FailedConnectionReport {
        let service = self.node.planner().service(failed.service);
        let service = service.map(|info| info.label());
        let observer = self.observer.as_ref();
        let device = observer.and_then(|observer| observer.attacher.name_of(failed.device));
        let device = device.map(str::to_owned);
        report::FailedConnectionReport {
            at: failed.at,
            service: service.unwrap_or_else(|| format!("service id {}", failed.service)),
            path: failed.class,
            failure: failed.failure,
            client: failed.client,
            frontend: failed.frontend,
            destination: failed.destination,
            device: device.unwrap_or_else(|| format!("interface {}", failed.device)),
        }
    }

    fn cluster(&self) -> report::ClusterReport {
        let node = &self.node;
        let state = node.view_state();
        let unjudged = node.planner().quota_problems();
        report::ClusterReport {
            source: self.config.source.to_string(),
            synced: node.view().is_synced(),
            changed: state.changed,
            problems: node.view_problems().cloned().chain(unjudged).collect(),
            missing_node: node.missing_node().cloned(),
            ignored: state.ignored,
        }
    }

    /// Informs the node if a successor appeared or ended. Returns whether there is one.
    fn follow_successor(&mut self) -> bool {
        for successor in self.successor.news() {
            self.feed(Event::Successor(successor));
        }
        self.successor.exists()
    }

    /// Runs last before the process ends. Pinned links stay for the next agent, as do the
    /// sentinel's devices if a successor uses them already.
    pub(super) async fn end(&mut self, has_successor: bool) {
        if let Some(probing) = self.probing.take() {
            probing.end(has_successor).await;
        }
        if let Some(observer) = &mut self.observer {
            observer.release(has_successor);
        }
    }
}
