//! What happens when: a function of a seed, so that a storm can be played again.

mod spared;

use std::time::Duration;

use clap::ValueEnum;
use fastrand::Rng;
use jiff::Timestamp;

use crate::cluster::Manner;
pub(super) use crate::detect::Fault;
use spared::spared;

/// What happens for some time, and is taken back then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// The datapath is broken for every client.
    Fault(Fault),
    /// Nothing that a load balancer should hear of.
    Harmless(Harmless),
    /// Something befalls the agent.
    Agent(AgentFault),
    /// The agent's way to the API server is not as it should be, while the rules follow the cluster all
    /// the same.
    Api(Manner),
    /// Other software does something to the packets of a healthy node.
    World(World),
    /// A tenant does what he may in his namespace.
    Tenant(Tenant),
}

/// What is no fault of the datapath.
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum AgentFault {
    /// SIGSTOP, and SIGCONT.
    Stopped,
    /// SIGKILL, and a new start.
    Killed,
    /// SIGTERM after a successor is ready.
    Replaced,
}

/// Troubles on the agent's way to the API server.
const TROUBLES: [Manner; 4] = [
    Manner::Closed,
    Manner::Silent,
    Manner::Hung,
    Manner::Slow(Duration::from_millis(500)),
];

/// Worlds of other software in which a node is healthy (docs/internal/worlds.md). A filter of the
/// sentinel's addresses belongs here too; it is older, and stays [`Harmless::RangeDropped`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum World {
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

/// Action of a tenant, who may edit one namespace. None of them is a fault of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Tenant {
    /// A Service of his claims the addresses of another's, and its rules win.
    ClaimsFirst,
    /// The same, and they do not.
    ClaimsLast,
    /// A Service of his claims what the sentinel's probes dial.
    ClaimsProbed,
    /// A Service of his claims the address of the sentinel's endpoint, and has it as its own.
    ClaimsEcho,
    /// His slices hold others' pods and addresses outside, as pods of this node.
    ForeignSlices,
    /// Services of a thousand ports with a hundred endpoints each.
    Products,
    /// A pod of his keeps its source port while an endpoint leaves.
    KeepsPort,
    /// A policy of his drops what his pods send.
    Dropped,
    /// It rejects it.
    Rejected,
    /// SYNs to a Service without endpoints.
    Floods,
}

/// An action with its time, from the start of the storm: as it is planned, or as it was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) action: Action,
    /// When it begins.
    pub(super) from: Duration,
    /// When it is taken back whole.
    pub(super) to: Duration,
}

impl Step {
    pub(super) fn is_fault(&self) -> bool {
        matches!(self.action, Action::Fault(_))
    }

    pub(super) fn is_agent_fault(&self) -> bool {
        matches!(self.action, Action::Agent(_))
    }

    /// Whether it lasts at any moment of a time, or ended less than `after` before it.
    pub(super) fn touches(&self, from: Duration, to: Duration, after: Duration) -> bool {
        self.from < to && self.to + after > from
    }
}

/// The seed of a day in UTC: 20261123.
pub(super) fn seed_of_the_day(now: Timestamp) -> u64 {
    let date = now.strftime("%Y%m%d").to_string();
    date.parse().expect("eight digits")
}

/// The storm of a seed that is over after so long, in the order of beginnings. Of each kind one action
/// lasts at a time. `api`: the agent reads an API server.
pub(super) fn plan(seed: u64, length: Duration, api: bool) -> Vec<Step> {
    let mut troubles = TROUBLES.map(Action::Api).to_vec();
    troubles.retain(|_| api);
    // Actions of a kind, milliseconds of rest before one, and milliseconds that one lasts.
    let kinds = [
        // Rests long enough for the node to be sound again and for an agent to come back, faults long
        // enough to have to be seen on a machine whose processors are taken.
        (all(Action::Fault), 10_000..=16_000, 12_000..=16_000),
        (all(Action::Harmless), 500..=5_000, 1_000..=7_000),
        (all(Action::Agent), 15_000..=40_000, 300..=4_000),
        // Without an API server there are none, and the kind still takes its seed: those behind it are
        // the same for both.
        (troubles, 5_000..=20_000, 1_000..=15_000),
        // Long enough to lie over several harmless actions, and often over the beginning of a fault.
        (all(Action::World), 2_000..=10_000, 6_000..=25_000),
        // Long enough for what has to last 15 s.
        (all(Action::Tenant), 3_000..=8_000, 8_000..=25_000),
    ];
    // A fault beyond the end moves what falls on it, as in a longer storm.
    let beyond = length + Duration::from_secs(60);
    let mut seeds = Rng::with_seed(seed);
    let mut steps = Vec::new();
    for (actions, rest, lasts) in kinds {
        // Each kind draws from a generator of its own: a new action of one moves no other's.
        let mut rng = Rng::with_seed(seeds.u64(..));
        let (mut to, mut left) = (Duration::ZERO, Vec::new());
        while !actions.is_empty() && to <= beyond {
            let from = to + Duration::from_millis(rng.u64(rest.clone()));
            to = from + Duration::from_millis(rng.u64(lasts.clone()));
            // Each once before any comes again.
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

    /// A longer storm begins as the shorter one.
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

    /// Of each kind one lasts at a time; worlds lie over all others.
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

    /// A seed that failed stays worth playing: what seed 7 begins with. Trouble for the agent that falls on
    /// a fault comes after it, or is left out where that is another fault.
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
        // Of UTC, wherever the machine is.
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
