//! A kernel, devices and a clock for tests of the prober: it records sent packets, and answers at once
//! as configured.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use etherparse::{NetHeaders, PacketHeaders, TransportHeader};
use pathproof_facts::time::Mono;
use pathproof_facts::trace::ProbeTrace;
use pathproof_report::sentinel::SentinelAddresses;
use pathproof_wire::probe::{
    DATA_LEN, HostProbe, Probe, ProbeEvent, ProbeKey, Stage, probe_event, probe_flag,
};
use pathproof_wire::service::{Family, TCP};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::super::engine::Engine;
use super::super::tools::{Dice, random};
use super::super::wire::{Network, Side, Socket};
use crate::probe::Kernel;
use crate::sentinel::frame;

/// Sequence number of the echo's SYN-ACK.
pub(super) const ECHO_ISN: u32 = 0xffff_fffa;
/// Initial sequence number of every socket.
pub(super) const HOST_ISN: u32 = 77;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Path {
    #[default]
    Sound,
    Silent,
    /// The handshake succeeds, but data does not come back.
    HandshakeOnly,
    /// Packets reach the echo, but its answers do not come back.
    EchoOnly,
    Refusing,
    Unreachable,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum What {
    Syn,
    Data,
    Reset,
    Datagram,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) side: Side,
    pub(super) at: Mono,
    pub(super) what: What,
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
    pub(super) sequence: u32,
    pub(super) acknowledged: Option<u32>,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) now: Mono,
    pub(super) path: Path,
    /// Delay of an answer.
    pub(super) delay: Duration,
    pub(super) control_is_dead: bool,
    /// The kernel stamps control probes, but sends no event for them.
    pub(super) no_control_events: bool,
    pub(super) send_error: Option<i32>,
    pub(super) register_fails: bool,
    /// Token whose record cannot be found.
    pub(super) gone: Option<u32>,
    /// Port at which the datapath's rules reach the echo; zero if unknown.
    pub(super) generation: u16,
    /// State bits that the observer reports for every connection.
    pub(super) observed: Option<u32>,
    pub(super) probes: BTreeMap<ProbeKey, Probe>,
    pub(super) cookies: BTreeMap<u64, HostProbe>,
    pub(super) last_cookie: u64,
    pub(super) events: VecDeque<ProbeEvent>,
    pub(super) frames: Vec<Seen>,
    /// Frames sent from the host itself.
    pub(super) own_frames: Vec<Seen>,
}

impl State {
    fn stamp(&mut self, key: &ProbeKey, phase: usize, stages: &[Stage]) {
        let now = self.now.0;
        if let Some(probe) = self.probes.get_mut(key) {
            probe.echo_port = self.generation.to_be_bytes();
            for stage in stages {
                probe.stamps[phase][*stage as usize] = now;
            }
        }
    }

    fn tell(&mut self, key: ProbeKey, kind: u32, sequence: u32, acknowledged: u32) {
        self.events.push_back(ProbeEvent {
            at_ns: self.now.plus(self.delay).0,
            key,
            kind,
            sequence,
            acknowledged,
            padding: 0,
        });
    }

    fn answer(&mut self, seen: &Seen, key: ProbeKey) {
        if seen.side == Side::Server {
            if !self.control_is_dead {
                self.stamp(&key, 0, &[Stage::Echoed, Stage::Returned]);
                if !self.no_control_events {
                    self.tell(key, probe_event::HANDSHAKE, ECHO_ISN, 0);
                }
            }
            return;
        }
        let flag = match self.path {
            Path::Refusing => probe_flag::REFUSED,
            Path::Unreachable => probe_flag::UNREACHABLE,
            Path::HandshakeOnly if seen.what == What::Syn => 0,
            Path::Sound => 0,
            Path::EchoOnly => return self.stamp(&key, 0, &Stage::ALL[..3]),
            Path::Silent | Path::HandshakeOnly => return,
        };
        if flag != 0 {
            if let Some(probe) = self.probes.get_mut(&key) {
                probe.flags |= flag;
            }
            return self.tell(key, probe_event::REFUSED, 0, 0);
        }
        let next = seen.sequence.wrapping_add(1);
        match seen.what {
            What::Syn => {
                self.stamp(&key, 0, &Stage::ALL);
                self.tell(key, probe_event::HANDSHAKE, ECHO_ISN, next);
            }
            What::Data | What::Datagram => {
                self.stamp(&key, 1, &Stage::ALL);
                let sequence = ECHO_ISN.wrapping_add(1);
                self.tell(key, probe_event::DATA, sequence, next);
            }
            What::Reset => {}
        }
    }
}

/// Shared by kernel, network, sockets and the test.
#[derive(Clone, Default)]
pub(super) struct World(Arc<Mutex<State>>);

impl World {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }
}

impl Kernel for World {
    fn register(&mut self, key: ProbeKey, flags: u32) -> Result<(), String> {
        let mut state = self.lock();
        if state.register_fails {
            return Err("the map is full".to_owned());
        }
        let probe = Probe {
            flags,
            ..Probe::default()
        };
        assert_eq!(state.probes.insert(key, probe), None, "a token in use");
        Ok(())
    }

    fn read(&self, key: &ProbeKey) -> Result<Option<Probe>, String> {
        let state = self.lock();
        let found = state.probes.get(key).copied();
        Ok(found.filter(|_| state.gone != Some(key.token)))
    }

    fn remove(&mut self, key: &ProbeKey) {
        assert!(self.lock().probes.remove(key).is_some(), "removed twice");
    }

    fn register_socket(&mut self, cookie: u64) -> Result<(), String> {
        self.lock().cookies.insert(cookie, HostProbe::default());
        Ok(())
    }

    fn socket(&self, cookie: u64) -> Option<HostProbe> {
        self.lock().cookies.get(&cookie).copied()
    }

    fn remove_socket(&mut self, cookie: u64) {
        assert!(self.lock().cookies.remove(&cookie).is_some());
    }

    fn connection_state(&self, _isn: u32, _family: Family) -> Option<u32> {
        self.lock().observed
    }

    fn events_fd(&self) -> RawFd {
        -1
    }

    fn next_event(&mut self) -> Option<ProbeEvent> {
        let mut state = self.lock();
        let now = state.now.0;
        state.events.pop_front_if(|event| event.at_ns <= now)
    }
}

impl Network for World {
    type Socket = FakeSocket;

    fn send(&mut self, side: Side, frame: &[u8]) -> io::Result<()> {
        let mut state = self.lock();
        if let Some(error) = state.send_error {
            return Err(io::Error::from_raw_os_error(error));
        }
        let (seen, key) = parse(state.now, side, frame);
        state.frames.push(seen);
        // A reset has no token, so `parse` returns no key for it, and nothing answers.
        key.into_iter().for_each(|key| state.answer(&seen, key));
        Ok(())
    }

    fn send_own(&mut self, to: SocketAddr, packet: &[u8]) -> io::Result<()> {
        let ethertype: &[u8] = if to.is_ipv4() { &[8, 0] } else { &[0x86, 0xdd] };
        let frame = [&[0; 12], ethertype, packet].concat();
        let mut state = self.lock();
        let (seen, _) = parse(state.now, Side::Client, &frame);
        state.own_frames.push(seen);
        Ok(())
    }

    fn socket(&mut self, family: Family) -> io::Result<FakeSocket> {
        let mut state = self.lock();
        state.last_cookie += 1;
        Ok(FakeSocket {
            world: self.clone(),
            cookie: state.last_cookie,
            key: key(HOST_ISN, family as u8, TCP),
        })
    }
}

fn key(token: u32, family: u8, protocol: u8) -> ProbeKey {
    ProbeKey {
        token,
        family,
        protocol,
        padding: [0; 2],
    }
}

fn parse(at: Mono, side: Side, frame: &[u8]) -> (Seen, Option<ProbeKey>) {
    let headers = PacketHeaders::from_ethernet_slice(frame).unwrap();
    let (from, to): (IpAddr, IpAddr) = match headers.net.unwrap() {
        NetHeaders::Ipv4(ip, _) => (ip.source.into(), ip.destination.into()),
        NetHeaders::Ipv6(ip, _) => (ip.source.into(), ip.destination.into()),
        other => panic!("{other:?}"),
    };
    let payload = headers.payload.slice();
    let family = u8::from(from.is_ipv6());
    let token = payload.last_chunk().map(|b| u32::from_be_bytes(*b));
    let (what, ports, sequence, acknowledged, token) = match headers.transport.unwrap() {
        TransportHeader::Udp(udp) => {
            let ports = (udp.source_port, udp.destination_port);
            (What::Datagram, ports, 0, None, token)
        }
        TransportHeader::Tcp(tcp) => {
            let what = match (tcp.syn, tcp.rst) {
                (true, _) => What::Syn,
                (_, true) => What::Reset,
                _ => What::Data,
            };
            let token = if tcp.syn {
                Some(tcp.sequence_number)
            } else {
                token
            };
            let acknowledged = tcp.ack.then_some(tcp.acknowledgment_number);
            let ports = (tcp.source_port, tcp.destination_port);
            (what, ports, tcp.sequence_number, acknowledged, token)
        }
        other => panic!("{other:?}"),
    };
    if let (Some(token), What::Data | What::Datagram) = (token, what) {
        assert_eq!(payload, frame::data(token));
    }
    let seen = Seen {
        side,
        at,
        what,
        from: SocketAddr::new(from, ports.0),
        to: SocketAddr::new(to, ports.1),
        sequence,
        acknowledged,
    };
    let protocol = if what == What::Datagram { 17 } else { TCP };
    (seen, token.map(|token| key(token, family, protocol)))
}

pub(super) struct FakeSocket {
    world: World,
    cookie: u64,
    key: ProbeKey,
}

impl AsRawFd for FakeSocket {
    fn as_raw_fd(&self) -> RawFd {
        -1
    }
}

impl Socket for FakeSocket {
    fn cookie(&self) -> io::Result<u64> {
        Ok(self.cookie)
    }

    fn connect(&self, _: SocketAddr) -> io::Result<()> {
        let mut state = self.world.lock();
        if let Some(error) = state.send_error {
            return Err(io::Error::from_raw_os_error(error));
        }
        if matches!(state.path, Path::Sound | Path::HandshakeOnly) {
            // The eBPF program does the same when it finds the socket's cookie.
            let seen = HostProbe {
                token: HOST_ISN,
                seen: 1,
            };
            state.cookies.insert(self.cookie, seen).unwrap();
            let probe = Probe {
                flags: probe_flag::HOST,
                ..Probe::default()
            };
            assert_eq!(state.probes.insert(self.key, probe), None);
            let stages = [Stage::Translated, Stage::Echoed, Stage::Returned];
            state.stamp(&self.key, 0, &stages);
        }
        Ok(())
    }

    fn is_connected(&self) -> io::Result<bool> {
        match self.world.lock().path {
            Path::Sound | Path::HandshakeOnly => Ok(true),
            Path::Silent | Path::EchoOnly => Ok(false),
            Path::Refusing => Err(io::Error::from_raw_os_error(libc::ECONNREFUSED)),
            Path::Unreachable => Err(io::Error::from_raw_os_error(libc::EHOSTUNREACH)),
        }
    }

    fn local(&self) -> Option<SocketAddr> {
        "10.0.0.9:50000".parse().ok()
    }

    fn next_sequence(&self) -> io::Result<u32> {
        Ok(HOST_ISN + 1)
    }

    fn send(&self, data: &[u8]) -> io::Result<()> {
        assert_eq!(data, frame::data(HOST_ISN));
        Ok(())
    }

    fn receive(&self, data: &mut [u8]) -> io::Result<Option<usize>> {
        if self.world.lock().path != Path::Sound {
            return Ok(None);
        }
        // The answer arrives in pieces.
        let all = frame::data(HOST_ISN);
        let rest = &all[DATA_LEN - data.len()..];
        let piece = rest.len().min(5);
        data[..piece].copy_from_slice(&rest[..piece]);
        Ok(Some(piece))
    }
}

/// An engine with its world, and the resulting traces.
pub(super) struct Bench {
    pub(super) world: World,
    pub(super) engine: Engine<World, World>,
    pub(super) turns: usize,
    results: UnboundedReceiver<ProbeTrace>,
}

impl Bench {
    pub(super) fn new(path: Path) -> Self {
        Self::with(path, random)
    }

    pub(super) fn with(path: Path, dice: Dice) -> Self {
        let world = World::default();
        world.lock().path = path;
        world.lock().now = Mono(1_000_000_000);
        let clock = world.clone();
        let (sender, results) = unbounded_channel();
        let engine = Engine::new(
            world.clone(),
            world.clone(),
            move || clock.lock().now,
            dice,
            sender,
        );
        Self {
            world,
            engine,
            turns: 0,
            results,
        }
    }

    /// Advances the clock from deadline to deadline for `span`. Every turn must leave a later deadline,
    /// or the thread would spin.
    pub(super) fn run(&mut self, span: Duration) {
        let end = self.engine.now().plus(span);
        loop {
            self.engine.advance();
            self.turns += 1;
            let now = self.engine.now();
            let deadline = self.engine.next_deadline();
            let event = self
                .world
                .lock()
                .events
                .front()
                .map(|event| Mono(event.at_ns));
            match deadline.into_iter().chain(event).min() {
                Some(next) if next <= end => {
                    assert!(next > now, "{next:?} is not after {now:?}");
                    self.world.lock().now = next;
                }
                _ => break,
            }
        }
        self.world.lock().now = end;
    }

    /// Advances the clock while nothing runs, as if the process was stopped.
    pub(super) fn stop(&mut self, span: Duration) {
        let mut state = self.world.lock();
        state.now = state.now.plus(span);
    }

    pub(super) fn traces(&mut self) -> Vec<ProbeTrace> {
        std::iter::from_fn(|| self.results.try_recv().ok()).collect()
    }

    pub(super) fn frames(&self) -> Vec<Seen> {
        self.world.lock().frames.clone()
    }
}

pub(super) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Targets from addresses in the order of the fields.
fn family(family: Family, addresses: &str) -> SentinelAddresses {
    let all: Vec<_> = addresses.split(' ').collect();
    let socket = |at: usize| all[at].parse().unwrap();
    SentinelAddresses {
        family,
        client: ip(all[0]),
        pod_client: Some(ip(all[1])),
        cluster_ip: socket(2),
        cluster_ip_udp: Some(socket(3)),
        node_port: Some(socket(4)),
        node_port_udp: Some(socket(5)),
        endpoint: socket(6),
        outside_rests: false,
    }
}

/// Every path and transport in both families.
pub(super) fn everything() -> Vec<SentinelAddresses> {
    let v4 = "198.18.0.1 10.244.1.254 10.96.0.10:7 10.96.0.10:8 10.0.0.1:7 10.0.0.1:30008 \
              198.18.0.2:9000";
    let v6 = "2001:2::1 fd02::fe [fd00::10]:7 [fd00::10]:8 [fd01::1]:7 [fd01::1]:30008 \
              [2001:2::2]:9000";
    vec![family(Family::V4, v4), family(Family::V6, v6)]
}

/// Off-cluster TCP and the host's path over IPv4.
pub(super) fn little() -> Vec<SentinelAddresses> {
    vec![SentinelAddresses {
        cluster_ip_udp: None,
        node_port: None,
        node_port_udp: None,
        pod_client: None,
        ..everything()[0]
    }]
}
