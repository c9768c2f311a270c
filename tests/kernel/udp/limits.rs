//! Datagrams that are not followed, and limits for those that are.

use node_tests::observer::monotonic;
use node_tests::packet::udp;
use node_tests::prelude::*;
use pathproof_wire::abi::{BUDGET_WINDOW_SHIFT, UDP_PER_SERVICE, UDP_PER_WINDOW, map};
use pathproof_wire::evidence::Fault;
use pathproof_wire::evidence::Outcome::{Answered, Arrived, Forwarded};
use pathproof_wire::service::Family::V4;

use super::{NAMES, asked, ends, outcomes, question, stage, stage_with};
use crate::stage::{Stage, at, cluster_ip};

#[test]
fn payloads_below_eight_bytes_are_not_matchable() {
    stage(|stage| {
        let hosts = ends(V4);
        for payload in [&[][..], &[1; 7]] {
            stage.reset();
            stage.comes(&udp(hosts.client, hosts.frontend, payload), stage.at.client);
            stage.goes(&udp(hosts.client, hosts.stranger, payload), stage.at.pods);
            assert_eq!(outcomes(stage), []);
            assert_eq!(stage.faults(), [(Fault::UdpNotMatchable, 1)]);
        }
    });
}

/// Payloads of 8 to 39 bytes are matched, each by a hash of its beginning.
#[test]
fn payloads_of_every_length() {
    stage(|stage| {
        let hosts = ends(V4);
        for length in 8..40_u16 {
            let mut client = hosts.client;
            client.set_port(30_000 + length);
            let payload: Vec<u8> = (0..length as u8).collect();
            stage.comes(&udp(client, hosts.frontend, &payload), stage.at.client);
            stage.goes(&udp(client, hosts.endpoint, &payload), stage.at.pods);
        }
        assert_eq!(stage.count(NAMES, Forwarded), 32);
        assert_eq!(stage.faults(), []);
    });
}

/// Number of datagrams of a flood. Each is a separate flow.
const FLOOD: u32 = 5_000;

/// Floods these frontends in turn. Returns the number of budget windows that passed.
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

/// Asserts that datagrams that are not followed are counted, except for a few. If the hash of a flow in the
/// gate (65,536 places) equals that of a flow read a moment ago, the datagram is not counted: up to 190 of
/// 5,000 when a slow machine reads all. Two of thousands of payloads may also share a hash.
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

/// A flood of one Service uses a bounded number of entries, so that other Services have room.
#[test]
fn a_flood() {
    stage(|stage| {
        let windows = flood(stage, &[ends(V4).frontend]);
        let followed = outcomes(stage).len() as u64;
        let rate = u64::from(UDP_PER_SERVICE);
        assert!((rate..=windows * rate).contains(&followed), "{followed}");
        is_counted(stage, followed);
        // Each followed datagram also has an entry for its flow.
        assert_eq!(stage.datagrams().len() as u64, 2 * followed);
    });
}

/// The rate of all Services together is bounded as well.
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

/// In each flow only one datagram is followed at a time.
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
        assert_eq!(stage.faults(), []);
    });
}

#[test]
fn full_map_of_datagrams() {
    const ROOM: u32 = 8;
    stage_with(&[(map::UDP_PENDING, ROOM)], |stage| {
        let hosts = ends(V4);
        for id in 0..16 {
            stage.comes(&asked(hosts.client, hosts.frontend, id), stage.at.client);
        }
        assert!(stage.datagrams().len() as u32 <= ROOM);
        let full = stage.faults();
        assert!(
            matches!(full[..], [(Fault::UdpFull, count)] if count >= 12),
            "{full:?}"
        );
    });
}
