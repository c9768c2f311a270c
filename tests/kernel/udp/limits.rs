//! What is not followed of datagrams, and how many are.

use std::net::SocketAddr;

use agent_common::abi::{BUDGET_WINDOW_SHIFT, UDP_PER_SERVICE, UDP_PER_WINDOW, map};
use agent_common::evidence::Fault;
use agent_common::evidence::Outcome::{Answered, Arrived, Forwarded};
use agent_common::service::Family;
use node_tests::observer::{Observer, monotonic};
use node_tests::packet;
use rstest::rstest;

use super::{
    NAMES, comes, ends, faults, outcomes, put_frontend, question, stage, stage_with, udp_comes,
    udp_goes,
};

#[rstest]
#[case::empty(0)]
#[case::short(7)]
fn too_little_to_be_known_by(#[case] length: usize) {
    stage(|observer, sandbox| {
        let of = ends(Family::V4);
        let payload = vec![1; length];
        udp_comes(observer, of.client, of.frontend, &payload, sandbox.client);
        udp_goes(observer, of.client, of.stranger, &payload, sandbox.pods);
        assert_eq!(outcomes(observer), []);
        assert_eq!(faults(observer), [(Fault::UdpNotMatchable, 1)]);
    });
}

/// By IPv6 nothing comes to an IPv4 frontend.
#[test]
fn an_ipv4_address_in_an_ipv6_header() {
    stage(|observer, sandbox| {
        let to = "[::ffff:10.96.0.10]:53".parse().expect("an address");
        let asked = packet::udp(ends(Family::V6).client, to, &question(7));
        comes(observer, &asked, sandbox.client);
        assert_eq!(outcomes(observer), []);
        assert_eq!(faults(observer), [(Fault::Malformed, 1)]);
    });
}

/// Every length has a hash of its own beginning: 8 to 40 bytes are matched.
#[test]
fn payloads_of_every_length() {
    stage(|observer, sandbox| {
        let of = ends(Family::V4);
        for length in 8..40_u16 {
            let mut client = of.client;
            client.set_port(30_000 + length);
            let payload: Vec<u8> = (0..length as u8).collect();
            udp_comes(observer, client, of.frontend, &payload, sandbox.client);
            udp_goes(observer, client, of.endpoint, &payload, sandbox.pods);
        }
        let seen = outcomes(observer);
        let forwarded = seen.iter().filter(|outcome| **outcome == Forwarded);
        assert_eq!(forwarded.count(), 32);
        assert_eq!(faults(observer), []);
    });
}

/// Datagrams of a flood that were passed without being followed. Of thousands of payloads two may
/// have one hash.
fn not_followed(observer: &Observer) -> u64 {
    let counted = faults(observer);
    let known = [Fault::UdpOverRate, Fault::UdpAmbiguous];
    assert!(
        counted.iter().all(|(fault, _)| known.contains(fault)),
        "{counted:?}"
    );
    counted.iter().map(|(_, count)| count).sum()
}

/// What was not followed is counted, but for the few flows that the gate takes for others that it read
/// a moment ago.
fn is_counted(observer: &Observer, flood: u32, followed: u64) {
    let (counted, rest) = (not_followed(observer), u64::from(flood) - followed);
    assert!(
        counted <= rest && counted * 100 >= rest * 97,
        "{counted} of {rest}"
    );
}

/// A flood costs a bounded number of entries and counts; one Service's leaves room for the others.
#[test]
fn a_flood() {
    const FLOOD: u32 = 5_000;
    stage(|observer, sandbox| {
        let of = ends(Family::V4);
        let began = monotonic() >> BUDGET_WINDOW_SHIFT;
        for index in 0..FLOOD {
            let mut client = of.client;
            client.set_port(1_024 + index as u16);
            let mut payload = question(index as u16);
            payload[4..8].copy_from_slice(&index.to_be_bytes());
            udp_comes(observer, client, of.frontend, &payload, sandbox.client);
        }
        let windows = ((monotonic() >> BUDGET_WINDOW_SHIFT) - began + 1) as usize;
        let followed = outcomes(observer).len();
        assert!(followed >= UDP_PER_SERVICE as usize, "{followed}");
        assert!(followed <= windows * UDP_PER_SERVICE as usize, "{followed}");
        is_counted(observer, FLOOD, followed as u64);
        // Each has its flow beside it.
        assert_eq!(observer.datagrams().expect("datagrams"), 2 * followed);
    });
}

/// As many Services as you like: no more than the rate of all.
#[test]
fn a_flood_over_many_services() {
    const FLOOD: u32 = 5_000;
    const SERVICES: u32 = 10;
    stage(|observer, sandbox| {
        let at = |index: u32| SocketAddr::from(([10, 96, 1, (index % SERVICES) as u8], 53));
        for index in 0..SERVICES {
            put_frontend(observer, NAMES + 1 + index, at(index));
        }
        let began = monotonic() >> BUDGET_WINDOW_SHIFT;
        for index in 0..FLOOD {
            let client = SocketAddr::from(([10, 244, 3, 1], 1_024 + index as u16));
            let mut payload = question(index as u16);
            payload[4..8].copy_from_slice(&index.to_be_bytes());
            udp_comes(observer, client, at(index), &payload, sandbox.client);
        }
        let windows = (monotonic() >> BUDGET_WINDOW_SHIFT) - began + 1;
        let followed = observer.datagrams().expect("datagrams") as u64 / 2;
        assert!(
            followed <= windows * u64::from(UDP_PER_WINDOW),
            "{followed}"
        );
        is_counted(observer, FLOOD, followed);
    });
}

/// The bulk of a flow is one datagram: the rest is not followed while that is.
#[test]
fn the_bulk_of_a_flow() {
    stage(|observer, sandbox| {
        let quic: SocketAddr = "10.96.0.20:443".parse().expect("an address");
        put_frontend(observer, NAMES, quic);
        let of = ends(Family::V4);
        for index in 0..1_000_u32 {
            let mut payload = vec![0; 1_200];
            payload[..4].copy_from_slice(&index.to_be_bytes());
            udp_comes(observer, of.client, quic, &payload, sandbox.client);
            udp_goes(observer, quic, of.client, &payload, sandbox.client);
        }
        assert_eq!(outcomes(observer), [Arrived, Answered]);
        // Who answered is not known: something on this node.
        assert_eq!(faults(observer), []);
    });
}

#[test]
fn full_map_of_datagrams() {
    const ROOM: u32 = 8;
    stage_with(&[(map::UDP_PENDING, ROOM)], |observer, sandbox| {
        let of = ends(Family::V4);
        for id in 0..16 {
            udp_comes(
                observer,
                of.client,
                of.frontend,
                &question(id),
                sandbox.client,
            );
        }
        assert!(observer.datagrams().expect("datagrams") <= ROOM as usize);
        let full = faults(observer);
        assert!(
            matches!(full[..], [(Fault::UdpFull, count)] if count >= 12),
            "{full:?}"
        );
    });
}
