//! Everything needed to send and follow probes: maps, devices, a clock, random numbers, ports. Also
//! converts the kernel's record of a probe to a [`ProbeTrace`].

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::ops::Range;
use std::time::Duration;

use pathproof_facts::time::Mono;
use pathproof_facts::trace::{PROBE_PATHS, ProbeSightings, ProbeTrace, Transport};
use pathproof_wire::evidence::state;
use pathproof_wire::probe::{Phase, Probe, ProbeKey, STAGES, Stage, UDP, probe_flag};
use pathproof_wire::service::{Family, TCP};

use super::wire::{Network, Side};
use crate::probe::Kernel;
use crate::sentinel::frame::{self, Packet};

/// Timeout of a probe. No TCP retransmits a SYN within it.
pub(super) const TIMEOUT: Duration = Duration::from_millis(200);
/// Time until the observer's state of an unanswered probe is first read, and the factor by which each
/// following wait grows. An outcome that the observer saw ends the probe before its timeout.
const LOOK: Duration = Duration::from_millis(5);
const LOOK_FACTOR: u32 = 4;
/// Maximum number of draws of a token. A random token is in use with a chance of one in a billion.
const TOKENS_TRIED: usize = 8;

/// Outcomes of the observer that end a probe early.
const TOLD: u32 = state::LEAKED | state::MISROUTED | state::STALE | state::REFUSED;
/// Outcomes of a probe that went elsewhere than to the last known endpoint. The echo answers at all
/// generations, so a probe that reached the echo may still come back.
const ELSEWHERE: u32 = state::MISROUTED | state::STALE;

pub(super) struct Tools<K, N> {
    pub(super) kernel: K,
    pub(super) network: N,
    pub(super) clock: Box<dyn Fn() -> Mono + Send>,
    pub(super) dice: Dice,
    pub(super) ports: Ports,
    /// Tokens of the probes under way.
    pub(super) tokens: Vec<u32>,
    /// Reused for every frame.
    pub(super) frame: Vec<u8>,
}

/// Draws an unpredictable number, so that one token does not reveal the next.
pub(super) type Dice = fn() -> io::Result<u32>;

/// [`Dice`] from the kernel.
pub(super) fn random() -> io::Result<u32> {
    let mut bytes = [0; size_of::<u32>()];
    // SAFETY: the pointer and the length are those of a live buffer.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    match usize::try_from(got) {
        Ok(got) if got == bytes.len() => Ok(u32::from_ne_bytes(bytes)),
        Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

/// A random time within `span`, to the microsecond; its start if there are no random numbers.
pub(super) fn jitter(dice: Dice, span: &Range<Duration>) -> Duration {
    let micros = u32::try_from((span.end - span.start).as_micros()).unwrap_or(u32::MAX);
    let word = dice().unwrap_or(0);
    span.start + Duration::from_micros((word % micros.max(1)).into())
}

/// Source ports by path; the last range is for control probes, whose connections are never tracked. The two
/// paths with the same source address have the same destination after translation, so their ports must
/// differ. A range lasts for half an hour, and connection tracking keeps an entry for at most five minutes.
const RANGES: [Range<u16>; PROBE_PATHS + 1] = [
    20_000..60_000,
    20_000..40_000,
    40_000..60_000,
    // The kernel selects the host's ports.
    0..1,
    60_000..61_000,
];
/// Index of control probes among the ports.
pub(super) const CONTROL: usize = PROBE_PATHS;

/// The next source port of each path. Ports are used in sequence, so that the connection-tracking entry
/// of an earlier probe is gone when its port is used again.
#[derive(Debug)]
pub(super) struct Ports([u16; RANGES.len()]);

impl Ports {
    /// Each sequence starts at a random port, because a previous agent's entries may still exist.
    /// Without random numbers it starts at the first port.
    pub(super) fn new(dice: Dice) -> Self {
        let first = |range: Range<u16>| {
            let offset = dice().unwrap_or(0) as u16 % (range.end - range.start);
            range.start + offset
        };
        Self(RANGES.map(first))
    }

    /// The next port of a path, or of [`CONTROL`].
    pub(super) fn next(&mut self, at: usize) -> u16 {
        let (port, range) = (self.0[at], &RANGES[at]);
        let next = port + 1;
        self.0[at] = if next < range.end { next } else { range.start };
        port
    }
}

pub(super) fn key(token: u32, family: Family, transport: Transport) -> ProbeKey {
    ProbeKey {
        token,
        family: family as u8,
        protocol: match transport {
            Transport::Tcp => TCP,
            Transport::Udp => UDP,
        },
        padding: [0; 2],
    }
}

impl<K: Kernel, N: Network> Tools<K, N> {
    pub(super) fn now(&self) -> Mono {
        (self.clock)()
    }

    /// Draws an unused token and registers it in the kernel.
    pub(super) fn register(
        &mut self,
        family: Family,
        transport: Transport,
        flags: u32,
    ) -> Result<ProbeKey, String> {
        for _ in 0..TOKENS_TRIED {
            let token = (self.dice)().map_err(|error| format!("cannot draw a token: {error}"))?;
            if self.tokens.contains(&token) {
                continue;
            }
            let key = key(token, family, transport);
            self.kernel
                .register(key, flags)
                .map_err(|error| format!("cannot register the probe: {error}"))?;
            self.tokens.push(token);
            return Ok(key);
        }
        Err("cannot draw a token that is not in use".to_owned())
    }

    pub(super) fn unregister(&mut self, key: &ProbeKey) {
        self.kernel.remove(key);
        self.tokens.retain(|token| *token != key.token);
    }

    pub(super) fn send(
        &mut self,
        side: Side,
        ends: (SocketAddr, SocketAddr),
        packet: Packet,
    ) -> Result<(), String> {
        frame::write(&mut self.frame, side.link(), ends, packet)?;
        let sent = self.network.send(side, &self.frame);
        sent.map_err(|error| {
            let pair = side.name();
            format!("cannot write to the sentinel's {pair} pair: {error}")
        })
    }

    pub(super) fn send_own(
        &mut self,
        ends: (SocketAddr, SocketAddr),
        packet: Packet,
    ) -> Result<(), String> {
        frame::write(&mut self.frame, Side::Client.link(), ends, packet)?;
        let sent = self.network.send_own(ends.1, frame::inner(&self.frame));
        sent.map_err(|error| format!("cannot send to {}: {error}", ends.1))
    }

    /// Whether waiting for a handshake is useless, because the observer saw how it failed. A probe that went
    /// elsewhere and reached the echo may still be answered.
    pub(super) fn is_told(&self, key: Option<ProbeKey>, seen: u32) -> bool {
        let reached = || {
            let probe = key.and_then(|key| self.kernel.read(&key).ok().flatten());
            probe.is_some_and(|probe| {
                probe.stamps[Phase::Handshake as usize][Stage::Echoed as usize] != 0
            })
        };
        seen & TOLD != 0 && (seen & TOLD & !ELSEWHERE != 0 || !reached())
    }

    /// The observer's state bits of a connection; none if another connection has the same sequence number.
    pub(super) fn seen(&self, isn: u32, family: Family) -> u32 {
        let seen = self.kernel.connection_state(isn, family);
        let sure = seen.filter(|seen| seen & state::AMBIGUOUS == 0);
        sure.unwrap_or(0)
    }
}

/// Deadline of a probe, and the time of the next check before the deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Times {
    deadline: Mono,
    look: Mono,
    gap: Duration,
}

impl Times {
    pub(super) fn from(sent: Mono) -> Self {
        Self {
            deadline: sent.plus(TIMEOUT),
            look: sent.plus(LOOK),
            gap: LOOK,
        }
    }

    pub(super) fn is_over(&self, now: Mono) -> bool {
        self.deadline <= now
    }

    /// Whether a check is due; schedules the next one.
    pub(super) fn take_look(&mut self, now: Mono) -> bool {
        if now < self.look {
            return false;
        }
        self.gap *= LOOK_FACTOR;
        self.look = now.plus(self.gap);
        true
    }

    pub(super) fn next(&self, looking: bool) -> Mono {
        if looking {
            self.deadline.min(self.look)
        } else {
            self.deadline
        }
    }
}

/// Fills in the kernel's record of a probe, and what the observer saw of its connection.
pub(super) fn fill(trace: &mut ProbeTrace, probe: &Probe, seen: u32) {
    let stamps = |phase| {
        let stamps: [u64; STAGES] = probe.stamps[phase as usize];
        stamps.map(|ns| (ns != 0).then_some(Mono(ns)))
    };
    let port = |port: [u8; 2]| Some(u16::from_be_bytes(port)).filter(|port| *port != 0);
    trace.handshake = stamps(Phase::Handshake);
    trace.data = stamps(Phase::Data);
    trace.echo_saw = port(probe.echo_source_port).map(|port| {
        let address = IpAddr::V6(Ipv6Addr::from(probe.echo_source)).to_canonical();
        SocketAddr::new(address, port)
    });
    trace.generation = port(probe.echo_port);
    let flags = probe.flags;
    let unreachable = flags & probe_flag::UNREACHABLE != 0;
    trace.sightings = ProbeSightings {
        leaked: seen & state::LEAKED != 0,
        misrouted: seen & state::MISROUTED != 0,
        stale: seen & state::STALE != 0,
        // The observer does not distinguish RST from ICMP.
        refused: flags & probe_flag::REFUSED != 0 || (seen & state::REFUSED != 0 && !unreachable),
        unreachable,
    };
}

#[cfg(test)]
mod tests;
