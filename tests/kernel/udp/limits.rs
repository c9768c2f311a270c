//! What is not followed of datagrams, and how many are.

use std::net::SocketAddr;

use agent_common::abi::{BUDGET_WINDOW_SHIFT, UDP_PER_SERVICE, UDP_PER_WINDOW, map};
use agent_common::evidence::Fault;
use agent_common::evidence::Outcome::{Answered, Arrived, Forwarded};
use agent_common::service::Family::{V4, V6};
use node_tests::observer::monotonic;
use node_tests::packet::udp;

use super::{NAMES, asked, ends, outcomes, question, stage, stage_with};
use crate::stage::{Stage, at, cluster_ip};

#[test]
fn too_little_to_be_known_by() {
    stage(|stage| {
        let of = ends(V4);
        for payload in [&[][..], &[1; 7]] {
            stage.reset();
            stage.comes(&udp(of.client, of.frontend, payload), stage.at.client);
            stage.goes(&udp(of.client, of.stranger, payload), stage.at.pods);
            assert_eq!(outcomes(stage), []);
            assert_eq!(stage.faults(), [(Fault::UdpNotMatchable, 1)]);
        }
    });
}

/// By IPv6 nothing comes to an IPv4 frontend.
#[test]
fn an_ipv4_address_in_an_ipv6_header() {
    stage(|stage| {
        let to = at("[::ffff:10.96.0.10]:53");
        stage.comes(&asked(ends(V6).client, to, 7), stage.at.client);
        assert_eq!(outcomes(stage), []);
        assert_eq!(stage.faults(), [(Fault::Malformed, 1)]);
    });
}

/// Every length has a hash of its own beginning: 8 to 40 bytes are matched.
#[test]
fn payloads_of_every_length() {
    stage(|stage| {
        let of = ends(V4);
        for length in 8..40_u16 {
            let mut client = of.client;
            client.set_port(30_000 + length);
            let payload: Vec<u8> = (0..length as u8).collect();
            stage.comes(&udp(client, of.frontend, &payload), stage.at.client);
            stage.goes(&udp(client, of.endpoint, &payload), stage.at.pods);
        }
        assert_eq!(stage.count(NAMES, Forwarded), 32);
        assert_eq!(stage.faults(), []);
    });
}

/// Datagrams of a flood, each of a flow of its own.
const FLOOD: u32 = 5_000;

/// A flood to these frontends in turn; gives the windows of the kernel's clock that it took.
fn flood(stage: &Stage, frontends: &[SocketAddr]) -> u64 {
    let began = monotonic() >> BUDGET_WINDOW_SHIFT;
    let mut client = ends(V4).client;
    for (index, to) in (0..FLOOD).zip(frontends.iter().cycle()) {
        client.set_port(1_024 + index as u16);
        let mut payload = question(index as u16);
        payload[4..8].copy_from_slice(&index.to_be_bytes());
        stage.comes(&udp(client, *to, &payload), stage.at.client);
    }
    (monotonic() >> BUDGET_WINDOW_SHIFT) - began + 1
}

/// What was not followed is counted, but for the few flows that the gate takes for others that it read
/// a moment ago: of 5,000 flows in its 65,536 places 190 if all were read, which a slow machine does. Of
/// thousands of payloads two may have one hash.
fn is_counted(stage: &Stage, followed: u64) {
    let faults = stage.faults();
    let known = [Fault::UdpOverRate, Fault::UdpAmbiguous];
    assert!(
        faults.iter().all(|(fault, _)| known.contains(fault)),
        "{faults:?}"
    );
    let counted: u64 = faults.iter().map(|(_, count)| count).sum();
    let rest = u64::from(FLOOD) - followed;
    assert!(
        counted <= rest && counted * 100 >= rest * 95,
        "{counted} of {rest}"
    );
}

/// A flood costs a bounded number of entries and counts; one Service's leaves room for the others.
#[test]
fn a_flood() {
    stage(|stage| {
        let windows = flood(stage, &[ends(V4).frontend]);
        let followed = outcomes(stage).len() as u64;
        let rate = u64::from(UDP_PER_SERVICE);
        assert!((rate..=windows * rate).contains(&followed), "{followed}");
        is_counted(stage, followed);
        // Each has its flow beside it.
        assert_eq!(stage.datagrams().len() as u64, 2 * followed);
    });
}

/// As many Services as you like: no more than the rate of all.
#[test]
fn a_flood_over_many_services() {
    stage(|stage| {
        let frontends: Vec<SocketAddr> = (0..10)
            .map(|index| ([10, 96, 1, index], 53).into())
            .collect();
        for (service, at) in (NAMES + 1..).zip(&frontends) {
            stage.put_udp_frontend(*at, cluster_ip(service, 0));
        }
        let windows = flood(stage, &frontends);
        let followed = stage.datagrams().len() as u64 / 2;
        assert!(
            followed <= windows * u64::from(UDP_PER_WINDOW),
            "{followed}"
        );
        is_counted(stage, followed);
    });
}

/// The bulk of a flow is one datagram: the rest is not followed while that is.
#[test]
fn the_bulk_of_a_flow() {
    stage(|stage| {
        let (client, quic) = (ends(V4).client, at("10.96.0.20:443"));
        stage.put_udp_frontend(quic, cluster_ip(NAMES, 0));
        for index in 0..1_000_u32 {
            let mut payload = vec![0; 1_200];
            payload[..4].copy_from_slice(&index.to_be_bytes());
            stage.comes(&udp(client, quic, &payload), stage.at.client);
            stage.goes(&udp(quic, client, &payload), stage.at.client);
        }
        assert_eq!(outcomes(stage), [Arrived, Answered]);
        // Who answered is not known: something on this node.
        assert_eq!(stage.faults(), []);
    });
}

#[test]
fn full_map_of_datagrams() {
    const ROOM: u32 = 8;
    stage_with(&[(map::UDP_PENDING, ROOM)], |stage| {
        let of = ends(V4);
        for id in 0..16 {
            stage.comes(&asked(of.client, of.frontend, id), stage.at.client);
        }
        assert!(stage.datagrams().len() as u32 <= ROOM);
        let full = stage.faults();
        assert!(
            matches!(full[..], [(Fault::UdpFull, count)] if count >= 12),
            "{full:?}"
        );
    });
}
