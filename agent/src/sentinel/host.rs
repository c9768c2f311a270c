//! The host's own path: an ordinary `connect` to the sentinel's cluster IP, then data that must come
//! back, then a RST. The kernel takes the initial sequence number, so the program at the server
//! pair finds the socket by its cookie and says which token it took.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use agent_common::service::Family;
use socket2::{Domain, Protocol, SockAddr, Type};

/// What the prober does with a socket of its own.
pub trait Socket: AsRawFd {
    /// What the programs know it by.
    fn cookie(&self) -> io::Result<u64>;
    /// Begins to connect.
    fn connect(&self, to: SocketAddr) -> io::Result<()>;
    /// Whether it is connected by now, or why it never will be.
    fn is_connected(&self) -> io::Result<bool>;
    /// Its own end.
    fn local(&self) -> Option<SocketAddr>;
    /// The sequence number of the next byte that it will send.
    fn next_sequence(&self) -> io::Result<u32>;
    /// Sends all of it, or fails.
    fn send(&self, data: &[u8]) -> io::Result<()>;
    /// Reads what is there: nothing yet, or how much; zero at the end.
    fn receive(&self, data: &mut [u8]) -> io::Result<Option<usize>>;
}

/// A TCP socket that never blocks, and whose end is a RST: connection tracking forgets it in
/// seconds.
#[derive(Debug)]
pub struct HostSocket(socket2::Socket);

impl HostSocket {
    /// Opens one.
    pub fn open(family: Family) -> io::Result<Self> {
        let domain = match family {
            Family::V4 => Domain::IPV4,
            Family::V6 => Domain::IPV6,
        };
        let kind = Type::STREAM.nonblocking().cloexec();
        let socket = socket2::Socket::new(domain, kind, Some(Protocol::TCP))?;
        socket.set_linger(Some(Duration::ZERO))?;
        Ok(Self(socket))
    }
}

impl AsRawFd for HostSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Socket for HostSocket {
    fn cookie(&self) -> io::Result<u64> {
        option(self.as_raw_fd(), libc::SOL_SOCKET, libc::SO_COOKIE)
    }

    fn connect(&self, to: SocketAddr) -> io::Result<()> {
        match self.0.connect(&SockAddr::from(to)) {
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => Ok(()),
            other => other,
        }
    }

    fn is_connected(&self) -> io::Result<bool> {
        if let Some(error) = self.0.take_error()? {
            return Err(error);
        }
        match self.0.peer_addr() {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn local(&self) -> Option<SocketAddr> {
        self.0.local_addr().ok()?.as_socket()
    }

    /// By TCP_REPAIR, which shows the numbers of a live connection (CAP_NET_ADMIN) and sends
    /// nothing.
    fn next_sequence(&self) -> io::Result<u32> {
        const ON: libc::c_int = 1;
        const OFF: libc::c_int = -1; // without a window probe
        const SEND_QUEUE: libc::c_int = 2;
        let fd = self.as_raw_fd();
        set_option(fd, libc::IPPROTO_TCP, libc::TCP_REPAIR, ON)?;
        let sequence = set_option(fd, libc::IPPROTO_TCP, libc::TCP_REPAIR_QUEUE, SEND_QUEUE)
            .and_then(|()| option(fd, libc::IPPROTO_TCP, libc::TCP_QUEUE_SEQ));
        // A socket left in repair would end without a RST.
        set_option(fd, libc::IPPROTO_TCP, libc::TCP_REPAIR, OFF)?;
        sequence
    }

    fn send(&self, data: &[u8]) -> io::Result<()> {
        // A new connection's buffer is empty: all or nothing goes in.
        match self.0.send_with_flags(data, libc::MSG_NOSIGNAL)? {
            sent if sent == data.len() => Ok(()),
            _ => Err(io::ErrorKind::WriteZero.into()),
        }
    }

    fn receive(&self, data: &mut [u8]) -> io::Result<Option<usize>> {
        match io::Read::read(&mut &self.0, data) {
            Ok(read) => Ok(Some(read)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Reads an option whose value is a plain number.
fn option<T: Default>(fd: RawFd, level: libc::c_int, name: libc::c_int) -> io::Result<T> {
    let mut value = T::default();
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: both pointers are live; callers name an option of exactly this size, an integer of
    // which every bit pattern is one.
    let got =
        unsafe { libc::getsockopt(fd, level, name, (&raw mut value).cast(), &raw mut length) };
    if got < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(value)
}

fn set_option(
    fd: RawFd,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    let length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the pointer is that of a live number of the size given.
    let set = unsafe { libc::setsockopt(fd, level, name, (&raw const value).cast(), length) };
    if set < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests;
