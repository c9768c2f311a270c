//! Other nodes that do not answer: which of them are named, and with which facts.

use pathproof_facts::cause::{Cause, State};
use pathproof_wire::service::Family;
use pathproof_witness::peers::{LargeTransferFailure, PeerCount, PeerSample, Silence};
use rstest::rstest;

use super::world::*;
use crate::verdict::Evidence;

/// Connections of this node's pods during some time.
#[derive(Clone, Copy)]
struct Time {
    /// Number of nodes that are dialled and stay silent, from number 1 on.
    silent: u16,
    /// Whether node 9 answers.
    another_answers: bool,
    /// Service ports whose endpoints on this node answer.
    near: &'static [u32],
    /// Service ports whose endpoints on this node do not answer.
    near_silent: &'static [u32],
    services: &'static [u32],
}

const DEAD_OVERLAY: Time = Time {
    silent: 3,
    another_answers: false,
    near: &[WEB],
    near_silent: &[],
    services: &[WEB, CART],
};

fn count(peer: u16, answered: bool) -> PeerCount {
    PeerCount {
        family: Family::V4,
        peer,
        range: 0,
        device: 0,
        answered: u32::from(answered),
        unanswered: u32::from(!answered),
    }
}

fn silence(peer: u16, service: u32) -> Silence {
    Silence {
        family: Family::V4,
        peer,
        node: Some(format!("node-{peer}").into()),
        service,
    }
}

impl World {
    /// Services of two namespaces, and nodes that answered.
    fn with_peers() -> Self {
        let mut world = Self::new();
        world.worked(CART);
        let counts = [1, 2, 3, 4, 9].map(|peer| count(peer, true)).to_vec();
        world.peers(
            &PeerSample {
                counts,
                ..PeerSample::default()
            },
            0,
        );
        world
    }

    /// The world at 20 s, with these results since 1 s.
    fn after(time: Time) -> Self {
        let mut world = Self::with_peers();
        world.spend(time, 1_000, 20_000);
        world
    }

    fn peers(&mut self, sample: &PeerSample, at: u64) {
        self.look(at);
        self.ledger.absorb_peers(sample, &Names::standard());
    }

    fn spend(&mut self, time: Time, from: u64, to: u64) {
        for at in (from..=to).step_by(250) {
            let mut sample = PeerSample {
                near: time.near.to_vec(),
                near_silent: time.near_silent.to_vec(),
                ..PeerSample::default()
            };
            for peer in 1..=time.silent {
                sample.counts.push(count(peer, false));
                let silences = time.services.iter();
                let silences = silences.map(|service| silence(peer, *service));
                sample.silences.extend(silences);
            }
            if time.another_answers {
                sample.counts.push(count(9, true));
            }
            self.peers(&sample, at);
        }
    }

    /// For silent nodes that are named: whether other nodes answer, and whether this node does.
    fn facts(&self, at: u64) -> Option<(bool, bool)> {
        match self.verdict(at).families[0].finding.evidence {
            Evidence::Peers {
                others_answer,
                near_answers,
                ..
            } => Some((others_answer, near_answers)),
            _ => None,
        }
    }
}

#[test]
fn a_dead_overlay_is_named_with_all_that_speaks_for_it() {
    let mut world = World::after(DEAD_OVERLAY);
    let verdict = world.verdict(20_000);
    assert_eq!(
        (verdict.state, verdict.cause),
        (State::Degraded, Some(Cause::Overlay))
    );
    assert_eq!(world.facts(20_000), Some((false, true)));
    says(&verdict, "node-1, node-2, node-3");
    let mended = Time {
        silent: 0,
        another_answers: true,
        ..DEAD_OVERLAY
    };
    world.spend(mended, 20_250, 32_000);
    assert_ne!(world.verdict(32_000).state, State::Degraded);
}

#[rstest]
#[case::a_rack_that_is_powered_off(Time { another_answers: true, ..DEAD_OVERLAY }, (true, false))]
#[case::two_nodes(Time { silent: 2, ..DEAD_OVERLAY }, (false, true))]
#[case::everything_denied(Time { near: &[], ..DEAD_OVERLAY }, (false, false))]
// A policy that allows only DNS, which has an endpoint on this node.
#[case::all_but_one_service_denied(Time { near: &[API], ..DEAD_OVERLAY }, (false, false))]
// A policy that denies one port of a Service.
#[case::one_port_denied(Time { near: &[WEB_METRICS], ..DEAD_OVERLAY }, (false, false))]
fn silent_nodes_are_named_with_the_facts(#[case] time: Time, #[case] facts: (bool, bool)) {
    let world = World::after(time);
    assert_eq!(world.verdict(20_000).state, State::Degraded);
    assert_eq!(world.facts(20_000), Some(facts));
}

/// A dead backend affects only its Service, on whichever node it runs.
#[test]
fn a_single_service_names_no_node() {
    let world = World::after(Time {
        services: &[WEB],
        ..DEAD_OVERLAY
    });
    assert!(!matches!(
        world.verdict(20_000).families[0].finding.evidence,
        Evidence::Peers { .. }
    ));
}

/// The pod probe's endpoints accept all clients, so this single Service is enough to name nodes.
#[test]
fn the_pod_probe_alone_names_nodes() {
    let world = World::after(Time {
        services: &[ECHO],
        ..DEAD_OVERLAY
    });
    let verdict = world.verdict(20_000);
    assert_eq!(
        (verdict.state, verdict.cause),
        (State::Degraded, Some(Cause::Overlay))
    );
}

/// In a large cluster each node is dialled rarely.
#[test]
fn nodes_that_were_dialled_once_are_named_together() {
    let mut world = World::with_peers();
    for (at, peer) in [(1_000, 1), (2_000, 2), (3_000, 3)] {
        assert_ne!(world.verdict(at).state, State::Degraded);
        let silences = vec![silence(peer, ECHO)];
        let counts = vec![count(peer, false)];
        let sample = PeerSample {
            counts,
            silences,
            ..PeerSample::default()
        };
        world.peers(&sample, at);
    }
    says(&world.verdict(3_000), "node-1, node-2, node-3");
}

/// Backends that are also silent on this node are at fault themselves.
#[test]
fn services_that_are_silent_here_too_name_no_node() {
    let world = World::after(Time {
        near: &[],
        near_silent: &[WEB, CART],
        ..DEAD_OVERLAY
    });
    let verdict = world.verdict(20_000);
    assert_ne!(verdict.cause, Some(Cause::Overlay));
    assert_ne!(verdict.state, State::Broken);
}

/// One endpoint of this node is broken and another answers, so the Service as a whole is not at fault.
#[test]
fn an_answer_of_this_node_outweighs_a_silent_endpoint() {
    let world = World::after(Time {
        near_silent: &[WEB],
        ..DEAD_OVERLAY
    });
    assert_eq!(world.verdict(20_000).cause, Some(Cause::Overlay));
}

/// Answers may pass unseen.
#[test]
fn silence_does_not_count_while_the_observer_is_blind() {
    let mut world = World::with_peers();
    world.next.observer.lost_suspended = true;
    world.spend(DEAD_OVERLAY, 1_000, 20_000);
    assert_eq!(world.facts(20_000), None);
    world.next.observer.lost_suspended = false;
    world.spend(DEAD_OVERLAY, 20_250, 22_000);
    assert_eq!(world.facts(22_000), Some((false, true)));
    // After a gap in observation, earlier silence no longer counts.
    world.spend(DEAD_OVERLAY, 40_000, 40_250);
    assert_eq!(world.facts(40_250), None);
}

#[test]
fn cut_transfers_name_the_mtu_until_they_cease() {
    let mut world = World::with_peers();
    for at in [1_000, 4_000, 7_000] {
        assert_ne!(world.verdict(at).state, State::Degraded);
        let failures = [ECHO, WEB].map(|service| LargeTransferFailure {
            family: Family::V4,
            service,
            client: [10, 244, 1, 9].into(),
        });
        let sample = PeerSample {
            large_transfer_failures: failures.to_vec(),
            ..PeerSample::default()
        };
        world.peers(&sample, at);
    }
    let verdict = world.verdict(7_000);
    assert_eq!(
        (verdict.state, verdict.cause),
        (State::Degraded, Some(Cause::Mtu))
    );
    says(&verdict, "3 large transfers");
    world.peers(&PeerSample::default(), 23_000);
    assert_ne!(world.verdict(23_000).cause, Some(Cause::Mtu));
}

/// A node that never answered is unknown: its endpoints may never have worked.
#[test]
fn only_nodes_that_answered_fall_silent() {
    let mut world = World::new();
    world.worked(CART);
    world.spend(DEAD_OVERLAY, 1_000, 20_000);
    assert!(!matches!(
        world.verdict(20_000).state,
        State::Broken | State::Degraded
    ));
}

#[test]
fn it_ends_by_itself_when_nobody_dials() {
    let mut world = World::with_peers();
    world.spend(DEAD_OVERLAY, 1_000, 5_000);
    assert_eq!(world.verdict(5_000).state, State::Degraded);
    let unused = Time {
        silent: 0,
        ..DEAD_OVERLAY
    };
    world.spend(unused, 5_250, 36_000);
    assert_ne!(world.verdict(36_000).state, State::Degraded);
}
