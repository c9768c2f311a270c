//! What happens when: a function of a seed, so that a storm can be played again.

mod spared;
mod tenant;

use std::collections::BTreeSet;
use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use fastrand::Rng;
use jiff::Timestamp;
use jiff::tz::TimeZone;

pub(super) use crate::detect::Fault;
use spared::spared;
pub(super) use tenant::Tenant;

/// What happens for some time, and is taken back then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// The datapath is broken for every client.
    Fault(Fault),
    /// Nothing that a load balancer should hear of.
    Harmless(Harmless),
    /// Something befalls the agent.
    Agent(AgentFault),
    /// The agent's way to the API server is not as it should be.
    Api(Trouble),
    /// Other software does something to the packets of a healthy node.
    World(World),
    /// A tenant does what he may in his namespace.
    Tenant(Tenant),
}

/// What is no fault of the datapath.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Harmless {
    /// One of three backends of a Service is killed.
    BackendKilled,
    /// A filter drops the sentinel's ranges and nothing else.
    RangeDropped,
    /// An endpoint moves to another pod, and the rules follow.
    EndpointMoved,
    /// A Service comes and goes, and the rules follow.
    ServiceAdded,
    /// A pod comes and goes, with its interface.
    PodAdded,
    /// The sentinel leaves the cluster's view.
    SentinelDeleted,
    /// A device of the sentinel is deleted.
    DeviceDeleted,
    /// A file that is no manifest.
    BadManifest,
    /// The node is marked for deletion: /healthz alone is 503.
    NodeMarked,
    /// SYNs from a million sources.
    SynFlood,
    /// Other processes take every processor.
    ProcessorsTaken,
    /// The agent can write no state.
    DiskFull,
    /// The agent has hardly more memory than it holds.
    MemoryTight,
}

/// What befalls the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AgentFault {
    /// SIGSTOP, and SIGCONT.
    Stopped,
    /// SIGKILL, and a new start.
    Killed,
    /// SIGTERM after a successor is ready.
    Replaced,
}

/// What the agent's way to the API server is, while the rules follow the cluster all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trouble {
    /// Connections are refused and ended.
    Closed,
    /// Connections hang.
    Silent,
    /// Those that there were hang; new ones do not.
    Hung,
    /// Everything takes half a second longer.
    Slow,
}

/// Worlds of other software in which a node is healthy (docs/internal/worlds.md). A filter of the
/// sentinel's addresses belongs here too; it is older, and stays [`Harmless::RangeDropped`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum World {
    /// Every packet of the pods and of the uplink is copied to another device.
    Mirrored,
    /// The packets that one pod sends take a detour by an ifb device.
    Bandwidth,
    /// An outsider tries node ports that a filter drops for it.
    Scanned,
    /// A policy drops what one pod sends.
    PodDropped,
    /// A policy rejects what one pod sends.
    PodRejected,
    /// The rules do not follow the cluster.
    ProxyFrozen,
}

/// Where the agent reads the cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Source {
    /// In a folder of manifests.
    #[default]
    Folder,
    /// At an API server, to which the way is troubled at times.
    ApiServer,
}

/// An action with its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// From the start of the storm.
    pub at: Duration,
    /// How long it lasts.
    pub lasts: Duration,
    /// What it is.
    pub action: Action,
}

/// Actions in the order of their beginnings. Of each kind one lasts at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// All of them.
    pub steps: Vec<Step>,
}

/// Milliseconds of rest before actions of a kind, and of the actions.
struct Pace {
    rest: RangeInclusive<u64>,
    lasts: RangeInclusive<u64>,
}

/// Rests long enough for the node to be sound again and for an agent to come back, faults long enough
/// to have to be seen on a machine whose processors are taken.
const FAULTS: Pace = Pace {
    rest: 10_000..=16_000,
    lasts: 12_000..=16_000,
};
const HARMLESS: Pace = Pace {
    rest: 500..=5_000,
    lasts: 1_000..=7_000,
};
const AGENT_FAULTS: Pace = Pace {
    rest: 15_000..=40_000,
    lasts: 300..=4_000,
};
const TROUBLES: Pace = Pace {
    rest: 5_000..=20_000,
    lasts: 1_000..=15_000,
};

/// Long enough to lie over several harmless actions, and often over the beginning of a fault.
const WORLDS: Pace = Pace {
    rest: 2_000..=10_000,
    lasts: 6_000..=25_000,
};

/// Long enough for what has to last 15 s.
const TENANTS: Pace = Pace {
    rest: 3_000..=8_000,
    lasts: 8_000..=25_000,
};

impl Trouble {
    /// Every one.
    pub const ALL: [Self; 4] = [Self::Closed, Self::Silent, Self::Hung, Self::Slow];
}

impl Harmless {
    /// Every one.
    pub const ALL: [Self; 13] = [
        Self::BackendKilled,
        Self::RangeDropped,
        Self::EndpointMoved,
        Self::ServiceAdded,
        Self::PodAdded,
        Self::SentinelDeleted,
        Self::DeviceDeleted,
        Self::BadManifest,
        Self::NodeMarked,
        Self::SynFlood,
        Self::ProcessorsTaken,
        Self::DiskFull,
        Self::MemoryTight,
    ];
}

impl AgentFault {
    /// Every one.
    pub const ALL: [Self; 3] = [Self::Stopped, Self::Killed, Self::Replaced];
}

impl World {
    /// Every one.
    pub const ALL: [Self; 6] = [
        Self::Mirrored,
        Self::Bandwidth,
        Self::Scanned,
        Self::PodDropped,
        Self::PodRejected,
        Self::ProxyFrozen,
    ];
}

/// The seed of a day in UTC: 20261123.
pub fn seed_of_the_day(now: Timestamp) -> u64 {
    let date = now.to_zoned(TimeZone::UTC).date();
    let [year, month, day] = [
        u64::from(date.year().unsigned_abs()),
        u64::from(date.month().unsigned_abs()),
        u64::from(date.day().unsigned_abs()),
    ];
    year * 10_000 + month * 100 + day
}

impl Plan {
    /// The storm of a seed that is over after so long.
    pub fn of(seed: u64, length: Duration, source: Source) -> Self {
        let mut rng = Rng::with_seed(seed);
        let mut steps = Vec::new();
        // A fault beyond the end moves what falls on it, as in a longer storm.
        let (wanted, length) = (length, length + Duration::from_secs(60));
        // Each kind draws from a generator of its own: a new action of one moves no other's.
        let mut track = |pace: &Pace, kinds: &dyn Fn(&mut Rng) -> Vec<Action>| {
            let mut rng = Rng::with_seed(rng.u64(..));
            steps.extend(drawn(&mut rng, length, pace, kinds));
        };
        track(&FAULTS, &|rng| shuffled(rng, &Fault::ALL, Action::Fault));
        track(&HARMLESS, &|rng| {
            shuffled(rng, &Harmless::ALL, Action::Harmless)
        });
        track(&AGENT_FAULTS, &|rng| {
            shuffled(rng, &AgentFault::ALL, Action::Agent)
        });
        // Without an API server it stays empty, and still takes its seed: the tracks behind it are
        // the same for both sources.
        track(&TROUBLES, &|rng| match source {
            Source::ApiServer => shuffled(rng, &Trouble::ALL, Action::Api),
            Source::Folder => Vec::new(),
        });
        track(&WORLDS, &|rng| shuffled(rng, &World::ALL, Action::World));
        track(&TENANTS, &|rng| shuffled(rng, &Tenant::ALL, Action::Tenant));
        steps.sort_by_key(|step| (step.at, step.action));
        let mut steps = spared(steps);
        steps.retain(|step| step.end() <= wanted);
        steps.sort_by_key(|step| (step.at, step.action));
        Self { steps }
    }
}

impl Plan {
    /// Words of what it draws, as storms print them.
    pub fn actions(&self) -> BTreeSet<String> {
        let words = |step: &Step| step.action.to_string();
        self.steps.iter().map(words).collect()
    }
}

impl Step {
    fn end(&self) -> Duration {
        self.at + self.lasts
    }
}

/// Actions one after another, each kind once before any comes again.
fn drawn(
    rng: &mut Rng,
    length: Duration,
    pace: &Pace,
    kinds: &dyn Fn(&mut Rng) -> Vec<Action>,
) -> Vec<Step> {
    let (mut steps, mut left) = (Vec::new(), Vec::new());
    let mut at = Duration::ZERO;
    loop {
        at += Duration::from_millis(rng.u64(pace.rest.clone()));
        let lasts = Duration::from_millis(rng.u64(pace.lasts.clone()));
        if at + lasts > length {
            return steps;
        }
        if left.is_empty() {
            left = kinds(rng);
        }
        let Some(action) = left.pop() else {
            return steps;
        };
        steps.push(Step { at, lasts, action });
        at += lasts;
    }
}

fn shuffled<T: Copy>(rng: &mut Rng, all: &[T], action: fn(T) -> Action) -> Vec<Action> {
    let mut actions: Vec<Action> = all.iter().copied().map(action).collect();
    rng.shuffle(&mut actions);
    actions
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Fault(fault) => return f.pad(&format!("fault: {fault}")),
            Self::Harmless(Harmless::BackendKilled) => "backend killed",
            Self::Harmless(Harmless::RangeDropped) => "sentinel's range dropped",
            Self::Harmless(Harmless::EndpointMoved) => "endpoint moved",
            Self::Harmless(Harmless::ServiceAdded) => "Service added",
            Self::Harmless(Harmless::PodAdded) => "pod added",
            Self::Harmless(Harmless::SentinelDeleted) => "sentinel deleted",
            Self::Harmless(Harmless::DeviceDeleted) => "sentinel's device deleted",
            Self::Harmless(Harmless::BadManifest) => "file that is no manifest",
            Self::Harmless(Harmless::NodeMarked) => "node marked for deletion",
            Self::Harmless(Harmless::SynFlood) => "SYN flood",
            Self::Harmless(Harmless::ProcessorsTaken) => "processors taken",
            Self::Harmless(Harmless::DiskFull) => "disk of the state full",
            Self::Harmless(Harmless::MemoryTight) => "memory tight",
            Self::Agent(AgentFault::Stopped) => "agent: SIGSTOP",
            Self::Agent(AgentFault::Killed) => "agent: SIGKILL",
            Self::Agent(AgentFault::Replaced) => "agent: replaced",
            Self::Api(Trouble::Closed) => "way to the API server: closed",
            Self::Api(Trouble::Silent) => "way to the API server: silent",
            Self::Api(Trouble::Hung) => "way to the API server: hung",
            Self::Api(Trouble::Slow) => "way to the API server: slow",
            Self::World(World::Mirrored) => "world: packets mirrored",
            Self::World(World::Bandwidth) => "world: one pod's packets by an ifb",
            Self::World(World::Scanned) => "world: filtered node ports scanned",
            Self::World(World::PodDropped) => "world: one pod denied, dropped",
            Self::World(World::PodRejected) => "world: one pod denied, rejected",
            Self::World(World::ProxyFrozen) => "world: proxy frozen",
            Self::Tenant(tenant) => tenant.words(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEN_MINUTES: Duration = Duration::from_secs(600);

    fn plan(seed: u64, length: Duration) -> Plan {
        Plan::of(seed, length, Source::ApiServer)
    }

    #[test]
    fn a_seed_is_a_storm() {
        assert_eq!(plan(7, TEN_MINUTES), plan(7, TEN_MINUTES));
        assert_ne!(plan(7, TEN_MINUTES), plan(8, TEN_MINUTES));
    }

    /// A longer storm begins as the shorter one.
    #[test]
    fn length_only_cuts_off() {
        let short = plan(7, TEN_MINUTES / 2).steps;
        let long = plan(7, TEN_MINUTES).steps;
        assert!(short.iter().all(|step| long.contains(step)));
    }

    #[test]
    fn an_api_server_brings_its_troubles_and_changes_nothing_else() {
        let folder = Plan::of(7, TEN_MINUTES, Source::Folder).steps;
        let mut api = plan(7, TEN_MINUTES).steps;
        let before = api.len();
        api.retain(|step| !matches!(step.action, Action::Api(_)));
        assert!(api.len() < before);
        assert_eq!(api, folder);
    }

    /// Of each kind one lasts at a time; worlds lie over all others.
    #[test]
    fn worlds_lie_over_the_others() {
        let mut over = [false; 3];
        for seed in 0..10 {
            let steps = plan(seed, TEN_MINUTES).steps;
            let worlds: Vec<&Step> = steps.iter().filter(|step| is_world(step)).collect();
            for pair in worlds.windows(2) {
                assert!(pair[0].at + pair[0].lasts < pair[1].at);
            }
            for world in &worlds {
                let (from, to) = (world.at, world.at + world.lasts);
                for step in steps.iter().filter(|step| (from..to).contains(&step.at)) {
                    match step.action {
                        Action::Fault(_) => over[0] = true,
                        Action::Harmless(_) => over[1] = true,
                        Action::Agent(_) => over[2] = true,
                        Action::Api(_) | Action::World(_) | Action::Tenant(_) => {}
                    }
                }
            }
        }
        assert_eq!(over, [true; 3]);
    }

    /// A seed that failed stays worth playing: what seed 7 begins with. Trouble for the agent that falls on
    /// a fault comes after it: the second.
    #[test]
    fn worlds_move_nothing_else() {
        let steps = plan(7, TEN_MINUTES).steps;
        let begins = |is: fn(&Action) -> bool| {
            let mut all = steps.iter().filter(|step| is(&step.action));
            let mut next = || all.next().map(|step| (step.at.as_millis(), step.action));
            [next(), next()]
        };
        let harmless = [
            Some((4_756, Action::Harmless(Harmless::BadManifest))),
            Some((15_981, Action::Harmless(Harmless::SynFlood))),
        ];
        assert_eq!(
            begins(|action| matches!(action, Action::Harmless(_))),
            harmless
        );
        let agent_faults = [
            Some((29_958, Action::Agent(AgentFault::Killed))),
            Some((53_732, Action::Agent(AgentFault::Replaced))),
        ];
        assert_eq!(
            begins(|action| matches!(action, Action::Agent(_))),
            agent_faults
        );
        let troubles = [
            Some((6_593, Action::Api(Trouble::Silent))),
            Some((34_116, Action::Api(Trouble::Closed))),
        ];
        assert_eq!(begins(|action| matches!(action, Action::Api(_))), troubles);
    }

    fn is_world(step: &Step) -> bool {
        matches!(step.action, Action::World(_))
    }

    #[test]
    fn a_day_is_a_seed() {
        let seed = |time: &str| seed_of_the_day(time.parse().expect("a time"));
        assert_eq!(seed("2026-01-02T00:00:00Z"), 20_260_102);
        assert_eq!(seed("2026-11-23T23:59:59Z"), 20_261_123);
        // Of UTC, wherever the machine is.
        assert_eq!(seed("2026-11-24T01:00:00+02:00"), 20_261_123);
    }

    #[test]
    fn twenty_minutes_hold_everything() {
        for seed in 0..50 {
            let steps = plan(seed, 2 * TEN_MINUTES).steps;
            let happens = |action| steps.iter().any(|step| step.action == action);
            assert!(Fault::ALL.map(Action::Fault).into_iter().all(happens));
            assert!(Harmless::ALL.map(Action::Harmless).into_iter().all(happens));
            assert!(AgentFault::ALL.map(Action::Agent).into_iter().all(happens));
            assert!(Trouble::ALL.map(Action::Api).into_iter().all(happens));
            assert!(World::ALL.map(Action::World).into_iter().all(happens));
            assert!(Tenant::ALL.map(Action::Tenant).into_iter().all(happens));
            assert!(steps.is_sorted_by_key(|step| step.at));
            assert!(steps.iter().all(|step| step.end() <= 2 * TEN_MINUTES));
        }
    }
}
