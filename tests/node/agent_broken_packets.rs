//! Malformed packets pass unchanged, and are counted.

use node_tests::capture::{Capture, Direction, Frame};
use node_tests::prelude::*;
use node_tests::traffic::RawSender;

const SYN: u8 = 0x02;

type Hardware = ([u8; 6], [u8; 6]);

/// Broken packets from one bridged pod to another pass four hooks unchanged.
#[test]
fn broken_packets_pass_as_they_came() {
    let scene = Scene::proven(Backend::Nftables, &[]);
    let watch = scene.watch();
    let (from, to) = (scene.world.pod("db-2"), scene.world.pod("db-1"));
    // Disable netfilter on the bridge, because it would drop broken packets itself.
    for key in ["bridge-nf-call-iptables", "bridge-nf-call-ip6tables"] {
        let _ = scene.world.node.sysctl(&format!("net/bridge/{key}"), "0");
    }
    let raw = RawSender::from_pod(from).expect("a packet socket");
    let mut capture = Capture::start(&to.ns);
    let link = (from.link().0, to.link().0);
    let faults = ["malformed", "truncated", "too_deep", "later_fragment"];
    let count = || faults.map(|fault| scene.fault(fault)).iter().sum::<u64>();
    let before = count();
    for (what, frame) in broken(link, from.v4.octets(), to.v4.octets()) {
        // Retry, because the queue of a veth may be full for a moment.
        let sent = until(PATIENCE, || raw.send(&frame).ok());
        assert!(sent.is_some(), "{what} was not sent");
        let is_it = |seen: &Frame| seen.direction == Direction::In && seen.bytes == frame;
        let arrived = until(PATIENCE, || {
            capture.drain();
            std::mem::take(&mut capture.frames)
                .iter()
                .any(is_it)
                .then_some(())
        });
        assert!(arrived.is_some(), "{what} did not arrive as it was sent");
    }
    eventually("counted", || count() >= before + 4);
    scene.wait_proven();
    assert_never_503(&watch);
}

/// Frames with a valid beginning and one defect each.
fn broken((from, to): Hardware, source: [u8; 4], target: [u8; 4]) -> Vec<(&'static str, Vec<u8>)> {
    let ethernet = |kind: u16| [&to[..], &from[..], &kind.to_be_bytes()[..]].concat();
    let frame = |kind: u16, rest: &[u8]| [&ethernet(kind)[..], rest].concat();
    let v4 = |first: u8, total: u16, fragment: u16, protocol: u8, rest: &[u8]| {
        let mut header = vec![first, 0];
        header.extend(total.to_be_bytes());
        header.extend([0x70, 0x70]);
        header.extend(fragment.to_be_bytes());
        header.extend([64, protocol, 0, 0]);
        header.extend(source);
        header.extend(target);
        header.extend(rest);
        frame(0x0800, &header)
    };
    let tcp = |offset: u8, flags: u8| {
        let mut header = vec![0x9c, 0x40, 0x1f, 0x90, 1, 2, 3, 4];
        header.extend([0, 0, 0, 0, offset << 4, flags]);
        header.extend([0xfa, 0xf0, 0, 0, 0, 0]);
        header
    };
    let syn = tcp(5, SYN);
    // More destination options than any parser follows.
    let deep = [60, 0, 1, 4, 0, 0, 0, 0].repeat(40);
    let v6 = |next: u8, length: u16, rest: &[u8]| {
        let mut header = vec![0x60, 0, 0, 0];
        header.extend(length.to_be_bytes());
        header.extend([next, 64]);
        header.extend([0xfd; 32]);
        header.extend(rest);
        frame(0x86dd, &header)
    };
    vec![
        ("no more than a link header", ethernet(0x0800)),
        ("one byte of IPv4", frame(0x0800, &[0x45])),
        ("a header shorter than its least", v4(0x43, 40, 0, 6, &syn)),
        ("a header longer than the packet", v4(0x4f, 60, 0, 6, &syn)),
        ("a length beyond the packet", v4(0x45, 1500, 0, 6, &syn)),
        ("a length within the header", v4(0x45, 10, 0, 6, &syn)),
        ("half a TCP header", v4(0x45, 30, 0, 6, &syn[..10])),
        (
            "a TCP header shorter than its least",
            v4(0x45, 40, 0, 6, &tcp(2, SYN)),
        ),
        (
            "a TCP header longer than the packet",
            v4(0x45, 40, 0, 6, &tcp(15, SYN)),
        ),
        ("every flag at once", v4(0x45, 40, 0, 6, &tcp(5, 0xff))),
        ("a later fragment", v4(0x45, 40, 0x0010, 6, &syn)),
        ("a version that is none", frame(0x0800, &[0x95; 40])),
        ("half an IPv6 header", frame(0x86dd, &[0x60; 20])),
        ("half an extension header", v6(0, 4, &[6, 9, 1, 1])),
        (
            "extension headers without end",
            v6(60, deep.len() as u16, &deep),
        ),
        ("IPv6 without its TCP header", v6(6, 20, &[])),
        ("an unknown protocol", frame(0x1234, &[0xaa; 60])),
    ]
}
