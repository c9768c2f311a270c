//! Conditions for accusing a node: failing pods, Services that worked before, breadth, and no passing probe
//! that refutes it. Each test removes one condition and shows the attack that it prevents.

use pathproof_facts::cause::Failure::{self, Leaked, Lost, Misrouted};
use pathproof_facts::cause::State;
use pathproof_facts::cluster::ObjectName;
use pathproof_facts::trace::{LaneConflict, ProbePath, Transport};
use pathproof_wire::evidence::Outcome;
use pathproof_wire::service::SourceClass::{self, External, Pod};
use pathproof_witness::evidence::{EndpointRoute, EndpointRoutes, Sample};
use rstest::rstest;

use super::scene::*;
use super::world::*;
use crate::verdict::Evidence;
use crate::verdict::finding::MissingCriterion;

/// One failing client: Service, class, last byte of the address.
pub(super) type Client = (u32, SourceClass, u8);

pub(super) const TWO: &[Client] = &[(WEB, Pod, 1), (API, Pod, 2)];
const OUTSIDERS: &[Client] = &[(WEB, External, 1), (DB, External, 2)];

/// Paths that are closer to the pods' path than node ports.
const NEARER: &[ProbePath] = &[ProbePath::Pod, ProbePath::OffCluster];

/// A tenant's Service uses the frontend of this path's probes.
fn conflict(path: ProbePath) -> LaneConflict {
    LaneConflict {
        lane: lane(path, Transport::Tcp),
        service: ObjectName::new("shop", "claim"),
        loops: false,
    }
}

/// Each client fails every 250 ms from `from` on.
pub(super) fn fail(world: &mut World, clients: &[Client], failure: Failure, from: u64, to: u64) {
    for at in (from..=to).step_by(250) {
        for (service, class, client) in clients {
            let mut seen = failed_connection(*service, *class, *client, failure, at - 10);
            seen.misdelivered = failure == Misrouted;
            seen.destination = Some(([10, 244, 0, *client], 8_080).into());
            world.sight(seen).fail_unseen(*service, *class, failure);
        }
        world.look(at);
    }
}

/// Two Services that worked, and passing probes.
fn with_passing_probes() -> World {
    let mut world = World::with_sentinel();
    world.rounds(250, 2_000, &USUAL, |_| Fate::Pass);
    world
}

fn lacking(world: &World, at: u64) -> Option<MissingCriterion> {
    match world.verdict(at).families[0].finding.evidence {
        Evidence::Connections { lacking, .. } => lacking,
        _ => None,
    }
}

/// Without the sentinel, two pods that lose connections accuse the node; a scanner and a denied pod do not.
#[rstest]
#[case::two_pods(TWO, None)]
#[case::outsiders_never_served(
    &[(WEB, External, 1), (API, External, 2)], Some(MissingCriterion::New)
)]
#[case::one_pod_beside_a_scanner(
    &[(WEB, Pod, 1), (API, External, 2), (DB, External, 3)], Some(MissingCriterion::Services)
)]
#[case::one_pod(&[(WEB, Pod, 1), (API, Pod, 1)], Some(MissingCriterion::Sources))]
fn losses_accuse_by_breadth(
    #[case] clients: &[Client],
    #[case] expected: Option<MissingCriterion>,
) {
    let mut world = World::new();
    fail(&mut world, clients, Lost, 250, 4_250);
    assert_eq!(lacking(&world, 4_250), expected);
    let accused = world.verdict(4_250).state == State::Broken;
    assert_eq!(accused, expected.is_none());
}

/// Clients outside accuse nobody even if their Services worked, because a policy may deny them.
#[test]
fn outsiders_who_are_denied_accuse_nobody() {
    let mut world = World::new();
    world.worked_outside(WEB).worked_outside(API);
    fail(&mut world, OUTSIDERS, Lost, 250, 6_000);
    assert_eq!(lacking(&world, 6_000), Some(MissingCriterion::Pod));
}

/// Every dialled Service fails because its rules are gone, which no policy causes. The sentinel's rules may
/// be intact.
#[rstest]
#[case::one_pod(&[(WEB, Pod, 1), (API, Pod, 1)], Leaked, State::Broken)]
#[case::outside_alone(&[(WEB, External, 1), (API, External, 2)], Failure::Refused, State::Broken)]
#[case::led_astray(&[(WEB, Pod, 1), (API, External, 2)], Misrouted, State::Broken)]
#[case::one_service(&[(WEB, Pod, 1), (WEB_METRICS, Pod, 2)], Leaked, State::Degraded)]
#[case::refused_to_pods(&[(WEB, Pod, 1), (API, Pod, 2)], Failure::Refused, State::Degraded)]
#[case::denied(&[(WEB, External, 1), (API, External, 2)], Lost, State::Degraded)]
fn rules_that_are_gone_accuse_beside_a_sentinel_that_passes(
    #[case] clients: &[Client],
    #[case] failure: Failure,
    #[case] expected: State,
) {
    let mut world = with_passing_probes();
    world.worked_outside(WEB).worked_outside(API);
    for at in (2_250..=7_000).step_by(250) {
        for (service, class, client) in clients {
            let mut seen = failed_connection(*service, *class, *client, failure, at - 10);
            seen.destination = Some(([192, 0, 2, 9], 8_080).into());
            world.sight(seen).fail_unseen(*service, *class, failure);
        }
        world.rounds(at, at, &USUAL, |_| Fate::Pass);
    }
    let verdict = world.verdict(7_200);
    assert_eq!(verdict.state, expected, "{}", verdict.reason());
}

/// Failures of clients outside that precede the first pod's do not count towards the three seconds.
#[test]
fn outsiders_do_not_make_a_run_of_victims_older() {
    let mut world = World::new();
    fail(&mut world, &[(WEB, External, 1)], Leaked, 250, 10_000);
    fail(&mut world, TWO, Leaked, 10_250, 11_000);
    assert_eq!(lacking(&world, 11_000), Some(MissingCriterion::Time));
    fail(&mut world, TWO, Leaked, 11_250, 13_500);
    assert_eq!(world.verdict(13_500).state, State::Broken);
}

/// A Service that never worked may be too new for a late proxy, or always denied by a policy.
#[test]
fn services_that_never_worked_accuse_nobody() {
    let mut world = World::new();
    let new = [(CART, Pod, 1), (CART + 1, Pod, 2), (CART + 2, Pod, 3)];
    fail(&mut world, &new, Leaked, 250, 6_000);
    assert_eq!(lacking(&world, 6_000), Some(MissingCriterion::New));
    // If one Service worked and another one never did, only one counts.
    let mut world = World::new();
    fail(
        &mut world,
        &[(CART, Pod, 1), (WEB, Pod, 2)],
        Leaked,
        250,
        6_000,
    );
    assert_eq!(lacking(&world, 6_000), Some(MissingCriterion::Services));
}

/// A Service works and fails, is scaled to zero while pods dial it, and returns faster than a late proxy
/// can follow.
#[test]
fn first_endpoints_have_a_grace() {
    let mut world = World::new();
    fail(&mut world, TWO, Failure::Refused, 250, 750);
    let mut names = Names::standard();
    names.0[API as usize].3 = 0;
    world.count(
        API,
        Pod,
        &[(Outcome::Arrived, 1), (Outcome::Rejected, 1)],
        0,
    );
    let look = std::mem::replace(&mut world.next, World::new().next);
    let look = Sample {
        at: ms(1_000),
        ..look
    };
    world.ledger.absorb(&look, &names);
    let late = [(WEB, Pod, 1), (API, Pod, 2)];
    fail(&mut world, &late, Failure::Refused, 1_250, 15_750);
    assert_eq!(lacking(&world, 15_750), Some(MissingCriterion::Services));
    fail(&mut world, &late, Failure::Refused, 16_000, 21_000);
    assert_eq!(lacking(&world, 21_000), None, "the proxy is too late");
}

/// The proxy never wrote a rule: nothing ever worked, and cluster IPs leave untranslated. A policy may have
/// denied lost connections.
#[rstest]
#[case::leaked(Leaked, State::Broken)]
#[case::lost(Lost, State::Suspect)]
fn rules_that_were_never_there_accuse(#[case] failure: Failure, #[case] expected: State) {
    let mut world = World::new();
    world.ledger.worked = Default::default();
    fail(&mut world, TWO, failure, 250, 5_000);
    assert_eq!(world.verdict(5_000).state, expected);
}

/// Connections that failed while lanes failed were repaired with them, and a loss is noticed late. Only those
/// that fail well after the lanes passed again show that other rules are still gone.
#[rstest]
#[case::at_the_limit(3_750, false)]
#[case::after_it(4_000, true)]
fn failures_after_the_lanes_recovered_accuse(#[case] last: u64, #[case] broken: bool) {
    let mut world = World::probed(&USUAL);
    world.rounds(2_250, 2_250, &USUAL, |_| Fate::Leak);
    for at in (2_500..=5_500).step_by(250) {
        for (service, class, client) in TWO.iter().filter(|_| at <= last) {
            world.fail(*service, *class, *client, Leaked, at - 10);
        }
        world.rounds(at, at, &USUAL, |_| Fate::Pass);
    }
    assert_eq!(world.verdict(5_650).state == State::Broken, broken);
}

/// A proof from outside shows nothing about the pods' path.
#[test]
fn a_service_worked_where_a_pod_was_served() {
    for (class, state) in [(External, State::Degraded), (Pod, State::Broken)] {
        let mut world = World::new();
        world.ledger.worked = Default::default();
        world
            .prove(WEB, class, 100)
            .prove(API, class, 100)
            .look(250);
        fail(&mut world, TWO, Leaked, 500, 5_000);
        assert_eq!(world.verdict(5_000).state, state, "{class:?}");
    }
}

/// Failures in one namespace do not accuse the node while others are in use.
#[test]
fn one_namespace_accuses_nobody_while_another_is_in_use() {
    let mut world = World::new();
    world.worked(CART);
    fail(&mut world, TWO, Lost, 250, 5_000);
    assert_eq!(lacking(&world, 5_000), Some(MissingCriterion::Namespaces));
    let both = [(WEB, Pod, 1), (API, Pod, 2), (CART, Pod, 1)];
    fail(&mut world, &both, Lost, 5_250, 5_500);
    assert_eq!(world.verdict(5_500).state, State::Broken);
}

/// Policies drop and reject packets while probes pass. Missing routes differ from that: connections of any
/// client leave by the wrong device.
#[rstest]
#[case::a_policy(TWO, Lost, State::Degraded)]
#[case::routes_of_two(TWO, Misrouted, State::Broken)]
#[case::one_endpoint_that_is_about_to_go(&[(WEB, Pod, 1), (API, Pod, 1)], Misrouted, State::Degraded)]
#[case::seen_by_outsiders_alone(&[(WEB, External, 1), (API, External, 2)], Misrouted, State::Broken)]
fn passing_probes_refute_failed_connections(
    #[case] clients: &[Client],
    #[case] failure: Failure,
    #[case] expected: State,
) {
    let mut world = with_passing_probes();
    for at in (2_250..=6_000).step_by(250) {
        fail(&mut world, clients, failure, at, at);
        world.rounds(at, at, &USUAL, |_| Fate::Pass);
    }
    let verdict = world.verdict(6_200);
    assert_eq!(verdict.state, expected, "{}", verdict.reason());
}

/// Anybody who can edit Services can list any address as an endpoint of this node. No pod's device ever led
/// to such an endpoint.
#[rstest]
#[case::behind_devices_of_pods([Some("veth1"), Some("veth2")], State::Broken)]
#[case::behind_the_uplink([Some("eth0"); 2], State::Degraded)]
#[case::one_was_never_looked_up([Some("veth1"), None], State::Degraded)]
fn routes_are_missing_only_where_one_was(
    #[case] devices: [Option<&str>; 2],
    #[case] expected: State,
) {
    let mut world = with_passing_probes();
    let route = |(client, device): (u8, Option<&str>)| {
        Some(EndpointRoute {
            endpoint: [10, 244, 0, client].into(),
            device: device?.to_owned(),
            index: client.into(),
            is_own: true,
        })
    };
    let read = EndpointRoutes {
        routes: (1..).zip(devices).filter_map(route).collect(),
        ..EndpointRoutes::default()
    };
    world.ledger.learn_routes(&read, &["eth0"].into());
    for at in (2_250..=6_000).step_by(250) {
        fail(&mut world, TWO, Misrouted, at, at);
        world.rounds(at, at, &USUAL, |_| Fate::Pass);
    }
    assert_eq!(world.verdict(6_200).state, expected);
}

/// If the kernel drops packets of pods that have no route, connections from outside show it.
#[rstest]
#[case::at_once(14_000, State::Broken)]
#[case::long_ago(3_000, State::Degraded)]
fn lost_pods_and_outsiders_at_the_wrong_device_are_a_fault(
    #[case] until: u64,
    #[case] state: State,
) {
    let mut world = with_passing_probes();
    for at in (2_250..=14_000).step_by(250) {
        fail(&mut world, TWO, Lost, at, at);
        if at <= until {
            fail(&mut world, OUTSIDERS, Misrouted, at, at);
        }
        world.rounds(at, at, &USUAL, |_| Fate::Pass);
    }
    assert_eq!(world.verdict(14_200).state, state);
}

/// An old view suspends failures that its age may explain. It does not suspend wrong routes, because no
/// endpoint moves to another node.
#[test]
fn wrong_routes_accuse_while_the_view_is_old() {
    let mut world = with_passing_probes();
    world.next.observer.misrouted_suspended = true;
    for at in (2_250..=6_000).step_by(250) {
        fail(&mut world, TWO, Misrouted, at, at);
        world.rounds(at, at, &USUAL, |_| Fate::Pass);
    }
    assert_eq!(world.verdict(6_200).state, State::Broken);
}

/// A filter on the sentinel's addresses, and one pod that a policy denies. If only node ports are filtered,
/// other lanes pass, and policies may deny any number of pods. None of this is certain for the fleet brake.
#[rstest]
#[case::one_pod(&[(WEB, Pod, 1)], &[ProbePath::Host], State::Broken)]
#[case::two_ports_of_one(&[(WEB, Pod, 1), (WEB_METRICS, Pod, 2)], &[ProbePath::Host], State::Broken)]
#[case::two_services_and_pods(TWO, &[ProbePath::Host], State::Broken)]
#[case::node_ports_alone(TWO, NEARER, State::Suspect)]
#[case::pods_alone(TWO, &[ProbePath::Host, ProbePath::NodePort, ProbePath::OffCluster], State::Broken)]
fn breadth_confirms_filtered_probes(
    #[case] lost: &[Client],
    #[case] pass: &[ProbePath],
    #[case] expected: State,
) {
    let drop = |lane: pathproof_facts::trace::Lane| match pass.contains(&lane.path) {
        true => Fate::Pass,
        false => Fate::Drop,
    };
    let mut world = World::probed(&ProbePath::ALL);
    world.rounds(2_250, 4_000, &ProbePath::ALL, drop);
    for at in (4_250..=6_000).step_by(250) {
        world.rounds(at, at, &ProbePath::ALL, drop);
        fail(&mut world, lost, Lost, at, at);
    }
    let verdict = world.verdict(6_000);
    assert_eq!(verdict.state, expected, "{}", verdict.reason());
    assert!(!verdict.finding.is_certain());
}

/// All lanes fail, and so do pods' connections. If a tenant also uses the cluster IPs that the sentinel
/// dials, filtered node ports and denied pods could explain all of it. So the node is accused only after
/// nothing has succeeded for a long time.
#[rstest]
#[case::in_conflict(NEARER, State::Suspect)]
#[case::nothing_is_in_conflict(&[], State::Broken)]
fn a_sentinel_in_conflict_confirms_nothing(
    #[case] in_conflict: &[ProbePath],
    #[case] expected: State,
) {
    let mut world = World::probed(&ProbePath::ALL);
    let conflicts = in_conflict.iter().copied().map(conflict).collect();
    world.ledger.sentinel.set_conflicts(conflicts, ms(2_250));
    let drop = |_| Fate::Drop;
    world.rounds(2_250, 4_000, &ProbePath::ALL, drop);
    for at in (4_250..=6_000).step_by(250) {
        world.rounds(at, at, &ProbePath::ALL, drop);
        fail(&mut world, TWO, Lost, at, at);
    }
    let verdict = world.verdict(6_000);
    assert_eq!(verdict.state, expected, "{}", verdict.reason());
}

/// A few failed probes do not discard minutes of passing ones.
#[rstest]
#[case::one(1, State::Degraded)]
#[case::three(3, State::Degraded)]
fn a_failed_probe_makes_denied_pods_no_fault(#[case] failed: usize, #[case] expected: State) {
    let mut world = with_passing_probes();
    let mut worst = State::Unknown;
    for (round, at) in (2_250..=12_000_u64).step_by(250).enumerate() {
        fail(&mut world, TWO, Lost, at, at);
        let fails = (20..20 + failed).contains(&round);
        world.rounds(
            at,
            at,
            &USUAL,
            |_| if fails { Fate::Drop } else { Fate::Pass },
        );
        worst = worst.max(world.verdict(at + 200).state);
    }
    assert_eq!(worst, expected);
}

/// The sentinel was deleted and comes back during an outage. Its lanes fail from their first counted probe
/// on.
#[rstest]
#[case::since_it_is_back(8_000, State::Broken)]
#[case::after_it_passed_again(9_000, State::Suspect)]
fn a_sentinel_that_comes_back_during_an_outage(#[case] fails: u64, #[case] expected: State) {
    let mut world = with_passing_probes();
    fail(&mut world, TWO, Lost, 3_500, 7_750);
    assert_eq!(world.verdict(7_750).state, State::Broken);
    for at in (8_000..=11_000).step_by(250) {
        let fate = if at < fails { Fate::Pass } else { Fate::Drop };
        world.rounds(at, at, &USUAL, |_| fate);
        fail(&mut world, TWO, Lost, at, at);
    }
    let verdict = world.verdict(11_000);
    assert_eq!(verdict.state, expected, "{}", verdict.reason());
}

/// Load balancers leave, and with them the clients that showed the wrong device.
#[test]
fn wrong_routes_that_accused_hold_without_outsiders() {
    let mut world = with_passing_probes();
    for at in (2_250..=30_000).step_by(250) {
        fail(&mut world, TWO, Lost, at, at);
        if at <= 7_000 {
            fail(&mut world, OUTSIDERS, Misrouted, at, at);
        }
        world.rounds(at, at, &USUAL, |_| Fate::Pass);
        assert!(
            at < 7_000 || world.verdict(at + 200).state == State::Broken,
            "{at}"
        );
    }
}

/// Only IPv6 never got rules.
#[test]
fn success_in_one_family_proves_nothing_for_the_other() {
    let mut world = World::new();
    world.ledger.worked = Default::default();
    world.worked(WEB).worked(CART);
    world.inputs.families = [true, true];
    let clients = [(WEB + V6, Pod, 1), (API + V6, Pod, 2)];
    fail(&mut world, &clients, Leaked, 250, 5_000);
    assert_eq!(world.verdict(5_000).state, State::Broken);
}

/// Lost connections in one namespace confirm filtered probes, even if others are in use.
#[rstest]
#[case::the_only_one_in_use(WEB, State::Broken)]
#[case::one_of_two(CART, State::Broken)]
fn filtered_probes_and_one_namespace(#[case] used: u32, #[case] expected: State) {
    let drop = outside(Fate::Drop, Fate::Pass);
    let mut world = World::faulty(4_000, &drop);
    world.worked(used);
    for at in (4_250..=6_000).step_by(250) {
        world.rounds(at, at, &USUAL, &drop);
        fail(&mut world, TWO, Lost, at, at);
    }
    assert_eq!(world.verdict(6_000).state, expected);
}

/// A tenant who can edit a slice can list any addresses as endpoints of this node, and deny his pods the
/// Services of other namespaces.
#[rstest]
#[case::a_tenants_slice(&[(WEB, Pod, 1), (API, Pod, 2)], &[(CART, Pod, 1)], State::Degraded)]
#[case::routes_of_two_namespaces(&[(WEB, Pod, 1), (API, Pod, 2), (CART, Pod, 3)], &[], State::Broken)]
fn wrong_routes_show_in_two_namespaces(
    #[case] missed: &[Client],
    #[case] lost: &[Client],
    #[case] expected: State,
) {
    let mut world = with_passing_probes();
    world.worked(CART);
    for at in (2_250..=7_000).step_by(250) {
        fail(&mut world, missed, Misrouted, at, at);
        fail(&mut world, lost, Lost, at, at);
        world.rounds(at, at, &USUAL, |_| Fate::Pass);
    }
    assert_eq!(world.verdict(7_200).state, expected);
}

/// A tenant uses the probed frontends and denies his pods the Services of two namespaces. Failures that
/// no policy causes still accuse.
#[rstest]
#[case::denied(true, Lost, State::Degraded)]
#[case::flushed(true, Leaked, State::Broken)]
#[case::nothing_is_in_conflict(false, Lost, State::Broken)]
fn claiming_the_sentinels_frontends_accuses_nobody(
    #[case] in_conflict: bool,
    #[case] failure: Failure,
    #[case] expected: State,
) {
    let mut world = with_passing_probes();
    let paths = [ProbePath::OffCluster, ProbePath::NodePort];
    if in_conflict {
        let conflicts = paths.map(conflict).to_vec();
        world.ledger.sentinel.set_conflicts(conflicts, ms(2_250));
    }
    fail(&mut world, TWO, failure, 4_000, 8_000);
    let verdict = world.verdict(8_000);
    assert_eq!(verdict.state, expected, "{}", verdict.reason());
    // The last proof is too old by now.
    fail(&mut world, TWO, failure, 8_250, 40_000);
    let lacks = (expected == State::Degraded).then_some(MissingCriterion::SentinelConflict);
    assert_eq!(lacking(&world, 40_000), lacks);
}
