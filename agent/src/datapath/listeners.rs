//! TCP sockets at ports of this network namespace, read from the kernel and ended by netlink
//! (`sock_diag(7)`): one small dump per family, which the kernel filters for states and ports.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::RangeInclusive;

use netlink_sys::protocols::NETLINK_SOCK_DIAG;
use pathproof_wire::service::Address;
use pathproof_wire::steer::{ANY_V4, ANY_V6, Dialled, mapped};

use crate::netlink::{PATIENCE, ask, attribute, dump, find, too_short, word};

/// `SOCK_DIAG_BY_FAMILY`.
const GET: u16 = 20;
/// `SOCK_DESTROY`.
const DESTROY: u16 = 21;
/// `INET_DIAG_REQ_BYTECODE`, with the operations `INET_DIAG_BC_S_GE` and `INET_DIAG_BC_S_LE`.
const FILTER: u16 = 1;
const PORT_AT_LEAST: u8 = 2;
const PORT_AT_MOST: u8 = 3;
/// `struct inet_diag_msg`.
const MESSAGE: usize = 72;
/// `struct inet_diag_sockid`.
const ID: usize = 48;
/// `INET_DIAG_SKV6ONLY`.
const V6_ONLY: u16 = 11;
/// `TCP_LISTEN`.
const LISTENING: u8 = 10;
const LISTEN: u32 = 1 << LISTENING;
/// `1 << TCP_ESTABLISHED`.
const ESTABLISHED: u32 = 1 << 1;
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
    Ok(by_port(&(port..=port))?.remove(&port).unwrap_or_default())
}

/// The same by port.
///
/// # Errors
/// As for [`listeners`].
pub fn by_port(ports: &RangeInclusive<u16>) -> io::Result<BTreeMap<u16, BTreeSet<Address>>> {
    let mut found = BTreeMap::<u16, BTreeSet<Address>>::new();
    for listener in sockets(LISTEN, ports)? {
        // A listener bound to another interface receives none of the node's local connections.
        if [0, LOOPBACK].contains(&listener.interface) {
            let addresses = found.entry(listener.port).or_default();
            addresses.extend(listener.addresses());
        }
    }
    Ok(found)
}

/// Inodes of the sockets that share a port with the listener whose inode is `own`: those with one of
/// its addresses, or the same wildcard address.
pub fn sharers(port: u16, own: u32) -> io::Result<BTreeSet<u32>> {
    let (ours, others): (Vec<_>, Vec<_>) =
        (sockets(LISTEN, &(port..=port))?.into_iter()).partition(|listener| listener.inode == own);
    let ours: BTreeSet<Address> = ours.iter().flat_map(Socket::addresses).collect();
    let shares = |other: &Socket| other.addresses().any(|address| ours.contains(&address));
    let sharing = others.iter().filter(|other| shares(other));
    Ok(sharing.map(|other| other.inode).collect())
}

/// Whether handshakes are under way at any of these ports.
pub fn is_opening(ports: impl Fn(u16) -> bool) -> io::Result<bool> {
    let opening = sockets(SYN_RECEIVED, &(0..=u16::MAX))?;
    Ok(opening.iter().any(|socket| ports(socket.port)))
}

/// Established connections to listeners at these ports. Connections that the node opened from such a port
/// are not among them, unless another process also listens at that port.
pub fn accepted(ports: &RangeInclusive<u16>) -> io::Result<Vec<Socket>> {
    let all = sockets(LISTEN | ESTABLISHED, ports)?.into_iter();
    let (listeners, mut open): (Vec<_>, Vec<_>) = all.partition(|socket| socket.state == LISTENING);
    let mut bound = BTreeSet::new();
    for listener in &listeners {
        bound.extend(listener.addresses().map(|at| (listener.port, at)));
    }
    open.retain(|socket| {
        let dialled = socket.dialled();
        let mut addresses = [dialled.destination, dialled.any()].into_iter();
        addresses.any(|address| bound.contains(&(socket.port, address)))
    });
    Ok(open)
}

/// Ends a connection: its client receives RST, and its process an error (needs CAP_NET_ADMIN).
///
/// # Errors
/// `NotFound` if the connection has already ended; EOPNOTSUPP without `CONFIG_INET_DIAG_DESTROY`.
pub fn destroy(connection: &Socket) -> io::Result<()> {
    let body = request(connection.family, 0, &connection.id);
    ask(NETLINK_SOCK_DIAG, (DESTROY, 0), &body).map(drop)
}

/// A socket as the kernel describes it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Socket {
    family: u8,
    state: u8,
    port: u16,
    address: Address,
    peer: Address,
    interface: u32,
    /// Zero for a connection in its listener's queue.
    pub inode: u32,
    v6_only: bool,
    /// Ports, addresses and the kernel's number of the socket, which is unique since boot.
    pub id: [u8; ID],
}

impl Socket {
    pub fn addresses(&self) -> impl Iterator<Item = Address> {
        let both = self.address == ANY_V6 && !self.v6_only;
        std::iter::once(self.address).chain(both.then_some(ANY_V4))
    }

    /// Addresses and port of an accepted connection.
    pub fn dialled(&self) -> Dialled {
        Dialled {
            source: self.peer,
            destination: self.address,
            port: u32::from(self.port),
        }
    }
}

/// The sockets of both families in these states at these ports.
fn sockets(states: u32, ports: &RangeInclusive<u16>) -> io::Result<Vec<Socket>> {
    let mut found = Vec::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        let mut body = request(family as u8, states, &[0; ID]);
        body.extend(attribute(FILTER, &within(ports)));
        dump(PATIENCE, NETLINK_SOCK_DIAG, GET, &body, |answer| {
            found.push(socket(answer).ok_or_else(too_short)?);
            Ok(())
        })?;
    }
    Ok(found)
}

/// `struct inet_diag_req_v2`: family, protocol, extensions, padding, states, and the socket's id.
fn request(family: u8, states: u32, id: &[u8; ID]) -> Vec<u8> {
    let mut body = vec![family, libc::IPPROTO_TCP as u8, 0, 0];
    body.extend(states.to_ne_bytes());
    body.extend(id);
    body
}

/// Two comparisons of `struct inet_diag_bc_op`, each followed by its port: operation, bytes to the next
/// operation, and the bytes to skip if the comparison fails. Skipping 4 bytes too many rejects the socket.
fn within(ports: &RangeInclusive<u16>) -> Vec<u8> {
    let (first, last) = (*ports.start(), *ports.end());
    let comparisons = [(PORT_AT_LEAST, 20_u16, first), (PORT_AT_MOST, 12, last)];
    let encoded = comparisons.map(|(operation, skipped, port)| {
        let ([a, b], [c, d]) = (skipped.to_ne_bytes(), port.to_ne_bytes());
        [operation, 8, a, b, 0, 0, c, d]
    });
    encoded.concat()
}

/// Parses `struct inet_diag_msg`: family, state, timer, retransmissions; the id (ports, addresses,
/// interface, cookie); expiry, queues, owner, inode; then attributes.
pub fn socket(body: &[u8]) -> Option<Socket> {
    let v6_only = match find(body.get(MESSAGE..)?, V6_ONLY) {
        Some(value) => *value.first()? != 0,
        None => false,
    };
    let family = *body.first()?;
    let address = |at: usize| match i32::from(family) {
        libc::AF_INET => Some(mapped(*body.get(at..)?.first_chunk()?)),
        _ => body.get(at..)?.first_chunk().copied(),
    };
    Some(Socket {
        family,
        state: *body.get(1)?,
        port: u16::from_be_bytes(*body.get(4..)?.first_chunk()?),
        address: address(8)?,
        peer: address(24)?,
        interface: word(body, 40)?,
        inode: word(body, 68)?,
        v6_only,
        id: *body.get(4..)?.first_chunk()?,
    })
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;
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

    fn inode_of(socket: &impl AsRawFd) -> u32 {
        let file = format!("/proc/self/fd/{}", socket.as_raw_fd());
        std::fs::metadata(file).unwrap().ino() as u32
    }

    /// The client's end has another port, and a connection whose listener is gone may be the node's.
    #[test]
    fn accepted_connections_are_found_while_their_port_has_a_listener() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let client = TcpStream::connect(address).unwrap();
        let (server, _) = listener.accept().unwrap();
        let port = address.port();
        let ports = port..=port;
        let found = accepted(&ports).unwrap();
        let [connection] = &found[..] else {
            panic!("{found:?}");
        };
        assert_eq!(connection.inode, inode_of(&server));
        let loopback = mapped([127, 0, 0, 1]);
        let dialled = Dialled {
            source: loopback,
            destination: loopback,
            port: port.into(),
        };
        assert_eq!(connection.dialled(), dialled);
        let clients = client.local_addr().unwrap().port();
        assert!(accepted(&(clients..=clients)).unwrap().is_empty());
        drop(listener);
        assert!(accepted(&ports).unwrap().is_empty());
    }

    #[test]
    fn answers_cut_short_are_no_sockets() {
        let whole = [0; MESSAGE];
        assert!(socket(&whole).is_some());
        for length in 0..whole.len() {
            assert_eq!(socket(&whole[..length]), None, "{length} bytes");
        }
    }
}
