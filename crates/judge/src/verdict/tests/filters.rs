//! Filters that drop or refuse the sentinel's addresses, and how they differ from a fault.

use pathproof_facts::cause::{Failure, State};
use pathproof_facts::owners::Owner;
use pathproof_facts::trace::ProbePath;
use pathproof_wire::service::{Family, SourceClass};
use rstest::rstest;

use super::scene::*;
use super::world::*;

/// `REJECT --reject-with tcp-reset` for the sentinel's range acts like a closed port of the node.
#[rstest]
#[case::cluster_ip(ProbePath::OffCluster, Owner::KubeProxyIptables, State::Suspect)]
#[case::cluster_ip_in_nftables(ProbePath::OffCluster, Owner::KubeProxyNftables, State::Suspect)]
#[case::cluster_ip_on_the_node(ProbePath::OffCluster, Owner::Ipvs, State::Broken)]
#[case::from_pods(ProbePath::Pod, Owner::KubeProxyIptables, State::Suspect)]
#[case::node_port(ProbePath::NodePort, Owner::KubeProxyIptables, State::Broken)]
fn a_refusal_accuses_where_the_frontend_is_the_nodes_own(
    #[case] path: ProbePath,
    #[case] owner: Owner,
    #[case] expected: State,
) {
    let mut world = World::with_sentinel();
    let sentinel = &mut world.ledger.sentinel;
    sentinel.owner_seen(Family::V4, owners(&[owner]), ms(0));
    world.rounds(250, 2_000, &[path], |_| Fate::Pass);
    world.rounds(2_250, 4_000, &[path], |_| Fate::Refuse);
    let verdict = world.verdict(4_200);
    assert_eq!((verdict.state, told(&verdict).1), (expected, "refused"));
    assert_eq!(
        verdict
            .reason()
            .contains("a REJECT rule resets traffic from 198.18.0.1"),
        expected == State::Suspect,
        "{}",
        verdict.reason()
    );
    world.lose(4_100);
    world.rounds(4_250, 5_250, &[path], |_| Fate::Refuse);
    assert_eq!(world.verdict(5_450).state, State::Broken);
}

/// Real connections on another path than the probes show that not everything is dropped, but only if they
/// are younger than the fault.
#[rstest]
#[case::before_the_fault(2_000, State::Suspect)]
#[case::while_it_began(4_000, State::Suspect)]
#[case::since(5_000, State::Degraded)]
fn a_drop_is_contradicted_by_what_got_through_since(#[case] proven: u64, #[case] expected: State) {
    let mut world = World::with_sentinel();
    for at in (250..=6_000).step_by(250) {
        let fate = if at <= 3_000 { Fate::Pass } else { Fate::Drop };
        world.rounds(at, at, &[ProbePath::OffCluster], |_| fate);
        if at == proven {
            world.prove(WEB, SourceClass::External, at);
        }
        world.look(at);
    }
    assert_eq!(world.verdict(6_000).state, expected);
}

/// Anyone can send a SYN that a host firewall drops, so clients that were never served accuse nobody.
#[rstest]
#[case::a_scanner(SourceClass::External, &[(WEB, 1), (API, 1), (DB, 1)])]
#[case::one_service(SourceClass::External, &[(WEB, 1), (WEB_METRICS, 2)])]
#[case::two_clients_of_two(SourceClass::External, &[(WEB, 1), (API, 2)])]
#[case::the_node_itself(SourceClass::Host, &[(WEB, 1)])]
fn outsiders_who_were_never_served_decide_nothing(
    #[case] class: SourceClass,
    #[case] lost: &[(u32, u8)],
) {
    let mut world = World::faulty(4_000, outside(Fate::Drop, Fate::Pass));
    for (service, client) in lost {
        world.fail(*service, class, *client, Failure::Lost, 4_100);
    }
    world.rounds(4_250, 5_000, &USUAL, outside(Fate::Drop, Fate::Pass));
    let verdict = world.verdict(5_200);
    assert_eq!(verdict.state, State::Suspect, "{}", verdict.reason());
    ends(&verdict, "no failed Service worked before");
}

/// The sentinel and clients outside fail since the same moment: two clients, or one that was served often.
/// A policy may cover a single client that was served once.
#[rstest]
#[case::two_clients(2, 1, 6_250, State::Broken)]
#[case::a_load_balancer(1, 3, 6_250, State::Broken)]
#[case::a_client_of_once(1, 1, 6_250, State::Degraded)]
#[case::denied_before(2, 3, 3_250, State::Degraded)]
fn served_clients_outside_confirm_the_sentinel(
    #[case] clients: u64,
    #[case] served: u64,
    #[case] from: u64,
    #[case] expected: State,
) {
    let mut world = World::probed(&USUAL);
    for _ in 0..served {
        world.prove(WEB, SourceClass::External, 0);
    }
    for at in (2_500..=10_000).step_by(250) {
        if at >= from {
            let client = 1 + (at / 250 % clients) as u8;
            world.fail(
                WEB,
                SourceClass::External,
                client,
                Failure::Lost,
                at + 1_000,
            );
        }
        if at >= 6_250 {
            world.rounds(at, at, &USUAL, outside(Fate::Drop, Fate::Pass));
        } else {
            world.rounds(at, at, &USUAL, |_| Fate::Pass);
        }
    }
    let verdict = world.verdict(10_200);
    assert_eq!(verdict.state, expected, "{}", verdict.reason());
}

/// A conflict that is not in the view, or not yet: a pod's `hostPort` on the sentinel's node port, or a
/// Service that is not watched.
#[rstest]
#[case::node_ports_alone(&[ProbePath::NodePort], State::Degraded)]
#[case::cluster_ips_alone(&[ProbePath::OffCluster], State::Degraded)]
#[case::both(&[ProbePath::OffCluster, ProbePath::NodePort], State::Broken)]
fn one_path_that_leads_astray_accuses_nobody(#[case] astray: &[ProbePath], #[case] state: State) {
    let world = World::faulty(6_000, |lane| match astray.contains(&lane.path) {
        true => Fate::Misroute,
        false => Fate::Pass,
    });
    let verdict = world.verdict(6_200);
    assert_eq!(verdict.state, state, "{}", verdict.reason());
    assert_eq!(
        verdict.reason().contains("hostPort"),
        state == State::Degraded,
        "{}",
        verdict.reason()
    );
}
