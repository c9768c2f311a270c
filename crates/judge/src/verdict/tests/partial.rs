//! Faults that affect only part of the traffic: the sentinel names them and clients outside confirm them.

use pathproof_facts::cause::{Failure, State};
use pathproof_facts::trace::{Lane, ProbePath};
use pathproof_wire::service::SourceClass;
use rstest::rstest;

use super::scene::*;
use super::sentinel::only;
use super::world::*;

/// Endpoints of this node work without masquerade, those of other nodes do not.
#[rstest]
#[case::felt(2_250, 14_000, State::Broken)]
#[case::not_for_long(2_250, 8_000, State::Degraded)]
#[case::by_nobody(0, 0, State::Degraded)]
#[case::by_others_before(250, 2_000, State::Degraded)]
fn connections_without_masquerade_do_not_refute_missing_masquerade(
    #[case] from: u64,
    #[case] to: u64,
    #[case] expected: State,
) {
    let mut world = World::with_sentinel();
    let mut state = State::Starting;
    for at in (250..=14_000).step_by(250) {
        let fate = match at {
            ..=2_000 => Fate::Pass,
            _ => Fate::Unmasqueraded,
        };
        world
            .prove(WEB, SourceClass::External, at)
            .prove(API, SourceClass::Pod, at);
        if (from..=to).contains(&at) {
            world.unanswered();
        }
        world.rounds(at, at, &USUAL, |_| fate);
        state = world.verdict(at + 200).state;
    }
    assert_eq!(state, expected);
}

/// Once load balancers leave, nothing shows the fault or its repair.
#[test]
fn missing_masquerade_stays_broken_without_anybody_outside() {
    let mut world = World::with_sentinel();
    for at in (250..=40_000).step_by(250) {
        if (2_250..14_000).contains(&at) {
            world
                .prove(WEB, SourceClass::External, at)
                .prove(API, SourceClass::Pod, at)
                .unanswered();
        }
        let fate = if at <= 2_000 {
            Fate::Pass
        } else {
            Fate::Unmasqueraded
        };
        world.rounds(at, at, &USUAL, |_| fate);
    }
    assert_eq!(world.verdict(40_200).state, State::Broken);
    // Clients return, and all are answered.
    for at in (40_250..=52_000).step_by(250) {
        world
            .prove(WEB, SourceClass::External, at)
            .prove(API, SourceClass::Pod, at);
        world.rounds(at, at, &USUAL, |_| Fate::Unmasqueraded);
    }
    assert_eq!(world.verdict(52_200).state, State::Degraded);
}

/// In nftables mode kube-proxy drops packets to cluster IPs that no rule handles.
#[test]
fn refused_node_ports_beside_lost_cluster_ips_are_a_fault() {
    let fate = |lane: Lane| match lane.path {
        ProbePath::NodePort => Fate::Refuse,
        _ => Fate::Drop,
    };
    assert_eq!(
        World::faulty(3_000, fate).verdict(3_210).state,
        State::Broken
    );
}

/// If only node ports refuse, either nodePortAddresses were narrowed, or the node is at fault. It is at fault
/// if enough connections from outside fail, to Services that worked for clients outside.
#[rstest]
#[case::of_probes_alone(0, 0, true, State::Degraded)]
#[case::of_a_scanner(2_500, 4, false, State::Degraded)]
#[case::of_few(2_500, 2, true, State::Degraded)]
#[case::of_others_before(250, 4, true, State::Degraded)]
#[case::of_others_too(2_500, 4, true, State::Broken)]
fn refused_node_ports_beside_cluster_ips_that_pass(
    #[case] from: u64,
    #[case] refused: u64,
    #[case] worked: bool,
    #[case] expected: State,
) {
    let mut world = World::with_sentinel();
    for at in (250..=6_000).step_by(250) {
        if at == 250 && worked {
            world.prove(WEB, SourceClass::External, at);
        }
        if at >= from && at < from + refused * 250 {
            let client = (at / 250 % 2) as u8;
            world.fail(WEB, SourceClass::External, client, Failure::Refused, at);
        }
        let fate = if at <= 2_000 {
            Fate::Pass
        } else {
            Fate::Refuse
        };
        world.rounds(at, at, &USUAL, only(ProbePath::NodePort, fate));
    }
    let verdict = world.verdict(6_200);
    assert_eq!(verdict.state, expected, "{}", verdict.reason());
}
