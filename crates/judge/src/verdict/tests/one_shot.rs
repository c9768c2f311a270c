//! `pathproof check` has no memory: it uses the agent's rules, but lanes count from their first probe on.

use pathproof_facts::cause::{Cause, State};
use pathproof_facts::limits::Limits;
use pathproof_facts::trace::{Lane, ProbePath, Transport};
use rstest::rstest;

use super::scene::*;
use super::world::*;
use crate::verdict::Rule;

fn probed(limits: Limits, fate: impl Fn(Lane) -> Fate) -> World {
    let mut world = World::limited(limits);
    world.rounds(250, 4_000, &USUAL, fate);
    world
}

fn reset_at_the_cluster_ip(lane: Lane) -> Fate {
    match (lane.path, lane.transport) {
        (ProbePath::OffCluster, Transport::Tcp) => Fate::Refuse,
        _ => Fate::Pass,
    }
}

#[test]
fn rules_that_are_gone_from_the_first_probe_on_are_broken() {
    let verdict = probed(Limits::one_shot(), |_| Fate::Leak).verdict(4_200);
    assert_eq!(
        (verdict.state, verdict.cause),
        (State::Broken, Some(Cause::Leaked))
    );
    assert_eq!(verdict.finding.rule, Rule::BrokenByProbes);
}

#[rstest]
#[case::rst_at_the_cluster_ip(reset_at_the_cluster_ip, State::Suspect)]
#[case::icmp(outside(Fate::Reject, Fate::Pass), State::Suspect)]
#[case::drop(outside(Fate::Drop, Fate::Pass), State::Suspect)]
#[case::nothing(|_| Fate::Pass, State::Proven)]
#[case::damaged_devices(|_| Fate::Vanish, State::Unknown)]
fn failures_that_a_filter_explains_do_not_accuse(
    #[case] fate: impl Fn(Lane) -> Fate,
    #[case] expected: State,
) {
    let verdict = probed(Limits::one_shot(), fate).verdict(4_200);
    assert_eq!(verdict.state, expected, "{}", verdict.reason());
}

#[rstest]
#[case(Fate::Leak)]
#[case(Fate::Refuse)]
#[case(Fate::Misroute)]
#[case(Fate::ForwardingOff)]
#[case(Fate::Drop)]
fn an_agent_never_accuses_by_a_lane_that_never_worked(#[case] fate: Fate) {
    let verdict = probed(Limits::default(), |_| fate).verdict(4_200);
    assert_eq!(verdict.finding.rule, Rule::NeverWorked);
    assert_eq!(verdict.state, State::Unknown);
}
