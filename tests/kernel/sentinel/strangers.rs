//! How the programs treat refusals and packets that belong to no registered probe.

use node_tests::packet::{self, Packet, flag};
use pathproof::probe::Kernel as _;
use pathproof_wire::abi::{MAX_PROBES, program};
use pathproof_wire::probe::{Probe, UDP, echo_isn, probe_event, probe_flag};
use pathproof_wire::service::Family::{self, V4, V6};
use pathproof_wire::service::TCP;
use rstest::rstest;

use super::{
    DROP, FAR, NEAR, TOKEN, assert_dropped, client, echo, key, only, payload, requests, stamped,
    tcp_data, with_sentinel,
};
use crate::stage::PASS;

#[rstest]
fn refusals_are_reported(#[values(V4, V6)] family: Family) {
    let (client, echo) = (client(family), echo(family));
    let unreachable = if family == V4 { 3 } else { 1 };
    let error = |about: &Packet| packet::icmp_error(echo.ip(), client.ip(), unreachable, 1, about);
    let reset_of_data = packet::tcp(echo, client, flag::RST, echo_isn(TOKEN) + 1, 0, &[]);
    let [(_, syn, ..), (_, data, ..), (_, datagram, ..)] = requests(family);
    let reset = packet::reset(echo, client, TOKEN);
    let cases = [
        ("RST", reset, TCP, probe_flag::REFUSED),
        ("RST of data", reset_of_data, TCP, probe_flag::REFUSED),
        ("ICMP, SYN", error(&syn), TCP, probe_flag::UNREACHABLE),
        ("ICMP, data", error(&data), TCP, probe_flag::UNREACHABLE),
        ("ICMP, UDP", error(&datagram), UDP, probe_flag::UNREACHABLE),
    ];
    with_sentinel(|on| {
        for (name, packet, protocol, flags) in cases {
            let probe = (key(family, protocol, TOKEN), 0);
            let bytes = packet.bytes();
            let (passed, found, told) = on.run(probe, program::COLLECT, &bytes);
            assert_dropped(passed, &bytes, name);
            assert_eq!(found.flags, flags, "{name}");
            assert_eq!(stamped(&found), [], "{name}");
            assert_eq!(only(&told, name), (probe.0, probe_event::REFUSED), "{name}");
            on.again(program::COLLECT, &bytes);
            assert_eq!(on.events(), [], "{name}: reported once");
            // All other programs ignore a refusal.
            for program in NEAR {
                let (passed, found, _) = on.run(probe, program, &bytes);
                let made = (passed.verdict, found);
                assert_eq!(made, (PASS, Probe::default()), "{program}: {name}");
            }
            let (passed, found, _) = on.run(probe, program::ECHO, &bytes);
            assert_eq!(passed.verdict, DROP, "{name}");
            assert_eq!(stamped(&found), [], "{name}");
        }
    });
}

/// Near ends pass a packet that belongs to no registered probe, and far ends drop it. No program answers it.
#[rstest]
fn strangers(#[values(V4, V6)] family: Family) {
    let (client, echo) = (client(family), echo(family));
    let other = TOKEN ^ 1;
    let mut wrong = payload(TOKEN);
    wrong[0] ^= 1;
    let tcp = |flags, payload: &[u8]| packet::tcp(client, echo, flags, TOKEN, 7, payload);
    let syn = packet::syn(client, echo, TOKEN);
    let whole = syn.bytes();
    let mut arp = whole.clone();
    arp[12..14].copy_from_slice(&[8, 6]);
    let mut lies = whole.clone();
    // The packet announces a TCP header longer than the packet.
    lies[if family == V4 { 34 } else { 54 } + 12] = 0xf0;
    let mut packets = vec![("ARP", arp), ("lies", lies)];
    let built = [
        ("unknown SYN", packet::syn(client, echo, other)),
        ("unknown SYN-ACK", packet::syn_ack(echo, client, other)),
        ("unknown RST", packet::reset(echo, client, other)),
        ("unknown data", tcp_data(client, echo, other)),
        (
            "unknown datagram",
            packet::udp(client, echo, &payload(other)),
        ),
        ("wrong magic", tcp(flag::ACK, &wrong)),
        ("wrong magic, UDP", packet::udp(client, echo, &wrong)),
        ("datagram of others", packet::udp(client, echo, b"hello")),
        ("acknowledgement", tcp(flag::ACK, &[])),
        ("FIN", tcp(flag::ACK | flag::FIN, &payload(TOKEN))),
        ("SYN with data", tcp(flag::SYN, &payload(TOKEN))),
        ("SYN and FIN", tcp(flag::SYN | flag::FIN, &[])),
        ("tagged", syn.clone().tagged(packet::VLAN)),
    ];
    packets.extend(built.map(|(name, packet)| (name, packet.bytes())));
    if family == V4 {
        packets.push(("later fragment", syn.fragment(3).bytes()));
    }
    // Packets that end after the IP header. The kernel accepts no shorter test packets.
    let ip = if family == V4 { 34 } else { 54 };
    for length in ip..whole.len() {
        packets.push(("runt", whole[..length].to_vec()));
    }
    with_sentinel(|on| {
        for (name, bytes) in packets {
            for program in NEAR.into_iter().chain(FAR) {
                for protocol in [TCP, UDP] {
                    let probe = (key(family, protocol, TOKEN), probe_flag::CONTROL);
                    let (passed, found, told) = on.run(probe, program, &bytes);
                    let verdict = if NEAR.contains(&program) || may_be_of_another(program, name) {
                        PASS
                    } else {
                        DROP
                    };
                    assert_eq!(passed.verdict, verdict, "{program}: {name}");
                    assert_eq!(passed.bytes, bytes, "{program}: {name}");
                    let untouched = Probe {
                        flags: probe_flag::CONTROL,
                        ..Probe::default()
                    };
                    assert_eq!((found, told), (untouched, Vec::new()), "{program}: {name}");
                }
            }
        }
        assert_eq!(on.maps.read(&key(family, TCP, other)).expect("a map"), None);
    });
}

/// Whether the program must pass this packet, because it may be a probe of another agent, whose program runs
/// behind this one.
fn may_be_of_another(program: &str, name: &str) -> bool {
    let request = ["unknown SYN", "unknown data", "unknown datagram"].contains(&name);
    name.starts_with("unknown") && (program == program::COLLECT || request)
}

/// A probe of the other family or protocol is another probe.
#[test]
fn keys_are_whole() {
    with_sentinel(|on| {
        on.register(key(V6, TCP, TOKEN), 0);
        on.register(key(V4, UDP, TOKEN), 0);
        let bytes = packet::syn(client(V4), echo(V4), TOKEN).bytes();
        assert_eq!(on.again(program::ECHO, &bytes).verdict, PASS);
        // Nor may a removed probe be answered.
        on.register(key(V4, TCP, TOKEN), 0);
        on.maps.remove(&key(V4, TCP, TOKEN));
        on.maps.remove(&key(V4, TCP, TOKEN));
        assert_eq!(on.again(program::ECHO, &bytes).verdict, PASS);
    });
}

#[test]
fn a_full_map_of_probes_is_an_error() {
    with_sentinel(|on| {
        for token in 0..MAX_PROBES {
            on.register(key(V4, TCP, token), 0);
        }
        let full = on.maps.register(key(V4, TCP, MAX_PROBES), 0);
        let error = full.expect_err("full").to_string();
        assert!(
            error.starts_with("cannot write to the map PROBES"),
            "{error}"
        );
        assert_eq!(on.maps.socket(7), None);
        on.maps.register_socket(7).expect("room");
        assert_eq!(on.maps.socket(7), Some(Default::default()));
        on.maps.remove_socket(7);
        assert_eq!(on.maps.socket(7), None);
    });
}
