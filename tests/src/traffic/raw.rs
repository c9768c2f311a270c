//! Crafted packets: an AF_PACKET socket in a namespace, and SYNs for it.

use std::io;
use std::net::SocketAddr;

use anyhow::{Context, Result};
use socket2::{Domain, SockAddr, SockAddrStorage, Socket, Type};

use crate::observer::index_of;
use crate::packet::{self, Hardware};
use crate::world::{Namespace, Pod, World};

/// Sends whole Ethernet frames out of one device. The caller limits the rate.
#[derive(Debug)]
pub struct RawSender {
    socket: Socket,
    device: SockAddr,
    /// Source and destination hardware addresses that fit the device.
    pub link: Hardware,
}

impl RawSender {
    /// From a pod towards its host.
    pub fn from_pod(pod: &Pod) -> Result<Self> {
        Self::open(&pod.ns, "eth0", pod.link())
    }

    /// From the outside router towards the node.
    pub fn from_outside(world: &World) -> Result<Self> {
        Self::open(&world.outside, "lan0", World::outside_link())
    }

    fn open(ns: &Namespace, device: &str, link: Hardware) -> Result<Self> {
        ns.run(|| Self::here(device, link))
    }

    /// From a device of the calling thread's namespace.
    pub fn here(device: &str, link: Hardware) -> Result<Self> {
        // Protocol 0, because this socket only sends.
        let socket = Socket::new(Domain::PACKET, Type::RAW, None);
        Ok(Self {
            socket: socket.context("open a packet socket")?,
            device: link_address(index_of(device)?)?,
            link,
        })
    }

    /// Sends a frame unchanged, even if it is malformed.
    pub fn send(&self, frame: &[u8]) -> io::Result<()> {
        self.socket.send_to(frame, &self.device).map(drop)
    }

    /// Sends a SYN. Sending the same SYN again is a retransmission.
    pub fn send_syn(&self, from: SocketAddr, to: SocketAddr, sequence: u32) -> io::Result<()> {
        let syn = packet::syn(from, to, sequence).between(self.link);
        self.send(&syn.bytes())
    }
}

fn link_address(index: u32) -> io::Result<SockAddr> {
    let init = |storage: *mut SockAddrStorage, length: *mut libc::socklen_t| {
        // SAFETY: the storage is zeroed, and has room and alignment for every kind of address.
        unsafe {
            let to = storage.cast::<libc::sockaddr_ll>();
            (*to).sll_family = libc::AF_PACKET as u16;
            (*to).sll_ifindex = index as i32;
            *length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        }
        Ok(())
    };
    // SAFETY: `init` writes an address of the length that it sets.
    let ((), address) = unsafe { SockAddr::try_init(init) }?;
    Ok(address)
}
