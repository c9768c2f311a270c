//! How the programs stamp, answer and collect registered probes.

use etherparse::TcpHeader;
use node_tests::observer::monotonic;
use node_tests::packet::{self, flag, mapped};
use pathproof_wire::abi::program;
use pathproof_wire::probe::Stage::{Arrived, Collected, Echoed, Returned, Translated};
use pathproof_wire::probe::{DATA_LEN, ProbeEvent, echo_isn, probe_flag};
use pathproof_wire::service::Family::{self, V4, V6};
use pathproof_wire::service::TCP;
use rstest::rstest;

use super::{
    DROP, NEAR, REDIRECT, TOKEN, answers, assert_dropped, client, echo, host, key, only, payload,
    requests, stamped, with_sentinel,
};
use crate::stage::PASS;

#[rstest]
fn near_ends_stamp_and_pass(#[values(V4, V6)] family: Family) {
    with_sentinel(|on| {
        for (program, stage) in [(NEAR[0], Arrived), (NEAR[1], Translated)] {
            for (name, packet, protocol, phase) in requests(family) {
                let bytes = packet.bytes();
                let probe = (key(family, protocol, TOKEN), 0);
                let before = monotonic();
                let (passed, found, told) = on.run(probe, program, &bytes);
                assert_eq!((passed.verdict, passed.bytes), (PASS, bytes), "{name}");
                assert_eq!(stamped(&found), [(phase, stage)], "{program}: {name}");
                let stamp = found.stamps[phase as usize][stage as usize];
                assert!((before..=monotonic()).contains(&stamp), "{name}");
                assert_eq!(told, [], "{name}");
            }
            // The programs must not stamp a SYN-ACK, because it is no request.
            let syn_ack = packet::syn_ack(echo(family), client(family), TOKEN);
            let probe = (key(family, TCP, TOKEN), 0);
            let (passed, found, _) = on.run(probe, program, &syn_ack.bytes());
            assert_eq!(passed.verdict, PASS);
            assert_eq!(stamped(&found), [], "{program}");
        }
        for (name, packet, protocol, phase, _) in answers(family) {
            let bytes = packet.bytes();
            let probe = (key(family, protocol, TOKEN), 0);
            let (passed, found, told) = on.run(probe, NEAR[2], &bytes);
            assert_eq!((passed.verdict, passed.bytes), (PASS, bytes), "{name}");
            assert_eq!(stamped(&found), [(phase, Returned)], "{name}");
            assert_eq!(told, [], "{name}");
        }
    });
}

#[test]
fn the_first_time_stays() {
    with_sentinel(|on| {
        let bytes = packet::syn(client(V4), echo(V4), TOKEN).bytes();
        let probe = (key(V4, TCP, TOKEN), 0);
        let (_, first, _) = on.run(probe, program::ARRIVED, &bytes);
        on.again(program::ARRIVED, &bytes);
        assert_eq!(on.read(&probe.0), first);

        // The echo must also answer a retransmission, and keep the first timestamp.
        let (_, first, _) = on.run(probe, program::ECHO, &bytes);
        let again = packet::syn(host(V4, 9, 9), host(V4, 2, 9), TOKEN).bytes();
        assert_eq!(on.again(program::ECHO, &again).verdict, REDIRECT);
        assert_eq!(on.read(&probe.0), first);
    });
}

/// The program at the ingress of the near end collects the answer to a control probe, and drops it.
#[test]
fn control() {
    with_sentinel(|on| {
        for family in Family::ALL {
            for (name, packet, protocol, phase, event) in answers(family) {
                let probe = (key(family, protocol, TOKEN), probe_flag::CONTROL);
                let bytes = packet.bytes();
                let (passed, found, told) = on.run(probe, program::RETURNED, &bytes);
                assert_dropped(passed, &bytes, name);
                assert_eq!(stamped(&found), [(phase, Returned)], "{name}");
                assert_eq!(found.flags, probe_flag::CONTROL);
                assert_eq!(only(&told, name), (probe.0, event), "{name}");
                // A duplicate must be dropped without a second event.
                let again = on.again(program::RETURNED, &bytes);
                assert_eq!((again.verdict, on.events()), (DROP, Vec::new()), "{name}");
            }
        }
    });
}

/// The echo's answers equal those that etherparse builds, and their checksums are right.
#[test]
fn the_echo_answers() {
    let flags = |family| [0, probe_flag::CONTROL].map(|flags| (family, flags));
    with_sentinel(|on| {
        for (family, flags) in Family::ALL.into_iter().flat_map(flags) {
            for (name, packet, protocol, phase) in requests(family) {
                let probe = (key(family, protocol, TOKEN), flags);
                let bytes = packet.bytes();
                let (passed, found, told) = on.run(probe, program::ECHO, &bytes);
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
        }
    });
}

/// The expected answer, built by etherparse and so independent of the program.
fn expected_answer(family: Family, question: &str) -> Vec<u8> {
    let (from, to) = (echo(family), client(family));
    let mut bytes = match question {
        "SYN" => {
            let sequence = echo_isn(TOKEN);
            let mut header = TcpHeader::new(from.port(), to.port(), sequence, 64_240);
            (header.syn, header.ack) = (true, true);
            header.acknowledgment_number = TOKEN + 1;
            // The program overwrites the maximum segment size option with four "no operation" options.
            header.set_options_raw(&[1; 4]).expect("one word");
            packet::segment(header, from.ip(), to.ip(), &[]).bytes()
        }
        "data" => {
            let (sequence, acknowledged) = (echo_isn(TOKEN) + 1, TOKEN + 1 + DATA_LEN as u32);
            let flags = flag::ACK | flag::PSH;
            packet::tcp(from, to, flags, sequence, acknowledged, &payload(TOKEN)).bytes()
        }
        _ => packet::udp(from, to, &payload(TOKEN)).bytes(),
    };
    // Swap the link addresses that the builder chose.
    bytes[..12].rotate_left(6);
    bytes
}

/// Requests with options, up to the maximum of a TCP header, which the SYN of a phone or browser may fill.
#[test]
fn options_are_not_accepted() {
    let words = |family| [0, 1, 4, 10].map(|words| (family, words));
    with_sentinel(|on| {
        for (family, words) in Family::ALL.into_iter().flat_map(words) {
            let (from, to) = (client(family), echo(family));
            let mut header = TcpHeader::new(from.port(), to.port(), TOKEN, 64_240);
            (header.syn, header.ece, header.cwr) = (true, true, true);
            // Options of Multipath TCP.
            let options: Vec<u8> = [30, 12, 0, 129].repeat(words);
            header.set_options_raw(&options).expect("whole words");
            let bytes = packet::segment(header, from.ip(), to.ip(), &[]).bytes();
            let probe = (key(family, TCP, TOKEN), 0);
            let (passed, ..) = on.run(probe, program::ECHO, &bytes);
            assert_eq!(passed.verdict, REDIRECT);
            assert!(packet::is_sound(&passed.bytes));
            assert_eq!(passed.bytes.len(), bytes.len());
            let at = if family == V4 { 34 } else { 54 };
            assert_eq!(
                passed.bytes[at + 13],
                flag::SYN | flag::ACK,
                "ECN is not accepted"
            );
            assert!(passed.bytes[at + 20..].iter().all(|byte| *byte == 1));
        }
    });
}

#[test]
fn the_client_collects() {
    with_sentinel(|on| {
        for family in Family::ALL {
            for (name, packet, protocol, phase, event) in answers(family) {
                let probe = (key(family, protocol, TOKEN), 0);
                let before = monotonic();
                let bytes = packet.bytes();
                let (passed, found, told) = on.run(probe, program::COLLECT, &bytes);
                assert_dropped(passed, &bytes, name);
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
                let again = on.again(program::COLLECT, &bytes);
                assert_eq!((again.verdict, on.events()), (DROP, Vec::new()), "{name}");
            }
        }
    });
}
