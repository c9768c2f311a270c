//! Evidence in the layout of the kernel's maps: pending connections, counts per Service, times of the last
//! proofs, anomalies. Times are `CLOCK_MONOTONIC` nanoseconds (`bpf_ktime_get_ns`).

use crate::service::{Address, FAMILIES, Port, SOURCE_CLASSES, frontend_flag};

/// Key of a connection: its family and the client's initial sequence number, which NAT does not change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(C)]
pub struct PendingKey {
    /// Initial sequence number in host order.
    pub isn: u32,
    /// [`Family`](crate::service::Family).
    pub family: u32,
}

/// A pending connection. It is written at the first [sighting](crate::transition::Sighting). After that,
/// only the state and the last three fields change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Pending {
    /// Time at which its SYN was first seen.
    pub arrived_ns: u64,
    /// Bits of [`state`], moved forward by compare-and-swap.
    pub state: u32,
    /// Id of the Service port and family. For an alias, the initial sequence number of its connection.
    pub service: u32,
    /// Device of the first sighting.
    pub device: u32,
    pub client_port: Port,
    pub frontend_port: Port,
    pub client: Address,
    pub frontend: Address,
    /// [`SourceClass`](crate::service::SourceClass).
    pub class: u8,
    /// [`ExpectedHandling`](crate::service::ExpectedHandling) of that class.
    pub owed: u8,
    /// [`FrontendKind`](crate::service::FrontendKind).
    pub kind: u8,
    /// Bits of [`frontend_flag`].
    pub flags: u8,
    /// For a datagram, microseconds from its arrival to its first answer; for a connection, see
    /// [`Self::peer`]. Zero until known.
    pub note: u32,
    /// Index of the device by which the SYN last left for an endpoint on the node [`Self::peer`]. Zero
    /// until it left.
    pub left_by: u32,
    /// Range of that endpoint's address ([`range_of`]). Zero until the SYN left.
    pub range: u32,
}

/// A number for the range of an address: its /24 or, in IPv6, its /120. Pods of different nodes are in
/// different ranges, so all addresses of a range have the same route.
#[inline(always)]
pub fn range_of(address: &Address) -> u32 {
    let number = u128::from_be_bytes(*address) >> 8;
    let folded = (number >> 64) as u64 ^ number as u64;
    (folded >> 32) as u32 ^ folded as u32
}

impl Pending {
    /// Whether the client dialled the address of an endpoint that has left its slice
    /// ([`DEPARTED`](frontend_flag::DEPARTED)).
    #[inline(always)]
    pub fn is_direct(&self) -> bool {
        self.flags & frontend_flag::DEPARTED != 0
    }

    /// For a connection, the number of the other node that it was last sent to
    /// ([`EndpointValue::peer`](crate::service::EndpointValue::peer)), or [`NEAR`](crate::service::NEAR);
    /// zero before that.
    pub fn peer(&self) -> u16 {
        self.note as u16
    }
}

/// Bits of a connection's state. No bit is ever cleared.
pub mod state {
    /// Left for a current endpoint.
    pub const FORWARDED: u32 = 1 << 0;
    /// Left for a current endpoint by the device that the route specifies, or answered.
    pub const PROVEN: u32 = 1 << 1;
    /// An answer of the endpoint entered the node.
    pub const ANSWER_IN: u32 = 1 << 2;
    /// An answer left for the client, or entered and passes no other hook on its way there
    /// ([`LAST`](crate::transition::detail::LAST)).
    pub const ANSWER_OUT: u32 = 1 << 3;
    /// Refused by the node.
    pub const REFUSED: u32 = 1 << 4;
    /// Left by an uplink, untranslated.
    pub const LEAKED: u32 = 1 << 5;
    /// Left for an address that is not an endpoint of the Service.
    pub const MISROUTED: u32 = 1 << 6;
    /// Left for an endpoint that has left its slice.
    pub const STALE: u32 = 1 << 7;
    /// Did not get through, and was not expected to.
    pub const REJECTED: u32 = 1 << 8;
    /// The client repeated its SYN although an answer had left for it.
    pub const ANSWER_NOT_DELIVERED: u32 = 1 << 9;
    /// The same SYN was repeated.
    pub const RETRANSMITTED: u32 = 1 << 10;
    /// Another connection has the same initial sequence number, so neither is evidence.
    pub const AMBIGUOUS: u32 = 1 << 11;
    /// The entry is an alias: a second key of the connection whose initial sequence number `service`
    /// contains. An answer that acknowledges a payload (TCP fast open, data) finds the connection by the
    /// alias.
    pub const ALIAS: u32 = 1 << 12;
    /// Got through only after the loss window. It was already reported as failed, so later events count no
    /// other outcome.
    pub const LATE: u32 = 1 << 13;
    /// Its first answer entered after the loss window, so the endpoint was slow.
    pub const SLOW: u32 = 1 << 14;

    /// Data of the client entered after the answer to its SYN left.
    pub const DATA: u32 = 1 << 15;
    /// The same data entered a second time.
    pub const DATA_AGAIN: u32 = 1 << 16;
    /// The same data entered a third time.
    pub const DATA_THRICE: u32 = 1 << 17;
    /// The data left for an endpoint.
    pub const DATA_FORWARDED: u32 = 1 << 18;
    /// Data that acknowledges the client's data left for the client.
    pub const DATA_ANSWERED: u32 = 1 << 19;

    pub const ANSWERED: u32 = ANSWER_IN | ANSWER_OUT;
    /// Apparent failures. An answer outweighs them.
    pub const FAILING: u32 = REFUSED | LEAKED | MISROUTED | STALE;
    /// Anything except a mere arrival.
    pub const PROGRESS: u32 = FORWARDED
        | PROVEN
        | ANSWERED
        | FAILING
        | REJECTED
        | ANSWER_NOT_DELIVERED
        | AMBIGUOUS
        | ALIAS;
}

/// Outcomes that are counted per Service and source class. A connection is counted at most once under each,
/// and the failures exclude one another.
///
/// The agent counts refused, leaked, misrouted and stale connections, once the loss window is over without
/// an answer ([`failed`](crate::transition::failed)). It also counts lost connections, which are not in
/// this list. The eBPF programs count all other outcomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Outcome {
    /// A first SYN arrived.
    Arrived = 0,
    /// It left for a current endpoint.
    Forwarded = 1,
    /// Left by the device that the route specifies, or answered.
    Proven = 2,
    /// Answered by SYN-ACK, or by RST of the endpoint.
    Answered = 3,
    /// Refused by the node, by RST or ICMP.
    Refused = 4,
    /// Left untranslated.
    Leaked = 5,
    /// Left for an address that is not an endpoint of the Service.
    Misrouted = 6,
    /// Left for an endpoint that has left its slice.
    Stale = 7,
    /// The client repeated its SYN although an answer had left for it.
    AnswerNotDelivered = 8,
    /// Did not get through, and was not expected to.
    Rejected = 9,
    /// Repeated SYNs.
    Retransmitted = 10,
}

pub const OUTCOMES: usize = 11;

impl Outcome {
    pub const ALL: [Outcome; OUTCOMES] = [
        Outcome::Arrived,
        Outcome::Forwarded,
        Outcome::Proven,
        Outcome::Answered,
        Outcome::Refused,
        Outcome::Leaked,
        Outcome::Misrouted,
        Outcome::Stale,
        Outcome::AnswerNotDelivered,
        Outcome::Rejected,
        Outcome::Retransmitted,
    ];

    /// Converts the byte in an [`Anomaly`].
    pub fn from_byte(byte: u8) -> Option<Outcome> {
        Self::ALL.get(usize::from(byte)).copied()
    }
}

/// Counts of one Service port and family. They wrap, so readers use differences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct ServiceCounts {
    /// By [`SourceClass`](crate::service::SourceClass), then [`Outcome`].
    pub counts: [[u32; OUTCOMES]; SOURCE_CLASSES],
    pub padding: u32,
    /// Time at which this Service last reported an anomaly.
    pub reported_ns: u64,
}

impl Default for ServiceCounts {
    fn default() -> Self {
        Self {
            counts: [[0; OUTCOMES]; SOURCE_CLASSES],
            padding: 0,
            reported_ns: 0,
        }
    }
}

/// Services that share one word of [`Touched`].
pub const TOUCH_CHUNK: u32 = 16;
pub const TOUCH_WORDS: usize = (crate::abi::MAX_SERVICES / TOUCH_CHUNK) as usize;

/// One word per [`TOUCH_CHUNK`] Services, which is incremented with each count. So a reader only has to
/// read the counts of chunks whose word changed. Words wrap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Touched {
    /// Index: service id / [`TOUCH_CHUNK`].
    pub words: [u32; TOUCH_WORDS],
}

impl Default for Touched {
    fn default() -> Self {
        Self {
            words: [0; TOUCH_WORDS],
        }
    }
}

/// Entries of the map of last proofs.
pub const PROOF_SLOTS: u32 = (FAMILIES * SOURCE_CLASSES) as u32;

/// Index into the map of last proofs.
#[inline(always)]
pub fn proof_slot(family: u32, class: u8) -> u32 {
    family * SOURCE_CLASSES as u32 + class as u32
}

pub const UDP_PORT_WORDS: usize = 1 << 16 >> 6;

/// Ports of UDP frontends and their endpoints. A datagram without such a port belongs to no Service and
/// costs nothing more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct UdpPorts {
    /// One bit per port. The index is the port in network order, read as a number without a byte swap:
    /// after a byte swap, the verifier of Linux 6.1 forgets a number's range.
    pub words: [u64; UDP_PORT_WORDS],
}

impl Default for UdpPorts {
    fn default() -> Self {
        Self {
            words: [0; UDP_PORT_WORDS],
        }
    }
}

impl UdpPorts {
    #[inline(always)]
    pub fn has(&self, port: Port) -> bool {
        let port = usize::from(u16::from_ne_bytes(port));
        self.words[port >> 6] >> (port & 63) & 1 != 0
    }

    pub fn mark(&mut self, port: Port) {
        let port = usize::from(u16::from_ne_bytes(port));
        self.words[port >> 6] |= 1 << (port & 63);
    }
}

/// A source's budget of tracked connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Budget {
    pub window: u64,
    /// Connections counted in `window`.
    pub used: u32,
    pub padding: u32,
}

/// Operations that the programs could not do, counted per CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u32)]
pub enum Fault {
    /// The packet is shorter than its headers claim.
    Truncated = 0,
    /// The headers contradict each other.
    Malformed = 1,
    /// A fragment other than the first, which has no TCP header.
    LaterFragment = 2,
    /// More VLAN tags or extension headers than the parser follows.
    TooDeep = 3,
    /// The map of connections was full: one was not followed.
    PendingFull = 4,
    /// A source used up its budget: a connection was not followed.
    OverBudget = 5,
    /// The ring buffer was full: an anomaly was counted but not reported.
    RingFull = 6,
    /// Reports were limited: an anomaly was counted but not reported.
    ReportLimited = 7,
    /// Two connections have the same initial sequence number.
    Ambiguous = 8,
    /// Answered on this node by something other than an endpoint: a local proxy, a SYN proxy.
    AnsweredLocally = 9,
    /// A connection's state could not be updated, because other CPUs changed it at every attempt.
    Contended = 10,
    /// A datagram for a frontend had too little payload to be recognised.
    UdpNotMatchable = 11,
    /// A datagram for a frontend was not followed, because too many are followed already.
    UdpOverRate = 12,
    /// Two datagrams have the same payload: the later one was not followed.
    UdpAmbiguous = 13,
    /// The map of datagrams was full: one was not followed.
    UdpFull = 14,
}

pub const FAULTS: usize = 15;

impl Fault {
    pub const ALL: [Fault; FAULTS] = [
        Fault::Truncated,
        Fault::Malformed,
        Fault::LaterFragment,
        Fault::TooDeep,
        Fault::PendingFull,
        Fault::OverBudget,
        Fault::RingFull,
        Fault::ReportLimited,
        Fault::Ambiguous,
        Fault::AnsweredLocally,
        Fault::Contended,
        Fault::UdpNotMatchable,
        Fault::UdpOverRate,
        Fault::UdpAmbiguous,
        Fault::UdpFull,
    ];

    /// Name as metrics and `/verdict` show it.
    pub fn name(self) -> &'static str {
        match self {
            Fault::Truncated => "truncated",
            Fault::Malformed => "malformed",
            Fault::LaterFragment => "later_fragment",
            Fault::TooDeep => "too_deep",
            Fault::PendingFull => "pending_full",
            Fault::OverBudget => "over_budget",
            Fault::RingFull => "ring_full",
            Fault::ReportLimited => "report_limited",
            Fault::Ambiguous => "ambiguous",
            Fault::AnsweredLocally => "answered_locally",
            Fault::Contended => "contended",
            Fault::UdpNotMatchable => "udp_not_matchable",
            Fault::UdpOverRate => "udp_over_rate",
            Fault::UdpAmbiguous => "udp_ambiguous",
            Fault::UdpFull => "udp_full",
        }
    }
}

/// A connection without the expected treatment, with its evidence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Anomaly {
    /// Time of the sighting.
    pub at_ns: u64,
    /// Time at which its SYN arrived.
    pub arrived_ns: u64,
    /// Initial sequence number.
    pub isn: u32,
    /// Id of the Service port and family.
    pub service: u32,
    /// Device of the sighting.
    pub device: u32,
    /// [`Outcome`].
    pub outcome: u8,
    /// [`SourceClass`](crate::service::SourceClass).
    pub class: u8,
    /// [`FrontendKind`](crate::service::FrontendKind).
    pub kind: u8,
    /// Bits of [`anomaly_flag`].
    pub flags: u8,
    pub client: Address,
    pub frontend: Address,
    /// Address that the SYN was sent to if misrouted, stale or leaked; else zero.
    pub destination: Address,
    pub client_port: Port,
    pub frontend_port: Port,
    /// Port of `destination`.
    pub destination_port: Port,
    pub padding: [u8; 2],
}

pub mod anomaly_flag {
    /// The arrival was not seen (a client on the node itself).
    pub const UNSEEN_ARRIVAL: u8 = 1;
    /// It left by an uplink although its endpoint is on this node.
    pub const MISDELIVERED: u8 = 2;
    /// Refused by ICMP rather than RST.
    pub const ICMP: u8 = 4;
}
