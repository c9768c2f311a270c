//! The sentinel's probes in the layout of the kernel's maps: their stages, and the source that the echo
//! saw. The agent registers a probe in the map before it sends the probe, and deletes the entry once the
//! probe is judged. The sentinel's programs add time stamps. The observer's programs drop probes that would
//! leave the node.

use crate::service::{Address, Port};

pub mod answer;
pub mod packet;

/// Key of a probe. For TCP the token is the initial sequence number, for UDP the four bytes after
/// [`UDP_MAGIC`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(C)]
pub struct ProbeKey {
    /// Random number in host order. Packets with an unregistered token are never answered.
    pub token: u32,
    /// [`Family`](crate::service::Family) as a byte.
    pub family: u8,
    /// IP protocol number: 6 or 17.
    pub protocol: u8,
    pub padding: [u8; 2],
}

pub const UDP: u8 = 17;

/// Start of a UDP probe's payload. The token follows in network order. The echo must return all
/// [`DATA_LEN`] bytes. TCP probes send the same payload as data.
pub const UDP_MAGIC: [u8; 8] = *b"pathprf1";
/// Bytes of a probe's data: [`UDP_MAGIC`] and the token.
pub const DATA_LEN: usize = UDP_MAGIC.len() + 4;

/// Difference (XOR) between the echo's initial sequence number and the token.
const ECHO_MASK: u32 = 0x5ca1_ab1e;

/// The echo's initial sequence number in its answer to a token.
#[inline(always)]
pub const fn echo_isn(token: u32) -> u32 {
    token ^ ECHO_MASK
}

/// The token for which the echo uses this initial sequence number.
#[inline(always)]
pub const fn token_of_echo(isn: u32) -> u32 {
    isn ^ ECHO_MASK
}

/// Points at which a probe is stamped, in order. The sentinel has two veth pairs, one for its client and
/// one for the echo (server). The near ends belong to the node's datapath; the agent and the echo use the
/// far ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Stage {
    /// Entered the node, like a pod's packet (ingress of the client pair's near end).
    Arrived = 0,
    /// Left for the echo, translated (egress of the server pair's near end).
    Translated = 1,
    /// Reached the echo and was answered (ingress of the server pair's far end).
    Echoed = 2,
    /// The answer entered the node (ingress of the server pair's near end).
    Returned = 3,
    /// The answer reached the client, from the frontend (ingress of the client pair's far end).
    Collected = 4,
}

pub const STAGES: usize = 5;

impl Stage {
    pub const ALL: [Stage; STAGES] = [
        Stage::Arrived,
        Stage::Translated,
        Stage::Echoed,
        Stage::Returned,
        Stage::Collected,
    ];
}

/// Phases of a probe: a handshake (SYN, SYN-ACK), then data that must come back. UDP has only data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Phase {
    Handshake = 0,
    Data = 1,
}

pub const PHASES: usize = 2;

/// A registered probe. The agent writes it once with at most one flag, which gives its kind. Programs fill
/// in the rest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Probe {
    /// `CLOCK_MONOTONIC` nanoseconds by [`Phase`] and [`Stage`]. Zero if the stage was not reached. A
    /// repeated packet does not change the time.
    pub stamps: [[u64; STAGES]; PHASES],
    /// The source that the echo saw, which differs from the sent one if the datapath masqueraded it.
    pub echo_source: Address,
    /// See `echo_source`.
    pub echo_source_port: Port,
    /// The port at which the echo was dialled. It is the endpoint's port, which is the generation.
    pub echo_port: Port,
    /// Bits of [`probe_flag`].
    pub flags: u32,
}

pub mod probe_flag {
    /// Control probe: reaches the echo without using the datapath's rules. Its answer is reported and
    /// dropped where it enters the node (ingress of the server pair's near end).
    pub const CONTROL: u32 = 1;
    /// Sent by the agent's `connect` on the host. The kernel selects its token, so the program that sees
    /// the first SYN of the socket registers the probe. If no program saw the SYN, the agent registers the
    /// probe when it closes the socket.
    pub const HOST: u32 = 1 << 1;
    /// Refused by a RST that reached the client.
    pub const REFUSED: u32 = 1 << 2;
    /// Refused by an ICMP error that reached the client.
    pub const UNREACHABLE: u32 = 1 << 3;
}

/// A socket of the agent whose first SYN is a probe. The key is its cookie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct HostProbe {
    /// Token under which the probe is registered. The program writes it when it sees the SYN.
    pub token: u32,
    /// Non-zero once `token` is written.
    pub seen: u32,
}

/// An event that the agent waits for, from the ring buffer `PROBE_EVENTS`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ProbeEvent {
    /// `CLOCK_MONOTONIC` time in nanoseconds.
    pub at_ns: u64,
    pub key: ProbeKey,
    /// See [`probe_event`].
    pub kind: u32,
    /// Sequence number of the answer (TCP) in host order.
    pub sequence: u32,
    /// Acknowledgement number of the answer (TCP) in host order.
    pub acknowledged: u32,
    pub padding: u32,
}

pub mod probe_event {
    /// A SYN-ACK was collected: data may be sent.
    pub const HANDSHAKE: u32 = 0;
    /// The data came back.
    pub const DATA: u32 = 1;
    /// RST or ICMP error; see the probe's flags.
    pub const REFUSED: u32 = 2;
}
