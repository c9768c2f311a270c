//! One node under a script: a fake clock, and the events that a shell would feed. Effects are only
//! collected.
//!
//! Length: one script with all of its steps.

use std::net::SocketAddr;
use std::time::Duration;

use pathproof_facts::cause::{Failure, State};
use pathproof_facts::cluster::{Change, ObjectName};
use pathproof_facts::directory::Directory as _;
use pathproof_facts::freshness::FIRST_GENERATION;
use pathproof_facts::limits::Limits;
use pathproof_facts::owners::{Owner, OwnersRead};
use pathproof_facts::switches::Enforcement;
use pathproof_facts::time::{Mono, Wall};
use pathproof_facts::trace::{Control, ProbePath, ProbeTrace};
use pathproof_judge::answer::UnknownPolicy;
use pathproof_judge::verdict::CountedFamilies;
use pathproof_plan::{Installed, MapChange};
use pathproof_wire::evidence::{OUTCOMES, Outcome};
use pathproof_wire::probe::Stage;
use pathproof_wire::service::{Family, SourceClass};
use pathproof_witness::coverage::ObserverStart;
use pathproof_witness::evidence::{CountDelta, FailedConnection};
use pathproof_witness::probes::ProbeOutcome;
use pathproof_witness::testing::traces::{passed, stuck, tcp};
use pathproof_witness::topology;

use super::world::{cluster, hooks, ip, rule, taker};
use crate::effect::{
    DesiredDevices, Effect, MapEffect, Measurement, Notice, PersistedState, ReadEffect,
    SentinelEffect, VerdictUpdate, WriteEffect,
};
use crate::event::{Event, KernelSample, KernelState, SentinelEvent, Successor, ViewUpdate};
use crate::{Condition, Node, Settings, Start};

/// Uptime of the node at the start of the script.
const EPOCH_MS: u64 = 1_000_000;
/// End of [`Scene::probed`]: the sentinel has been unchanged for long enough that failures count.
pub(super) const PROBED: u64 = 12_250;
pub(super) const NOTHING: [&str; 0] = [];
/// Paths of a node without a reserved pod address.
pub(super) const PATHS: [ProbePath; 3] =
    [ProbePath::OffCluster, ProbePath::NodePort, ProbePath::Host];

/// Milliseconds of the script's clock.
pub(super) fn ms(ms: u64) -> Mono {
    Mono((EPOCH_MS + ms) * 1_000_000)
}

pub(super) fn settings() -> Settings {
    Settings {
        node: "here".to_owned(),
        limits: Limits::default(),
        terminating: Default::default(),
        unknown_policy: UnknownPolicy::Open,
        enforcement: Enforcement::Enforce,
        enforce_nodes: None,
        families: CountedFamilies::default(),
        flap_dwell: Duration::from_secs(10),
        fleet_brake: None,
        leaving_brake: None,
        drain_ignore: Default::default(),
        watches_services: true,
        own_ports: vec![10_256, 19_256],
        sentinel: Some(rule()),
        rereads: true,
    }
}

pub(super) fn start() -> Start {
    Start {
        now: ms(0),
        wall: Wall(1_700_000_000_000_000_000),
        observer: ObserverStart::default(),
        persisted: None,
    }
}

/// kube-proxy's rules in both families.
pub(super) fn kube_proxy() -> OwnersRead {
    [Owner::KubeProxyIptables; 2].map(|owner| Some([owner].into_iter().collect()))
}

pub(super) struct Scene {
    pub(super) node: Node,
    /// Memory that the node wrote last.
    pub(super) persisted: Option<PersistedState>,
    now: u64,
}

impl Scene {
    /// A node that started at 0 and received nothing.
    pub(super) fn new() -> Self {
        Self::with(|_, _| ())
    }

    pub(super) fn with(edit: impl FnOnce(&mut Settings, &mut Start)) -> Self {
        let (mut settings, mut start) = (settings(), start());
        edit(&mut settings, &mut start);
        Self {
            node: Node::new(settings, start),
            persisted: None,
            now: 0,
        }
    }

    /// The next agent, started `after` ms later with the memory of this one.
    pub(super) fn heir(&self, after: u64, edit: impl FnOnce(&mut Settings, &mut Start)) -> Self {
        let mut heir = Self::with(|settings, start| {
            start.now = ms(self.now + after);
            start.persisted = self.persisted.clone();
            edit(settings, start);
        });
        heir.at(self.now + after);
        heir
    }

    pub(super) fn at(&mut self, ms: u64) -> &mut Self {
        self.now = ms;
        self
    }

    pub(super) fn later(&mut self, ms: u64) -> &mut Self {
        self.at(self.now + ms)
    }

    pub(super) fn now(&self) -> u64 {
        self.now
    }

    pub(super) fn feed(&mut self, event: Event) -> Effects {
        let effects = Effects(self.node.step(event, ms(self.now)));
        self.persisted = effects.persisted().cloned().or(self.persisted.take());
        effects
    }

    pub(super) fn view(&mut self, changes: Vec<Change>) -> Effects {
        self.feed(Event::View(Box::new(ViewUpdate {
            changes,
            ..ViewUpdate::default()
        })))
    }

    /// Whether the source of the view is silent.
    pub(super) fn source(&mut self, silent: bool) -> Effects {
        self.feed(Event::View(Box::new(ViewUpdate {
            silent,
            ..ViewUpdate::default()
        })))
    }

    pub(super) fn check(&mut self) -> Effects {
        self.feed(Event::Check)
    }

    pub(super) fn sentinel_changed(&mut self, event: SentinelEvent) -> Effects {
        self.feed(Event::Sentinel(event))
    }

    pub(super) fn succeed(&mut self, successor: Successor) -> Effects {
        self.feed(Event::Successor(successor))
    }

    /// The view is complete, the maps were empty, and no address is in use.
    pub(super) fn synced(&mut self) -> Effects {
        self.view(cluster());
        self.feed(Event::Installed(Installed::default()))
    }

    /// Another Service takes or frees an address of the sentinel, and a check follows.
    pub(super) fn taken(&mut self, is_taken: bool) -> Effects {
        self.view(vec![match is_taken {
            true => taker(),
            false => Change::ServiceGone(ObjectName::new("default", "taker")),
        }]);
        self.check()
    }

    /// The sentinel's devices exist and everything is running.
    pub(super) fn started(&mut self) -> Effects {
        self.sentinel_changed(SentinelEvent::Ready);
        self.sentinel_changed(SentinelEvent::Started(None))
    }

    /// A check that began now found the sentinel's parts sound.
    pub(super) fn sound(&mut self) -> Effects {
        let sound_since = Some(ms(self.now));
        self.kernel(sound_since, Some(true))
    }

    pub(super) fn kernel(&mut self, sound_since: Option<Mono>, forwards: Option<bool>) -> Effects {
        self.sentinel_changed(SentinelEvent::Kernel(KernelState {
            sound_since,
            forwarding: [forwards; 2],
            owners: kube_proxy(),
        }))
    }

    pub(super) fn topology(&mut self) -> Effects {
        self.feed(Event::Topology(Box::new(topology::TopologyFacts {
            owners: kube_proxy(),
            ..topology::TopologyFacts::default()
        })))
    }

    /// Runs the whole start at 0; later a round of probes passes: everything is proven.
    pub(super) fn probed() -> Self {
        Self::probed_with(|_, _| ())
    }

    pub(super) fn probed_with(edit: impl FnOnce(&mut Settings, &mut Start)) -> Self {
        let mut scene = Self::with(edit);
        scene.feed(Event::Tick);
        scene.prove();
        scene
    }

    /// Feeds the events from the start of an agent until its probes passed.
    pub(super) fn prove(&mut self) -> Effects {
        self.synced();
        self.feed(Event::Hooks(hooks()));
        self.started();
        self.sound();
        self.topology();
        self.later(PROBED - 250).pass();
        self.later(250).idle()
    }

    /// A round of probes passes.
    pub(super) fn pass(&mut self) -> Vec<Effects> {
        let sent = self.now;
        let pass = |path| self.probe(passing(path, sent));
        PATHS.into_iter().map(pass).collect()
    }

    /// After `ms`, another round of probes passes and a sample follows.
    pub(super) fn rest(&mut self, ms: u64) -> Effects {
        self.later(ms).pass();
        self.idle()
    }

    pub(super) fn probe(&mut self, trace: ProbeTrace) -> Effects {
        self.feed(Event::Trace(Box::new(trace)))
    }

    /// A probe that was just sent fails, because the node does not translate it ([`leaking`]).
    pub(super) fn leak(&mut self, path: ProbePath) -> Effects {
        self.probe(leaking(path, self.now))
    }

    /// On both paths from outside, probes leak until the fault is confirmed. The checks after the first
    /// failure find no damage. Returns the effects of the last probe.
    pub(super) fn fault(&mut self) -> Effects {
        self.leak(ProbePath::OffCluster);
        self.leak(ProbePath::NodePort);
        self.sound();
        self.reread_same();
        for _ in 0..2 {
            self.later(250).leak(ProbePath::OffCluster);
            self.leak(ProbePath::NodePort);
        }
        self.later(250).leak(ProbePath::OffCluster)
    }

    /// Another probe of the first path leaks, and a sample follows.
    pub(super) fn leak_and_sample(&mut self) -> Effects {
        self.leak(ProbePath::OffCluster);
        self.idle()
    }

    /// An uncached read of the sentinel equals the reports of the watches.
    pub(super) fn reread_same(&mut self) -> Effects {
        let objects = super::world::sentinel_objects();
        self.feed(Event::Reread(ms(self.now), Some(objects)))
    }

    pub(super) fn sample(&mut self, sample: KernelSample) -> Effects {
        self.feed(Event::Sample(Box::new(sample)))
    }

    /// A sample in which nothing happened.
    pub(super) fn idle(&mut self) -> Effects {
        self.sample(KernelSample::default())
    }

    /// A sample with these counts of one Service.
    pub(super) fn counted(&mut self, service: &str, outcomes: &[Outcome]) -> Effects {
        let counts = vec![delta(self.id(service), outcomes)];
        self.sample(KernelSample {
            counts,
            ..KernelSample::default()
        })
    }

    pub(super) fn sighted(&mut self, failed_connection: FailedConnection) -> Effects {
        self.sample(KernelSample {
            failed_connections: vec![failed_connection],
            ..KernelSample::default()
        })
    }

    /// A pod's connection to `web` that failed just now.
    pub(super) fn failed_connection(&self, failure: Failure) -> FailedConnection {
        FailedConnection {
            at: ms(self.now),
            arrived: ms(self.now),
            service: self.id("web"),
            class: SourceClass::Pod,
            failure,
            client: ip("10.1.0.7"),
            client_port: 0,
            frontend: SocketAddr::new(ip("10.96.0.1"), 80),
            destination: None,
            device: 2,
            misdelivered: false,
            icmp: false,
            answer_lost: false,
            left_since: None,
        }
    }

    /// The id of a Service's first port.
    pub(super) fn id(&self, service: &str) -> u32 {
        id_of(&self.node, service)
    }

    pub(super) fn latest(&self) -> &FailedConnection {
        let mut kept = self.node.judge().failed_connections.iter();
        kept.next().expect("one was seen")
    }

    pub(super) fn state(&self) -> State {
        self.node.judge().last.expect("there was a verdict").state
    }

    /// The sentinel's condition while no probe fails.
    pub(super) fn condition(&self) -> Condition<'_> {
        self.node.sentinel().expect("there is one").condition()
    }
}

pub(super) fn id_of(node: &Node, service: &str) -> u32 {
    let is_it = |id: &u32| {
        let info = node.planner().service(*id);
        info.is_some_and(|info| &*info.name.name == service)
    };
    (0..32).find(is_it).expect("the Service has an id")
}

/// One connection of pods for each of these outcomes.
pub(super) fn delta(service: u32, outcomes: &[Outcome]) -> CountDelta {
    let mut counts = [0; OUTCOMES];
    for outcome in outcomes {
        counts[*outcome as usize] += 1;
    }
    CountDelta {
        service,
        class: SourceClass::Pod,
        counts,
        lost: 0,
    }
}

/// A probe that passes and meets the first generation.
pub(super) fn passing(path: ProbePath, sent: u64) -> ProbeTrace {
    let mut trace = passed(tcp(path), ms(sent));
    trace.generation = Some(FIRST_GENERATION);
    trace
}

/// A probe that is not translated: it leaves the node, or is refused if it dialled an address of the node.
pub(super) fn leaking(path: ProbePath, sent: u64) -> ProbeTrace {
    let mut trace = arriving(path, sent);
    match path {
        ProbePath::NodePort => trace.sightings.refused = true,
        _ => trace.sightings.leaked = true,
    }
    trace
}

/// A probe that arrives and is not observed again.
pub(super) fn arriving(path: ProbePath, sent: u64) -> ProbeTrace {
    stuck(tcp(path), ms(sent), Some(Stage::Arrived))
}

/// A probe whose control probe failed too, so that it is void.
pub(super) fn void(path: ProbePath, sent: u64) -> ProbeTrace {
    let mut trace = arriving(path, sent);
    trace.control = Control::Failed;
    trace
}

#[derive(Debug)]
pub(super) struct Effects(pub(super) Vec<Effect>);

impl Effects {
    pub(super) fn names(&self) -> Vec<&'static str> {
        self.0.iter().map(name).collect()
    }

    pub(super) fn has(&self, wanted: &str) -> bool {
        self.names().contains(&wanted)
    }

    /// The published verdict and its answers.
    pub(super) fn verdict_update(&self) -> &VerdictUpdate {
        let judged = self.0.iter().rev().find_map(|effect| match effect {
            Effect::Publish(judged) => Some(&**judged),
            _ => None,
        });
        judged.expect("a verdict was published")
    }

    pub(super) fn state(&self) -> State {
        self.verdict_update().verdict.state
    }

    /// Status codes of /healthz and /livez.
    pub(super) fn statuses(&self) -> [u16; 2] {
        let answers = &self.verdict_update().answers;
        [answers.healthz.status, answers.livez.status]
    }

    /// The state, and the status codes of /healthz and /livez.
    pub(super) fn told(&self) -> (State, [u16; 2]) {
        (self.state(), self.statuses())
    }

    pub(super) fn plan(&self) -> Vec<MapChange> {
        let changes = self.0.iter().filter_map(|effect| match effect {
            Effect::Maps(MapEffect::Program(plan)) => Some(plan),
            _ => None,
        });
        changes.flatten().copied().collect()
    }

    pub(super) fn devices(&self) -> Option<(bool, &[Family])> {
        self.0.iter().find_map(|effect| match effect {
            Effect::Sentinel(SentinelEffect::Devices(DesiredDevices {
                needed, families, ..
            })) => Some((*needed, &families[..])),
            _ => None,
        })
    }

    pub(super) fn notices(&self) -> Vec<&Notice> {
        let notices = self.0.iter().filter_map(|effect| match effect {
            Effect::Log(notice) => Some(notice),
            _ => None,
        });
        notices.collect()
    }

    pub(super) fn persisted(&self) -> Option<&PersistedState> {
        self.0.iter().find_map(|effect| match effect {
            Effect::Write(WriteEffect::State(persisted)) => Some(&**persisted),
            _ => None,
        })
    }

    /// Outcome of a probe, and the lag that it measured, in ms.
    pub(super) fn probed(&self) -> (ProbeOutcome, Option<u128>) {
        let probed = self.0.iter().find_map(|effect| match effect {
            Effect::Measure(Measurement { outcome, lag, .. }) => {
                Some((*outcome, lag.map(|lag| lag.as_millis())))
            }
            _ => None,
        });
        probed.expect("a probe ended")
    }

    /// Time until the next sample, in ms.
    pub(super) fn pause(&self) -> u128 {
        let pause = self.0.iter().find_map(|effect| match effect {
            Effect::Read(ReadEffect::SampleAfter(pause)) => Some(pause.as_millis()),
            _ => None,
        });
        pause.expect("a sample follows")
    }
}

fn name(effect: &Effect) -> &'static str {
    match effect {
        Effect::Maps(MapEffect::Program(_)) => "program",
        Effect::Maps(MapEffect::Read) => "read maps",
        Effect::Sentinel(SentinelEffect::Devices(_)) => "devices",
        Effect::Sentinel(SentinelEffect::Start { anew: false }) => "start",
        Effect::Sentinel(SentinelEffect::Start { anew: true }) => "start anew",
        Effect::Sentinel(SentinelEffect::Stop) => "stop",
        Effect::Write(WriteEffect::Recording) => "save recording",
        Effect::Sentinel(SentinelEffect::Retarget) => "retarget",
        Effect::Sentinel(SentinelEffect::Check) => "check parts",
        Effect::Sentinel(SentinelEffect::Reread) => "read sentinel",
        Effect::Read(ReadEffect::Topology(_)) => "read topology",
        Effect::Read(ReadEffect::Table) => "read table",
        Effect::Read(ReadEffect::LookUp(_)) => "look up",
        Effect::Read(ReadEffect::Routes(_)) => "routes",
        Effect::Read(ReadEffect::WatchDrops(true)) => "watch drops",
        Effect::Read(ReadEffect::WatchDrops(false)) => "leave drops",
        Effect::Publish(_) => "publish",
        Effect::HealthPorts(_) => "health ports",
        Effect::Write(WriteEffect::State(_)) => "remember",
        Effect::Read(ReadEffect::SampleAfter(_)) => "sample after",
        Effect::Measure(_) => "probed",
        Effect::Maps(MapEffect::ReadEndpoints(_)) => "read endpoints",
        Effect::Log(_) => "log",
    }
}
