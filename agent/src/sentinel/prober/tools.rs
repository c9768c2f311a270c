//! What every probe is sent and followed with: maps, devices, a clock, random numbers, ports.

use std::net::SocketAddr;
use std::time::Duration;

use agent_common::probe::{Phase, ProbeKey, Stage};
use agent_common::service::{Family, TCP};

use super::Kernel;
use super::dice::Dice;
use super::ports::Ports;
use super::trace::{ELSEWHERE, TOLD, beyond_doubt};
use super::wire::{Network, Side};
use crate::sentinel::frame::{self, Flow, FrameError};
use agent_core::time::Mono;
use agent_core::trace::Transport;

/// A probe's time. No TCP retransmits a SYN within it.
pub(super) const TIMEOUT: Duration = Duration::from_millis(200);
/// When the observer is asked first about a probe that got no answer, and how much longer each
/// following wait is: what it saw needs no timeout.
const LOOK: Duration = Duration::from_millis(5);
const LOOK_FACTOR: u32 = 4;

const UDP: u8 = 17;
/// One of a billion tokens is in use; this many never are.
const TOKENS_TRIED: usize = 8;

/// All that a probe is sent and followed with.
pub(super) struct Tools<K, N> {
    pub(super) kernel: K,
    pub(super) network: N,
    pub(super) clock: Box<dyn Fn() -> Mono + Send>,
    pub(super) dice: Dice,
    pub(super) ports: Ports,
    /// Of the probes under way.
    pub(super) tokens: Vec<u32>,
    /// Reused for every frame.
    pub(super) frame: Vec<u8>,
}

/// A token and how its probe is known.
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

    /// Draws a token that is not in use and makes it known to the kernel.
    pub(super) fn register(
        &mut self,
        family: Family,
        transport: Transport,
        flags: u32,
    ) -> Result<ProbeKey, String> {
        for _ in 0..TOKENS_TRIED {
            let token = self.dice.word();
            let token = token.map_err(|error| format!("cannot draw a token: {error}"))?;
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

    /// Forgets what was registered.
    pub(super) fn unregister(&mut self, key: &ProbeKey) {
        self.kernel.remove(key);
        self.tokens.retain(|token| *token != key.token);
    }

    /// Builds a frame and sends it.
    pub(super) fn send(
        &mut self,
        side: Side,
        (from, to): (SocketAddr, SocketAddr),
        build: impl FnOnce(&Flow, &mut Vec<u8>) -> Result<(), FrameError>,
    ) -> Result<(), String> {
        let link = self.network.link(side);
        build(&Flow { link, from, to }, &mut self.frame).map_err(|error| error.to_string())?;
        self.network.send(side, &self.frame).map_err(|error| {
            let pair = match side {
                Side::Client => "client",
                Side::Server => "server",
            };
            format!("cannot write to the sentinel's {pair} pair: {error}")
        })
    }

    /// Builds a frame and sends its packet as the host's own.
    pub(super) fn send_own(
        &mut self,
        (from, to): (SocketAddr, SocketAddr),
        build: impl FnOnce(&Flow, &mut Vec<u8>) -> Result<(), FrameError>,
    ) -> Result<(), String> {
        let link = ([0; 6], [0; 6]);
        build(&Flow { link, from, to }, &mut self.frame).map_err(|error| error.to_string())?;
        let packet = frame::packet(&self.frame);
        self.network
            .send_own(to, packet)
            .map_err(|error| format!("cannot send to {to}: {error}"))
    }

    /// Whether the observer saw how a handshake went wrong: there is nothing to wait for.
    pub(super) fn is_told(&self, key: Option<ProbeKey>, seen: u32) -> bool {
        let reached = || {
            let probe = key.and_then(|key| self.kernel.read(&key).ok().flatten());
            probe.is_some_and(|probe| {
                probe.stamps[Phase::Handshake as usize][Stage::Echoed as usize] != 0
            })
        };
        seen & TOLD != 0 && (seen & TOLD & !ELSEWHERE != 0 || !reached())
    }

    /// What the observer saw of a connection.
    pub(super) fn seen(&self, isn: u32, family: Family) -> u32 {
        beyond_doubt(self.kernel.connection_state(isn, family))
    }
}

/// When a probe ends at the latest, and when it is looked at before that.
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

    /// Whether it is time for a look; the next one comes later.
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
