//! A packet capture on all devices of a namespace, in both directions.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd;

use etherparse::{IpSlice, SlicedPacket, TransportSlice};
use nix::sys::socket::{setsockopt, sockopt};
use socket2::{Domain, Socket, Type};

use crate::world::Namespace;

/// Size of the receive buffer, large enough for all packets of a test.
const BUFFER: usize = 32 << 20;
/// Snap length, longer than any frame here; loopback has the longest.
const SNAP: usize = 72 << 10;

/// The direction of a frame at a device of the namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// To the namespace.
    In,
    /// From the namespace.
    Out,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    pub device: String,
    /// Direction of the frame at its device.
    pub direction: Direction,
    /// Time at the device: `CLOCK_REALTIME` in nanoseconds.
    pub at: i128,
    /// From the Ethernet header on.
    pub bytes: Vec<u8>,
}

#[derive(Debug)]
pub struct Capture {
    pub name: String,
    socket: Socket,
    devices: BTreeMap<i32, String>,
    /// Frames read so far.
    pub frames: Vec<Frame>,
}

impl Capture {
    /// Starts on all devices that the namespace has now.
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

    /// Reads the frames that have arrived.
    pub fn drain(&mut self) {
        let mut frame = Vec::with_capacity(SNAP);
        // The socket does not block: it returns an error if no frame is left.
        while let Ok((length, from)) = self.socket.recv_from(frame.spare_capacity_mut()) {
            assert!(length < SNAP, "a frame of {length} bytes");
            // SAFETY: the kernel wrote this many bytes.
            unsafe { frame.set_len(length) };
            // SAFETY: the kernel gives a packet socket an address of this kind.
            let from = unsafe { *from.as_ptr().cast::<libc::sockaddr_ll>() };
            let index = from.sll_ifindex;
            let device = self.devices.get(&index).cloned();
            self.frames.push(Frame {
                device: device.unwrap_or_else(|| format!("device {index}")),
                direction: match from.sll_pkttype {
                    libc::PACKET_OUTGOING => Direction::Out,
                    _ => Direction::In,
                },
                at: stamp(&self.socket),
                bytes: frame.clone(),
            });
            frame.clear();
        }
    }

    /// Number of frames that the kernel dropped for lack of room.
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
    /// Whether a program sent the frame, and not the kernel: the kernel sends neighbour and multicast
    /// messages at unpredictable times.
    pub fn is_somebodys(&self) -> bool {
        match (self.bytes.get(12..14), self.transport()) {
            // IGMP, the multicast listener reports of IPv4.
            (Some([0x08, 0x00]), _) => self.bytes.get(23) != Some(&2),
            // Multicast listener, router, neighbour and redirect messages of ICMPv6.
            (Some([0x86, 0xdd]), Some(TransportSlice::Icmpv6(icmp))) => {
                !matches!(icmp.type_u8(), 130..=137 | 143)
            }
            (Some([0x86, 0xdd]), _) => true,
            _ => false,
        }
    }

    fn transport(&self) -> Option<TransportSlice<'_>> {
        SlicedPacket::from_ethernet(&self.bytes).ok()?.transport
    }

    /// Whether it opens a TCP connection.
    pub fn is_syn(&self) -> bool {
        matches!(self.transport(), Some(TransportSlice::Tcp(tcp)) if tcp.syn() && !tcp.ack())
    }

    /// Sequence number of the answer that accepts a TCP connection.
    pub fn syn_ack(&self) -> Option<u32> {
        match self.transport()? {
            TransportSlice::Tcp(tcp) if tcp.syn() && tcp.ack() => Some(tcp.sequence_number()),
            _ => None,
        }
    }

    /// Source and destination, with port 0 if the protocol has none.
    pub fn ends(&self) -> Option<[(IpAddr, u16); 2]> {
        let ip = IpSlice::from_slice(self.bytes.get(14..)?).ok()?;
        let (source, destination) = match self.transport() {
            Some(TransportSlice::Tcp(tcp)) => (tcp.source_port(), tcp.destination_port()),
            Some(TransportSlice::Udp(udp)) => (udp.source_port(), udp.destination_port()),
            _ => (0, 0),
        };
        let (from, to) = (ip.source_addr(), ip.destination_addr());
        Some([(from, source), (to, destination)])
    }
}

fn socket() -> io::Result<Socket> {
    let every = (libc::ETH_P_ALL as u16).to_be();
    let protocol = libc::c_int::from(every).into();
    let socket = Socket::new(Domain::PACKET, Type::RAW, Some(protocol))?;
    socket.set_nonblocking(true)?;
    setsockopt(&socket, sockopt::RcvBufForce, &BUFFER)?;
    Ok(socket)
}

fn stamp(socket: &Socket) -> i128 {
    /// Reads a `timespec`.
    const SIOCGSTAMPNS: libc::c_ulong = 0x8907;
    // SAFETY: an all-zero timespec is valid.
    let mut time: libc::timespec = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is that of a live timespec. The call fails for a socket that received nothing
    // yet, and the time stays zero.
    unsafe { libc::ioctl(socket.as_raw_fd(), SIOCGSTAMPNS, &raw mut time) };
    i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)
}
