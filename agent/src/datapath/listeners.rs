//! Listeners at a TCP port of this network namespace, read from the kernel by netlink
//! (`sock_diag(7)`): one small dump per family, which the kernel filters for listeners.

use std::collections::BTreeSet;
use std::io;

use netlink_sys::protocols::NETLINK_SOCK_DIAG;
use pathproof_wire::service::Address;
use pathproof_wire::steer::{ANY_V4, ANY_V6, mapped};

use crate::netlink::{PATIENCE, dump, find, too_short, word};

/// `SOCK_DIAG_BY_FAMILY`.
const GET: u16 = 20;
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

/// Addresses of the sockets that listen at this port. [`ANY_V4`] and [`ANY_V6`] represent every address
/// of a family.
///
/// # Errors
/// The kernel does not report listeners (without `CONFIG_INET_DIAG`).
pub fn listeners(port: u16) -> io::Result<BTreeSet<Address>> {
    // A listener bound to another interface receives none of the node's local connections.
    let hears = |listener: &Listener| [0, LOOPBACK].contains(&listener.interface);
    let all = sockets(LISTEN, port)?;
    let hearing = all.iter().filter(|listener| hears(listener));
    Ok(hearing.flat_map(Listener::addresses).collect())
}

/// Inodes of the sockets that share a port with the listener whose inode is `own`: those with one of
/// its addresses, or the same wildcard address.
pub fn sharers(port: u16, own: u32) -> io::Result<BTreeSet<u32>> {
    let (ours, others): (Vec<_>, Vec<_>) =
        (sockets(LISTEN, port)?.into_iter()).partition(|listener| listener.inode == own);
    let ours: BTreeSet<Address> = ours.iter().flat_map(Listener::addresses).collect();
    let shares = |other: &Listener| other.addresses().any(|address| ours.contains(&address));
    let sharing = others.iter().filter(|other| shares(other));
    Ok(sharing.map(|other| other.inode).collect())
}

/// Whether handshakes are under way at any of these ports.
pub fn is_opening(ports: impl Fn(u16) -> bool) -> io::Result<bool> {
    let opening = sockets(SYN_RECEIVED, 0)?;
    Ok(opening.iter().any(|socket| ports(socket.port)))
}

/// A socket as the kernel describes it.
#[derive(Debug, PartialEq, Eq)]
pub struct Listener {
    family: u8,
    port: u16,
    address: [u8; 16],
    interface: u32,
    inode: u32,
    v6_only: bool,
}

impl Listener {
    pub fn addresses(&self) -> impl Iterator<Item = Address> {
        let [a, b, c, d, ..] = self.address;
        let first = match i32::from(self.family) {
            libc::AF_INET => mapped([a, b, c, d]),
            _ => self.address,
        };
        let both = first == ANY_V6 && !self.v6_only;
        std::iter::once(first).chain(both.then_some(ANY_V4))
    }
}

/// The sockets of both families in these states at this port; port 0 selects every port.
fn sockets(states: u32, port: u16) -> io::Result<Vec<Listener>> {
    let mut found = Vec::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        // struct inet_diag_req_v2: family, protocol, extensions, padding, states, and the socket's id,
        // which begins with its port.
        let mut body = vec![family as u8, libc::IPPROTO_TCP as u8, 0, 0];
        body.extend(states.to_ne_bytes());
        body.extend(port.to_be_bytes());
        body.resize(56, 0);
        dump(PATIENCE, NETLINK_SOCK_DIAG, GET, &body, |answer| {
            found.push(listener(answer).ok_or_else(too_short)?);
            Ok(())
        })?;
    }
    Ok(found)
}

/// Parses `struct inet_diag_msg`: family, state, timer, retransmissions; the id (ports, addresses,
/// interface, cookie); expiry, queues, owner, inode; then attributes.
pub fn listener(body: &[u8]) -> Option<Listener> {
    let v6_only = match find(body.get(MESSAGE..)?, V6_ONLY) {
        Some(value) => *value.first()? != 0,
        None => false,
    };
    Some(Listener {
        family: *body.first()?,
        port: u16::from_be_bytes(*body.get(4..)?.first_chunk()?),
        address: *body.get(8..24)?.first_chunk()?,
        interface: word(body, 40)?,
        inode: word(body, 68)?,
        v6_only,
    })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::fd::AsRawFd as _;
    use std::os::unix::fs::MetadataExt as _;

    use socket2::{Domain, Socket, Type};

    use super::*;

    /// Uses the test machine's kernel, which needs no privileges.
    #[test]
    fn listeners_are_found_by_port_address_and_family() {
        let v4 = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = v4.local_addr().unwrap().port();
        let found = listeners(port).unwrap();
        assert!(found.contains(&mapped([127, 0, 0, 1])), "{found:?}");

        let Ok(both) = TcpListener::bind("[::]:0") else {
            return;
        };
        let port = both.local_addr().unwrap().port();
        let found = listeners(port).unwrap();
        assert!(
            found.contains(&ANY_V4) && found.contains(&ANY_V6),
            "{found:?}"
        );
        drop(both);
        assert!(listeners(port).unwrap().is_empty());
    }

    #[test]
    fn a_listener_at_another_address_does_not_share_the_port() {
        let ours = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = ours.local_addr().unwrap().port();
        let _other = TcpListener::bind(("127.0.0.2", port)).unwrap();
        assert_eq!(sharers(port, inode_of(&ours)).unwrap(), BTreeSet::new());

        let open = || {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            socket.set_reuse_port(true).unwrap();
            socket
        };
        let listen = |port: u16| {
            let socket = open();
            let address = std::net::SocketAddr::from(([127, 0, 0, 3], port));
            socket.bind(&address.into()).unwrap();
            socket.listen(1).unwrap();
            TcpListener::from(socket)
        };
        let first = listen(0);
        let port = first.local_addr().unwrap().port();
        let second = listen(port);
        let inodes = [&first, &second].map(inode_of);
        assert_eq!(sharers(port, inodes[0]).unwrap(), [inodes[1]].into());
        assert_eq!(sharers(port, inodes[1]).unwrap(), [inodes[0]].into());
    }

    fn inode_of(listener: &TcpListener) -> u32 {
        let file = format!("/proc/self/fd/{}", listener.as_raw_fd());
        std::fs::metadata(file).unwrap().ino() as u32
    }

    #[test]
    fn answers_cut_short_are_no_listeners() {
        let whole = [0; MESSAGE];
        assert!(listener(&whole).is_some());
        for length in 0..whole.len() {
            assert_eq!(listener(&whole[..length]), None, "{length} bytes");
        }
    }
}
