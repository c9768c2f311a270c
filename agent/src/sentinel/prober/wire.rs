//! The prober's way out: packet sockets on the sentinel's devices, and sockets of the host's own
//! path.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use agent_common::service::Family;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::{End, ProberError, Wire};
use crate::sentinel::frame::Mac;
use crate::sentinel::host::{self, HostSocket};

/// Where a frame is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// To the client pair: into the node, as a pod's.
    Client,
    /// To the server pair: to the echo, past the datapath.
    Server,
}

/// What the prober does to the world outside its maps.
pub(super) trait Network {
    /// A socket of the host's own path.
    type Socket: host::Socket;
    /// Source and destination on the link.
    fn link(&self, side: Side) -> (Mac, Mac);
    /// Writes a frame.
    fn send(&mut self, side: Side, frame: &[u8]) -> io::Result<()>;
    /// Sends a packet with its IP header as one of the host's own.
    fn send_own(&mut self, to: SocketAddr, packet: &[u8]) -> io::Result<()>;
    /// Sends through these from now on.
    fn rewire(&mut self, sockets: Sockets);
    /// Opens a socket.
    fn socket(&mut self, family: Family) -> io::Result<Self::Socket>;
}

/// The real one.
#[derive(Debug)]
pub(super) struct Sockets {
    wire: Wire,
    client: OwnedFd,
    server: OwnedFd,
}

impl Sockets {
    pub(super) fn open(wire: &Wire) -> Result<Self, ProberError> {
        Ok(Self {
            wire: *wire,
            client: packet_socket(wire.client_far)?,
            server: packet_socket(wire.server_near)?,
        })
    }
}

impl Network for Sockets {
    type Socket = HostSocket;

    fn link(&self, side: Side) -> (Mac, Mac) {
        match side {
            Side::Client => (self.wire.client_far.mac, self.wire.client_near),
            Side::Server => (self.wire.server_near.mac, self.wire.server_far),
        }
    }

    fn send(&mut self, side: Side, frame: &[u8]) -> io::Result<()> {
        let socket = match side {
            Side::Client => &self.client,
            Side::Server => &self.server,
        };
        // SAFETY: the pointer and the length are those of a live slice.
        let sent = unsafe {
            libc::send(
                socket.as_raw_fd(),
                frame.as_ptr().cast(),
                frame.len(),
                libc::MSG_DONTWAIT,
            )
        };
        if sent < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    fn send_own(&mut self, to: SocketAddr, packet: &[u8]) -> io::Result<()> {
        let domain = match to {
            SocketAddr::V4(_) => Domain::IPV4,
            SocketAddr::V6(_) => Domain::IPV6,
        };
        // With this protocol the header is the caller's, in both families. Needed after failures
        // alone, so no socket is kept for it.
        let protocol = Protocol::from(libc::IPPROTO_RAW);
        let socket = Socket::new(domain, Type::RAW.nonblocking().cloexec(), Some(protocol))?;
        // A port is none of this socket's business, and IPv6 refuses another than the protocol.
        let to = SockAddr::from(SocketAddr::new(to.ip(), 0));
        socket.send_to(packet, &to).map(drop)
    }

    fn rewire(&mut self, sockets: Sockets) {
        *self = sockets;
    }

    fn socket(&mut self, family: Family) -> io::Result<HostSocket> {
        HostSocket::open(family)
    }
}

/// A packet socket on one device, of protocol 0: it sends, and nothing is ever queued to it.
fn packet_socket(end: End) -> Result<OwnedFd, ProberError> {
    let failed = |source: io::Error| match source.raw_os_error() {
        Some(libc::EPERM) => ProberError::MissingNetRaw,
        _ => ProberError::Socket {
            ifindex: end.ifindex,
            source,
        },
    };
    // SAFETY: socket takes numbers only.
    let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(failed(io::Error::last_os_error()));
    }
    // SAFETY: the descriptor is new and nobody else's.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: an all-zero sockaddr_ll is valid.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as libc::sa_family_t;
    address.sll_ifindex = libc::c_int::try_from(end.ifindex).unwrap_or(-1);
    // SAFETY: the address is live and of the length given.
    let bound = unsafe {
        libc::bind(
            socket.as_raw_fd(),
            (&raw const address).cast(),
            size_of::<libc::sockaddr_ll>() as libc::socklen_t,
        )
    };
    if bound < 0 {
        return Err(failed(io::Error::last_os_error()));
    }
    Ok(socket)
}
