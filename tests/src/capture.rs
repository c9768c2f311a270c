//! Whatever crosses any device of a namespace, in both directions, byte for byte.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::world::Namespace;
use etherparse::{NetSlice, SlicedPacket, TransportSlice};

/// Room for all that a test sends: nothing may be missed.
const BUFFER: libc::c_int = 32 << 20;
/// Longer than any frame here; loopback's are the longest.
const SNAP: usize = 72 << 10;

/// The direction of a frame, at a device of the namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// To the namespace.
    In,
    /// From it.
    Out,
}

/// A frame at a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Name of the device.
    pub device: String,
    /// As the device sees it.
    pub direction: Direction,
    /// Time at the device: `CLOCK_REALTIME` in nanoseconds.
    pub at: i128,
    /// From the Ethernet header on.
    pub bytes: Vec<u8>,
}

/// A running capture.
#[derive(Debug)]
pub struct Capture {
    /// The namespace's name.
    pub name: String,
    socket: OwnedFd,
    devices: BTreeMap<i32, String>,
    /// Taken from the kernel so far.
    pub frames: Vec<Frame>,
}

impl Capture {
    /// Begins, on every device that the namespace has now.
    pub fn start(ns: &Namespace) -> Self {
        let links = ns.ip("-o link show").expect("devices");
        let device = |line: &str| {
            let mut parts = line.split(": ");
            let index = parts.next()?.parse().ok()?;
            let name = parts.next()?.split('@').next()?;
            Some((index, name.to_owned()))
        };
        Self {
            name: ns.name().to_owned(),
            socket: ns.run(socket).expect("a packet socket"),
            devices: links.lines().filter_map(device).collect(),
            frames: Vec::new(),
        }
    }

    /// Takes what came since.
    pub fn drain(&mut self) {
        let mut bytes = vec![0; SNAP];
        while let Some((length, from)) = receive(&self.socket, &mut bytes) {
            assert!(length < SNAP, "a frame of {length} bytes");
            let direction = if from.sll_pkttype == libc::PACKET_OUTGOING {
                Direction::Out
            } else {
                Direction::In
            };
            let unknown = || format!("device {}", from.sll_ifindex);
            let device = self.devices.get(&from.sll_ifindex).cloned();
            self.frames.push(Frame {
                device: device.unwrap_or_else(unknown),
                direction,
                at: stamp(&self.socket),
                bytes: bytes[..length].to_vec(),
            });
        }
    }

    /// Frames that the kernel had no room for.
    pub fn missed(&self) -> u32 {
        // SAFETY: an all-zero tpacket_stats is valid.
        let mut stats: libc::tpacket_stats = unsafe { std::mem::zeroed() };
        let mut length = size_of::<libc::tpacket_stats>() as libc::socklen_t;
        // SAFETY: both pointers are live for the call, and the length is that of the struct.
        let got = unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                (&raw mut stats).cast(),
                &raw mut length,
            )
        };
        assert_eq!(got, 0, "{}", io::Error::last_os_error());
        stats.tp_drops
    }
}

impl Frame {
    /// Whether somebody sent it: not the kernel's own talk of neighbours and multicast groups,
    /// which comes when it likes.
    pub fn is_somebodys(&self) -> bool {
        match self.bytes.get(12..14) {
            // Multicast listeners of IPv4 (IGMP).
            Some([0x08, 0x00]) => self.bytes.get(23) != Some(&2),
            Some([0x86, 0xdd]) => match SlicedPacket::from_ethernet(&self.bytes) {
                Ok(packet) => match packet.transport {
                    // Multicast listeners, routers, neighbours, redirects, and listeners again.
                    Some(TransportSlice::Icmpv6(icmp)) => {
                        !matches!(icmp.type_u8(), 130..=137 | 143)
                    }
                    _ => true,
                },
                Err(_) => true,
            },
            _ => false,
        }
    }

    /// Whether it opens a TCP connection.
    pub fn is_syn(&self) -> bool {
        let packet = SlicedPacket::from_ethernet(&self.bytes).ok();
        let transport = packet.and_then(|packet| packet.transport);
        matches!(transport, Some(TransportSlice::Tcp(tcp)) if tcp.syn() && !tcp.ack())
    }

    /// Its addresses, with ports where it has some.
    pub fn ends(&self) -> Option<[(IpAddr, u16); 2]> {
        let packet = SlicedPacket::from_ethernet(&self.bytes).ok()?;
        let (from, to): (IpAddr, IpAddr) = match packet.net? {
            NetSlice::Ipv4(ip) => (
                ip.header().source_addr().into(),
                ip.header().destination_addr().into(),
            ),
            NetSlice::Ipv6(ip) => (
                ip.header().source_addr().into(),
                ip.header().destination_addr().into(),
            ),
            NetSlice::Arp(_) => return None,
        };
        let (source, destination) = match packet.transport {
            Some(TransportSlice::Tcp(tcp)) => (tcp.source_port(), tcp.destination_port()),
            Some(TransportSlice::Udp(udp)) => (udp.source_port(), udp.destination_port()),
            _ => (0, 0),
        };
        Some([(from, source), (to, destination)])
    }
}

fn socket() -> io::Result<OwnedFd> {
    let every = (libc::ETH_P_ALL as u16).to_be();
    let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: socket takes numbers only.
    let fd = unsafe { libc::socket(libc::AF_PACKET, kind, libc::c_int::from(every)) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and nobody else's.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let buffer = BUFFER;
    // SAFETY: the pointer is that of a live number of the size given.
    let set = unsafe {
        libc::setsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_RCVBUFFORCE,
            (&raw const buffer).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if set < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(socket)
}

/// Time of the frame that was received last.
fn stamp(socket: &OwnedFd) -> i128 {
    /// Of a `timespec`, which the kernel fills in.
    const SIOCGSTAMPNS: libc::c_ulong = 0x8907;
    // SAFETY: an all-zero timespec is valid.
    let mut time: libc::timespec = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is that of a live timespec. It fails for a socket that received nothing yet,
    // and the time stays zero.
    unsafe { libc::ioctl(socket.as_raw_fd(), SIOCGSTAMPNS, &raw mut time) };
    i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)
}

fn receive(socket: &OwnedFd, bytes: &mut [u8]) -> Option<(usize, libc::sockaddr_ll)> {
    // SAFETY: an all-zero sockaddr_ll is valid.
    let mut from: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: all pointers are live for the call, with the lengths given.
    let got = unsafe {
        libc::recvfrom(
            socket.as_raw_fd(),
            bytes.as_mut_ptr().cast(),
            bytes.len(),
            0,
            (&raw mut from).cast(),
            &raw mut length,
        )
    };
    // Nothing left: the socket does not block.
    usize::try_from(got).ok().map(|got| (got, from))
}
