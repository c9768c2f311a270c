//! Ethernet frames of probes, as a pod would send them: SYN, data, RST and datagram over IPv4 and
//! IPv6, with right lengths and checksums. It must not send anything.

use std::net::{IpAddr, SocketAddr};

use agent_common::probe::{DATA_LEN, UDP_MAGIC};
use etherparse::{Ethernet2Header, PacketBuilder, PacketBuilderStep, TcpHeader, TcpOptionElement};
use thiserror::Error;

/// A hardware address.
pub type Mac = [u8; 6];

/// Hop limit of every frame: what Linux sends.
const HOPS: u8 = 64;
/// Window of every segment: what Linux offers in a SYN.
const WINDOW: u16 = 64_240;
/// Bytes of a segment at 1500 of a packet, by family.
const MSS_IPV4: u16 = 1_460;
const MSS_IPV6: u16 = 1_440;

/// Why a frame cannot be made.
#[derive(Debug, Error)]
pub enum FrameError {
    /// Two families.
    #[error("cannot send from {from} to {to}: the addresses are of two families")]
    Families {
        /// Source.
        from: IpAddr,
        /// Destination.
        to: IpAddr,
    },
    /// A header refused a value.
    #[error("cannot build a frame for {to}: {reason}")]
    Build {
        /// Destination.
        to: SocketAddr,
        /// Why not.
        reason: String,
    },
}

/// From where to where, on the link and above it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Source and destination on the link.
    pub link: (Mac, Mac),
    /// Source address and port.
    pub from: SocketAddr,
    /// Destination address and port.
    pub to: SocketAddr,
}

/// The bytes that a probe carries as data, and that must come back.
pub fn data(token: u32) -> [u8; DATA_LEN] {
    let mut data = [0; DATA_LEN];
    let (magic, rest) = data.split_at_mut(UDP_MAGIC.len());
    magic.copy_from_slice(&UDP_MAGIC);
    rest.copy_from_slice(&token.to_be_bytes());
    data
}

/// The packet in a frame.
pub fn packet(frame: &[u8]) -> &[u8] {
    frame.get(Ethernet2Header::LEN..).unwrap_or_default()
}

impl Flow {
    /// A connection's first segment. Each function replaces what `frame` held.
    pub fn syn(&self, frame: &mut Vec<u8>, sequence: u32) -> Result<(), FrameError> {
        let mss = match self.to {
            SocketAddr::V4(_) => MSS_IPV4,
            SocketAddr::V6(_) => MSS_IPV6,
        };
        let mut header = self.tcp(sequence);
        header.syn = true;
        header
            .set_options(&[TcpOptionElement::MaximumSegmentSize(mss)])
            .map_err(|error| self.refused(error))?;
        self.segment(frame, header, &[])
    }

    /// Data behind a handshake.
    pub fn push(
        &self,
        frame: &mut Vec<u8>,
        sequence: u32,
        acknowledged: u32,
        data: &[u8],
    ) -> Result<(), FrameError> {
        let mut header = self.tcp(sequence);
        header.psh = true;
        header.ack = true;
        header.acknowledgment_number = acknowledged;
        self.segment(frame, header, data)
    }

    /// The end of a connection. `sequence` follows the last byte sent, `acknowledged` the last byte
    /// received, and is left out where nothing was: connection tracking closes an entry for no other
    /// numbers, and keeps it for five minutes instead.
    pub fn reset(
        &self,
        frame: &mut Vec<u8>,
        sequence: u32,
        acknowledged: Option<u32>,
    ) -> Result<(), FrameError> {
        let mut header = self.tcp(sequence);
        header.rst = true;
        header.window_size = 0;
        if let Some(acknowledged) = acknowledged {
            header.ack = true;
            header.acknowledgment_number = acknowledged;
        }
        self.segment(frame, header, &[])
    }

    /// A UDP datagram.
    pub fn datagram(&self, frame: &mut Vec<u8>, data: &[u8]) -> Result<(), FrameError> {
        frame.clear();
        self.packet()?
            .udp(self.from.port(), self.to.port())
            .write_to_vec(frame, data)
            .map_err(|error| self.refused(error))
    }

    fn tcp(&self, sequence: u32) -> TcpHeader {
        TcpHeader::new(self.from.port(), self.to.port(), sequence, WINDOW)
    }

    fn segment(
        &self,
        frame: &mut Vec<u8>,
        header: TcpHeader,
        data: &[u8],
    ) -> Result<(), FrameError> {
        frame.clear();
        self.packet()?
            .tcp_header(header)
            .write_to_vec(frame, data)
            .map_err(|error| self.refused(error))
    }

    fn packet(&self) -> Result<PacketBuilderStep<etherparse::IpHeaders>, FrameError> {
        let link = PacketBuilder::ethernet2(self.link.0, self.link.1);
        match (self.from.ip(), self.to.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => Ok(link.ipv4(from.octets(), to.octets(), HOPS)),
            (IpAddr::V6(from), IpAddr::V6(to)) => Ok(link.ipv6(from.octets(), to.octets(), HOPS)),
            (from, to) => Err(FrameError::Families { from, to }),
        }
    }

    fn refused(&self, error: impl std::fmt::Display) -> FrameError {
        FrameError::Build {
            to: self.to,
            reason: error.to_string(),
        }
    }
}

#[cfg(test)]
mod tests;
