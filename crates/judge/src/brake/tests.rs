//! The brake in each of its states; the simulator tests whole fleets.

use pathproof_facts::fleet_report::FleetReport;
use rstest::rstest;

use super::*;

mod domains;
mod turns;

fn s(seconds: u64) -> Mono {
    Mono((1_000 + seconds) * 1_000_000_000)
}

fn of(unsound: u32, nodes: u32) -> Option<Count> {
    Some(Count { unsound, nodes })
}

/// The rotator's clock and this node's clock are the same.
fn wall(at: Mono) -> Wall {
    Wall(1_700_000_000_000_000_000 + i64::try_from(at.0).unwrap())
}

/// A count is written and received.
fn count(brake: &mut Brake, count: Option<Count>, at: Mono) {
    let written = wall(at).0 / NANOS;
    if let Some(count) = count {
        let published = Published {
            count,
            written,
            ..Published::default()
        };
        brake.record(published, wall(at), at);
    }
}

/// A brake at 20 % that has this count.
fn brake(counted: Option<Count>) -> Brake {
    let mut brake = Brake::restore(Some(20), "node", BrakeMemory::default());
    count(&mut brake, counted, s(0));
    brake
}

/// Columns: unsound nodes without this one, all nodes, whether the 503 is held back. The count does not
/// include this node yet.
#[rstest]
#[case::alone(0, 1, false)]
#[case::one_of_two(0, 2, false)]
#[case::the_other_of_two(1, 2, true)]
#[case::the_second_of_three(1, 3, true)]
#[case::the_second_of_ten(1, 10, false)]
#[case::the_third_of_ten(2, 10, true)]
#[case::the_last_that_may_go(39, 200, false)]
#[case::the_first_that_must_not(40, 200, true)]
fn one_node_in_five_may_go(#[case] others: u32, #[case] nodes: u32, #[case] held: bool) {
    let mut brake = brake(of(others, nodes));
    let found = brake.step(true, true, s(1));
    let expected = held.then(|| BrakeReason::Fleet(of(others, nodes).unwrap()));
    assert_eq!(found, expected);
    count(&mut brake, of(others + 1, nodes), s(2));
    let counted = brake.step(true, true, s(2));
    assert_eq!(counted.is_some(), held, "with this node in the count");
}

/// The node is healthy, and a Service fails on it alone.
#[rstest]
#[case::no_count(None, false)]
#[case::few_nodes_fail(of(39, 200), false)]
#[case::many_nodes_fail(of(40, 200), true)]
#[case::the_other_of_two(of(1, 2), true)]
fn services_may_fail_alone_while_few_nodes_fail(
    #[case] counted: Option<Count>,
    #[case] held: bool,
) {
    let expected = counted.filter(|_| held).map(BrakeReason::Fleet);
    assert_eq!(brake(counted).hold_services(true, s(0)), expected);
    assert_eq!(brake(counted).hold_services(false, s(0)), None);
    let silent = brake(counted).hold_services(true, s(901));
    assert_eq!(silent, None, "the rotator is gone");
    let mut off = Brake::restore(None, "node", BrakeMemory::default());
    count(&mut off, counted, s(0));
    assert_eq!(off.hold_services(true, s(0)), None);
    assert_eq!(off.stagger(), Duration::ZERO);
}

/// All nodes fail at once, and the count follows shortly after or with the next rotator.
#[test]
fn a_503_that_no_count_has_settled_is_taken_back() {
    for count_at in [2, 11, 60, 600] {
        let mut brake = brake(of(0, 200));
        assert_eq!(brake.step(true, true, s(1)), None);
        count(&mut brake, of(200, 200), s(count_at));
        assert!(brake.step(true, true, s(count_at)).is_some());
        let later = brake.step(true, true, s(count_at + 30));
        assert!(later.is_some(), "and stays so");
    }
}

/// The counts at these times include only this node; then all others fail.
#[rstest]
#[case::soon(&[5], true)]
#[case::the_last_that_settles_nothing(&[31], true)]
#[case::the_first_that_does(&[32], false)]
#[case::with_the_next_rotation(&[5, 60], false)]
fn a_503_from_before_the_others_stays(#[case] counts: &[u64], #[case] held: bool) {
    let mut brake = brake(of(0, 200));
    assert_eq!(brake.step(true, true, s(1)), None);
    for at in counts {
        count(&mut brake, of(1, 200), s(*at));
        assert_eq!(brake.step(true, true, s(*at)), None);
    }
    count(&mut brake, of(200, 200), s(300));
    assert_eq!(brake.step(true, true, s(300)).is_some(), held);
}

/// The rotator counts again before the last agent has written its condition.
#[test]
fn the_first_counts_after_an_outage_settle_nothing() {
    for certain in [true, false] {
        let mut brake = brake(of(0, 200));
        brake.wait = Duration::ZERO;
        let free = (!certain).then_some(BrakeReason::Waiting);
        brake.source(true, s(1));
        assert_eq!(brake.step(true, certain, s(2)), free);
        assert_eq!(brake.step(true, certain, s(300)), free);
        brake.source(false, s(301));
        for (unsound, at) in [(3, 302), (30, 330)] {
            count(&mut brake, of(unsound, 200), s(at));
            assert_eq!(brake.step(true, certain, s(at)), free);
        }
        count(&mut brake, of(200, 200), s(400));
        assert!(brake.step(true, certain, s(400)).is_some());
        count(&mut brake, of(10, 200), s(401));
        assert!(brake.step(true, certain, s(440)).is_some());
        let wait = CATCH_UP.as_secs();
        assert_eq!(brake.step(true, certain, s(302 + wait)), None);
    }
}

#[test]
fn an_outage_releases_no_held_node() {
    let mut brake = brake(of(0, 200));
    count(&mut brake, of(200, 200), s(2));
    assert!(brake.step(true, true, s(2)).is_some());
    let later = s(3 + SILENT.as_secs());
    assert!(matches!(
        brake.step(true, true, later),
        Some(BrakeReason::Fleet(_))
    ));
    assert_eq!(brake.step(false, false, later), None);
    assert_eq!(
        brake.step(true, true, later),
        Some(BrakeReason::Turn),
        "a failure after the outage"
    );
}

#[test]
fn a_held_503_is_answered_once_the_others_are_sound_for_a_while() {
    let mut brake = brake(of(100, 200));
    assert!(brake.step(true, true, s(1)).is_some());
    count(&mut brake, of(10, 200), s(20));
    assert!(brake.step(true, true, s(11)).is_some());
    assert_eq!(brake.step(true, true, s(22)), None);
    count(&mut brake, of(100, 200), s(23));
    assert_eq!(
        brake.step(true, true, s(23)),
        None,
        "the answer must not flap"
    );
    assert_eq!(brake.step(false, false, s(24)), None);
    assert!(
        brake.step(true, true, s(25)).is_some(),
        "another fault begins"
    );
}

/// The rotator was killed after a count that lacks this node, which later assumes to be in it.
#[test]
fn an_old_count_releases_no_node_before_its_turn() {
    for certain in [true, false] {
        let mut brake = brake(of(1, 3));
        brake.wait = SPREAD / 2;
        assert!(brake.step(true, certain, s(1)).is_some());
        assert!(brake.step(true, certain, s(16)).is_some());
        let newer = match certain {
            true => BrakeReason::Turn,
            false => BrakeReason::Waiting,
        };
        assert_eq!(brake.step(true, certain, s(27)), Some(newer));
        count(&mut brake, of(2, 3), s(60));
        assert!(matches!(
            brake.step(true, certain, s(60)),
            Some(BrakeReason::Fleet(_))
        ));
    }
}

/// The count includes this node, which must not hold itself back.
#[test]
fn the_last_that_fails_is_answered() {
    let mut brake = brake(of(2, 5));
    assert!(brake.step(true, true, s(1)).is_some());
    count(&mut brake, of(3, 5), s(2));
    assert!(brake.step(true, true, s(2)).is_some());
    count(&mut brake, of(1, 5), s(3));
    assert!(
        brake.step(true, true, s(3)).is_some(),
        "the failing node may be another one"
    );
    assert!(brake.step(true, true, s(16)).is_some());
    assert_eq!(brake.step(true, true, s(27)), None);
}

/// A cause that could be wrong on every node at once waits for a count that includes this node.
#[test]
fn an_uncertain_cause_waits() {
    let waiting = |wait: u64, counts: &[u64], at: u64| {
        let mut brake = brake(of(0, 200));
        brake.wait = Duration::from_secs(wait);
        assert_eq!(brake.step(true, false, s(1)), Some(BrakeReason::Waiting));
        counts
            .iter()
            .for_each(|at| count(&mut brake, of(1, 200), s(*at)));
        brake.step(true, false, s(at)).is_some()
    };
    assert!(waiting(4, &[3], 4));
    assert!(!waiting(4, &[3], 5));
    assert!(waiting(4, &[], 60), "there is no count");
    assert!(!waiting(4, &[60], 60));
    assert!(
        waiting(4, &[1], 60),
        "it came as the 503 began: without this node"
    );
    let mut brake = brake(of(0, 200));
    assert_eq!(brake.step(true, false, s(7)), Some(BrakeReason::Waiting));
    assert_eq!(brake.step(true, true, s(8)), None, "now it is certain");
    assert_eq!(brake.step(true, false, s(9)), None, "and stays so");
}

/// The rotator ended, lost its Lease, or cannot reach the API server.
#[rstest]
#[case::certain(true, BrakeReason::Turn)]
#[case::uncertain(false, BrakeReason::Uncounted)]
fn an_old_count_no_longer_holds_a_node_back(#[case] certain: bool, #[case] held: BrakeReason) {
    let mut silent = brake(of(100, 200));
    let at = s(SILENT.as_secs() + 1);
    assert_eq!(silent.step(true, certain, at), Some(held));
    let mut heard = brake(of(100, 200));
    count(&mut heard, of(100, 200), s(600));
    assert!(matches!(
        heard.step(true, certain, at),
        Some(BrakeReason::Fleet(_))
    ));
}

/// An agent starts, or reads the slices again.
#[test]
fn a_count_that_was_known_is_no_sign_of_life() {
    let old = Published {
        count: of(100, 200).unwrap(),
        written: wall(s(0)).0 / NANOS,
        ..Published::default()
    };
    let late = s(SILENT.as_secs() + 1);
    let mut first = Brake::restore(Some(20), "node", BrakeMemory::default());
    first.record(old, wall(late), late);
    assert_eq!(
        first.step(true, true, late),
        Some(BrakeReason::Turn),
        "the last count is too old"
    );
    let mut again = brake(of(100, 200));
    again.record(old, wall(late), late);
    assert_eq!(again.step(true, true, late), Some(BrakeReason::Turn));
    count(&mut again, of(100, 200), late);
    assert!(matches!(
        again.step(true, true, late),
        Some(BrakeReason::Fleet(_))
    ));
}

/// When the node fails again, the fleet's count may still include its previous failure.
#[test]
fn a_lone_node_that_fails_again_is_answered() {
    for pause in [1, 25] {
        let mut brake = brake(of(0, 3));
        assert_eq!(brake.step(true, true, s(1)), None);
        count(&mut brake, of(1, 3), s(2));
        assert_eq!(brake.step(false, false, s(9)), None);
        assert_eq!(brake.step(true, true, s(9 + pause)), None, "{pause}");
    }
}

/// A controller marks every node. Once a fifth are counted, further ones keep their 200, and so do those that
/// were marked less than about 30 s before. Until that count arrives every marked node answers 503.
#[rstest]
#[case::few(39, false)]
#[case::many(40, true)]
#[case::all(199, true)]
fn one_node_in_five_may_be_marked(#[case] others: u32, #[case] held: bool) {
    let counted = |leaving, at: Mono| Published {
        count: of(7, 200).unwrap(),
        leaving: Some(leaving),
        written: wall(at).0 / NANOS,
        ..Published::default()
    };
    let mut brake = Brake::restore(Some(20), "node", BrakeMemory::default());
    assert_eq!(brake.hold_leaving(true, s(0)), None, "nobody counts");
    assert_eq!(brake.hold_leaving(false, s(1)), None);
    brake.record(counted(0, s(1)).of_leaving().unwrap(), wall(s(1)), s(1));
    assert_eq!(brake.hold_leaving(true, s(2)), None);
    let fourth = counted(others + 1, s(4)).of_leaving().unwrap();
    brake.record(fourth, wall(s(4)), s(4));
    let expected = held.then(|| BrakeReason::Leaving(of(others + 1, 200).unwrap()));
    assert_eq!(brake.hold_leaving(true, s(4)), expected);
    assert_eq!(brake.hold_leaving(false, s(5)), None, "the mark is gone");
}

#[test]
fn without_a_count_or_a_limit_nothing_is_held() {
    assert_eq!(brake(None).step(true, false, s(1)), None);
    let mut off = Brake::restore(None, "node", brake(of(200, 200)).memory);
    assert_eq!(off.step(true, false, s(1)), None);
}

#[test]
fn nodes_wait_differently() {
    let wait = |number: u32| {
        Brake::restore(Some(20), &format!("node-{number}"), BrakeMemory::default()).wait
    };
    let early = (0..1_000)
        .filter(|number| wait(*number) < SPREAD / 5)
        .count();
    assert!((150..=250).contains(&early), "{early} of 1000 in a fifth");
    assert!((0..1_000).all(|number| wait(number) < SPREAD));
}

#[rstest]
#[case(
    r#"{"nodes":200,"unsound":{"DatapathBrokenLeaked":3,"DatapathStale":1},"written":9}"#,
    of(4, 200)
)]
#[case(r#"{"nodes":0,"unsound":{}}"#, of(0, 0))]
#[case(r#"{"nodes":3,"unsound":{"a":4}}"#, None)]
#[case(r#"{"nodes":3,"unsound":{"a":4294967295,"b":4294967295}}"#, None)]
#[case(r#"{"nodes":-1,"unsound":{}}"#, None)]
#[case(r#"{"nodes":3,"unsound":{},"leaving":4}"#, None)]
#[case(
    r#"{"nodes":9,"unsound":{"a":1},"domains":{"pool":{"x":[1,3]},"zone":{}},"rest":[1,4]}"#,
    of(1, 9)
)]
#[case(r#"{"nodes":9,"unsound":{},"domains":{"pool":{"x":[4,3]}}}"#, None)]
#[case(r#"{"nodes":9,"unsound":{},"rest":[5,4]}"#, None)]
#[case("20 %", None)]
fn counts_are_read(#[case] text: &str, #[case] expected: Option<Count>) {
    let read = FleetReport::parse(text);
    assert_eq!(read.as_ref().ok().map(FleetReport::count), expected);
    if let Ok(report) = read {
        assert_eq!(FleetReport::parse(&report.text()).unwrap(), report);
    }
}

/// A count without nodes shows nothing about the fleet.
#[test]
fn a_count_of_no_nodes_is_none() {
    assert_eq!(brake(of(0, 0)).counted(), None);
    let text = r#"{"nodes":3,"unsound":{"leaked":1},"written":5}"#;
    let published = FleetReport::parse(text).unwrap().published(|_| None);
    assert_eq!(
        published.count,
        Count {
            unsound: 1,
            nodes: 3
        }
    );
    assert_eq!(published.written, 5);
    assert_eq!(published.of_leaving(), None, "such nodes are not counted");
}

/// No agent publishes its condition any more, so no count can include this node. For 15 min, and while agents
/// report again after an outage, their conditions may still come.
#[test]
fn after_counts_of_no_nodes_an_old_count_holds_nothing() {
    let late = SILENT.as_secs() + 1;
    let held = |brake: &mut Brake, at: u64| {
        count(brake, of(0, 0), s(at));
        brake.step(true, false, s(at)).is_some()
    };
    let mut quiet = brake(of(200, 200));
    assert!(held(&mut quiet, 1));
    assert!(held(&mut quiet, late - 1));
    assert!(!held(&mut quiet, late));
    assert_eq!(quiet.counted(), None);
    let mut back = brake(of(200, 200));
    assert!(held(&mut back, 1));
    back.source(true, s(2));
    back.source(false, s(late));
    let caught_up = late + CATCH_UP.as_secs();
    assert!(held(&mut back, caught_up));
    assert!(!held(&mut back, caught_up + 1));
}

#[test]
fn the_last_count_is_told_with_its_time() {
    assert_eq!(brake(None).counted(), None);
    let counted = brake(of(1, 3)).counted();
    assert_eq!(
        counted,
        Some((
            Count {
                unsound: 1,
                nodes: 3
            },
            Some(s(0))
        ))
    );
}
