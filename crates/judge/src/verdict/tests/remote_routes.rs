//! Wrong routes to other nodes: connections that left a tunnel for an uplink and stayed unanswered.

use pathproof_facts::cause::Cause;
use pathproof_wire::service::{Family, FrontendKind, SourceClass};
use pathproof_witness::evidence::{Place, Success};
use pathproof_witness::peers::{Departure, PeerCount, PeerSample};
use rstest::rstest;

use super::world::*;
use crate::verdict::Rule;

const TUNNEL: u32 = 7;
/// The uplinks.
const ETH0: u32 = 1;
const ETH1: u32 = 2;
/// Start of the fault.
const FAULT: u64 = 10_000;

/// Unanswered connections, once every 250 ms.
#[derive(Clone, Copy)]
struct Fault {
    /// Device by which the other nodes were reached.
    usual: u32,
    /// Devices by which the connections leave, in turn.
    by: &'static [u32],
    /// Number of other nodes that the connections are sent to.
    nodes: u16,
    services: &'static [u32],
    connections: u64,
    /// When another node answers, in ms after the first unanswered connection; `None` if none does.
    answer: Option<u64>,
}

const ROUTES_GONE: Fault = Fault {
    usual: TUNNEL,
    by: &[ETH0],
    nodes: 2,
    services: &[WEB, CART],
    connections: 8,
    answer: None,
};

fn departure(peer: u16, service: u32, device: u32) -> Departure {
    Departure {
        family: Family::V4,
        peer,
        range: 0,
        device,
        service,
        connections: 1,
    }
}

fn answer(at: u64) -> Success {
    Success {
        family: Family::V4,
        class: SourceClass::External,
        kind: FrontendKind::NodePort,
        place: Place::Remote,
        at: ms(at),
        answered: Some(ms(at)),
        data_answered: None,
        client: None,
    }
}

/// Two other nodes answered by this device.
fn answered_by(usual: u32) -> World {
    let mut world = World::new();
    world.inputs.uplinks = vec!["eth0".to_owned(), "eth1".to_owned()];
    world.look(FAULT - 250);
    let count = |peer| PeerCount {
        family: Family::V4,
        peer,
        range: 0,
        device: usual,
        answered: 1,
        unanswered: 0,
    };
    let counts = (1..=2).map(count).collect();
    world.absorb(PeerSample {
        counts,
        ..PeerSample::default()
    });
    world
}

impl World {
    fn absorb(&mut self, sample: PeerSample) {
        let devices = [
            (TUNNEL, "flannel.1"),
            (TUNNEL + 1, "flannel-v6.1"),
            (ETH0, "eth0"),
            (ETH1, "eth1"),
        ]
        .map(|(index, name)| (index, name.into()))
        .into();
        let sample = PeerSample { devices, ..sample };
        self.ledger.absorb_peers(&sample, &Names::standard());
    }

    /// A connection leaves and stays unanswered.
    fn depart(&mut self, departure: Departure, at: u64) {
        self.look(at);
        self.absorb(PeerSample {
            departures: vec![departure],
            ..PeerSample::default()
        });
    }

    fn has_wrong_routes(&self, at: u64) -> bool {
        let verdict = self.verdict(at);
        let is_broken = verdict.finding.rule == Rule::BrokenByRoutes;
        assert!(!is_broken || verdict.cause == Some(Cause::Misrouted));
        is_broken
    }
}

#[rstest]
#[case::by_an_uplink(ROUTES_GONE, true)]
#[case::by_two_uplinks(Fault { by: &[ETH0, ETH1], ..ROUTES_GONE }, true)]
#[case::an_answer_within_the_first_second(Fault { answer: Some(1_000), ..ROUTES_GONE }, true)]
#[case::another_node_answers(Fault { answer: Some(1_250), ..ROUTES_GONE }, false)]
#[case::a_single_node(Fault { nodes: 1, ..ROUTES_GONE }, false)]
#[case::one_of_two_namespaces(Fault { services: &[WEB, API], ..ROUTES_GONE }, false)]
#[case::over_one_second(Fault { connections: 5, ..ROUTES_GONE }, true)]
#[case::in_less_than_a_second(Fault { connections: 4, ..ROUTES_GONE }, false)]
#[case::an_uplink_was_usual(Fault { usual: ETH1, ..ROUTES_GONE }, false)]
#[case::by_another_tunnel_too(Fault { by: &[ETH0, TUNNEL + 1], ..ROUTES_GONE }, false)]
fn connections_that_leave_a_tunnel_for_an_uplink(#[case] fault: Fault, #[case] broken: bool) {
    let mut world = answered_by(fault.usual);
    world.worked(CART);
    for n in 0..fault.connections {
        let at = FAULT + n * 250;
        if fault.answer == Some(n * 250) {
            world.next.successes = vec![answer(at)];
        }
        let nth = |all: &[u32], n: u64| all[n as usize % all.len()];
        let peer = 1 + (n % u64::from(fault.nodes)) as u16;
        // Both nodes are dialled for each Service.
        let service = nth(fault.services, n / 2);
        world.depart(departure(peer, service, nth(fault.by, n)), at);
    }
    let end = FAULT + fault.connections * 250;
    assert_eq!(world.look(end).has_wrong_routes(end), broken);
}

#[rstest]
#[case::three(&[0, 600, 1_200], true)]
#[case::two(&[0, 1_200], false)]
fn three_connections_are_enough(#[case] times: &[u64], #[case] broken: bool) {
    let mut world = answered_by(TUNNEL);
    for (n, at) in (0..).zip(times) {
        world.depart(departure(1 + n % 2, WEB, ETH0), FAULT + at);
    }
    assert_eq!(world.has_wrong_routes(FAULT + 1_400), broken);
}
