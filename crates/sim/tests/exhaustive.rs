//! All histories of small fleets, and of rotators that compete for the Lease, within stated bounds.
//!
//! The normal run explores fleets of two and three nodes. `PATHPROOF_AGENTS=5` adds those of four and five,
//! which takes minutes without `--release`.

use std::time::Duration;

use pathproof_judge::brake::BrakeReason;
use pathproof_sim::fleet::election::Election;
use pathproof_sim::fleet::explore::explore;
use pathproof_sim::fleet::model::{Fault, FleetModel, FleetState, LEAP, STEP};
use rstest::rstest;

/// Delays of uncertain causes: none besides the next count, and the time in which the count includes the node.
const NONE: Duration = Duration::ZERO;
const UNTIL_COUNTED: Duration = Duration::from_millis(4_999);
const UNCERTAIN: &[bool] = &[false];
const CERTAIN: &[bool] = &[true];
const BOTH: &[bool] = &[false, true];
/// Everything that may break, and the delay.
const FAULTS: &[Fault] = &[
    Fault::Late,
    Fault::RotatorDies,
    Fault::AgentRestarts,
    Fault::ServerAway,
];

/// Fleets with their limits, in which one node more than that may fail. Bounds of the normal run: three steps
/// of time, of which one may be long.
fn fleets(delay: Duration) -> Vec<(FleetModel, usize)> {
    let most = std::env::var("PATHPROOF_AGENTS").map_or(3, |most| most.parse().expect("a number"));
    let fleet = |nodes: u32| {
        if nodes < 5 {
            let mut fleet = FleetModel::new(nodes, 20, delay);
            fleet.causes = BOTH;
            return (fleet, 1);
        }
        let mut fleet = FleetModel::new(nodes, 40, delay);
        (fleet.bounds.failures, fleet.bounds.steps) = (3, 2);
        (fleet, 2)
    };
    (2..=most).map(fleet).collect()
}

fn of_three(delay: Duration, causes: &'static [bool], faults: &'static [Fault]) -> FleetModel {
    let mut fleet = FleetModel::new(3, 20, delay);
    (fleet.causes, fleet.faults) = (causes, faults);
    (fleet.bounds.failures, fleet.bounds.faults) = (3, 1);
    fleet
}

/// Nothing that breaks, and no delay, lets more nodes answer 503 than may, once their counts include them.
#[test]
fn nodes_that_are_counted_keep_the_limit_whatever_breaks() {
    for (mut fleet, limit) in fleets(NONE) {
        fleet.faults = FAULTS;
        fleet.bounds.faults = 1;
        let explored = explore(&fleet, |state| state.counted() > limit);
        assert!(explored.is_ok(), "{} nodes: {explored:#?}", fleet.nodes);
    }
}

/// An uncertain cause exceeds the limit at no time, and a certain one within the step in which nodes fail.
#[test]
fn all_nodes_keep_the_limit_while_they_are_counted_in_time() {
    for (mut fleet, limit) in fleets(UNTIL_COUNTED) {
        fleet.bounds.repairs = 1;
        let explored = explore(&fleet, |state| {
            state.uncertain() > limit || state.failing_for(STEP) > limit
        });
        assert!(explored.is_ok(), "{} nodes: {explored:#?}", fleet.nodes);
    }
}

#[test]
fn uncertain_causes_keep_the_limit_beside_restarts_and_outages() {
    for (mut fleet, limit) in fleets(UNTIL_COUNTED) {
        fleet.causes = UNCERTAIN;
        fleet.faults = &[Fault::AgentRestarts, Fault::ServerAway];
        fleet.bounds.faults = 1;
        let explored = explore(&fleet, |state| state.uncertain() > limit);
        assert!(explored.is_ok(), "{} nodes: {explored:#?}", fleet.nodes);
    }
}

/// Two of three nodes may answer 503, but only one of the two that are a pool. Negative control: a brake that
/// ignores the pool's count.
#[test]
fn nodes_of_a_pool_keep_its_limit_whatever_breaks() {
    let mut fleet = FleetModel::new(3, 67, NONE);
    (fleet.pool, fleet.causes) = (Some(2), CERTAIN);
    fleet.faults = FAULTS;
    fleet.bounds.faults = 1;
    let explored = explore(&fleet, |state| state.counted_in_pool() > 1);
    assert!(explored.is_ok(), "{explored:#?}");
    fleet.permits = |held| matches!(held, None | Some(BrakeReason::Domain(_)));
    let history = explore(&fleet, |state| state.counted_in_pool() > 1).unwrap_err();
    assert!(
        history.contains(&"the rotator counts 2".to_owned()),
        "{history:?}"
    );
}

/// Negative control of the tests above: a brake without its limit.
#[rstest]
#[case::all_nodes(FleetState::uncertain)]
#[case::nodes_that_are_counted(FleetState::counted)]
fn without_the_limit_too_many_nodes_answer(#[case] number: fn(&FleetState) -> usize) {
    let mut fleet = of_three(UNTIL_COUNTED, UNCERTAIN, &[]);
    fleet.permits = |held| matches!(held, None | Some(BrakeReason::Fleet(_)));
    let explored = explore(&fleet, |state| number(state) > 1);
    let history = [
        "A fails for an uncertain cause",
        "A's condition becomes False",
        "B fails for an uncertain cause",
        "B's condition becomes False",
        "the rotator counts 2",
        "A receives the count of 2",
        "B receives the count of 2",
    ];
    assert_eq!(explored.unwrap_err(), history);
}

fn two_for_an_uncertain_cause(state: &FleetState) -> bool {
    state.uncertain() > 1
}

fn all(state: &FleetState) -> bool {
    state.failing_for(Duration::ZERO) == 3
}

fn all_for_long(state: &FleetState) -> bool {
    state.failing_for(LEAP) == 3
}

/// Each with a shortest history, in a fleet of three of which one node may answer 503.
#[rstest]
#[case::a_delay_shorter_than_a_condition_takes(
    of_three(NONE, UNCERTAIN, &[]),
    two_for_an_uncertain_cause,
    &[
        "A fails for an uncertain cause",
        "B fails for an uncertain cause",
        "the rotator counts 0",
        "A receives the count of 0",
        "B receives the count of 0",
    ]
)]
#[case::a_lost_condition(
    of_three(UNTIL_COUNTED, UNCERTAIN, &[Fault::Late]),
    two_for_an_uncertain_cause,
    &[
        "A fails for an uncertain cause",
        "B fails for an uncertain cause",
        "the rotator counts 0",
        "A receives the count of 0",
        "B receives the count of 0",
        "5 s pass although something is late",
    ]
)]
#[case::a_rotator_that_dies_with_its_first_count(
    of_three(UNTIL_COUNTED, UNCERTAIN, &[Fault::RotatorDies]),
    two_for_an_uncertain_cause,
    &[
        "A fails for an uncertain cause",
        "A's condition becomes False",
        "B fails for an uncertain cause",
        "the rotator counts 1",
        "A receives the count of 1",
        "B's condition becomes False",
        "B receives the count of 1",
        "C receives the count of 1",
        "the rotator dies",
        "5 s pass",
    ]
)]
#[case::the_first_seconds_of_a_certain_cause(
    of_three(NONE, CERTAIN, &[]),
    all,
    &[
        "A fails for a certain cause",
        "B fails for a certain cause",
        "C fails for a certain cause",
    ]
)]
#[case::a_certain_cause_without_a_rotator(
    of_three(NONE, CERTAIN, &[Fault::RotatorDies]),
    all_for_long,
    &[
        "A fails for a certain cause",
        "A's condition becomes False",
        "B fails for a certain cause",
        "B's condition becomes False",
        "C fails for a certain cause",
        "C's condition becomes False",
        "the rotator dies",
        "155 s pass",
    ]
)]
#[case::a_certain_cause_during_an_outage(
    of_three(NONE, CERTAIN, &[Fault::ServerAway]),
    all_for_long,
    &[
        "A fails for a certain cause",
        "B fails for a certain cause",
        "C fails for a certain cause",
        "the API server goes away",
        "155 s pass",
    ]
)]
fn the_limit_is_not_guaranteed(
    #[case] fleet: FleetModel,
    #[case] is_exceeded: fn(&FleetState) -> bool,
    #[case] history: &[&str],
) {
    assert_eq!(explore(&fleet, is_exceeded).unwrap_err(), history);
}

/// A minute, in which a Lease can expire, with one crash, orderly end, lost request or lost answer.
#[test]
fn one_rotator_leads_at_a_time() {
    for clocks in [[100, 100], [100, 150]] {
        let election = Election {
            clocks: clocks.to_vec(),
            steps: 12,
            faults: 1,
        };
        let explored = explore(&election, |state| election.leaders(state) > 1);
        assert!(explored.is_ok(), "{clocks:?}: {explored:#?}");
    }
}

/// A leader stops writing 30 s after its last renewal, and another one waits for 45 s.
#[test]
fn two_rotators_lead_if_a_clock_runs_twice_as_fast() {
    let election = Election {
        clocks: vec![100, 200],
        steps: 12,
        faults: 0,
    };
    let explored = explore(&election, |state| election.leaders(state) > 1);
    let history = [
        "A reads the Lease: Create",
        "the server answers A's write",
        "B reads the Lease: Wait",
        "5 s pass",
        "5 s pass",
        "5 s pass",
        "5 s pass",
        "5 s pass",
        "B reads the Lease: Seize",
        "the server answers B's write",
    ];
    assert_eq!(explored.unwrap_err(), history);
}
