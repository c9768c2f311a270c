//! Packets that the kernel drops: how they are parsed, matched with followed connections, and counted.
//!
//! The program at the tracepoint `skb:kfree_skb` receives packets of every kind from everywhere in the
//! kernel. It only counts SYNs and SYN-ACKs of followed connections.

use crate::evidence::{Pending, PendingKey, state};
use crate::packet::Bytes;
use crate::service::{ExpectedHandling, Family, TCP};

/// Key by which dropped packets are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(C)]
pub struct DropKey {
    /// Id of the Service port and family.
    pub service: u32,
    /// The kernel's `enum skb_drop_reason`, whose values differ between kernels.
    pub reason: u32,
}

/// Offsets in bytes of the fields of the kernel's `struct sk_buff` that the program reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct SkbLayout {
    /// Of `head`. If it is unknown, this is zero and the program reads nothing.
    pub head: u32,
    /// Of `network_header`.
    pub network_header: u32,
    /// Of `inner_network_header`.
    pub inner_network_header: u32,
    pub padding: u32,
}

/// A dropped part of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handshake {
    pub key: PendingKey,
    /// Whether it is the SYN-ACK.
    pub is_answer: bool,
}

impl Handshake {
    /// Parses a packet that begins with its IP header. Returns `None` for packets other than SYN and
    /// SYN-ACK, for later fragments, and for packets with IPv6 extension headers.
    #[inline(always)]
    pub fn read(packet: &impl Bytes) -> Option<Self> {
        let [first] = packet.load::<1>(0)?;
        match first >> 4 {
            4 => {
                let [fragment, offset] = packet.load::<2>(6)?;
                let is_whole = (fragment & 0x1f) | offset == 0;
                let [protocol] = packet.load::<1>(9)?;
                let is_tcp = is_whole && protocol == TCP;
                Self::tcp(packet, is_tcp, usize::from(first & 0xf) * 4, Family::V4)
            }
            6 => {
                let [next] = packet.load::<1>(6)?;
                Self::tcp(packet, next == TCP, 40, Family::V6)
            }
            _ => None,
        }
    }

    #[inline(always)]
    fn tcp(packet: &impl Bytes, is_tcp: bool, at: usize, family: Family) -> Option<Self> {
        /// FIN, SYN, RST and ACK.
        const CONTROL: u8 = 0x17;
        const SYN: u8 = 0x02;
        const SYN_ACK: u8 = 0x12;
        if !is_tcp {
            return None;
        }
        let [flags] = packet.load::<1>(at + 13)?;
        let is_answer = flags & CONTROL == SYN_ACK;
        if !is_answer && flags & CONTROL != SYN {
            return None;
        }
        let [word] = packet.words::<1>(at + if is_answer { 8 } else { 4 })?;
        // An answer acknowledges the SYN's number plus one.
        let isn = u32::from_be(word).wrapping_sub(u32::from(is_answer));
        let family = family as u32;
        Some(Self {
            key: PendingKey { isn, family },
            is_answer,
        })
    }

    /// Whether its drop counts. It counts only if the node is expected to forward the connection. A SYN
    /// does not count if its answer already left for the client, because it is then only a copy.
    #[inline(always)]
    pub fn counts(&self, pending: &Pending) -> bool {
        let is_other = state::AMBIGUOUS | state::ALIAS | state::REJECTED;
        let is_copy = !self.is_answer && pending.state & state::ANSWER_OUT != 0;
        ExpectedHandling::from_byte(pending.owed).is_forward()
            && pending.state & is_other == 0
            && !is_copy
            && !pending.is_direct()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ISN: u32 = 0x1234_5678;

    /// IPv4 with an option, and TCP with these flags.
    fn v4(flags: u8, sequence: u32, acknowledged: u32) -> Vec<u8> {
        let mut packet = vec![0; 24 + 20];
        packet[0] = 0x46;
        // Don't fragment.
        packet[6] = 0x40;
        packet[9] = TCP;
        write_tcp(&mut packet[24..], flags, sequence, acknowledged);
        packet
    }

    fn v6(flags: u8, sequence: u32, acknowledged: u32) -> Vec<u8> {
        let mut packet = vec![0; 40 + 20];
        packet[0] = 0x60;
        packet[6] = TCP;
        write_tcp(&mut packet[40..], flags, sequence, acknowledged);
        packet
    }

    fn write_tcp(to: &mut [u8], flags: u8, sequence: u32, acknowledged: u32) {
        to[4..8].copy_from_slice(&sequence.to_be_bytes());
        to[8..12].copy_from_slice(&acknowledged.to_be_bytes());
        to[13] = flags;
    }

    fn read(packet: &[u8]) -> Option<(u32, u32, bool)> {
        let found = Handshake::read(&packet)?;
        Some((found.key.isn, found.key.family, found.is_answer))
    }

    #[test]
    fn a_syn_and_its_answer_are_of_one_connection() {
        // With the ECN flags, which many hosts set.
        assert_eq!(read(&v4(0xc2, ISN, 0)), Some((ISN, 0, false)));
        assert_eq!(read(&v4(0x12, 7, ISN + 1)), Some((ISN, 0, true)));
        assert_eq!(read(&v6(0x02, ISN, 0)), Some((ISN, 1, false)));
        assert_eq!(read(&v6(0x52, 7, 0)), Some((u32::MAX, 1, true)));
    }

    #[test]
    fn other_packets_are_left_alone() {
        for flags in [0x10, 0x04, 0x14, 0x11, 0x18, 0x00, 0x06] {
            assert_eq!(read(&v4(flags, ISN, ISN)), None, "{flags:#x}");
        }
        let changed = |at: usize, to: u8| {
            let mut packet = v4(0x02, ISN, 0);
            packet[at] = to;
            read(&packet)
        };
        assert_eq!(changed(9, 17), None, "UDP");
        assert_eq!(changed(7, 1), None, "a later fragment");
        assert_eq!(changed(0, 0x56), None, "no IP");
    }

    #[test]
    fn packets_of_every_length_are_safe() {
        for packet in [v4(0x02, ISN, 0), v6(0x12, 7, ISN)] {
            for length in 0..packet.len() - 6 {
                assert_eq!(read(&packet[..length]), None, "{length}");
            }
        }
    }

    #[test]
    fn only_what_was_expected_counts() {
        let counts = |is_answer, handling: ExpectedHandling, state| {
            let key = PendingKey::default();
            let pending = Pending {
                owed: handling as u8,
                state,
                ..Pending::default()
            };
            Handshake { key, is_answer }.counts(&pending)
        };
        assert!(counts(false, ExpectedHandling::Forward, 0));
        assert!(counts(false, ExpectedHandling::Forward, state::FORWARDED));
        assert!(counts(true, ExpectedHandling::Forward, state::ANSWER_OUT));
        assert!(
            !counts(false, ExpectedHandling::Forward, state::ANSWER_OUT),
            "a copy"
        );
        assert!(!counts(false, ExpectedHandling::Forward, state::AMBIGUOUS));
        assert!(!counts(false, ExpectedHandling::Reject, 0));
        assert!(!counts(false, ExpectedHandling::Nothing, 0));
    }
}
