//! Properties of a node in simulated worlds, which know the connections that were really answered.

mod parts {
    pub(crate) mod fault;
    pub(crate) mod nonsense;
    mod tenants;
    pub(crate) mod worlds;
}

use std::time::Duration;

use parts::fault::broken_and_repaired;
use parts::{nonsense, worlds};
use pathproof_facts::cause::State;
use pathproof_facts::time::Mono;
use pathproof_node::Node;
use pathproof_node::effect::{Effect, VerdictUpdate};
use pathproof_node::replay::replay;
use pathproof_sim::{
    Act, BEGIN, Client, Denial, Fault, Fleet, ServiceSpec, SimNode, Stream, World,
};
use proptest::prelude::*;

fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Promised maximum time to 503 for a fault with an unambiguous cause.
const PROMISED: Duration = Duration::from_millis(1_500);
/// Promised maximum time from a first repair to 200.
const REPAIRED: Duration = Duration::from_secs(2);
const RUN: Duration = Duration::from_secs(60);

/// A quarter of the usual number of cases, because each simulates a minute of a node.
fn config() -> ProptestConfig {
    let config = ProptestConfig::default();
    ProptestConfig {
        cases: 1.max(config.cases / 4),
        failure_persistence: None,
        ..config
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_node_whose_pods_are_answered_is_never_503(world in worlds::healthy(), seed: u64) {
        let mut node = SimNode::new(0, world, seed);
        node.run(RUN);
        let pods = node.truth().pods;
        prop_assert_eq!(pods.failed, 0, "the world is not healthy");
        let failed = node.answers().iter().find(|answered| answered.livez != 200);
        prop_assert_eq!(failed, None);
    }

    #[test]
    fn a_flush_is_503_within_the_promise_and_its_repair_200(
        world in worlds::undisturbed(),
        seed: u64,
        at in 11_000_u64..40_000,
        lasts in 2_000_u64..15_000,
        tables in any::<bool>(),
    ) {
        let node = broken_and_repaired(world, seed, at, lasts, tables, REPAIRED)?;
        let before = node.answers().iter().find(|answered| answered.livez != 200);
        prop_assert!(before.is_some_and(|answered| answered.at >= BEGIN.plus(ms(at))));
    }

    #[test]
    fn a_restart_changes_no_503(
        world in worlds::undisturbed(),
        seed: u64,
        restart in 3_000_u64..20_000,
        pause in 20_u64..4_000,
    ) {
        let broken = s(15);
        let world = world
            .with(broken, Act::Break(Fault::Flushed))
            .with(broken + ms(restart), Act::Restart(ms(pause)));
        let mut node = SimNode::new(0, world, seed);
        node.run(RUN);
        let failed = node.failed_after(BEGIN.plus(broken));
        prop_assert!(failed.is_some_and(|took| took <= PROMISED), "503 after {:?}", failed);
        let since = BEGIN.plus(broken + PROMISED);
        let healthy = node.answers().iter().find(|answer| answer.at > since && answer.livez == 200);
        prop_assert_eq!(healthy, None);
    }

    #[test]
    fn the_same_seed_gives_the_same_verdicts(world in worlds::any_at_all(), seed: u64) {
        let judged = || {
            let mut node = SimNode::new(0, world.clone(), seed).logged();
            node.run(s(30));
            let log = node.log().map(|log| log.updates.clone());
            (log, node.truth())
        };
        let (first, second) = (judged(), judged());
        prop_assert!(first == second);
    }

    #[test]
    fn a_replay_is_the_run(world in worlds::any_at_all(), seed: u64) {
        let mut node = SimNode::new(0, world, seed).logged();
        node.run(s(30));
        let log = node.log().map(|log| log.updates.clone()).unwrap_or_default();
        let Some(agent) = node.node() else {
            return Ok(());
        };
        let replayed = replay(&agent.recording(), None).map_err(|error| {
            TestCaseError::fail(error.to_string())
        })?;
        prop_assert_eq!(replayed.differs, None);
        let last = replayed.latest.as_ref().map(|moment| &moment.update);
        prop_assert_eq!(last, log.last());
        let judge = |node: &Node| serde_json::to_string(node.judge()).unwrap_or_default();
        prop_assert!(judge(&replayed.last) == judge(agent));
    }

    #[test]
    fn no_events_make_a_node_panic_and_time_never_goes_back(
        events in prop::collection::vec((nonsense::time(), nonsense::event()), 1..120),
        start in nonsense::time(),
    ) {
        let mut node = Node::new(nonsense::settings(), nonsense::start(start));
        let mut last: Option<VerdictUpdate> = None;
        for (now, event) in events {
            for effect in node.step(event, now) {
                if let Effect::Publish(update) = effect {
                    follows(last.as_ref(), &update)?;
                    last = Some(*update);
                }
            }
        }
    }

    #[test]
    fn time_never_goes_back_in_a_world_whose_clock_does(
        world in worlds::any_at_all(),
        seed: u64,
        jumps in prop::collection::vec(0_u64..30_000, 1..8),
    ) {
        let mut node = SimNode::new(0, world, seed).logged();
        node.run(s(30));
        let log = node.log().expect("kept");
        let mut again = Node::new(nonsense::settings(), nonsense::start(BEGIN));
        let mut last: Option<VerdictUpdate> = None;
        for (place, (now, event)) in log.events.iter().enumerate() {
            let back = jumps[place % jumps.len()] * u64::from(place % 7 == 0);
            for effect in again.step(event.clone(), now.minus(ms(back))) {
                if let Effect::Publish(update) = effect {
                    follows(last.as_ref(), &update)?;
                    last = Some(*update);
                }
            }
        }
        prop_assert!(last.is_some());
    }
}

/// Asserts that neither the time of a verdict nor its `since` goes back, and that `since` is not in the
/// future.
fn follows(last: Option<&VerdictUpdate>, update: &VerdictUpdate) -> Result<(), TestCaseError> {
    let now = &update.verdict;
    prop_assert!(now.since <= now.at);
    if let Some(before) = last.map(|update| &update.verdict) {
        prop_assert!(before.at <= now.at, "{:?} after {:?}", now.at, before.at);
        prop_assert!(before.since <= now.since);
    }
    Ok(())
}

#[test]
fn a_fleet_runs_in_step() {
    let mut fleet = Fleet::of((0..20).map(|_| World::default()), 7);
    fleet.run(s(20));
    for node in &mut fleet.nodes_mut()[..5] {
        node.act(Act::Break(Fault::Flushed));
    }
    fleet.run(s(5));
    let failing = |node: &&SimNode| node.answer().is_some_and(|answered| answered.livez == 503);
    assert_eq!(fleet.nodes().iter().filter(failing).count(), 5);
    assert!(
        fleet
            .nodes()
            .iter()
            .all(|node| node.now() == Mono(BEGIN.0 + 25_000_000_000))
    );
}

fn run(world: World, span: Duration) -> SimNode {
    let mut node = SimNode::new(0, world, 1);
    node.run(span);
    node
}

fn has_failed(node: &SimNode) -> bool {
    node.failed_after(BEGIN).is_some()
}

fn is_healthy(node: &SimNode) -> bool {
    let pods = node.truth().pods;
    pods.answered > 0 && pods.failed == 0
}

fn quiet() -> World {
    World {
        services: vec![
            ServiceSpec::new("shop", 1, 2),
            ServiceSpec::new("bank", 2, 1),
        ],
        ..World::default()
    }
}

/// The sentinel's range is filtered and a policy denies a pod, while another pod's connections are answered.
#[test]
fn a_filtered_sentinel_and_a_denied_pod_beside_another_accuse_nobody() {
    let mut world = quiet()
        .with(ms(400), Act::FilterSentinel)
        .with(s(5), Act::Deny(Some(Client::Pod(2)), None, Denial::Reject));
    world.streams = vec![Stream::of_pod(2, 1, ms(120)), Stream::of_pod(9, 0, ms(300))];
    let failed = |seed| {
        let mut node = SimNode::new(0, world.clone(), seed);
        node.run(s(30));
        assert_eq!(node.truth().pods.failed, 0);
        has_failed(&node)
    };
    let failed = (0..100).filter(|seed| failed(*seed)).count();
    assert_eq!(failed, 0);
}

/// Two pods are denied everything. A proxy that is 4 s late sends another pod's connections to removed
/// endpoints, which answer them.
#[test]
fn denied_pods_while_endpoints_move_accuse_nobody() {
    let mut world = quiet()
        .with(s(5), Act::Deny(Some(Client::Pod(1)), None, Denial::Drop))
        .with(s(5), Act::Deny(Some(Client::Pod(2)), None, Denial::Reject))
        .with(s(20), Act::Roll(0, s(30)));
    world.services.push(ServiceSpec::new("bank", 1, 0));
    world.streams = vec![
        Stream::of_pod(1, 1, ms(150)),
        Stream::of_pod(2, 2, ms(150)),
        Stream::of_pod(9, 0, ms(300)),
    ];
    world.proxy_delay = (s(4), s(4));
    let node = run(world, s(40));
    assert!(is_healthy(&node));
    assert!(!has_failed(&node));
}

/// All connections are answered. The sentinel's range gets filtered, and a moment later endpoints change,
/// which reaches the rules before the agent.
#[test]
fn a_filtered_sentinel_while_endpoints_move_accuses_nobody() {
    let mut world = quiet()
        .with(s(15), Act::FilterSentinel)
        .with(s(16), Act::Roll(0, s(30)));
    world.streams = vec![Stream::of_pod(0, 0, ms(200))];
    (world.view_delay, world.proxy_delay) = ((ms(900), ms(900)), (ms(1), ms(1)));
    let node = run(world, s(30));
    assert!(is_healthy(&node));
    assert!(!has_failed(&node));
}

/// All connections are answered: the proxy is frozen for 25 s, but removed endpoints still answer.
#[test]
fn removed_endpoints_that_still_answer_are_no_fault() {
    let world = World {
        rotation: None,
        ..World::busy()
    }
    .with(s(20), Act::FreezeProxy)
    .with(s(20), Act::Roll(0, s(60)))
    .with(s(45), Act::ThawProxy);
    let node = run(world, s(60));
    assert!(is_healthy(&node));
    assert!(!has_failed(&node));
}

/// The API server is a black hole to the agent, so its view is old while the proxy follows.
#[test]
fn an_old_view_is_no_fault_while_clients_are_answered() {
    let silence = Act::Silence {
        span: s(120),
        noticed: s(90),
    };
    let mut world = World {
        rotation: None,
        ..World::busy()
    }
    .with(s(10), silence);
    for service in 0..3 {
        world = world.with(s(20), Act::Roll(service, s(60)));
    }
    let node = run(world, s(60));
    assert!(is_healthy(&node));
    assert!(!has_failed(&node));
}

/// Probes pass again after the repair. The last real connection failed, and the next one comes seconds later.
#[test]
fn a_repair_is_200_in_time_with_sparse_traffic() {
    let (broken, repaired) = (s(20), s(30));
    let mut world = quiet()
        .with(broken, Act::Break(Fault::Flushed))
        .with(repaired, Act::Repair(Fault::Flushed));
    world.streams = vec![Stream::of_pod(0, 0, ms(4_500))];
    let late = |seed| {
        let mut node = SimNode::new(0, world.clone(), seed);
        node.run(s(60));
        node.recovered_after(BEGIN.plus(repaired)) > Some(REPAIRED)
    };
    let late = (0..20).filter(|seed| late(*seed)).count();
    assert_eq!(late, 0);
}

/// A lasting partial fault changes the verdict only once.
#[test]
fn one_broken_service_is_one_transition() {
    let world = World::busy()
        .with(s(20), Act::Break(Fault::Emptied(0)))
        .with(s(45), Act::Repair(Fault::Emptied(0)));
    let mut node = SimNode::new(0, world, 1).logged();
    node.run(s(70));
    let updates = &node.log().expect("kept").updates;
    let mut states: Vec<_> = updates.iter().map(|update| update.verdict.state).collect();
    states.dedup();
    assert_eq!(
        states,
        [
            State::Unknown,
            State::Proven,
            State::Degraded,
            State::Proven
        ]
    );
}
