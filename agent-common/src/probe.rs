//! The sentinel's probes as the kernel holds them: what was sent, the stages it passed, what the
//! echo saw. The agent registers a probe before it sends it and deletes it when it is judged; the
//! sentinel's programs only stamp. The observer's programs drop those that would leave the node.

use crate::service::{Address, Port};

pub mod answer;
pub mod packet;

/// A probe is known by its token: for TCP the initial sequence number, for UDP the first four bytes
/// behind [`UDP_MAGIC`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(C)]
pub struct ProbeKey {
    /// Taken at random, host order. An unregistered one is not answered, from wherever it comes.
    pub token: u32,
    /// [`Family`](crate::service::Family) as a byte.
    pub family: u8,
    /// IP protocol number: 6 or 17.
    pub protocol: u8,
    /// Always zero.
    pub padding: [u8; 2],
}

/// IP protocol number of UDP.
pub const UDP: u8 = 17;

/// Start of a UDP probe's payload; its token follows in network order, then
/// [`DATA_LEN`] bytes that must come back. TCP probes send the same as data.
pub const UDP_MAGIC: [u8; 8] = *b"pathprf1";
/// Bytes of a probe's data: [`UDP_MAGIC`] and the token.
pub const DATA_LEN: usize = UDP_MAGIC.len() + 4;

/// Difference (XOR) between the echo's initial sequence number and the token.
const ECHO_MASK: u32 = 0x5ca1_ab1e;

/// The initial sequence number with which the echo answers a token.
#[inline(always)]
pub const fn echo_isn(token: u32) -> u32 {
    token ^ ECHO_MASK
}

/// The token that the echo answers with this initial sequence number.
#[inline(always)]
pub const fn token_of_echo(isn: u32) -> u32 {
    isn ^ ECHO_MASK
}

/// Stages on the way of a probe, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Stage {
    /// Came into the node, as a pod's packet would (ingress of the client pair's near end).
    Arrived = 0,
    /// Left for the echo, translated (egress of the server pair's near end).
    Translated = 1,
    /// Reached the echo and was answered (ingress of the server pair's far end).
    Echoed = 2,
    /// The answer came into the node (ingress of the server pair's near end).
    Returned = 3,
    /// The answer reached the client, from the frontend (ingress of the client pair's far end).
    Collected = 4,
}

/// Number of stages.
pub const STAGES: usize = 5;

impl Stage {
    /// All, in their order.
    pub const ALL: [Stage; STAGES] = [
        Stage::Arrived,
        Stage::Translated,
        Stage::Echoed,
        Stage::Returned,
        Stage::Collected,
    ];
}

/// Phases of a probe: a handshake (SYN, SYN-ACK), then data that must come back. UDP has data
/// alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Phase {
    /// SYN and its answer.
    Handshake = 0,
    /// Data and its answer.
    Data = 1,
}

/// Number of phases.
pub const PHASES: usize = 2;

/// A registered probe. The agent writes it once, with a flag that says whose it is or none; programs
/// fill in the rest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Probe {
    /// `CLOCK_MONOTONIC` ns by [`Phase`] and [`Stage`]; zero where it was not seen; the first time
    /// stays.
    pub stamps: [[u64; STAGES]; PHASES],
    /// The source that the echo saw: another than was sent where the datapath masqueraded.
    pub echo_source: Address,
    /// See `echo_source`.
    pub echo_source_port: Port,
    /// The port at which the echo was dialled: the endpoint's port, which is the generation.
    pub echo_port: Port,
    /// Bits of [`probe_flag`].
    pub flags: u32,
}

/// Flags of a probe.
pub mod probe_flag {
    /// Goes to the echo past the datapath: collected, and dropped, where it comes back into the
    /// node (ingress of the server pair's near end).
    pub const CONTROL: u32 = 1;
    /// Dialled by the host's own `connect`: registered by the program that found its socket's
    /// cookie, or by the agent for as long as it closes it.
    pub const HOST: u32 = 1 << 1;
    /// Refused by a RST that reached the client.
    pub const REFUSED: u32 = 1 << 2;
    /// Refused by an ICMP error that reached the client.
    pub const UNREACHABLE: u32 = 1 << 3;
}

/// A socket of the agent's whose first SYN is a probe. Key: its cookie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct HostProbe {
    /// Written by the program once it saw the SYN: the token under which the probe is registered.
    pub token: u32,
    /// Non-zero once `token` is written.
    pub seen: u32,
}

/// Something that the agent waits for; read from the ring buffer `PROBE_EVENTS`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ProbeEvent {
    /// Time of the event, `CLOCK_MONOTONIC` ns.
    pub at_ns: u64,
    pub key: ProbeKey,
    /// [`probe_event`].
    pub kind: u32,
    /// Sequence number of the answer (TCP), host order.
    pub sequence: u32,
    /// Acknowledgement number of the answer (TCP), host order.
    pub acknowledged: u32,
    /// Always zero.
    pub padding: u32,
}

/// Kinds of events.
pub mod probe_event {
    /// A SYN-ACK was collected: data may be sent.
    pub const HANDSHAKE: u32 = 0;
    /// The data came back.
    pub const DATA: u32 = 1;
    /// RST or ICMP error; see the probe's flags.
    pub const REFUSED: u32 = 2;
}
