//! Crafted packets: an AF_PACKET socket in a namespace, and SYNs for it.

use std::io;
use std::mem::size_of;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use anyhow::{Context, Result};
use etherparse::PacketBuilder;

use crate::observer::index_of;
use crate::world::{Namespace, Pod, World};

/// Sends whole Ethernet frames out of one device. The sender bounds its own rate.
#[derive(Debug)]
pub struct RawSender {
    socket: OwnedFd,
    ifindex: i32,
    /// Source and destination hardware addresses that fit the device.
    pub link: ([u8; 6], [u8; 6]),
}

impl RawSender {
    /// Out of a pod towards its host.
    pub fn from_pod(pod: &Pod) -> Result<Self> {
        Self::open(&pod.ns, "eth0", pod.link())
    }

    /// From the outside router towards the node.
    pub fn from_outside(world: &World) -> Result<Self> {
        Self::open(&world.outside, "lan0", World::outside_link())
    }

    /// Out of a device of the calling thread's namespace.
    pub fn here(device: &str, link: ([u8; 6], [u8; 6])) -> Result<Self> {
        Self::new(packet_socket(), index_of(device)?, link)
    }

    fn open(ns: &Namespace, device: &str, link: ([u8; 6], [u8; 6])) -> Result<Self> {
        Self::new(ns.run(packet_socket), ns.ifindex(device)?, link)
    }

    fn new(fd: io::Result<i32>, ifindex: u32, link: ([u8; 6], [u8; 6])) -> Result<Self> {
        let ifindex = i32::try_from(ifindex)?;
        let fd = fd.context("open a packet socket")?;
        // SAFETY: the descriptor is new and nobody else's.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self {
            socket,
            ifindex,
            link,
        })
    }

    /// Sends a frame as it is, however malformed.
    pub fn send(&self, frame: &[u8]) -> io::Result<()> {
        // SAFETY: an all-zero sockaddr_ll is valid.
        let mut to: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        to.sll_family = libc::AF_PACKET as u16;
        to.sll_ifindex = self.ifindex;
        let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: both pointers are valid for the lengths given during the call.
        let sent = unsafe {
            libc::sendto(
                self.socket.as_raw_fd(),
                frame.as_ptr().cast(),
                frame.len(),
                0,
                (&raw const to).cast(),
                length,
            )
        };
        if sent < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(())
        }
    }

    /// Sends a SYN. The same SYN again is a retransmit.
    pub fn send_syn(&self, syn: &Syn) -> io::Result<()> {
        self.send(&syn.frame(self.link))
    }
}

fn packet_socket() -> io::Result<i32> {
    // Protocol 0: this socket only sends.
    // SAFETY: socket takes numbers only.
    match unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW, 0) } {
        -1 => Err(io::Error::last_os_error()),
        fd => Ok(fd),
    }
}

/// A TCP SYN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Syn {
    /// Source address and port.
    pub source: SocketAddr,
    /// Destination address and port.
    pub destination: SocketAddr,
    /// Initial sequence number.
    pub sequence: u32,
}

impl Syn {
    /// The frame, with right checksums. Panics when the families differ.
    pub fn frame(&self, (source, destination): ([u8; 6], [u8; 6])) -> Vec<u8> {
        let link = PacketBuilder::ethernet2(source, destination);
        let internet = match (self.source.ip(), self.destination.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => link.ipv4(from.octets(), to.octets(), 64),
            (IpAddr::V6(from), IpAddr::V6(to)) => link.ipv6(from.octets(), to.octets(), 64),
            (from, to) => panic!("a SYN from {from} to {to}"),
        };
        let (from, to) = (self.source.port(), self.destination.port());
        let builder = internet.tcp(from, to, self.sequence, 64_240).syn();
        let mut frame = Vec::with_capacity(builder.size(0));
        builder
            .write(&mut frame, &[])
            .expect("a Vec takes every write");
        frame
    }
}
