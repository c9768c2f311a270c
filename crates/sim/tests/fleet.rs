//! The promises of the fleet brake, checked in simulated fleets.

use std::time::Duration;

use pathproof_sim::fleet::{Outcome, Rotators, SCENARIOS, Scenario, play};
use rstest::rstest;

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn scenario(name: &str) -> &'static Scenario {
    let found = SCENARIOS.iter().find(|scenario| scenario.name == name);
    found.expect("a scenario of this name")
}

fn limit(outcome: &Outcome) -> u32 {
    (outcome.nodes / 5).max(1)
}

/// The brake is on, and a rotator and the API server work throughout.
#[rstest]
fn at_most_a_fifth_refuses_after_ten_seconds(#[values(3, 200, 1_000)] nodes: u32) {
    let all_there = |scenario: &&Scenario| {
        let rotates = matches!(scenario.rotators, Rotators::One | Rotators::Two { .. });
        rotates
            && scenario.away.is_none()
            && scenario.percent.is_some()
            && !scenario.waves.is_empty()
    };
    for scenario in SCENARIOS.iter().filter(all_there) {
        let outcome = play(scenario, nodes, 1);
        let last = scenario.waves.last().expect("a wave");
        let after = outcome.peak_after(s(last.at + last.spread + 10));
        assert!(after <= limit(&outcome), "{}: {after}", scenario.name);
        // Each wave may exceed the limit for this time.
        let most = s(12) * u32::try_from(scenario.waves.len()).unwrap();
        let above = outcome.above(limit(&outcome));
        assert!(above <= most, "{}: {above:?}", scenario.name);
    }
}

#[test]
fn other_seeds_keep_the_limit() {
    for seed in 2..22 {
        for nodes in [3, 40] {
            let outcome = play(scenario("all nodes, certain"), nodes, seed);
            let after = outcome.peak_after(s(10));
            assert!(after <= limit(&outcome), "seed {seed}: {after}");
        }
    }
}

#[rstest]
#[case("one node, certain", Duration::ZERO, s(0) + Duration::from_millis(1_500))]
#[case("one node, uncertain", s(10), s(14))]
fn a_single_fault_is_answered(
    #[case] name: &str,
    #[case] held: Duration,
    #[case] answered: Duration,
    #[values(3, 200, 1_000)] nodes: u32,
) {
    for seed in 1..10 {
        let outcome = play(scenario(name), nodes, seed);
        assert!(outcome.held.is_some_and(|by| by <= held), "{outcome:?}");
        assert!(outcome.answered.is_some_and(|by| by <= answered));
        assert_eq!(outcome.at(s(60)), 1);
    }
}

/// The next rotator becomes leader after 50 s and counts at once.
#[rstest]
fn a_rotator_that_is_killed_costs_a_minute(
    #[values(
        "all nodes, rotator killed",
        "all nodes, rotator killed with its first count",
        "all nodes, uncertain, rotator killed"
    )]
    name: &str,
    #[values(3, 200)] nodes: u32,
) {
    let outcome = play(scenario(name), nodes, 1);
    assert!(outcome.peak_after(s(65)) <= limit(&outcome), "{name}");
}

/// Negative control of the scenarios with a pool: a rotator that counts the cluster only.
#[test]
fn without_a_count_of_pools_a_whole_pool_answers_503() {
    let pool = scenario("pool of 6, certain");
    assert!(play(pool, 200, 1).peak_after(s(10)) <= 1);
    let pool = Scenario {
        pool: None,
        ..*pool
    };
    assert_eq!(play(&pool, 200, 1).at(s(60)), 6);
}

/// No count arrives for 50 s, for 5 min or at all before the fault: nodes then fail one after another.
#[test]
fn without_a_count_nodes_take_turns() {
    let killed = play(scenario("all nodes, rotator killed"), 200, 1);
    assert_eq!(killed.at(s(10)), 200, "the first count is awaited");
    assert!(killed.peak_after(s(18)) <= limit(&killed));
    for minutes in [5, 20] {
        let name = format!("all nodes, certain, no API for {minutes} min");
        let outcome = play(scenario(&name), 200, 1);
        let [soon, late] = [60, 290].map(|at| outcome.at(s(at)));
        assert!(soon <= limit(&outcome), "{name}: {soon}");
        assert!((70..=130).contains(&late), "{name}: {late}");
    }
}

/// After an outage of the API server, all nodes are counted again within two and a half minutes.
#[rstest]
fn an_outage_costs_its_time_and_two_minutes(#[values(3, 200)] nodes: u32) {
    for scenario in SCENARIOS.iter().filter(|scenario| scenario.away.is_some()) {
        let outcome = play(scenario, nodes, 1);
        let back = scenario.away.map_or(0, |away| away.1);
        let after = outcome.peak_after(s(u64::try_from(back).unwrap() + 150));
        assert!(after <= limit(&outcome), "{}: {after}", scenario.name);
        if scenario.name.contains("uncertain") || scenario.name.contains("after a minute") {
            assert!(
                outcome.peak_after(s(20)) <= limit(&outcome),
                "{}",
                scenario.name
            );
        }
    }
}

/// Without a change, a rotator writes only its first count.
#[rstest]
fn nothing_is_written_without_a_change(#[values(3, 200, 1_000)] nodes: u32) {
    let (rotations, counts) = play(scenario("an hour without a fault"), nodes, 1).writes;
    assert_eq!(counts, 1);
    // Every 15 s, or every 20 s with 1,000 nodes. The run also has some minutes before the hour.
    let expected = if nodes < 1_000 { 240..=252 } else { 180..=189 };
    assert!(expected.contains(&rotations), "{rotations}");
}

#[test]
fn the_same_seed_gives_the_same_fleet() {
    let run = |seed| format!("{:?}", play(scenario("all nodes, certain"), 50, seed));
    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8));
}
