//! The sentinel's programs, packet by packet: what each stamps, answers, drops and passes.
//!
//! What the compiled parser makes of packets is that of `agent-common/tests/probe.rs`; here is what
//! the programs do about it. Sockets are shown in [`super::sentinel_path`].

use std::net::SocketAddr;

use agent_common::abi::{MAX_PROBES, program};
use agent_common::evidence::{Outcome, state};
use agent_common::probe::Phase::{self, Data, Handshake};
use agent_common::probe::Stage::{self, Arrived, Collected, Echoed, Returned, Translated};
use agent_common::probe::{
    DATA_LEN, Probe, ProbeEvent, ProbeKey, UDP, UDP_MAGIC, echo_isn, probe_event, probe_flag,
};
use agent_common::service::Family::{self, V4, V6};
use agent_common::service::{FrontendKind, FrontendValue, Owed, SourceClass, TCP, frontend_flag};
use node_tests::observer::{LO, Observer, Passed, Sandbox, monotonic};
use node_tests::packet::{self, Packet, flag};
use node_tests::scenario::mapped;
use pathproof::datapath::probes::ProbeMaps;
use rstest::rstest;

use crate::{SERVICE, on_stage};

const TOKEN: u32 = 0x0102_0304;
/// `TCX_NEXT`.
const PASS: i32 = -1;
/// `TC_ACT_SHOT`.
const DROP: i32 = 2;
/// `TC_ACT_REDIRECT`.
const REDIRECT: i32 = 7;
/// Near ends, whose programs pass what is not theirs.
const NEAR: [&str; 3] = [program::ARRIVED, program::TRANSLATED, program::RETURNED];
/// Far ends, behind which nothing may come.
const FAR: [&str; 2] = [program::ECHO, program::COLLECT];

fn at(family: Family, host: u8, port: u16) -> SocketAddr {
    let text = match family {
        V4 => format!("198.18.0.{host}:{port}"),
        V6 => format!("[2001:2::{host}]:{port}"),
    };
    text.parse().expect("an address")
}

fn client(family: Family) -> SocketAddr {
    at(family, 1, 40_001)
}

fn echo(family: Family) -> SocketAddr {
    at(family, 2, 8_080)
}

pub(crate) fn key(family: Family, protocol: u8, token: u32) -> ProbeKey {
    ProbeKey {
        token,
        family: family as u8,
        protocol,
        padding: [0; 2],
    }
}

/// What a probe carries.
pub(crate) fn payload(token: u32) -> [u8; DATA_LEN] {
    let mut payload = [0; DATA_LEN];
    payload[..UDP_MAGIC.len()].copy_from_slice(&UDP_MAGIC);
    payload[UDP_MAGIC.len()..].copy_from_slice(&token.to_be_bytes());
    payload
}

fn tcp_data(from: SocketAddr, to: SocketAddr, token: u32) -> Packet {
    let (sequence, acknowledged) = (token.wrapping_add(1), echo_isn(token).wrapping_add(1));
    let flags = flag::ACK | flag::PSH;
    packet::tcp(from, to, flags, sequence, acknowledged, &payload(token))
}

/// The sentinel's programs on a stage, and its maps.
fn with_sentinel(test: impl FnOnce(&mut Observer, &mut ProbeMaps, Sandbox) + Send) {
    on_stage(&[], |observer, sandbox| {
        observer.load_sentinel().expect("load the sentinel");
        let mut maps = observer.probes().expect("the probes' maps");
        test(observer, &mut maps, sandbox);
    });
}

/// Registers a probe anew, runs one packet through a program, and tells what was made of it.
fn run(
    observer: &Observer,
    maps: &mut ProbeMaps,
    (key, flags): (ProbeKey, u32),
    program: &str,
    bytes: &[u8],
) -> (Passed, Probe, Vec<ProbeEvent>) {
    maps.register(key, flags).expect("room for a probe");
    let passed = observer.run(program, bytes, LO).expect(program);
    let probe = maps.read(&key).expect("a map").expect("the probe");
    (passed, probe, events(maps))
}

fn events(maps: &mut ProbeMaps) -> Vec<ProbeEvent> {
    std::iter::from_fn(|| maps.next_event()).collect()
}

/// Everything that was stamped.
fn stamped(probe: &Probe) -> Vec<(Phase, Stage)> {
    let mut found = Vec::new();
    for phase in [Handshake, Data] {
        for stage in Stage::ALL {
            if probe.stamps[phase as usize][stage as usize] != 0 {
                found.push((phase, stage));
            }
        }
    }
    found
}

/// Packets of a probe on their way to the echo.
fn requests(family: Family) -> [(&'static str, Packet, u8, Phase); 3] {
    let (client, echo) = (client(family), echo(family));
    [
        ("SYN", packet::syn(client, echo, TOKEN), TCP, Handshake),
        ("data", tcp_data(client, echo, TOKEN), TCP, Data),
        ("UDP", packet::udp(client, echo, &payload(TOKEN)), UDP, Data),
    ]
}

/// And on their way back.
fn answers(family: Family) -> [(&'static str, Packet, u8, Phase, u32); 3] {
    let (client, echo) = (client(family), echo(family));
    let data = tcp_data(echo, client, TOKEN);
    let datagram = packet::udp(echo, client, &payload(TOKEN));
    let syn_ack = packet::syn_ack(echo, client, TOKEN);
    [
        ("SYN-ACK", syn_ack, TCP, Handshake, probe_event::HANDSHAKE),
        ("data back", data, TCP, Data, probe_event::DATA),
        ("UDP back", datagram, UDP, Data, probe_event::DATA),
    ]
}

#[rstest]
fn near_ends_stamp_and_pass(#[values(V4, V6)] family: Family) {
    with_sentinel(|observer, maps, _| {
        for (program, stage) in [(NEAR[0], Arrived), (NEAR[1], Translated)] {
            for (name, packet, protocol, phase) in requests(family) {
                let bytes = packet.bytes();
                let probe = (key(family, protocol, TOKEN), 0);
                let before = monotonic();
                let (passed, found, told) = run(observer, maps, probe, program, &bytes);
                assert_eq!((passed.verdict, passed.bytes), (PASS, bytes), "{name}");
                assert_eq!(stamped(&found), [(phase, stage)], "{program}: {name}");
                let stamp = found.stamps[phase as usize][stage as usize];
                assert!((before..=monotonic()).contains(&stamp), "{name}");
                assert_eq!(told, [], "{name}");
            }
            for (name, packet, protocol, ..) in answers(family) {
                // Data are not told from data that come back, but by where they are.
                if name != "SYN-ACK" {
                    continue;
                }
                let probe = (key(family, protocol, TOKEN), 0);
                let (passed, found, _) = run(observer, maps, probe, program, &packet.bytes());
                assert_eq!(passed.verdict, PASS, "{name}");
                assert_eq!(stamped(&found), [], "{program}: {name}");
            }
        }
        for (name, packet, protocol, phase, _) in answers(family) {
            let bytes = packet.bytes();
            let probe = (key(family, protocol, TOKEN), 0);
            let (passed, found, told) = run(observer, maps, probe, NEAR[2], &bytes);
            assert_eq!((passed.verdict, passed.bytes), (PASS, bytes), "{name}");
            assert_eq!(stamped(&found), [(phase, Returned)], "{name}");
            assert_eq!(told, [], "{name}");
        }
    });
}

#[test]
fn the_first_time_stays() {
    with_sentinel(|observer, maps, _| {
        let bytes = packet::syn(client(V4), echo(V4), TOKEN).bytes();
        let probe = (key(V4, TCP, TOKEN), 0);
        let (_, first, _) = run(observer, maps, probe, program::ARRIVED, &bytes);
        observer.run(program::ARRIVED, &bytes, LO).expect("a run");
        assert_eq!(maps.read(&probe.0).expect("a map"), Some(first));

        // The echo answers a retransmission, and keeps what it saw first.
        let (_, first, _) = run(observer, maps, probe, program::ECHO, &bytes);
        let again = packet::syn(at(V4, 9, 9), at(V4, 2, 9), TOKEN).bytes();
        let passed = observer.run(program::ECHO, &again, LO).expect("a run");
        assert_eq!(passed.verdict, REDIRECT);
        assert_eq!(maps.read(&probe.0).expect("a map"), Some(first));
    });
}

/// An answer of a control probe ends where it comes in.
#[rstest]
fn control(#[values(V4, V6)] family: Family) {
    with_sentinel(|observer, maps, _| {
        for (name, packet, protocol, phase, event) in answers(family) {
            let probe = (key(family, protocol, TOKEN), probe_flag::CONTROL);
            let bytes = packet.bytes();
            let (passed, found, told) = run(observer, maps, probe, program::RETURNED, &bytes);
            assert_eq!(
                (passed.verdict, passed.bytes),
                (DROP, bytes.clone()),
                "{name}"
            );
            assert_eq!(stamped(&found), [(phase, Returned)], "{name}");
            assert_eq!(found.flags, probe_flag::CONTROL);
            let [event_told] = told[..] else {
                panic!("{name}: one event: {told:?}");
            };
            assert_eq!(
                (event_told.key, event_told.kind),
                (probe.0, event),
                "{name}"
            );
            // Once more: dropped, and told once.
            let again = observer.run(program::RETURNED, &bytes, LO).expect("a run");
            assert_eq!((again.verdict, events(maps)), (DROP, Vec::new()), "{name}");
        }
    });
}

/// The echo's answers are those of the rules, by the kernel's own checksums.
#[rstest]
fn the_echo_answers(
    #[values(V4, V6)] family: Family,
    #[values(0, probe_flag::CONTROL)] flags: u32,
) {
    with_sentinel(|observer, maps, _| {
        for (name, packet, protocol, phase) in requests(family) {
            let probe = (key(family, protocol, TOKEN), flags);
            let bytes = packet.bytes();
            let (passed, found, told) = run(observer, maps, probe, program::ECHO, &bytes);
            assert_eq!(passed.verdict, REDIRECT, "{name}");
            assert_eq!(passed.bytes, expected_answer(family, name), "{name}");
            assert!(packet::is_sound(&passed.bytes), "{name}");
            assert_eq!(stamped(&found), [(phase, Echoed)], "{name}");
            assert_eq!((found.flags, told), (flags, Vec::new()), "{name}");
            let ends = if name == "data" {
                ([0; 16], 0, 0)
            } else {
                (mapped(client(family).ip()), 40_001, 8_080)
            };
            let noted = (
                found.echo_source,
                u16::from_be_bytes(found.echo_source_port),
                u16::from_be_bytes(found.echo_port),
            );
            assert_eq!(noted, ends, "{name}");
        }
    });
}

/// Made by another hand: etherparse.
fn expected_answer(family: Family, question: &str) -> Vec<u8> {
    let (from, to) = (echo(family), client(family));
    let mut bytes = match question {
        "SYN" => {
            let (sequence, acknowledged) = (echo_isn(TOKEN), TOKEN + 1);
            let flags = flag::SYN | flag::ACK;
            let mut bytes = packet::tcp(from, to, flags, sequence, acknowledged, &[]).bytes();
            let length = bytes.len();
            // What was the maximum segment size is "no operation" four times.
            bytes[length - 4..].fill(1);
            return resummed(family, turned_link(bytes));
        }
        "data" => {
            let (sequence, acknowledged) = (echo_isn(TOKEN) + 1, TOKEN + 1 + DATA_LEN as u32);
            let flags = flag::ACK | flag::PSH;
            packet::tcp(from, to, flags, sequence, acknowledged, &payload(TOKEN)).bytes()
        }
        _ => packet::udp(from, to, &payload(TOKEN)).bytes(),
    };
    bytes = turned_link(bytes);
    bytes
}

/// The builder's link addresses, the other way round.
fn turned_link(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes[..12].rotate_left(6);
    bytes
}

/// With the checksum of a TCP segment whose options were changed.
fn resummed(family: Family, mut bytes: Vec<u8>) -> Vec<u8> {
    let at = if family == V4 { 34 } else { 54 } + 16;
    for sum in 0..=u16::MAX {
        bytes[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        if packet::is_sound(&bytes) {
            return bytes;
        }
    }
    panic!("no checksum fits");
}

/// All the room that a TCP header has for options, as a phone's or a browser's SYN may use it.
#[rstest]
fn options_are_not_accepted(#[values(V4, V6)] family: Family, #[values(0, 1, 4, 10)] words: usize) {
    with_sentinel(|observer, maps, _| {
        let (from, to) = (client(family), echo(family));
        let mut header = etherparse::TcpHeader::new(from.port(), to.port(), TOKEN, 64_240);
        (header.syn, header.ece, header.cwr) = (true, true, true);
        // Multipath TCP, whatever follows.
        let options: Vec<u8> = [30, 12, 0, 129].repeat(words);
        header.set_options_raw(&options).expect("whole words");
        let bytes = packet::segment(header, from.ip(), to.ip(), &[]).bytes();
        let probe = (key(family, TCP, TOKEN), 0);
        let (passed, ..) = run(observer, maps, probe, program::ECHO, &bytes);
        assert_eq!(passed.verdict, REDIRECT);
        assert!(packet::is_sound(&passed.bytes));
        assert_eq!(passed.bytes.len(), bytes.len());
        let at = if family == V4 { 34 } else { 54 };
        assert_eq!(
            passed.bytes[at + 13],
            flag::SYN | flag::ACK,
            "no ECN either"
        );
        assert!(passed.bytes[at + 20..].iter().all(|byte| *byte == 1));
    });
}

#[rstest]
fn the_client_collects(#[values(V4, V6)] family: Family) {
    with_sentinel(|observer, maps, _| {
        for (name, packet, protocol, phase, event) in answers(family) {
            let probe = (key(family, protocol, TOKEN), 0);
            let before = monotonic();
            let bytes = packet.bytes();
            let (passed, found, told) = run(observer, maps, probe, program::COLLECT, &bytes);
            assert_eq!(
                (passed.verdict, passed.bytes),
                (DROP, bytes.clone()),
                "{name}"
            );
            assert_eq!(stamped(&found), [(phase, Collected)], "{name}");
            let at_ns = found.stamps[phase as usize][Collected as usize];
            assert!((before..=monotonic()).contains(&at_ns), "{name}");
            let (sequence, acknowledged) = match name {
                "SYN-ACK" => (0x5eed, TOKEN + 1),
                "data back" => (TOKEN + 1, echo_isn(TOKEN) + 1),
                _ => (0, 0),
            };
            let expected = ProbeEvent {
                at_ns,
                key: probe.0,
                kind: event,
                sequence,
                acknowledged,
                padding: 0,
            };
            assert_eq!(told, [expected], "{name}");
            let again = observer.run(program::COLLECT, &bytes, LO).expect("a run");
            assert_eq!((again.verdict, events(maps)), (DROP, Vec::new()), "{name}");
        }
    });
}

#[rstest]
fn refusals_are_told(#[values(V4, V6)] family: Family) {
    let (client, echo) = (client(family), echo(family));
    let unreachable = if family == V4 { 3 } else { 1 };
    let error = |about: &Packet| packet::icmp_error(echo.ip(), client.ip(), unreachable, 1, about);
    let reset_of_data = packet::tcp(echo, client, flag::RST, echo_isn(TOKEN) + 1, 0, &[]);
    let [(_, syn, ..), (_, data, ..), (_, datagram, ..)] = requests(family);
    let cases = [
        (
            "RST",
            packet::reset(echo, client, TOKEN),
            TCP,
            probe_flag::REFUSED,
        ),
        ("RST of data", reset_of_data, TCP, probe_flag::REFUSED),
        ("ICMP, SYN", error(&syn), TCP, probe_flag::UNREACHABLE),
        ("ICMP, data", error(&data), TCP, probe_flag::UNREACHABLE),
        ("ICMP, UDP", error(&datagram), UDP, probe_flag::UNREACHABLE),
    ];
    with_sentinel(|observer, maps, _| {
        for (name, packet, protocol, flags) in cases {
            let probe = (key(family, protocol, TOKEN), 0);
            let bytes = packet.bytes();
            let (passed, found, told) = run(observer, maps, probe, program::COLLECT, &bytes);
            assert_eq!(
                (passed.verdict, passed.bytes),
                (DROP, bytes.clone()),
                "{name}"
            );
            assert_eq!(
                (stamped(&found), found.flags),
                (Vec::new(), flags),
                "{name}"
            );
            let [event] = told[..] else {
                panic!("{name}: one event: {told:?}");
            };
            assert_eq!(
                (event.key, event.kind),
                (probe.0, probe_event::REFUSED),
                "{name}"
            );
            observer.run(program::COLLECT, &bytes, LO).expect("a run");
            assert_eq!(events(maps), [], "{name}: told once");
            // No program but that of the client's end takes it for anything.
            for program in NEAR {
                let (passed, found, _) = run(observer, maps, probe, program, &bytes);
                assert_eq!(
                    (passed.verdict, found.flags),
                    (PASS, 0),
                    "{program}: {name}"
                );
                assert_eq!(stamped(&found), [], "{program}: {name}");
            }
            let (passed, found, _) = run(observer, maps, probe, program::ECHO, &bytes);
            assert_eq!(
                (passed.verdict, stamped(&found)),
                (DROP, Vec::new()),
                "{name}"
            );
        }
    });
}

/// Whatever is not a registered probe's: near ends pass it, far ends drop it, nobody answers.
#[rstest]
fn strangers(#[values(V4, V6)] family: Family) {
    let (client, echo) = (client(family), echo(family));
    let other = TOKEN ^ 1;
    let mut wrong = payload(TOKEN);
    wrong[0] ^= 1;
    let tcp = |flags, payload: &[u8]| packet::tcp(client, echo, flags, TOKEN, 7, payload).bytes();
    let whole = packet::syn(client, echo, TOKEN).bytes();
    let mut arp = whole.clone();
    arp[12..14].copy_from_slice(&[8, 6]);
    let mut lies = whole.clone();
    // A TCP header longer than the packet.
    lies[if family == V4 { 34 } else { 54 } + 12] = 0xf0;
    let mut packets = vec![
        ("unknown SYN", packet::syn(client, echo, other).bytes()),
        (
            "unknown SYN-ACK",
            packet::syn_ack(echo, client, other).bytes(),
        ),
        ("unknown RST", packet::reset(echo, client, other).bytes()),
        ("unknown data", tcp_data(client, echo, other).bytes()),
        (
            "unknown datagram",
            packet::udp(client, echo, &payload(other)).bytes(),
        ),
        ("wrong magic", tcp(flag::ACK, &wrong)),
        (
            "wrong magic, UDP",
            packet::udp(client, echo, &wrong).bytes(),
        ),
        (
            "datagram of others",
            packet::udp(client, echo, b"hello").bytes(),
        ),
        ("acknowledgement", tcp(flag::ACK, &[])),
        ("FIN", tcp(flag::ACK | flag::FIN, &payload(TOKEN))),
        ("SYN with data", tcp(flag::SYN, &payload(TOKEN))),
        ("SYN and FIN", tcp(flag::SYN | flag::FIN, &[])),
        (
            "later fragment",
            packet::syn(client, echo, TOKEN).fragment(3).bytes(),
        ),
        (
            "tagged",
            packet::syn(client, echo, TOKEN)
                .tagged(packet::VLAN)
                .bytes(),
        ),
        ("ARP", arp),
        ("lies", lies),
    ];
    if family == V6 {
        packets.retain(|(name, _)| *name != "later fragment");
    }
    // What the kernel takes as a test packet at all: an IP header, and less than is said there.
    let ip = if family == V4 { 34 } else { 54 };
    for length in ip..whole.len() {
        packets.push(("runt", whole[..length].to_vec()));
    }
    with_sentinel(|observer, maps, _| {
        for (name, bytes) in packets {
            for program in NEAR.into_iter().chain(FAR) {
                for protocol in [TCP, UDP] {
                    let probe = (key(family, protocol, TOKEN), probe_flag::CONTROL);
                    let (passed, found, told) = run(observer, maps, probe, program, &bytes);
                    let verdict = if FAR.contains(&program) { DROP } else { PASS };
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
        assert_eq!(maps.read(&key(family, TCP, other)).expect("a map"), None);
    });
}

/// A probe of the other family or protocol is another probe.
#[test]
fn keys_are_whole() {
    with_sentinel(|observer, maps, _| {
        maps.register(key(V6, TCP, TOKEN), 0).expect("room");
        maps.register(key(V4, UDP, TOKEN), 0).expect("room");
        let bytes = packet::syn(client(V4), echo(V4), TOKEN).bytes();
        let passed = observer.run(program::ECHO, &bytes, LO).expect("a run");
        assert_eq!(passed.verdict, DROP);
        // And one that was removed is none.
        maps.register(key(V4, TCP, TOKEN), 0).expect("room");
        maps.remove(&key(V4, TCP, TOKEN));
        maps.remove(&key(V4, TCP, TOKEN));
        let passed = observer.run(program::ECHO, &bytes, LO).expect("a run");
        assert_eq!(passed.verdict, DROP);
    });
}

#[test]
fn a_full_map_is_said_to_be_full() {
    with_sentinel(|_, maps, _| {
        for token in 0..MAX_PROBES {
            maps.register(key(V4, TCP, token), 0).expect("room");
        }
        let error = maps
            .register(key(V4, TCP, MAX_PROBES), 0)
            .expect_err("full");
        assert!(
            error
                .to_string()
                .starts_with("cannot write to the map PROBES")
        );
        assert_eq!(maps.socket(7), None);
        maps.register_socket(7).expect("room");
        assert_eq!(maps.socket(7), Some(Default::default()));
        maps.remove_socket(7);
        assert_eq!(maps.socket(7), None);
    });
}

/// The observer follows and counts a probe's connection, and takes nothing from it for real traffic.
#[rstest]
#[case(frontend_flag::SENTINEL, false)]
#[case(0, true)]
fn probes_prove_nothing(#[values(V4, V6)] family: Family, #[case] flags: u8, #[case] proves: bool) {
    with_sentinel(|observer, maps, sandbox| {
        let text = |v4: &str, v6: &str| -> SocketAddr {
            let text = if family == V4 { v4 } else { v6 };
            text.parse().expect("an address")
        };
        let pod = text("10.244.1.5:40001", "[fd00:10:244:1::5]:40001");
        let frontend = text("10.96.0.1:80", "[fd00:10:96::1]:80");
        let endpoint = text("10.244.1.9:8080", "[fd00:10:244:1::9]:8080");
        let value = FrontendValue {
            service: SERVICE,
            kind: FrontendKind::ClusterIp as u8,
            flags,
            owed: [Owed::Forward as u8; 3],
            ..FrontendValue::default()
        };
        let address = mapped(frontend.ip());
        observer.put_frontend(address, 80, value).expect("room");
        let to = mapped(endpoint.ip());
        observer.put_endpoint(SERVICE, to, 8_080, 0).expect("room");

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
            (Outcome::Leaked, 1),
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
    });
}
