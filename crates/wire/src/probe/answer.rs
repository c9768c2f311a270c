//! The echo's answer to a probe's packet, written in place. The echo program runs this over packets, and
//! the host tests over slices.
//!
//! Checksums are updated by difference and never computed, because the checksum of a packet from the node
//! itself may be unfinished (CHECKSUM_PARTIAL). Swapping addresses or ports does not change a checksum.

use super::packet::{IPV4_ADDRESSES, IPV6_ADDRESSES, Kind, ProbePacket};
use super::{DATA_LEN, echo_isn};
use crate::packet::{Bytes, tcp_flag};
use crate::service::{Family, TCP};

/// A packet that can be modified.
pub trait Wire: Bytes {
    /// Writes bytes. Returns `None` if the packet is shorter.
    fn store<const N: usize>(&self, offset: usize, bytes: [u8; N]) -> Option<()>;
    /// Updates the checksum at `offset` for a word that changes from `from` to `to`, both in memory order.
    fn adjust(&self, offset: usize, from: u32, to: u32) -> Option<()>;
}

/// Offset of the checksum in a TCP header.
const TCP_CHECKSUM: usize = 16;
const TCP_LEN: usize = 20;
/// Maximum number of words of options in a TCP header.
const MAX_OPTION_WORDS: usize = 10;
/// Four options of the kind "no operation".
const NO_OPERATION: u32 = 0x0101_0101;
/// Push: deliver the data without waiting for more.
const PSH: u8 = 0x08;

/// Turns a SYN into its SYN-ACK, or data into the same data on its way back. If this returns `None`, the
/// packet may be half modified and must be dropped.
#[inline(always)]
pub fn answer<W: Wire>(wire: &W, packet: &ProbePacket) -> Option<()> {
    turn(wire, packet)?;
    if packet.key.protocol != TCP {
        return Some(());
    }
    let (sequence, acknowledged, flags) = match packet.kind {
        Kind::Syn => (
            echo_isn(packet.key.token),
            packet.sequence.wrapping_add(1),
            tcp_flag::SYN | tcp_flag::ACK,
        ),
        Kind::Data => (
            packet.acknowledged,
            packet.sequence.wrapping_add(DATA_LEN as u32),
            tcp_flag::ACK | PSH,
        ),
        _ => return None,
    };
    let at = packet.transport as usize;
    replace(wire, at, 4, sequence.to_be())?;
    replace(wire, at, 8, acknowledged.to_be())?;
    let [lengths]: [u32; 1] = wire.words(at + 12)?;
    let [units, _, window_high, window_low] = lengths.to_ne_bytes();
    // Clear the ECN bits, because they have another meaning in an answer.
    let answered = [units & 0xf0, flags, window_high, window_low];
    replace(wire, at, 12, u32::from_ne_bytes(answered))?;
    blank_options(wire, at, packet.header_len as usize)
}

/// Swaps source and destination of link, network and transport.
#[inline(always)]
fn turn<W: Wire>(wire: &W, packet: &ProbePacket) -> Option<()> {
    swap::<W, 6>(wire, 0)?;
    match packet.family {
        Family::V4 => swap::<W, 4>(wire, IPV4_ADDRESSES)?,
        Family::V6 => swap::<W, 16>(wire, IPV6_ADDRESSES)?,
    }
    swap::<W, 2>(wire, packet.transport as usize)
}

/// Swaps the `N` bytes at an offset with the next `N`.
#[inline(always)]
fn swap<W: Wire, const N: usize>(wire: &W, at: usize) -> Option<()> {
    let first: [u8; N] = wire.load(at)?;
    let second: [u8; N] = wire.load(at + N)?;
    wire.store(at, second)?;
    wire.store(at + N, first)
}

/// Overwrites the options: sending them back would accept the offers (multipath TCP, fast open, TCP-AO).
#[inline(always)]
fn blank_options<W: Wire>(wire: &W, at: usize, header_len: usize) -> Option<()> {
    for index in 0..MAX_OPTION_WORDS {
        let offset = TCP_LEN + index * 4;
        if offset + 4 > header_len {
            break;
        }
        replace(wire, at, offset, NO_OPERATION)?;
    }
    Some(())
}

/// Replaces the word at `offset` of the TCP header at `at`, and updates the checksum.
#[inline(always)]
fn replace<W: Wire>(wire: &W, at: usize, offset: usize, to: u32) -> Option<()> {
    let [from]: [u32; 1] = wire.words(at + offset)?;
    wire.adjust(at + TCP_CHECKSUM, from, to)?;
    wire.store(at + offset, to.to_ne_bytes())
}
