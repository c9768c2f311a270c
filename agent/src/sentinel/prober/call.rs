//! A probe dialled by a socket of the host's own.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use agent_common::probe::{DATA_LEN, HostProbe, ProbeKey, Stage, probe_flag};
use agent_common::service::Family;

use super::Kernel;
use super::flight::unread;
use super::poll::Waiting;
use super::round::Errand;
use super::tools::{Times, Tools, key};
use super::trace::Sent;
use super::wire::Network;
use crate::sentinel::frame;
use crate::sentinel::host::Socket;
use agent_core::time::Mono;
use agent_core::trace::{Lane, ProbeTrace, Transport};

/// A probe dialled by a socket of the host's.
pub(super) struct Call<S> {
    what: Sent,
    socket: S,
    cookie: u64,
    times: Times,
    /// The key under which the program registered it, once it was seen.
    key: Option<ProbeKey>,
    connected: Option<Mono>,
    returned: Option<Mono>,
    received: [u8; DATA_LEN],
    length: usize,
    /// Flags and state as an error of the socket tells them.
    flags: u32,
}

impl<S: Socket> Call<S> {
    pub(super) fn errand(&self) -> Errand {
        Errand {
            lane: self.what.lane,
            client: None,
            frontend: self.what.frontend,
        }
    }

    /// Its descriptor and whether it waits to be writable.
    pub(super) fn waiting(&self) -> Waiting {
        (self.socket.as_raw_fd(), self.connected.is_none())
    }

    /// When something is to be done with it at the latest.
    pub(super) fn next(&self) -> Mono {
        self.times.next(self.connected.is_none())
    }

    /// Zero where the SYN was not seen: whatever answers such data, the echo does not.
    fn token(&self) -> u32 {
        self.key.map_or(0, |key| key.token)
    }
}

impl<K: Kernel, N: Network> Tools<K, N> {
    /// Begins to connect. What could not be begun is complete.
    pub(super) fn dial(
        &mut self,
        lane: Lane,
        frontend: SocketAddr,
        due: Mono,
    ) -> Result<Call<N::Socket>, Box<ProbeTrace>> {
        let unspecified = match frontend {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let mut what = Sent {
            lane,
            client: SocketAddr::new(unspecified, 0),
            frontend,
            due,
            sent: self.now(),
        };
        let (socket, cookie) = match self.registered_socket(lane.family) {
            Ok(socket) => socket,
            Err(why) => return Err(Box::new(what.unsent(self.now(), why))),
        };
        what.sent = self.now();
        if let Err(error) = socket.connect(frontend) {
            self.kernel.remove_socket(cookie);
            let why = format!("cannot connect to {frontend}: {error}");
            return Err(Box::new(what.unsent(self.now(), why)));
        }
        what.client = socket.local().unwrap_or(what.client);
        Ok(Call {
            what,
            socket,
            cookie,
            times: Times::from(what.sent),
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

    /// Goes on as far as the socket is ready. Whether the probe is complete.
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
        if call.key.is_none() {
            self.find_key(call);
        }
        self.is_told(call.key, self.seen_of(call))
    }

    fn step(&self, call: &mut Call<N::Socket>) -> io::Result<bool> {
        if call.connected.is_none() {
            if !call.socket.is_connected()? {
                return Ok(false);
            }
            call.connected = Some(self.now());
            self.find_key(call);
            call.socket.send(&frame::data(call.token()))?;
        }
        while let Some(read) = call.socket.receive(&mut call.received[call.length..])? {
            call.length += read;
            if call.length == DATA_LEN {
                if call.received == frame::data(call.token()) {
                    call.returned = Some(self.now());
                }
                return Ok(true);
            }
            if read == 0 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The program that saw the SYN wrote its number.
    fn find_key(&self, call: &mut Call<N::Socket>) {
        if let Some(HostProbe { token, seen: 1.. }) = self.kernel.socket(call.cookie) {
            call.key = Some(key(token, call.what.lane.family, Transport::Tcp));
        }
    }

    /// Its initial sequence number. That of a SYN that did not come to the server pair is known to
    /// the socket alone.
    fn isn_of(call: &Call<N::Socket>) -> Option<u32> {
        match (call.key, call.connected) {
            (Some(key), _) => Some(key.token),
            (None, None) => call
                .socket
                .next_sequence()
                .ok()
                .map(|next| next.wrapping_sub(1)),
            (None, Some(_)) => None,
        }
    }

    fn seen_of(&self, call: &Call<N::Socket>) -> u32 {
        Self::isn_of(call).map_or(0, |isn| self.seen(isn, call.what.lane.family))
    }

    /// Ends it, however far it came.
    pub(super) fn hang_up(&mut self, mut call: Call<N::Socket>) -> ProbeTrace {
        let ended = self.now();
        if call.key.is_none() {
            self.find_key(&mut call);
        }
        let seen = self.seen_of(&call);
        let read = call.key.map_or(Ok(None), |key| self.kernel.read(&key));
        let trace = match read {
            Ok(probe) => {
                let mut probe = probe.unwrap_or_default();
                probe.flags |= call.flags;
                let mut trace = call.what.trace(ended, &probe, seen);
                for (stamps, collected) in [
                    (&mut trace.handshake, call.connected),
                    (&mut trace.data, call.returned),
                ] {
                    stamps[Stage::Arrived as usize] = None;
                    stamps[Stage::Collected as usize] = collected;
                }
                trace
            }
            Err(error) => call.what.unsent(ended, unread(&error)),
        };
        self.forget(call);
        trace
    }

    /// Forgets it. A connected socket ends with a RST of its own; behind a SYN that got no answer
    /// the kernel sends none, and connection tracking would keep its entry for two minutes.
    pub(super) fn forget(&mut self, mut call: Call<N::Socket>) {
        // Its SYN may have been seen since it was asked for last.
        if call.key.is_none() {
            self.find_key(&mut call);
        }
        self.kernel.remove_socket(call.cookie);
        if let Some(key) = call.key {
            self.kernel.remove(&key);
        }
        if call.connected.is_some() || call.flags & probe_flag::REFUSED != 0 {
            return;
        }
        let isn = Self::isn_of(&call);
        let (from, to) = (call.what.client, call.what.frontend);
        drop(call);
        if let Some(isn) = isn {
            // What cannot be sent leaves an entry behind, and the next probe tells why.
            let _ = self.send_own((from, to), |flow, frame| {
                flow.reset(frame, isn.wrapping_add(1), None)
            });
        }
    }
}

/// What an error of a socket says of its probe: what came back to it.
fn flags_of(error: &io::Error) -> u32 {
    match error.raw_os_error() {
        Some(libc::ECONNREFUSED | libc::ECONNRESET) => probe_flag::REFUSED,
        Some(libc::EHOSTUNREACH | libc::ENETUNREACH | libc::EACCES | libc::ENOPROTOOPT) => {
            probe_flag::UNREACHABLE
        }
        _ => 0,
    }
}
