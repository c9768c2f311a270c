//! The sentinel's programs, packet by packet: what each one stamps, answers, drops and passes.
//!
//! `crates/wire/tests/probe.rs` tests the parser that the programs share. [`path`] tests them with real
//! sockets.

mod answers;
mod evidence;
mod path;
mod strangers;

use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd as _;

use aya::maps::{HashMap, IterableMap as _};
use node_tests::observer::{LO, Observer, Passed};
use node_tests::packet::{self, Packet, flag};
use pathproof::datapath::load;
use pathproof::datapath::probes::ProbeMaps;
use pathproof::probe::Kernel as _;
use pathproof_wire::abi::{map, program};
use pathproof_wire::evidence::{Pending, PendingKey};
use pathproof_wire::probe::Phase::{self, Data, Handshake};
use pathproof_wire::probe::{
    DATA_LEN, Probe, ProbeEvent, ProbeKey, Stage as Way, UDP, UDP_MAGIC, echo_isn, probe_event,
};
use pathproof_wire::service::{Family, TCP};

use crate::stage::{Stage, choose, on_stage};

const TOKEN: u32 = 0x0102_0304;
/// `TC_ACT_SHOT`.
const DROP: i32 = 2;
/// `TC_ACT_REDIRECT`.
const REDIRECT: i32 = 7;
/// Programs at the near ends, which pass packets that are no probes.
const NEAR: [&str; 3] = [program::ARRIVED, program::TRANSLATED, program::RETURNED];
/// Programs at the far ends. They let no packet pass into the node's network stack.
const FAR: [&str; 2] = [program::ECHO, program::COLLECT];

fn host(family: Family, number: u16, port: u16) -> SocketAddr {
    let v4 = IpAddr::from([198, 18, 0, number as u8]);
    let v6 = IpAddr::from([0x2001, 2, 0, 0, 0, 0, 0, number]);
    SocketAddr::new(choose(family, v4, v6), port)
}

fn client(family: Family) -> SocketAddr {
    host(family, 1, 40_001)
}

fn echo(family: Family) -> SocketAddr {
    host(family, 2, 8_080)
}

fn key(family: Family, protocol: u8, token: u32) -> ProbeKey {
    ProbeKey {
        token,
        family: family as u8,
        protocol,
        padding: [0; 2],
    }
}

fn payload(token: u32) -> [u8; DATA_LEN] {
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

struct Sentinel<'a> {
    stage: &'a mut Stage,
    maps: ProbeMaps,
}

fn probes(observer: &Observer) -> ProbeMaps {
    let pending: HashMap<_, PendingKey, Pending> = observer.map(map::PENDING);
    let pending = pending.map().fd().as_fd();
    ProbeMaps::open(&observer.ebpf, pending).expect("the probes' maps")
}

fn with_sentinel(test: impl FnOnce(&mut Sentinel<'_>) + Send) {
    on_stage(&[], |stage| {
        load::load_sentinel(&mut stage.ebpf).expect("load the sentinel");
        let maps = probes(stage);
        test(&mut Sentinel { stage, maps });
    });
}

impl Sentinel<'_> {
    /// Registers a new probe and runs one packet through a program. Returns packet, probe and events
    /// afterwards.
    fn run(
        &mut self,
        (key, flags): (ProbeKey, u32),
        program: &str,
        bytes: &[u8],
    ) -> (Passed, Probe, Vec<ProbeEvent>) {
        self.register(key, flags);
        let passed = self.again(program, bytes);
        (passed, self.read(&key), self.events())
    }

    fn register(&mut self, key: ProbeKey, flags: u32) {
        self.maps.register(key, flags).expect("room for a probe");
    }

    /// Runs another packet without registering the probe again.
    fn again(&self, program: &str, bytes: &[u8]) -> Passed {
        self.stage.run(program, bytes, LO)
    }

    fn read(&self, key: &ProbeKey) -> Probe {
        self.maps.read(key).expect("a map").expect("the probe")
    }

    fn events(&mut self) -> Vec<ProbeEvent> {
        std::iter::from_fn(|| self.maps.next_event()).collect()
    }
}

/// Asserts that the program dropped the packet and did not change it.
fn assert_dropped(passed: Passed, bytes: &[u8], name: &str) {
    assert_eq!((passed.verdict, &*passed.bytes), (DROP, bytes), "{name}");
}

/// Probe and kind of the only event. Panics if there is not exactly one.
fn only(told: &[ProbeEvent], name: &str) -> (ProbeKey, u32) {
    let [event] = told else {
        panic!("{name}: one event: {told:?}");
    };
    (event.key, event.kind)
}

/// Phases and stages that have a timestamp.
fn stamped(probe: &Probe) -> Vec<(Phase, Way)> {
    let stages = |phase| Way::ALL.map(|stage| (phase, stage));
    let all = [Handshake, Data].into_iter().flat_map(stages);
    let is_stamped =
        |(phase, stage): &(Phase, Way)| probe.stamps[*phase as usize][*stage as usize] != 0;
    all.filter(is_stamped).collect()
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

/// Packets of a probe on their way back to the client.
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
