//! Witnesses of two scopes that fail together: the pod probe beside connections, and connections beside a
//! lane.

use pathproof_facts::cause::{Cause, Failure, State};
use pathproof_facts::trace::ProbePath;
use pathproof_wire::service::Family;
use pathproof_wire::service::SourceClass::{self, External, Pod};
use pathproof_witness::ledger::{OUTSIDE, Reading};
use rstest::rstest;

use super::scene::*;
use super::world::*;

/// Refused connections: Service, class, number of clients, time of the first and the last in ms, and the
/// pause between them.
type Refused = (u32, SourceClass, u8, u64, u64, usize);

const PROBE: Refused = (ECHO, Pod, 1, 3_000, 9_000, 250);
const WEB_OF_PODS: Refused = (WEB, Pod, 1, 3_000, 9_000, 250);

/// A node whose Services and pod probe worked refuses these connections.
fn refuse(mut world: World, all: &[Refused], lanes: &[ProbePath]) -> State {
    world.worked(ECHO).worked_outside(WEB);
    for at in (2_250..=9_000).step_by(250) {
        for (service, class, clients, first, last, pause) in all {
            if (*first..=*last).step_by(*pause).any(|due| due == at) {
                for client in 1..=*clients {
                    world.fail(*service, *class, client, Failure::Refused, at - 10);
                }
            }
        }
        match lanes {
            [] => drop(world.look(at)),
            lanes => drop(world.rounds(at, at, lanes, |_| Fate::Pass)),
        }
    }
    world.verdict(9_000).state
}

#[rstest]
#[case::beside_a_service_of_pods(&[PROBE, WEB_OF_PODS], true)]
#[case::beside_two_clients_outside(&[PROBE, (WEB, External, 2, 3_000, 9_000, 250)], true)]
#[case::alone(&[PROBE], false)]
#[case::connections_alone(&[WEB_OF_PODS], false)]
#[case::failed_twice(&[(ECHO, Pod, 1, 3_000, 3_250, 250), WEB_OF_PODS], false)]
#[case::beside_two_failures(&[PROBE, (WEB, Pod, 1, 3_000, 7_000, 4_000)], false)]
#[case::beside_a_short_failure(&[PROBE, (WEB, Pod, 1, 3_000, 3_750, 250)], false)]
fn the_pod_probe_needs_a_second_scope(#[case] all: &[Refused], #[case] broken: bool) {
    let state = refuse(World::new(), all, &[]);
    assert_eq!(state == State::Broken, broken, "{state:?}");
}

/// Packets with a pod's address pass: a policy denies the pod probe.
#[rstest]
#[case::of_pods(&[ProbePath::Pod, ProbePath::OffCluster], false)]
#[case::that_are_masqueraded(&[ProbePath::OffCluster, ProbePath::NodePort], true)]
fn a_lane_passes_beside_the_pod_probe(#[case] lanes: &[ProbePath], #[case] broken: bool) {
    let world = World::probed(lanes);
    let state = refuse(world, &[PROBE, WEB_OF_PODS], lanes);
    assert_eq!(state == State::Broken, broken, "{state:?}");
}

/// Pods lose connections to one Service from one moment on, and the lane from outside fails from another
/// moment on.
fn lost_beside_a_lane(mixed: bool, fate: Fate, lane_fails: u64) -> State {
    let lanes = [ProbePath::OffCluster];
    let mut world = World::probed(&lanes);
    world.ledger.sentinel.applicability.mixed = mixed;
    for at in (2_250..=12_000).step_by(250) {
        let now = if at < lane_fails { Fate::Pass } else { fate };
        for client in [1, 2] {
            // The connection arrived a second before.
            if at >= 5_250 {
                world.fail(WEB, Pod, client, Failure::Lost, at);
            }
        }
        world.rounds(at, at, &lanes, |_| now);
    }
    world.verdict(12_000).state
}

/// With two proxies, pods' connections are not translated by the proxy that this lane tests.
#[rstest]
#[case::one_proxy(false, true)]
#[case::two_proxies(true, false)]
fn pods_beside_the_lane_from_outside(#[case] mixed: bool, #[case] broken: bool) {
    let state = lost_beside_a_lane(mixed, Fate::Drop, 4_250);
    assert_eq!(state == State::Broken, broken, "{state:?}");
}

/// Lost answers of the lane need no common onset, but only if answers to these connections are lost as well.
#[rstest]
#[case::at_the_same_time(4_250, true)]
#[case::later(8_000, false)]
fn lost_connections_beside_lost_answers(#[case] lane_fails: u64, #[case] broken: bool) {
    let state = lost_beside_a_lane(false, Fate::LoseAnswer, lane_fails);
    assert_eq!(state == State::Broken, broken, "{state:?}");
}

/// Probes of the lane are lost from 4.25 s on, but none is sent between 12 and 15 s. A filter on the sentinel's
/// addresses and a policy that drops connections from the end of this gap on have no common onset, although the
/// probes after the gap seem to begin to fail with the connections.
#[rstest]
#[case::fault(4_250, true)]
#[case::filter_and_policy(15_000, false)]
fn connections_beside_a_lane_with_a_gap(#[case] dropped_from: u64, #[case] broken: bool) {
    let lanes = [ProbePath::OffCluster];
    let mut world = World::probed(&lanes);
    for at in (2_250..=22_000).step_by(250) {
        if at < dropped_from {
            world.prove(WEB, Pod, at - 10);
        } else if at >= dropped_from + 1_000 {
            // These connections arrived a second before.
            world.fail(WEB, Pod, 1, Failure::Lost, at);
            world.fail(WEB, Pod, 2, Failure::Lost, at);
        }
        let fate = if at < 4_250 { Fate::Pass } else { Fate::Drop };
        match at {
            12_000..15_000 => drop(world.look(at)),
            _ => drop(world.rounds(at, at, &lanes, |_| fate)),
        }
    }
    let state = world.verdict(22_000).state;
    assert_eq!(state == State::Broken, broken, "{state:?}");
}

/// Probes of the lane are lost from `filtered` on, and all connections from 20 s on. Damage to the sentinel's
/// devices ends the run of lost probes at 40 s, but not the reason why they were lost.
#[rstest]
#[case::fault(19_750, true)]
#[case::filter_and_policy(4_250, false)]
fn connections_beside_a_lane_whose_devices_are_damaged(
    #[case] filtered: u64,
    #[case] broken: bool,
) {
    let lanes = [ProbePath::OffCluster];
    let mut world = World::probed(&lanes);
    for at in (2_250..40_000).step_by(250) {
        for (service, client) in [(WEB, 1), (API, 2)] {
            match at < 20_000 {
                true => drop(world.prove(service, Pod, at - 10)),
                false => drop(world.fail(service, Pod, client, Failure::Lost, at)),
            }
        }
        let fate = if at < filtered {
            Fate::Pass
        } else {
            Fate::Drop
        };
        world.rounds(at, at, &lanes, |_| fate);
    }
    let sentence = "pathproof-c0 is down".to_owned();
    world.ledger.sentinel.damaged(ms(40_000), sentence);
    world.look(41_000);
    let state = world.verdict(41_000).state;
    assert_eq!(state == State::Broken, broken, "{state:?}");
}

/// Connections are lost from 4.25 s or 49 s on, and none is dialled between 12 and 50 s. Probes of the lane are
/// lost from 49 s on. A policy that drops connections before the pause is no fault of the node.
#[rstest]
#[case::fault(49_000, true)]
#[case::policy_and_filter(4_250, false)]
fn connections_with_a_pause_beside_a_lane(#[case] dropped_from: u64, #[case] broken: bool) {
    let lanes = [ProbePath::OffCluster];
    let mut world = World::probed(&lanes);
    for at in (2_250..=56_000).step_by(250) {
        let dials = !(12_000..50_000).contains(&at);
        match at < dropped_from {
            true if dials => drop(world.prove(WEB, Pod, at - 10)),
            // This connection arrived a second before.
            false if dials && at >= dropped_from + 1_000 => {
                world.fail(WEB, Pod, 1, Failure::Lost, at);
            }
            _ => {}
        }
        let fate = if at < 49_000 { Fate::Pass } else { Fate::Drop };
        world.rounds(at, at, &lanes, |_| fate);
    }
    let state = world.verdict(56_000).state;
    assert_eq!(state == State::Broken, broken, "{state:?}");
}

/// The kernel shows an obstacle for clients outside.
#[rstest]
#[case::three_failures_over_a_second(&[3_000, 3_500, 4_000], true)]
#[case::three_at_once(&[3_000, 3_000, 3_250], false)]
#[case::two_over_a_second(&[3_000, 4_500], false)]
fn failures_beside_an_obstacle(#[case] times: &[u64], #[case] broken: bool) {
    let mut world = World::new();
    world.worked_outside(WEB);
    for at in (250..=5_000).step_by(250) {
        let reading = Reading::Present(Cause::ProgramMissing, OUTSIDE);
        world.ledger.obstacle(Family::V4, reading, ms(at));
        for _ in times.iter().filter(|time| **time == at) {
            world.fail(WEB, External, 1, Failure::Refused, at);
        }
        world.look(at);
    }
    let state = world.verdict(5_000).state;
    assert_eq!(state == State::Broken, broken, "{state:?}");
}
