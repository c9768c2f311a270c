//! How the observer treats the connections of probes.

use node_tests::packet::{self, flag};
use pathproof::probe::Kernel as _;
use pathproof_wire::abi::program;
use pathproof_wire::evidence::{Outcome, state};
use pathproof_wire::probe::UDP;
use pathproof_wire::service::{Family, TCP, endpoint_flag, frontend_flag};

use super::{DROP, TOKEN, client, host, key, payload, with_sentinel};
use crate::stage::{PASS, SERVICE, at, choose, client as pod, cluster_ip, frontend};

/// The observer follows and counts a probe's connection, but takes no proof or anomaly from it.
#[test]
fn probes_prove_nothing() {
    // Run the probes first, because `reset` does not clear proofs.
    let kinds = |family| [(family, frontend_flag::SENTINEL, false), (family, 0, true)];
    with_sentinel(|on| {
        for (family, flags, proves) in Family::ALL.into_iter().flat_map(kinds) {
            on.stage.reset();
            let (pod, frontend) = (pod(family), frontend(family));
            let endpoint = at(choose(family, "10.244.1.9:8080", "[fd00:10:244:1::9]:8080"));
            on.stage.put_frontend(frontend, cluster_ip(SERVICE, flags));
            on.stage
                .put_endpoint(SERVICE, endpoint, endpoint_flag::LOCAL);
            // The second of these connections leaks.
            let devices = on.stage.at;
            for (isn, to, device) in [
                (TOKEN, endpoint, devices.pods),
                (TOKEN + 1, frontend, devices.uplink),
            ] {
                on.stage
                    .comes(&packet::syn(pod, frontend, isn), devices.client);
                on.stage.goes(&packet::syn(pod, to, isn), device);
            }
            let states =
                [TOKEN, TOKEN + 1, TOKEN + 2].map(|token| on.maps.connection_state(token, family));
            let reached = state::FORWARDED | state::PROVEN;
            assert_eq!(states, [Some(reached), Some(state::LEAKED), None]);
            let expected = [
                (Outcome::Arrived, 2),
                (Outcome::Forwarded, 1),
                (Outcome::Proven, 1),
            ];
            assert_eq!(on.stage.outcomes(SERVICE), expected);
            assert_eq!(on.stage.last_proof(family) != 0, proves);
            assert_eq!(on.stage.anomalies().len(), usize::from(proves));
        }
    });
}

/// A probe that no rule translated, and its reset, are dropped at an uplink and pass every other device.
/// Packets with the probe's token to another address pass everywhere. So do other packets to the sentinel's
/// address.
#[test]
fn nothing_of_a_probe_leaves_by_an_uplink() {
    with_sentinel(|on| {
        for family in Family::ALL {
            let (from, sentinel) = (client(family), host(family, 9, 9_000));
            let (user, stranger) = (host(family, 8, 9_000), host(family, 7, 9_000));
            let probed = cluster_ip(SERVICE, frontend_flag::SENTINEL);
            on.stage.put_frontend(sentinel, probed);
            on.stage.put_frontend(user, cluster_ip(SERVICE, 0));
            for protocol in [TCP, UDP] {
                on.register(key(family, protocol, TOKEN), 0);
            }
            for (to, token, verdict) in [
                (sentinel, TOKEN, DROP),
                (sentinel, TOKEN ^ 1, PASS),
                (user, TOKEN, PASS),
                (stranger, TOKEN, PASS),
            ] {
                let sequence = token.wrapping_add(1);
                for packet in [
                    packet::syn(from, to, token),
                    packet::tcp(from, to, flag::RST, sequence, 0, &[]),
                    packet::udp(from, to, &payload(token)),
                ] {
                    on.stage.comes(&packet, on.stage.at.client);
                    on.stage.goes(&packet, on.stage.at.pods);
                    let (bytes, uplink) = (packet.bytes(), on.stage.at.uplink);
                    let out = on.stage.run(program::EGRESS, &bytes, uplink).verdict;
                    assert_eq!(out, verdict, "{to}, {token:x}: {bytes:02x?}");
                }
                on.stage.reset();
            }
        }
    });
}
