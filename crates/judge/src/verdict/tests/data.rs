//! Data of real connections. Lost data accuses unless one scope or forged packets explain it; answered data
//! refutes probes without data.

use std::net::{IpAddr, Ipv4Addr};

use pathproof_facts::cause::{Cause, State};
use pathproof_wire::service::SourceClass::{self, External, Pod};
use pathproof_wire::service::{Family, FrontendKind};
use pathproof_witness::evidence::{LostData, Place, Success};
use rstest::rstest;

use super::scene::*;
use super::world::*;
use crate::verdict::Rule;

fn client(number: u8) -> IpAddr {
    Ipv4Addr::new(192, 0, 2, number).into()
}

/// Data goes both ways on a connection.
fn answered(world: &mut World, class: SourceClass, number: u8, at: u64) {
    world.next.successes.push(Success {
        family: Family::V4,
        class,
        kind: FrontendKind::NodePort,
        place: Place::Near,
        at: ms(at),
        answered: Some(ms(at)),
        data_answered: Some((ms(at), client(number))),
        client: None,
    });
}

/// The data of a connection is not forwarded.
fn lost(world: &mut World, class: SourceClass, (service, number): (u32, u8), at: u64) {
    world.next.lost_data.push(LostData {
        arrived: ms(at),
        service,
        class,
        client: client(number),
    });
}

/// Data of these clients outside goes both ways until `LOST`.
fn served(clients: &[u8]) -> World {
    let mut world = World::new();
    for number in clients {
        answered(&mut world, External, *number, 500);
    }
    world.look(1_000);
    world
}

const LOST: u64 = 2_000;

/// From `LOST` on, data is lost twice a second for each of these.
fn losing(mut world: World, to: &[(u32, u8)]) -> World {
    for at in (LOST..LOST + 4_000).step_by(500) {
        for service in to {
            lost(&mut world, External, *service, at);
        }
        world.look(at + 1_750);
    }
    world
}

#[rstest]
#[case::two_services_of_two_clients(&[(WEB, 1), (API, 2)], State::Broken)]
#[case::one_service(&[(WEB, 1), (WEB, 2), (WEB_METRICS, 1)], State::Degraded)]
#[case::one_client(&[(WEB, 1), (API, 1)], State::Degraded)]
#[case::strangers_who_forge(&[(WEB, 7), (API, 8), (API, 9)], State::Degraded)]
#[case::strangers_beside_one_client(&[(WEB, 1), (API, 8)], State::Degraded)]
fn data_that_is_not_forwarded(#[case] to: &[(u32, u8)], #[case] state: State) {
    let world = losing(served(&[1, 2]), to);
    let verdict = world.verdict(LOST + 5_500);
    assert_eq!(verdict.state, state, "{}", verdict.reason());
    assert_eq!(verdict.cause, Some(Cause::NoData));
    let rule = match state {
        State::Broken => Rule::BrokenByData,
        _ => Rule::DegradedByData,
    };
    assert_eq!(verdict.finding.rule, rule);
}

/// If a program forwards data past the hooks, no answered data is ever seen.
#[test]
fn data_that_was_never_seen_to_be_answered_accuses_nobody() {
    let world = losing(served(&[]), &[(WEB, 1), (API, 2)]);
    assert!(!world.verdict(LOST + 5_500).state.fails());
}

#[rstest]
#[case::of_the_same_clients(External, false, State::Proven)]
#[case::of_pods(Pod, false, State::Proven)]
#[case::of_pods_where_two_proxies_translate(Pod, true, State::Broken)]
fn data_that_goes_both_ways_refutes_it(
    #[case] class: SourceClass,
    #[case] mixed: bool,
    #[case] state: State,
) {
    let mut world = served(&[1, 2]);
    world.ledger.sentinel.applicability.mixed = mixed;
    let mut world = losing(world, &[(WEB, 1), (API, 2)]);
    assert_eq!(world.verdict(LOST + 5_500).state, State::Broken);
    answered(&mut world, class, 3, LOST + 5_600);
    world.prove(WEB, Pod, LOST + 5_600);
    world.look(LOST + 5_750);
    assert_eq!(world.verdict(LOST + 6_000).state, state);
}

/// An inline filter may drop only the data of probes. Data of real connections refutes that, a handshake
/// does not.
#[rstest]
#[case::data(true, false, State::Degraded)]
#[case::a_handshake(false, false, State::Broken)]
#[case::data_of_pods_where_two_proxies_translate(true, true, State::Broken)]
fn probes_without_data_are_refuted_by_data(
    #[case] has_data: bool,
    #[case] mixed: bool,
    #[case] state: State,
) {
    let mut world = World::probed(&USUAL);
    world.ledger.sentinel.applicability.mixed = mixed;
    world.rounds(0, 2_000, &USUAL, |_| Fate::Pass);
    for at in (2_250..6_000).step_by(250) {
        world.rounds(at, at, &USUAL, outside(Fate::Mute, Fate::Mute));
        if has_data {
            answered(&mut world, Pod, 3, at);
        }
        world.prove(WEB, Pod, at);
        world.look(at);
    }
    let verdict = world.verdict(6_000);
    assert_eq!(verdict.state, state, "{}", verdict.reason());
}

/// On a node whose users send data, the next user decides whether only the probes' data is dropped.
#[rstest]
#[case::nobody_dialled(&[], State::Suspect)]
#[case::one_connection_lost_its_data(&[3_500], State::Broken)]
#[case::data_was_lost_only_before(&[1_500], State::Suspect)]
fn probes_without_data_wait_for_the_next_user(#[case] losses: &[u64], #[case] state: State) {
    let mut world = World::probed(&USUAL);
    answered(&mut world, External, 1, 500);
    world.look(1_000);
    world.rounds(0, 2_000, &USUAL, |_| Fate::Pass);
    world.rounds(2_250, 6_000, &USUAL, outside(Fate::Mute, Fate::Mute));
    for at in losses {
        lost(&mut world, External, (WEB, 1), *at);
    }
    world.look(6_000);
    let verdict = world.verdict(6_000);
    assert_eq!(verdict.state, state, "{}", verdict.reason());
}
