//! The prober's sockets: packet sockets on the sentinel's devices, and TCP sockets for the host's path.
//! The TCP sockets `connect` to the sentinel's cluster IP, send data that must come back, and end with a RST.
//! The kernel chooses their initial sequence numbers, so the program at the server pair finds a socket by its
//! cookie, and records the number as the token.

use std::io::{self, Read};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use pathproof_wire::service::Family;
use socket2::{Domain, Protocol, SockAddr, SockAddrStorage, Type};

use super::ProberError;
use crate::netlink::number;
use crate::sentinel::devices::{Mac, Role, SentinelDevices};

/// Pair to which a frame is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// The client pair: the frame enters the node as a pod's would.
    Client,
    /// The server pair: the frame reaches the echo, bypassing the datapath.
    Server,
}

impl Side {
    /// Source and destination hardware address.
    pub(super) fn link(self) -> (Mac, Mac) {
        match self {
            Side::Client => (Role::ClientFar.mac(), Role::ClientNear.mac()),
            Side::Server => (Role::ServerNear.mac(), Role::ServerFar.mac()),
        }
    }

    pub(super) fn name(self) -> &'static str {
        ["client", "server"][self as usize]
    }
}

pub(super) trait Network {
    /// A TCP socket for the host's path.
    type Socket: Socket;
    fn send(&mut self, side: Side, frame: &[u8]) -> io::Result<()>;
    /// Sends a packet, including its IP header, from the host itself.
    fn send_own(&mut self, to: SocketAddr, packet: &[u8]) -> io::Result<()>;
    fn socket(&mut self, family: Family) -> io::Result<Self::Socket>;
}

pub(super) trait Socket: AsRawFd {
    /// Cookie by which the eBPF programs identify the socket.
    fn cookie(&self) -> io::Result<u64>;
    fn connect(&self, to: SocketAddr) -> io::Result<()>;
    /// Whether the socket is connected; an error if it never will be.
    fn is_connected(&self) -> io::Result<bool>;
    fn local(&self) -> Option<SocketAddr>;
    /// The sequence number of the next byte to send.
    fn next_sequence(&self) -> io::Result<u32>;
    /// Sends all of it, or fails.
    fn send(&self, data: &[u8]) -> io::Result<()>;
    /// Reads available data: `None` if there is none yet, zero at the end.
    fn receive(&self, data: &mut [u8]) -> io::Result<Option<usize>>;
}

/// The packet sockets, by [`Side`].
#[derive(Debug)]
pub(super) struct Sockets([socket2::Socket; 2]);

impl Sockets {
    pub(super) fn open(devices: &SentinelDevices) -> Result<Self, ProberError> {
        let open = |role| {
            packet_socket(devices.index(role)).map_err(|source| match source.raw_os_error() {
                Some(libc::EPERM) => ProberError::MissingNetRaw,
                _ => ProberError::Refused {
                    operation: "open a packet socket on the sentinel's devices",
                    source,
                },
            })
        };
        Ok(Self([open(Role::ClientFar)?, open(Role::ServerNear)?]))
    }
}

impl Network for Sockets {
    type Socket = socket2::Socket;

    fn send(&mut self, side: Side, frame: &[u8]) -> io::Result<()> {
        self.0[side as usize].send(frame).map(drop)
    }

    fn send_own(&mut self, to: SocketAddr, packet: &[u8]) -> io::Result<()> {
        // With this protocol the caller supplies the IP header, in both families. The socket is opened for
        // each packet, because it is needed only after failures.
        let protocol = Protocol::from(libc::IPPROTO_RAW);
        let kind = Type::RAW.nonblocking().cloexec();
        let socket = socket2::Socket::new(Domain::for_address(to), kind, Some(protocol))?;
        // The port is unused here, and IPv6 refuses any except the protocol number.
        let to = SockAddr::from(SocketAddr::new(to.ip(), 0));
        socket.send_to(packet, &to).map(drop)
    }

    fn socket(&mut self, family: Family) -> io::Result<socket2::Socket> {
        host_socket(family)
    }
}

/// A packet socket on one device with protocol 0: it sends, and nothing is ever queued to it.
fn packet_socket(index: u32) -> io::Result<socket2::Socket> {
    let kind = Type::RAW.nonblocking().cloexec();
    let socket = socket2::Socket::new(Domain::PACKET, kind, None)?;
    let mut storage = SockAddrStorage::zeroed();
    // SAFETY: a socket address of this kind may be all zero, and is no longer than the storage.
    let address = unsafe { storage.view_as::<libc::sockaddr_ll>() };
    address.sll_family = libc::AF_PACKET as libc::sa_family_t;
    address.sll_ifindex = libc::c_int::try_from(index).unwrap_or(-1);
    let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the storage holds an address of this length.
    socket.bind(&unsafe { SockAddr::new(storage, length) })?;
    Ok(socket)
}

/// Opens a non-blocking TCP socket that ends with a RST, so that its connection-tracking entry expires in
/// seconds.
fn host_socket(family: Family) -> io::Result<socket2::Socket> {
    let domain = Domain::from(i32::from(number(family)));
    let kind = Type::STREAM.nonblocking().cloexec();
    let socket = socket2::Socket::new(domain, kind, Some(Protocol::TCP))?;
    socket.set_linger(Some(Duration::ZERO))?;
    Ok(socket)
}

fn set_repair(fd: RawFd, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
    let length = size_of::<libc::c_int>() as libc::socklen_t;
    let value = (&raw const value).cast();
    // SAFETY: the pointer is that of a live number of the size given.
    match unsafe { libc::setsockopt(fd, libc::IPPROTO_TCP, option, value, length) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn queue_sequence(fd: RawFd) -> io::Result<u32> {
    let mut sequence = 0_u32;
    let mut length = size_of::<u32>() as libc::socklen_t;
    let value = (&raw mut sequence).cast();
    let (level, option) = (libc::IPPROTO_TCP, libc::TCP_QUEUE_SEQ);
    // SAFETY: both pointers are live, and the option is a number of this size.
    match unsafe { libc::getsockopt(fd, level, option, value, &raw mut length) } {
        0 => Ok(sequence),
        _ => Err(io::Error::last_os_error()),
    }
}

impl Socket for socket2::Socket {
    fn cookie(&self) -> io::Result<u64> {
        socket2::Socket::cookie(self)
    }

    fn connect(&self, to: SocketAddr) -> io::Result<()> {
        match socket2::Socket::connect(self, &SockAddr::from(to)) {
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => Ok(()),
            other => other,
        }
    }

    fn is_connected(&self) -> io::Result<bool> {
        if let Some(error) = self.take_error()? {
            return Err(error);
        }
        match self.peer_addr() {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn local(&self) -> Option<SocketAddr> {
        self.local_addr().ok()?.as_socket()
    }

    /// Uses TCP_REPAIR, which reads the numbers of a live connection (CAP_NET_ADMIN) and sends nothing.
    fn next_sequence(&self) -> io::Result<u32> {
        const ON: libc::c_int = 1;
        const OFF: libc::c_int = -1; // without a window probe
        const SEND_QUEUE: libc::c_int = 2;
        let fd = self.as_raw_fd();
        set_repair(fd, libc::TCP_REPAIR, ON)?;
        let sequence = set_repair(fd, libc::TCP_REPAIR_QUEUE, SEND_QUEUE);
        let sequence = sequence.and_then(|()| queue_sequence(fd));
        // A socket left in repair mode would end without a RST.
        set_repair(fd, libc::TCP_REPAIR, OFF)?;
        sequence
    }

    fn send(&self, data: &[u8]) -> io::Result<()> {
        // The buffer of a new connection is empty: either all or nothing fits.
        match self.send_with_flags(data, libc::MSG_NOSIGNAL)? {
            sent if sent == data.len() => Ok(()),
            _ => Err(io::ErrorKind::WriteZero.into()),
        }
    }

    fn receive(&self, data: &mut [u8]) -> io::Result<Option<usize>> {
        let mut socket = self;
        match socket.read(data) {
            Ok(read) => Ok(Some(read)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests;
