//! What the observer makes of a probe's connection.

use std::net::SocketAddr;

use agent_common::abi::program;
use agent_common::evidence::{Outcome, state};
use agent_common::probe::UDP;
use agent_common::service::Family::{self, V4};
use agent_common::service::{
    FrontendKind, FrontendValue, Owed, SourceClass, TCP, endpoint_flag, frontend_flag,
};
use node_tests::observer::Observer;
use node_tests::packet::{self, flag};
use node_tests::scenario::mapped;

use super::{DROP, PASS, TOKEN, at, client, key, payload, with_sentinel};
use crate::SERVICE;

/// A cluster IP by TCP, of which every client is owed an endpoint.
fn put_cluster_ip(observer: &mut Observer, at: SocketAddr, flags: u8) {
    let value = FrontendValue {
        service: SERVICE,
        kind: FrontendKind::ClusterIp as u8,
        flags,
        owed: [Owed::Forward as u8; 3],
        ..FrontendValue::default()
    };
    let put = observer.put_frontend(mapped(at.ip()), at.port(), value);
    put.expect("room for a frontend");
}

/// The observer follows and counts a probe's connection, and takes nothing from it for real traffic.
#[test]
fn probes_prove_nothing() {
    // First those that leave no delays: they are not forgotten.
    let kinds = |family| [(family, frontend_flag::SENTINEL, false), (family, 0, true)];
    with_sentinel(|observer, maps, sandbox| {
        for (family, flags, proves) in Family::ALL.into_iter().flat_map(kinds) {
            observer.reset(SERVICE + 1).expect("no evidence");
            let text = |v4: &str, v6: &str| -> SocketAddr {
                let text = if family == V4 { v4 } else { v6 };
                text.parse().expect("an address")
            };
            let pod = text("10.244.1.5:40001", "[fd00:10:244:1::5]:40001");
            let frontend = text("10.96.0.1:80", "[fd00:10:96::1]:80");
            let endpoint = text("10.244.1.9:8080", "[fd00:10:244:1::9]:8080");
            put_cluster_ip(observer, frontend, flags);
            let to = mapped(endpoint.ip());
            observer
                .put_endpoint(SERVICE, to, 8_080, endpoint_flag::LOCAL)
                .expect("room");

            let through = |observer: &Observer, isn, to: SocketAddr, device| {
                let arrives = packet::syn(pod, frontend, isn).bytes();
                observer
                    .run(program::INGRESS, &arrives, sandbox.client)
                    .expect("a run");
                let leaves = packet::syn(pod, to, isn).bytes();
                observer
                    .run(program::EGRESS, &leaves, device)
                    .expect("a run");
            };
            through(observer, TOKEN, endpoint, sandbox.pods);
            let reached = maps.connection_state(TOKEN, family).expect("followed");
            assert_eq!(reached, state::FORWARDED | state::PROVEN);
            // Leaked.
            through(observer, TOKEN + 1, frontend, sandbox.uplink);
            let leaked = maps.connection_state(TOKEN + 1, family);
            assert_eq!(leaked, Some(state::LEAKED));
            assert_eq!(maps.connection_state(TOKEN + 2, family), None);

            let counted = observer
                .outcomes(SERVICE, SourceClass::Pod)
                .expect("counts");
            let expected = [
                (Outcome::Arrived, 2),
                (Outcome::Forwarded, 1),
                (Outcome::Proven, 1),
            ];
            assert_eq!(counted, expected);
            let last = observer
                .last_proof(family, SourceClass::Pod)
                .expect("proofs");
            assert_eq!(last != 0, proves);
            let delays = observer.delays(family).expect("delays");
            assert_eq!(delays, u64::from(proves));
            assert_eq!(
                observer.anomalies().expect("anomalies").len(),
                usize::from(proves)
            );
        }
    });
}

/// Packets of a probe that nothing translated end at an uplink, its reset included, and pass every other device.
/// Packets with its token to another address pass everywhere, as do those of other clients to the sentinel's.
#[test]
fn nothing_of_a_probe_leaves_by_an_uplink() {
    with_sentinel(|observer, maps, sandbox| {
        for family in Family::ALL {
            let (from, sentinel) = (client(family), at(family, 9, 9_000));
            let (user, stranger) = (at(family, 8, 9_000), at(family, 7, 9_000));
            for (to, flags) in [(sentinel, frontend_flag::SENTINEL), (user, 0)] {
                put_cluster_ip(observer, to, flags);
            }
            for protocol in [TCP, UDP] {
                let probe = key(family, protocol, TOKEN);
                maps.register(probe, 0).expect("room for a probe");
            }
            let cases = [
                (sentinel, TOKEN, DROP),
                (sentinel, TOKEN ^ 1, PASS),
                (user, TOKEN, PASS),
                (stranger, TOKEN, PASS),
            ];
            for (to, token, verdict) in cases {
                let sequence = token.wrapping_add(1);
                let packets = [
                    packet::syn(from, to, token),
                    packet::tcp(from, to, flag::RST, sequence, 0, &[]),
                    packet::udp(from, to, &payload(token)),
                ];
                for packet in packets.map(|packet| packet.bytes()) {
                    let run = |program, device| {
                        let passed = observer.run(program, &packet, device);
                        passed.expect("a run").verdict
                    };
                    assert_eq!(run(program::INGRESS, sandbox.client), PASS);
                    assert_eq!(run(program::EGRESS, sandbox.pods), PASS);
                    let out = run(program::EGRESS, sandbox.uplink);
                    assert_eq!(out, verdict, "{to}, {token:x}: {packet:02x?}");
                }
                observer.reset(SERVICE + 1).expect("no evidence");
            }
        }
    });
}
