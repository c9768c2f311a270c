//! A certain failure while no count arrives: nodes answer 503 one after another.

use super::*;

/// A brake whose turn comes 100 s after its failure.
fn turn() -> Brake {
    let mut brake = brake(of(0, 200));
    brake.wait = Duration::from_secs(100) / TURNS;
    brake
}

/// The rotator is killed when all nodes fail.
#[test]
fn without_a_newer_count_a_503_ends_until_its_turn() {
    let mut brake = turn();
    assert_eq!(brake.step(true, true, s(1)), None, "a count is awaited");
    assert_eq!(brake.step(true, true, s(16)), None);
    assert_eq!(brake.step(true, true, s(17)), Some(BrakeReason::Turn));
    assert_eq!(brake.step(true, true, s(100)), Some(BrakeReason::Turn));
    assert_eq!(brake.step(true, true, s(101)), None);
    count(&mut brake, of(200, 200), s(110));
    assert!(matches!(
        brake.step(true, true, s(110)),
        Some(BrakeReason::Fleet(_))
    ));
}

/// A node that fails alone keeps its 503, whatever becomes of the rotator after its next count.
#[test]
fn a_counted_503_waits_for_no_turn() {
    let mut brake = turn();
    assert_eq!(brake.step(true, true, s(1)), None);
    count(&mut brake, of(1, 200), s(3));
    assert_eq!(brake.step(true, true, s(3)), None);
    brake.source(true, s(4));
    for at in [4, 20, 60, 2_000] {
        assert_eq!(brake.step(true, true, s(at)), None, "{at} s");
    }
}

/// While the API server is away, and until all agents have reported again, nobody counts.
#[test]
fn during_an_outage_each_node_waits_for_its_turn() {
    let mut brake = turn();
    brake.source(true, s(1));
    assert_eq!(brake.step(true, true, s(2)), Some(BrakeReason::Turn));
    brake.source(false, s(50));
    count(&mut brake, of(3, 200), s(51));
    assert_eq!(brake.step(true, true, s(52)), Some(BrakeReason::Turn));
    assert_eq!(brake.step(true, true, s(102)), None);
}

/// Nodes take their turns evenly over ten minutes: a fifth of them within the first two.
#[test]
fn turns_are_spread_over_ten_minutes() {
    let turn = |number: u32| {
        let name = format!("node-{number}");
        Brake::restore(Some(20), &name, BrakeMemory::default()).wait * TURNS
    };
    let early = (0..1_000).filter(|number| turn(*number) < Duration::from_secs(120));
    assert!((150..=250).contains(&early.count()));
    assert!((0..1_000).all(|number| turn(number) < Duration::from_secs(600)));
}

/// A rotation publishes a count that was taken before all nodes failed. Then the API server is away.
#[test]
fn a_count_from_before_the_failure_replaces_no_turn() {
    let mut brake = turn();
    assert_eq!(brake.step(true, true, s(1)), None);
    count(&mut brake, of(0, 200), s(2));
    assert_eq!(brake.step(true, true, s(2)), None, "a count is awaited");
    brake.source(true, s(4));
    assert_eq!(brake.step(true, true, s(5)), Some(BrakeReason::Turn));
}

/// A node recovers and fails again before its recovery is counted, so that no count changes.
#[test]
fn a_counted_failure_that_comes_back_at_once_waits_for_no_turn() {
    let mut brake = turn();
    brake.step(true, true, s(1));
    count(&mut brake, of(1, 200), s(3));
    brake.step(true, true, s(3));
    assert_eq!(brake.step(false, false, s(30)), None);
    for at in [33, 60] {
        assert_eq!(brake.step(true, true, s(at)), None, "{at} s");
    }
}

#[test]
fn a_turn_is_counted_from_when_the_cause_became_certain() {
    let mut brake = turn();
    brake.source(true, s(1));
    assert_eq!(brake.step(true, false, s(2)), Some(BrakeReason::Waiting));
    assert_eq!(brake.step(true, true, s(700)), Some(BrakeReason::Turn));
    assert_eq!(brake.step(true, true, s(800)), None);
}
