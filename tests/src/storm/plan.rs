//! The timetable of a storm. It is a function of the seed, so that a storm can be replayed.

mod spared;

use std::time::Duration;

use clap::ValueEnum;
use fastrand::Rng;
use jiff::Timestamp;
use spared::spared;

use crate::cluster::Manner;
pub(super) use crate::detect::Fault;

/// Something that is in force for some time and is then reverted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// The datapath is broken for every client.
    Fault(Fault),
    /// An event that must not change the answers to load balancers.
    Harmless(Harmless),
    /// The agent itself is stopped, killed or replaced.
    Agent(AgentFault),
    /// The agent's connection to the API server is impaired. The rules still follow the cluster.
    Api(Manner),
    /// Other software treats the packets of a healthy node in an unusual way.
    World(World),
    /// A tenant uses its rights in one namespace.
    Tenant(Tenant),
}

/// Clients that use the node and fail during its faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Users {
    /// Pods of the node, and clients outside. Only in this case a tenant's pods dial as well.
    #[default]
    Everybody,
    /// Clients outside alone, as on an ingress node.
    Outside,
    OnePod,
}

/// Events that are not a fault of the datapath.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Harmless {
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
    /// The sentinel's objects are deleted from the cluster for some time.
    SentinelDeleted,
    /// A device of the sentinel is deleted.
    DeviceDeleted,
    BadManifest,
    /// The node is marked for deletion, which makes only /healthz answer 503.
    NodeMarked,
    /// A SYN flood from a million sources.
    SynFlood,
    ProcessorsTaken,
    /// The agent cannot write its state.
    DiskFull,
    /// The agent's memory limit is just above its use.
    MemoryTight,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum AgentFault {
    /// SIGSTOP, and SIGCONT at the end.
    Stopped,
    /// SIGKILL, and a new start at the end.
    Killed,
    /// A successor starts, and the old agent gets SIGTERM once the successor is ready, or after 10 s.
    Replaced,
}

/// Impairments of the agent's connection to the API server.
const TROUBLES: [Manner; 4] = [
    Manner::Closed,
    Manner::Silent,
    Manner::Hung,
    Manner::Slow(Duration::from_millis(500)),
];

/// Effects of other software that a healthy node must tolerate (docs/internal/worlds.md). A filter of the
/// sentinel's addresses belongs here too, but for historical reasons it is [`Harmless::RangeDropped`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum World {
    /// Every packet of the pods and of the uplink is mirrored to another device.
    Mirrored,
    /// Packets that one pod sends pass an ifb device, as with bandwidth limits.
    Bandwidth,
    /// An outside client dials node ports, and a filter drops its packets.
    Scanned,
    /// A policy drops everything that one pod sends.
    PodDropped,
    /// A policy rejects everything that one pod sends.
    PodRejected,
    /// The rules stop following the cluster.
    ProxyFrozen,
}

/// Actions of a tenant, a user who may edit one namespace. None of them is a fault of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Tenant {
    /// A Service of the tenant claims the addresses of another Service, and its rules take effect.
    ClaimsFirst,
    /// The same claim, but the other Service's rules take effect.
    ClaimsLast,
    /// A Service of the tenant claims the addresses that the sentinel's probes dial.
    ClaimsProbed,
    /// A Service of the tenant claims the address of the sentinel's endpoint, and lists this address as its
    /// own endpoint.
    ClaimsEcho,
    /// The tenant's slices claim that other users' pods and outside addresses are pods of this node.
    ForeignSlices,
    /// The tenant has Services with a thousand ports and a hundred endpoints each.
    Products,
    /// A pod of the tenant retries from one source port while the Service's endpoint is removed.
    KeepsPort,
    /// A policy of the tenant drops everything that the tenant's pods send.
    Dropped,
    /// A policy of the tenant rejects everything that the tenant's pods send.
    Rejected,
    /// A pod of the tenant floods a Service without endpoints with SYNs.
    Floods,
}

/// An action with its planned or actual time, counted from the start of the storm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) action: Action,
    pub(super) from: Duration,
    /// End, when the action is completely reverted.
    pub(super) to: Duration,
}

impl Step {
    pub(super) fn is_fault(&self) -> bool {
        matches!(self.action, Action::Fault(_))
    }

    pub(super) fn is_agent_fault(&self) -> bool {
        matches!(self.action, Action::Agent(_))
    }

    /// Whether the step is in force at any moment of this time span, or ended less than `after` before it.
    pub(super) fn touches(&self, from: Duration, to: Duration, after: Duration) -> bool {
        self.from < to && self.to + after > from
    }
}

/// The seed for a day in UTC, such as 20261123.
pub(crate) fn seed_of_the_day(now: Timestamp) -> u64 {
    let date = now.strftime("%Y%m%d").to_string();
    date.parse().expect("eight digits")
}

/// The storm of a seed within `length`, with actions ordered by their start. Actions of one kind never
/// overlap. `api`: whether the agent reads an API server.
pub(super) fn plan(seed: u64, length: Duration, api: bool) -> Vec<Step> {
    let mut troubles = TROUBLES.map(Action::Api).to_vec();
    troubles.retain(|_| api);
    // Columns: actions of a kind, pause before each, and duration of each, both in milliseconds.
    let kinds = [
        // The pause suffices for the node to recover and for an agent to start again. The faults last long
        // enough to be detected on a machine with busy processors.
        (all(Action::Fault), 10_000..=16_000, 12_000..=16_000),
        (all(Action::Harmless), 500..=5_000, 1_000..=7_000),
        (all(Action::Agent), 15_000..=40_000, 300..=4_000),
        // Without an API server this list is empty. A seed is drawn for it nevertheless, so that the kinds
        // after it are the same in both cases.
        (troubles, 5_000..=20_000, 1_000..=15_000),
        // Long enough to overlap several harmless actions, and often the beginning of a fault.
        (all(Action::World), 2_000..=10_000, 6_000..=25_000),
        // Long enough for conditions that need 15 s.
        (all(Action::Tenant), 3_000..=8_000, 8_000..=25_000),
    ];
    // Also plan faults beyond the end, because a fault moves agent faults that coincide with it. So the plan
    // is the beginning of that of a longer storm.
    let beyond = length + Duration::from_secs(60);
    let mut seeds = Rng::with_seed(seed);
    let mut steps = Vec::new();
    for (actions, rest, lasts) in kinds {
        // Give each kind its own generator, so that a new action of one kind does not move actions of other
        // kinds.
        let mut rng = Rng::with_seed(seeds.u64(..));
        let (mut to, mut left) = (Duration::ZERO, Vec::new());
        while !actions.is_empty() && to <= beyond {
            let from = to + Duration::from_millis(rng.u64(rest.clone()));
            to = from + Duration::from_millis(rng.u64(lasts.clone()));
            // Draw every action once before any of them repeats.
            if left.is_empty() {
                left.clone_from(&actions);
                rng.shuffle(&mut left);
            }
            let step = |action| Step { action, from, to };
            steps.extend(left.pop().map(step));
        }
    }
    steps.retain(|step| step.to <= beyond);
    steps.sort_by_key(|step| step.from);
    let mut steps = spared(steps);
    steps.retain(|step| step.to <= length);
    steps.sort_by_key(|step| step.from);
    steps
}

fn all<T: ValueEnum>(action: fn(T) -> Action) -> Vec<Action> {
    let variants = T::value_variants().iter().cloned();
    variants.map(action).collect()
}

#[cfg(test)]
mod tests {
    use std::mem::discriminant;

    use super::*;

    const TEN_MINUTES: Duration = Duration::from_secs(600);

    fn with_api(seed: u64, length: Duration) -> Vec<Step> {
        plan(seed, length, true)
    }

    #[test]
    fn a_seed_is_a_storm() {
        assert_eq!(with_api(7, TEN_MINUTES), with_api(7, TEN_MINUTES));
        assert_ne!(with_api(7, TEN_MINUTES), with_api(8, TEN_MINUTES));
    }

    /// A longer storm contains every step of the shorter one.
    #[test]
    fn length_only_cuts_off() {
        let short = with_api(7, TEN_MINUTES / 2);
        let long = with_api(7, TEN_MINUTES);
        assert!(short.iter().all(|step| long.contains(step)));
    }

    #[test]
    fn an_api_server_brings_its_troubles_and_changes_nothing_else() {
        let folder = plan(7, TEN_MINUTES, false);
        let mut api = with_api(7, TEN_MINUTES);
        let before = api.len();
        api.retain(|step| !matches!(step.action, Action::Api(_)));
        assert!(api.len() < before);
        assert_eq!(api, folder);
    }

    /// Worlds do not overlap each other, but they overlap faults, harmless actions and agent faults.
    #[test]
    fn worlds_lie_over_the_others() {
        let mut over = [false; 3];
        for seed in 0..10 {
            let steps = with_api(seed, TEN_MINUTES);
            let is_world = |step: &&Step| matches!(step.action, Action::World(_));
            let worlds: Vec<&Step> = steps.iter().filter(is_world).collect();
            for pair in worlds.windows(2) {
                assert!(pair[0].to < pair[1].from);
            }
            for world in &worlds {
                for step in steps
                    .iter()
                    .filter(|step| (world.from..world.to).contains(&step.from))
                {
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

    /// Pins the beginning of seed 7: a seed that once failed must stay reproducible. An agent fault that
    /// coincides with a fault is moved behind the fault, or omitted if it meets another fault there.
    #[test]
    fn worlds_move_nothing_else() {
        let steps = with_api(7, TEN_MINUTES);
        let firsts: [[(u128, Action); 2]; 3] = [
            [
                (4_756, Action::Harmless(Harmless::BadManifest)),
                (15_981, Action::Harmless(Harmless::SynFlood)),
            ],
            [
                (29_958, Action::Agent(AgentFault::Killed)),
                (77_777, Action::Agent(AgentFault::Stopped)),
            ],
            [
                (6_593, Action::Api(Manner::Silent)),
                (34_116, Action::Api(Manner::Closed)),
            ],
        ];
        for two in firsts {
            let is_of_kind = |step: &&Step| discriminant(&step.action) == discriminant(&two[0].1);
            let begun = steps.iter().filter(is_of_kind);
            let begun = begun.map(|step| (step.from.as_millis(), step.action));
            assert_eq!(begun.take(2).collect::<Vec<_>>(), two);
        }
    }

    #[test]
    fn a_day_is_a_seed() {
        let seed = |time: &str| seed_of_the_day(time.parse().expect("a time"));
        assert_eq!(seed("2026-01-02T00:00:00Z"), 20_260_102);
        assert_eq!(seed("2026-11-23T23:59:59Z"), 20_261_123);
        // The date is that in UTC, whatever the machine's time zone.
        assert_eq!(seed("2026-11-24T01:00:00+02:00"), 20_261_123);
    }

    #[test]
    fn twenty_minutes_hold_everything() {
        for seed in 0..50 {
            let steps = with_api(seed, 2 * TEN_MINUTES);
            let happens = |action| steps.iter().any(|step| step.action == action);
            assert!(all(Action::Fault).into_iter().all(happens));
            assert!(all(Action::Harmless).into_iter().all(happens));
            assert!(all(Action::Agent).into_iter().all(happens));
            assert!(TROUBLES.map(Action::Api).into_iter().all(happens));
            assert!(all(Action::World).into_iter().all(happens));
            assert!(all(Action::Tenant).into_iter().all(happens));
            assert!(steps.is_sorted_by_key(|step| step.from));
            assert!(steps.iter().all(|step| step.to <= 2 * TEN_MINUTES));
        }
    }
}
