//! Probes under way: those sent as frames ([`Flight`]), and the one that a socket of the host dials
//! ([`Call`]).

use std::io;
use std::net::SocketAddr;

use pathproof_facts::time::Mono;
use pathproof_facts::trace::{ProbeTrace, Transport};
use pathproof_wire::probe::{
    DATA_LEN, HostProbe, Phase, ProbeEvent, ProbeKey, Stage, probe_event, probe_flag,
};
use pathproof_wire::service::Family;

use super::Waiting;
use super::tools::{Times, Tools, fill, key};
use super::wire::{Network, Side, Socket};
use crate::probe::Kernel;
use crate::sentinel::frame::{self, Packet};

/// A probe sent as frames.
pub(super) struct Flight {
    pub(super) key: ProbeKey,
    pub(super) trace: ProbeTrace,
    times: Times,
    awaits: Phase,
    /// Sequence number after the last byte sent.
    sequence: u32,
    /// Sequence number after the last byte received.
    acknowledged: Option<u32>,
    refused: bool,
}

impl Flight {
    /// Latest time at which it needs attention.
    pub(super) fn next(&self) -> Mono {
        self.times.next(self.is_looked_at())
    }

    /// Whether to read the observer's record of it: the observer follows only handshakes.
    fn is_looked_at(&self) -> bool {
        self.awaits == Phase::Handshake
    }

    fn ends(&self) -> (SocketAddr, SocketAddr) {
        (self.trace.client, self.trace.frontend)
    }
}

impl<K: Kernel, N: Network> Tools<K, N> {
    /// Sends a probe's first packet. A probe that could not be sent is complete.
    pub(super) fn launch(&mut self, mut trace: ProbeTrace) -> Result<Flight, Box<ProbeTrace>> {
        let lane = trace.lane;
        let port = self.ports.next(lane.path as usize);
        trace.client.set_port(port);
        let key = match self.register(lane.family, lane.transport, 0) {
            Ok(key) => key,
            Err(why) => return Err(self.unsent(trace, why)),
        };
        trace.sent = self.now();
        let (first, awaits) = match lane.transport {
            Transport::Tcp => (Packet::Syn(key.token), Phase::Handshake),
            Transport::Udp => (Packet::Datagram(key.token), Phase::Data),
        };
        if let Err(why) = self.send(Side::Client, (trace.client, trace.frontend), first) {
            self.unregister(&key);
            return Err(self.unsent(trace, why));
        }
        Ok(Flight {
            key,
            times: Times::from(trace.sent),
            trace,
            awaits,
            sequence: key.token.wrapping_add(1),
            acknowledged: None,
            refused: false,
        })
    }

    /// Completes a probe that could not be sent.
    fn unsent(&self, mut trace: ProbeTrace, why: String) -> Box<ProbeTrace> {
        trace.ended = self.now();
        trace.unsent = Some(why);
        Box::new(trace)
    }

    /// Continues after an event; returns whether the probe is complete.
    pub(super) fn take(&mut self, flight: &mut Flight, event: &ProbeEvent) -> bool {
        match (event.kind, flight.awaits) {
            (probe_event::HANDSHAKE, Phase::Handshake) => {
                let acknowledged = event.sequence.wrapping_add(1);
                flight.acknowledged = Some(acknowledged);
                flight.awaits = Phase::Data;
                // The timeout starts again for data: a path that delays every packet is slow, not lossy.
                flight.times = Times::from(self.now());
                let data = Packet::Data {
                    sequence: flight.sequence,
                    acknowledged,
                    token: flight.key.token,
                };
                let sent = self.send(Side::Client, flight.ends(), data);
                if sent.is_ok() {
                    flight.sequence = flight.sequence.wrapping_add(DATA_LEN as u32);
                }
                sent.is_err()
            }
            (probe_event::DATA, Phase::Data) => {
                flight.acknowledged = Some(event.sequence.wrapping_add(DATA_LEN as u32));
                true
            }
            (probe_event::REFUSED, _) => {
                flight.refused = true;
                true
            }
            _ => false,
        }
    }

    /// Whether the probe timed out, or the observer saw how it failed.
    pub(super) fn is_over(&self, flight: &mut Flight, now: Mono) -> bool {
        flight.times.is_over(now)
            || flight.is_looked_at()
                && flight.times.take_look(now)
                && self.is_told(
                    Some(flight.key),
                    self.seen(flight.key.token, flight.trace.lane.family),
                )
    }

    /// Ends a probe at any stage.
    pub(super) fn finish(&mut self, flight: Flight) -> ProbeTrace {
        let mut trace = flight.trace.clone();
        trace.ended = self.now();
        let seen = match trace.lane.transport {
            Transport::Tcp => self.seen(flight.key.token, trace.lane.family),
            // The observer follows no datagrams of probes.
            Transport::Udp => 0,
        };
        match self.kernel.read(&flight.key) {
            Ok(Some(probe)) => fill(&mut trace, &probe, seen),
            Ok(None) => trace.unsent = Some("the kernel's record of it is gone".to_owned()),
            Err(error) => trace.unsent = Some(unread(&error)),
        }
        self.close(flight);
        trace
    }

    /// Closes the probe's connection-tracking entry with a RST, then unregisters the probe. The order
    /// matters: the program at an uplink lets the RST of an unregistered probe out. It sees the RST before
    /// the call that sends it returns (before Linux 6.5, unless softirqs wait for their thread).
    pub(super) fn close(&mut self, flight: Flight) {
        // A refused handshake left no connection-tracking entry, or the refusal closed it. A RST would only
        // be misrouted.
        let refused = flight.refused && flight.acknowledged.is_none();
        if flight.trace.lane.transport == Transport::Tcp && !refused {
            let reset = Packet::Reset {
                sequence: flight.sequence,
                acknowledged: flight.acknowledged,
            };
            // A RST that cannot be sent leaves a connection-tracking entry behind. The next probe reports the
            // reason.
            let _ = self.send(Side::Client, flight.ends(), reset);
        }
        self.unregister(&flight.key);
    }
}

/// A probe dialled by a socket of the host.
pub(super) struct Call<S> {
    pub(super) trace: ProbeTrace,
    socket: S,
    cookie: u64,
    times: Times,
    /// Key under which the eBPF program registered the probe; `None` until that program saw the SYN.
    key: Option<ProbeKey>,
    connected: Option<Mono>,
    returned: Option<Mono>,
    received: [u8; DATA_LEN],
    length: usize,
    /// Flags derived from an error of the socket.
    flags: u32,
}

impl<S: Socket> Call<S> {
    /// Its descriptor, and whether to wait until it is writable.
    pub(super) fn waiting(&self) -> Waiting {
        (self.socket.as_raw_fd(), self.connected.is_none())
    }

    /// Latest time at which it needs attention.
    pub(super) fn next(&self) -> Mono {
        self.times.next(self.connected.is_none())
    }

    /// The data that must come back. If the program saw no SYN, something other than the sentinel's echo
    /// answered, and the token is zero.
    fn data(&self) -> [u8; DATA_LEN] {
        frame::data(self.key.map_or(0, |key| key.token))
    }

    /// Its initial sequence number. If the SYN did not reach the server pair, only the socket has the
    /// number.
    fn isn(&self) -> Option<u32> {
        match (self.key, self.connected) {
            (Some(key), _) => Some(key.token),
            (None, None) => Some(self.socket.next_sequence().ok()?.wrapping_sub(1)),
            (None, Some(_)) => None,
        }
    }
}

impl<K: Kernel, N: Network> Tools<K, N> {
    /// Starts to connect. A probe that could not be started is complete.
    pub(super) fn dial(
        &mut self,
        mut trace: ProbeTrace,
    ) -> Result<Call<N::Socket>, Box<ProbeTrace>> {
        let (socket, cookie) = match self.registered_socket(trace.lane.family) {
            Ok(socket) => socket,
            Err(why) => return Err(self.unsent(trace, why)),
        };
        trace.sent = self.now();
        if let Err(error) = socket.connect(trace.frontend) {
            self.kernel.remove_socket(cookie);
            let why = format!("cannot connect to {}: {error}", trace.frontend);
            return Err(self.unsent(trace, why));
        }
        trace.client = socket.local().unwrap_or(trace.client);
        Ok(Call {
            times: Times::from(trace.sent),
            trace,
            socket,
            cookie,
            key: None,
            connected: None,
            returned: None,
            received: [0; DATA_LEN],
            length: 0,
            flags: 0,
        })
    }

    fn registered_socket(&mut self, family: Family) -> Result<(N::Socket, u64), String> {
        let opened = self.network.socket(family);
        let socket = opened.map_err(|error| format!("cannot open a socket: {error}"))?;
        let cookie = socket.cookie();
        let cookie = cookie.map_err(|error| format!("cannot read a socket's cookie: {error}"))?;
        match self.kernel.register_socket(cookie) {
            Ok(()) => Ok((socket, cookie)),
            Err(error) => Err(format!("cannot register the socket: {error}")),
        }
    }

    /// Continues as far as the socket is ready; returns whether the probe is complete.
    pub(super) fn go_on_with(&self, call: &mut Call<N::Socket>, now: Mono) -> bool {
        match self.step(call) {
            Ok(false) => {}
            Ok(true) => return true,
            Err(error) => {
                call.flags |= flags_of(&error);
                return true;
            }
        }
        if call.times.is_over(now) {
            return true;
        }
        if call.connected.is_some() || !call.times.take_look(now) {
            return false;
        }
        self.find_key(call);
        self.is_told(call.key, self.seen_of(call))
    }

    fn step(&self, call: &mut Call<N::Socket>) -> io::Result<bool> {
        if call.connected.is_none() {
            if !call.socket.is_connected()? {
                return Ok(false);
            }
            let now = self.now();
            call.connected = Some(now);
            call.times = Times::from(now);
            self.find_key(call);
            call.socket.send(&call.data())?;
        }
        while let Some(read) = call.socket.receive(&mut call.received[call.length..])? {
            call.length += read;
            if call.length == DATA_LEN {
                let whole = call.received == call.data();
                call.returned = whole.then(|| self.now());
                return Ok(true);
            }
            if read == 0 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Reads the sequence number that the program recorded for the SYN.
    fn find_key(&self, call: &mut Call<N::Socket>) {
        if call.key.is_none()
            && let Some(HostProbe { token, seen: 1.. }) = self.kernel.socket(call.cookie)
        {
            call.key = Some(key(token, call.trace.lane.family, Transport::Tcp));
        }
    }

    fn seen_of(&self, call: &Call<N::Socket>) -> u32 {
        let family = call.trace.lane.family;
        call.isn().map_or(0, |isn| self.seen(isn, family))
    }

    /// Ends a probe at any stage.
    pub(super) fn hang_up(&mut self, mut call: Call<N::Socket>) -> ProbeTrace {
        let mut trace = call.trace.clone();
        trace.ended = self.now();
        self.find_key(&mut call);
        let seen = self.seen_of(&call);
        match call.key.map_or(Ok(None), |key| self.kernel.read(&key)) {
            Ok(probe) => {
                let mut probe = probe.unwrap_or_default();
                probe.flags |= call.flags;
                fill(&mut trace, &probe, seen);
                for (stamps, collected) in [
                    (&mut trace.handshake, call.connected),
                    (&mut trace.data, call.returned),
                ] {
                    stamps[Stage::Arrived as usize] = None;
                    stamps[Stage::Collected as usize] = collected;
                }
            }
            Err(error) => trace.unsent = Some(unread(&error)),
        }
        self.forget(call);
        trace
    }

    /// Removes the records of a host probe and closes its connection. A connected socket ends with a RST.
    /// After an unanswered SYN the kernel sends none, and connection tracking would keep the entry for two
    /// minutes, so this sends a RST.
    pub(super) fn forget(&mut self, mut call: Call<N::Socket>) {
        // Its SYN may have been seen since the last check.
        self.find_key(&mut call);
        self.kernel.remove_socket(call.cookie);
        let answered = call.connected.is_some() || call.flags & probe_flag::REFUSED != 0;
        let isn = call.isn().filter(|_| !answered);
        let unseen = isn.filter(|_| call.key.is_none());
        let unseen = unseen.map(|isn| key(isn, call.trace.lane.family, Transport::Tcp));
        if let Some(key) = unseen {
            // If this fails, the program at an uplink lets the RST out, which is only a useless packet.
            let _ = self.kernel.register(key, probe_flag::HOST);
        }
        let known = call.key.or(unseen);
        let ends = (call.trace.client, call.trace.frontend);
        drop(call);
        if let Some(isn) = isn {
            let reset = Packet::Reset {
                sequence: isn.wrapping_add(1),
                acknowledged: None,
            };
            // A RST that cannot be sent leaves a connection-tracking entry behind. The next probe reports the
            // reason.
            let _ = self.send_own(ends, reset);
        }
        if let Some(key) = known {
            self.kernel.remove(&key);
        }
    }
}

fn unread(error: &str) -> String {
    format!("the kernel's record of it cannot be read: {error}")
}

/// Flags of a probe's answer, by the error of its socket.
fn flags_of(error: &io::Error) -> u32 {
    match error.raw_os_error() {
        Some(libc::ECONNREFUSED | libc::ECONNRESET) => probe_flag::REFUSED,
        Some(libc::EHOSTUNREACH | libc::ENETUNREACH | libc::EACCES | libc::ENOPROTOOPT) => {
            probe_flag::UNREACHABLE
        }
        _ => 0,
    }
}
