//! Crafted packets: an AF_PACKET socket in a namespace, and SYNs for it.

use std::io;
use std::mem::size_of;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use anyhow::{Context, Result};

use crate::observer::index_of;
use crate::packet::{self, Hardware};
use crate::world::{Namespace, Pod, World};

/// Sends whole Ethernet frames out of one device. The sender bounds its own rate.
#[derive(Debug)]
pub struct RawSender {
    socket: OwnedFd,
    ifindex: i32,
    /// Source and destination hardware addresses that fit the device.
    pub link: Hardware,
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
    pub fn here(device: &str, link: Hardware) -> Result<Self> {
        Self::new(packet_socket(), index_of(device)?, link)
    }

    fn open(ns: &Namespace, device: &str, link: Hardware) -> Result<Self> {
        Self::new(ns.run(packet_socket), ns.ifindex(device)?, link)
    }

    fn new(fd: io::Result<i32>, ifindex: u32, link: Hardware) -> Result<Self> {
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
        let packet = packet::syn(syn.source, syn.destination, syn.sequence);
        self.send(&packet.between(self.link).bytes())
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
