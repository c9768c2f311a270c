//! Who listens at a TCP port of this network namespace, asked of the kernel by netlink
//! (`sock_diag(7)`): one small dump for each family, filtered by the kernel, of listeners alone.

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use agent_common::service::Address;
use agent_common::steer::{ANY_V4, ANY_V6, mapped};
use netlink_sys::protocols::NETLINK_SOCK_DIAG;
use netlink_sys::{Socket, SocketAddr};
use socket2::SockRef;

const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// `NLM_F_REQUEST | NLM_F_DUMP`.
const DUMP: u16 = 0x301;
const ERROR: u16 = 2;
const DONE: u16 = 3;
const HEADER: usize = 16;
/// `struct inet_diag_msg`.
const MESSAGE: usize = 72;
/// `INET_DIAG_SKV6ONLY`.
const V6_ONLY: u16 = 11;
/// `1 << TCP_LISTEN`.
const LISTEN: u32 = 1 << 10;
/// `1 << TCP_SYN_RECV`.
const SYN_RECEIVED: u32 = 1 << 3;
/// Index of the loopback interface in every network namespace.
const LOOPBACK: u32 = 1;
/// The kernel answers at once or not at all.
const PATIENCE: Duration = Duration::from_millis(200);

/// Addresses that sockets listen at, at this port, but for the socket with inode `except`:
/// [`ANY_V4`] and [`ANY_V6`] stand for every address of a family.
///
/// # Errors
/// The kernel does not tell (without `CONFIG_INET_DIAG`).
pub fn listeners(port: u16, except: Option<u32>) -> io::Result<BTreeSet<Address>> {
    let mut found = BTreeSet::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        dump(family as u8, LISTEN, port, |listener| {
            // A listener bound to another interface hears nothing of the node's own connections.
            let hears = [0, LOOPBACK].contains(&listener.interface);
            if hears && Some(listener.inode) != except {
                found.extend(listener.addresses());
            }
        })?;
    }
    Ok(found)
}

/// Whether handshakes are under way at this port.
///
/// # Errors
/// As for [`listeners`].
pub fn is_opening(port: u16) -> io::Result<bool> {
    let mut found = false;
    for family in [libc::AF_INET, libc::AF_INET6] {
        dump(family as u8, SYN_RECEIVED, port, |_| found = true)?;
    }
    Ok(found)
}

/// A socket as the kernel describes it.
#[derive(Debug, PartialEq, Eq)]
struct Listener {
    family: u8,
    address: [u8; 16],
    interface: u32,
    inode: u32,
    v6_only: bool,
}

impl Listener {
    fn addresses(&self) -> impl Iterator<Item = Address> {
        let [a, b, c, d, ..] = self.address;
        let first = match i32::from(self.family) {
            libc::AF_INET => mapped([a, b, c, d]),
            _ => self.address,
        };
        let both = first == ANY_V6 && !self.v6_only;
        std::iter::once(first).chain(both.then_some(ANY_V4))
    }
}

fn dump(family: u8, states: u32, port: u16, mut each: impl FnMut(Listener)) -> io::Result<()> {
    let mut socket = Socket::new(NETLINK_SOCK_DIAG)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    SockRef::from(&socket).set_read_timeout(Some(PATIENCE))?;
    socket.send(&request(family, states, port), 0)?;
    let mut answer = Vec::with_capacity(32 * 1024);
    loop {
        answer.clear();
        socket.recv(&mut answer, 0)?;
        if !messages(&answer, &mut each)? {
            return Ok(());
        }
    }
}

fn request(family: u8, states: u32, port: u16) -> Vec<u8> {
    let mut message = vec![0; HEADER];
    // struct inet_diag_req_v2: family, protocol, extensions, padding, states, and the socket's id,
    // which begins with its port. Zero is any.
    message.extend([family, libc::IPPROTO_TCP as u8, 0, 0]);
    message.extend(states.to_ne_bytes());
    message.extend(port.to_be_bytes());
    message.resize(HEADER + 56, 0);
    let length = message.len() as u32;
    message[..4].copy_from_slice(&length.to_ne_bytes());
    message[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    message[6..8].copy_from_slice(&DUMP.to_ne_bytes());
    message
}

/// Takes one datagram of an answer; tells whether more follow.
fn messages(mut bytes: &[u8], each: &mut impl FnMut(Listener)) -> io::Result<bool> {
    let too_short = || io::Error::from(io::ErrorKind::UnexpectedEof);
    while !bytes.is_empty() {
        let length = word(bytes, 0).ok_or_else(too_short)? as usize;
        let kind = half(bytes, 4).ok_or_else(too_short)?;
        let body = bytes.get(HEADER..length).ok_or_else(too_short)?;
        match kind {
            DONE => return Ok(false),
            ERROR => {
                let code = word(body, 0).ok_or_else(too_short)? as i32;
                return Err(io::Error::from_raw_os_error(-code));
            }
            SOCK_DIAG_BY_FAMILY => each(listener(body).ok_or_else(too_short)?),
            _ => {}
        }
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(true)
}

/// `struct inet_diag_msg`: family, state, timer, retransmissions; the id (ports, addresses,
/// interface, cookie); expiry, queues, owner, inode; then attributes.
fn listener(body: &[u8]) -> Option<Listener> {
    let mut found = Listener {
        family: *body.first()?,
        address: *body.get(8..24)?.first_chunk()?,
        interface: word(body, 40)?,
        inode: word(body, 68)?,
        v6_only: false,
    };
    let mut rest = body.get(MESSAGE..)?;
    while let (Some(length), Some(kind)) = (half(rest, 0), half(rest, 2)) {
        let length = usize::from(length);
        if kind == V6_ONLY {
            found.v6_only = *rest.get(4)? != 0;
        }
        rest = rest
            .get(length.max(4).next_multiple_of(4)..)
            .unwrap_or_default();
    }
    Some(found)
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    bytes
        .get(at..at + 2)?
        .first_chunk()
        .map(|half| u16::from_ne_bytes(*half))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes
        .get(at..at + 4)?
        .first_chunk()
        .map(|word| u32::from_ne_bytes(*word))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::fd::AsRawFd as _;
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    /// Asks the kernel that the test runs on, as anyone may.
    #[test]
    fn listeners_are_found_by_port_address_and_family() {
        let v4 = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = v4.local_addr().unwrap().port();
        let found = listeners(port, None).unwrap();
        assert!(found.contains(&mapped([127, 0, 0, 1])), "{found:?}");

        let inode = inode_of(&v4);
        let found = listeners(port, Some(inode)).unwrap();
        assert!(!found.contains(&mapped([127, 0, 0, 1])), "{found:?}");

        let Ok(both) = TcpListener::bind("[::]:0") else {
            return;
        };
        let port = both.local_addr().unwrap().port();
        let found = listeners(port, None).unwrap();
        assert!(
            found.contains(&ANY_V4) && found.contains(&ANY_V6),
            "{found:?}"
        );
        drop(both);
        assert!(listeners(port, None).unwrap().is_empty());
    }

    fn inode_of(listener: &TcpListener) -> u32 {
        let file = format!("/proc/self/fd/{}", listener.as_raw_fd());
        std::fs::metadata(file).unwrap().ino() as u32
    }

    #[test]
    fn answers_cut_short_are_errors() {
        let mut whole = request(2, LISTEN, 1);
        whole.resize(HEADER + MESSAGE, 0);
        let length = whole.len() as u32;
        whole[..4].copy_from_slice(&length.to_ne_bytes());
        let mut seen = 0;
        assert!(messages(&whole, &mut |_| seen += 1).unwrap());
        assert_eq!(seen, 1);
        for length in 1..whole.len() {
            assert!(
                messages(&whole[..length], &mut |_| ()).is_err(),
                "{length} bytes"
            );
        }
    }

    #[test]
    fn errors_of_the_kernel_are_told() {
        let mut bytes = vec![0; HEADER];
        bytes[..4].copy_from_slice(&36u32.to_ne_bytes());
        bytes[4..6].copy_from_slice(&ERROR.to_ne_bytes());
        bytes.extend((-libc::ENOENT).to_ne_bytes());
        bytes.resize(36, 0);
        let error = messages(&bytes, &mut |_| ()).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
    }
}
