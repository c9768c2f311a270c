//! The sampling gate: which connections and datagrams are followed when there are many.
//!
//! Time is counted in windows of 65 to 131 ms. A window is a number of kernel ticks ([`window_shift`]),
//! because a program reads the tick counter in a nanosecond.
//!
//! - *Connections*: up to [`WHOLE`] new connections of a Service in a window are all followed. Above that,
//!   one of two, four, eight and so on is followed. A hash of the initial sequence number selects it,
//!   independently of client and time. The selection is made only when the SYN arrives. At every other hook
//!   a connection is followed if the map has an entry for it. The map is read only if [`Marks`] has a mark
//!   for the connection.
//! - *Data*: the client's first data and the data that acknowledges it are followed, but only for the few
//!   answered connections that have a place in [`WatchedData`].
//! - *Datagrams*: the gate decides which are read, that is parsed in full. Of each flow, one datagram is
//!   read in [`LOOKED_WINDOWS`], and at most [`TRIES_PER_WINDOW`] flows per destination and window. At the
//!   other hooks a datagram is read if [`Marks`] has a mark for it. The mark of a followed datagram is
//!   never missing. Another datagram may have the same mark, and is then read in vain.
//!
//! Two CPUs may change a value at once. A limit is then slightly exceeded, but no mark is missing.

use crate::packet::Segment;
use crate::udp::{DNS, Ports};

/// Number of connections of a Service in a window up to which all are followed. Above that, between half of
/// this number and all of it are followed: 120 to 490 a second. With half of this number, the measured time
/// from a change of endpoints to the first connection that followed it was wrong by more than 5 %, compared
/// with a packet capture at 120 connections a second.
pub const WHOLE: u32 = 32;
/// Maximum shift: at least one connection in 4,096 is followed.
const MOST_SHIFT: u32 = 12;
/// Number of windows for which the largest shift is remembered: at least 134 s, after which no client
/// repeats a SYN.
const MEMORY: u32 = 2_048;

/// Number of kernel ticks per window, as a power of two: the largest with a window of at most 2^27 ns.
/// `tick_ns` is the time between two ticks.
pub fn window_shift(tick_ns: u64) -> u32 {
    ((1 << 27) / tick_ns.clamp(1 << 17, 1 << 27)).ilog2()
}

/// Rate of new connections of a Service, as the programs measure it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Rate {
    pub window: u32,
    /// New connections in this window.
    pub seen: u32,
    /// Minimum shift in this window, by the connections of the previous window. One of 2^shift connections
    /// is followed.
    pub shift: u32,
    /// Largest shift since `turned`.
    pub high: u32,
    /// Largest shift in the period before `turned`.
    pub high_before: u32,
    /// Window in which the period of `high` began.
    pub turned: u32,
}

/// Decision about a new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sampled {
    /// Not followed.
    Out,
    /// Followed. It would have been followed at any time in the last two minutes, so this is its first SYN.
    First,
    /// Followed. This SYN may repeat an earlier one that was not followed, because fewer were selected
    /// then.
    MaybeAgain,
}

/// The shift for this number of connections in a window.
#[inline(always)]
fn shift_for(seen: u32) -> u32 {
    let shift = u32::BITS - (seen / WHOLE).leading_zeros();
    if shift > MOST_SHIFT {
        MOST_SHIFT
    } else {
        shift
    }
}

/// Hash of an initial sequence number. Clients choose that number, but cannot predict its hash without
/// `seed`.
#[inline(always)]
pub fn number(isn: u32, seed: u64) -> u32 {
    let mixed = (u64::from(isn) ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    (mixed >> 32) as u32
}

/// Whether a hash is selected with this shift, which selects one of 2^`shift`. A selected hash is also
/// selected with every smaller shift.
#[inline(always)]
fn is_chosen(number: u32, shift: u32) -> bool {
    number & ((1 << (shift & 31)) - 1) == 0
}

impl Rate {
    /// Counts a new connection and decides whether to follow it.
    #[inline(always)]
    pub fn take(&mut self, window: u32, number: u32) -> Sampled {
        if self.window != window {
            let follows = self.window.wrapping_add(1) == window;
            self.shift = if follows { shift_for(self.seen) } else { 0 };
            self.window = window;
            self.seen = 0;
            self.turn(window);
        }
        self.seen = self.seen.wrapping_add(1);
        let now = shift_for(self.seen);
        let shift = if now > self.shift { now } else { self.shift };
        if shift > self.high {
            self.high = shift;
        }
        if !is_chosen(number, shift) {
            return Sampled::Out;
        }
        if is_chosen(number, self.high) && is_chosen(number, self.high_before) {
            return Sampled::First;
        }
        Sampled::MaybeAgain
    }

    /// Whether the connection is one of those that are followed now, without counting it.
    #[inline(always)]
    pub fn includes(&self, window: u32, number: u32) -> bool {
        let now = shift_for(self.seen);
        let shift = if now > self.shift { now } else { self.shift };
        window.wrapping_sub(self.window) > 1 || is_chosen(number, shift)
    }

    #[inline(always)]
    fn turn(&mut self, window: u32) {
        let age = window.wrapping_sub(self.turned);
        if age <= MEMORY {
            return;
        }
        self.high_before = if age <= 2 * MEMORY { self.high } else { 0 };
        self.high = 0;
        self.turned = window;
    }
}

/// Number of windows for which the marks of a followed datagram are valid: at least 4.3 s, longer than the
/// map keeps its entry.
pub const FOLLOWED_WINDOWS: u16 = 66;
/// Number of windows in which a flow that is not followed is read once: at least 1.5 s.
pub const LOOKED_WINDOWS: u16 = 24;
/// Maximum number of flows per destination that are read in a window, for each direction.
pub const TRIES_PER_WINDOW: u32 = 128;

const MARKS: usize = 1 << 16;
const CONNECTIONS: usize = 1 << 11;
/// Number of mark bits for each turn in a word of [`Marks::connections`].
const SLOTS: u32 = 12;
const SLOT_BITS: u32 = (1 << SLOTS) - 1;
/// Number of windows in a turn, as a power of two: at least 2.1 s. A mark is valid until the end of the
/// turn after its own.
const TURN_SHIFT: u32 = 5;
const ANSWERED: usize = 1 << 14;
const TRIES: usize = 1 << 11;

/// Marks of followed connections and datagrams, indexed by hashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Marks {
    /// [`ConnectionMark`]s by initial sequence number. A word contains, from the upper bits on, the number
    /// of the turn, the marks of that turn, and the marks of the previous one. The table has only 8 KiB, so
    /// it mostly stays in a CPU's cache. With a larger table, each access under load would cost a cache
    /// miss of 200 ns.
    pub connections: [u32; CONNECTIONS],
    /// By the beginning of the payload: last window with a followed datagram.
    pub payloads: [u16; MARKS],
    /// By client: last window with a followed datagram.
    pub clients: [u16; MARKS],
    /// By flow: last window in which it was read.
    pub looked: [u16; MARKS],
    /// Clients that got an answer, so that further answers need not be read.
    pub answered: [u32; ANSWERED],
    /// By destination: the window, and from bit 16 on the number of flows that were read in it.
    pub tries: [u32; TRIES],
}

impl Default for Marks {
    fn default() -> Self {
        Self {
            connections: [0; CONNECTIONS],
            payloads: [0; MARKS],
            clients: [0; MARKS],
            looked: [0; MARKS],
            answered: [0; ANSWERED],
            tries: [0; TRIES],
        }
    }
}

/// The parts of a datagram that the gate reads, in the byte order of the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Glance {
    /// Last four bytes of the source's address.
    pub source: u32,
    /// Last four bytes of the destination's address.
    pub destination: u32,
    pub ports: u32,
    /// First four bytes of the payload.
    pub beginning: u32,
    pub payload: u32,
}

/// Decision about a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Wanted {
    No = 0,
    Yes = 1,
    /// No, because too many flows to this destination were read in this window.
    OverRate = 2,
}

/// A cheap hash, of one multiplication, of which only the upper bits may be used. `low` should be the value
/// that varies most.
#[inline(always)]
fn spread(high: u32, low: u32) -> u64 {
    (u64::from(high) << 32 | u64::from(low)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// A hash of which all bits can be used.
#[inline(always)]
fn mix(high: u32, low: u32) -> u64 {
    let mixed = (u64::from(high) << 32 | u64::from(low)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ (mixed >> 32)).wrapping_mul(0xff51_afd7_ed55_8ccd)
}

#[inline(always)]
fn is_recent(stamp: u16, now: u16, windows: u16) -> bool {
    stamp != 0 && now.wrapping_sub(stamp) <= windows
}

/// The stamp of a window. It is never zero, because zero means that no stamp was set.
#[inline(always)]
fn stamp(now: u16) -> u16 {
    if now == 0 { 1 } else { now }
}

/// Mark of a connection: its word in [`Marks::connections`], and its bit there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionMark {
    pub place: usize,
    bit: u32,
    turn: u32,
}

impl ConnectionMark {
    /// The mark of an initial sequence number in a window.
    #[inline(always)]
    pub fn new(window: u32, isn: u32) -> Self {
        let hash = spread(0, isn);
        // The top bits select the word. The 16 bits below them, scaled to the number of slots, select the
        // bit.
        let slot = (((hash >> 37) as u32 & 0xffff) * SLOTS) >> 16;
        Self {
            place: (hash >> 53) as usize & (CONNECTIONS - 1),
            bit: 1 << (slot & 31),
            turn: window >> TURN_SHIFT & 0xff,
        }
    }

    /// Whether a connection with this mark may have an entry. If not, none was marked for at least one turn
    /// (2.1 s).
    #[inline(always)]
    pub fn is_in(self, word: u32) -> bool {
        self.marks(word) & (self.bit | self.bit << SLOTS) != 0
    }

    /// The word with this mark.
    #[inline(always)]
    pub fn set_in(self, word: u32) -> u32 {
        self.turn << (2 * SLOTS) | self.marks(word) | self.bit << SLOTS
    }

    /// Current marks of a word: those of this turn and of the previous one.
    #[inline(always)]
    fn marks(self, word: u32) -> u32 {
        let latest = word >> SLOTS & SLOT_BITS;
        match self.turn.wrapping_sub(word >> (2 * SLOTS)) & 0xff {
            // 0xff is -1: another CPU is slightly ahead and already in the next turn.
            0 | 0xff => word & (SLOT_BITS << SLOTS | SLOT_BITS),
            1 => latest,
            _ => 0,
        }
    }
}

#[inline(always)]
fn payload_at(beginning: u32, payload: u32) -> usize {
    (spread(payload, beginning) >> 48) as usize & (MARKS - 1)
}

/// On the DNS port each message counts as a separate flow, identified by its id.
#[inline(always)]
fn client_hash(address: u32, port: [u8; 2], service: [u8; 2], beginning: u32) -> u64 {
    let [a, b, _, _] = beginning.to_ne_bytes();
    let [high, low] = port;
    let tag = if u16::from_ne_bytes(service) == DNS.to_be() {
        [a, b]
    } else {
        [0; 2]
    };
    mix(address, u32::from_ne_bytes([high, low, tag[0], tag[1]]))
}

#[inline(always)]
fn client_at(hash: u64) -> usize {
    (hash >> 40) as usize & (MARKS - 1)
}

/// Index and value of an answered client in [`Marks::answered`]. The value is never zero.
#[inline(always)]
fn answered_at(hash: u64) -> (usize, u32) {
    ((hash >> 48) as usize & (ANSWERED - 1), hash as u32 | 1)
}

impl Marks {
    /// Decides whether to read a datagram. `direction` is 0 or 1, and the two are counted separately.
    #[inline(always)]
    pub fn wants(&mut self, now: u16, at: &Glance, ports: Ports, direction: u32) -> Wanted {
        if ports.to {
            let followed = self.payloads[payload_at(at.beginning, at.payload)];
            if is_recent(followed, now, FOLLOWED_WINDOWS) {
                return Wanted::Yes;
            }
        }
        if ports.from && self.may_be_answer(now, at) {
            return Wanted::Yes;
        }
        if ports.to {
            self.try_flow(now, at, direction)
        } else {
            Wanted::No
        }
    }

    #[inline(always)]
    fn may_be_answer(&self, now: u16, at: &Glance) -> bool {
        let [s0, s1, d0, d1] = at.ports.to_ne_bytes();
        let hash = client_hash(at.destination, [d0, d1], [s0, s1], at.beginning);
        let (place, value) = answered_at(hash);
        is_recent(self.clients[client_at(hash)], now, FOLLOWED_WINDOWS)
            && self.answered[place] != value
    }

    /// Decides about a datagram whose flow is not followed. It is read if the flow was not read recently
    /// and the destination is below its limit.
    #[inline(always)]
    fn try_flow(&mut self, now: u16, at: &Glance, direction: u32) -> Wanted {
        let [s0, s1, d0, d1] = at.ports.to_ne_bytes();
        let client = client_hash(at.source, [s0, s1], [d0, d1], at.beginning);
        let port = u32::from(u16::from_ne_bytes([d0, d1])) << 1 | direction;
        let to = spread(port, at.destination);
        let flow = ((client ^ to) >> 48) as usize & (MARKS - 1);
        if is_recent(self.looked[flow], now, LOOKED_WINDOWS) {
            return Wanted::No;
        }
        let tries = &mut self.tries[(to >> 53) as usize & (TRIES - 1)];
        let used = if *tries & 0xffff == u32::from(now) {
            *tries >> 16
        } else {
            0
        };
        if used >= TRIES_PER_WINDOW {
            return Wanted::OverRate;
        }
        *tries = (used + 1) << 16 | u32::from(now);
        self.looked[flow] = stamp(now);
        Wanted::Yes
    }

    /// Records that a datagram is followed, so that it and its answer are read at every hook.
    #[inline(always)]
    pub fn follow(&mut self, now: u16, segment: &Segment) {
        let beginning = u32::from_ne_bytes(segment.beginning);
        self.payloads[payload_at(beginning, segment.payload)] = stamp(now);
        let hash = of_client(
            segment.source,
            segment.source_port,
            segment.destination_port,
            beginning,
        );
        self.clients[client_at(hash)] = stamp(now);
        let (place, value) = answered_at(hash);
        if self.answered[place] == value {
            self.answered[place] = 0;
        }
    }

    /// Records that `segment` answers a datagram, whose further answers need not be read.
    #[inline(always)]
    pub fn answer(&mut self, segment: &Segment) {
        let beginning = u32::from_ne_bytes(segment.beginning);
        let hash = of_client(
            segment.destination,
            segment.destination_port,
            segment.source_port,
            beginning,
        );
        let (place, value) = answered_at(hash);
        self.answered[place] = value;
    }
}

#[inline(always)]
fn of_client(address: [u8; 16], port: [u8; 2], service: [u8; 2], beginning: u32) -> u64 {
    let [.., m, n, o, p] = address;
    client_hash(u32::from_ne_bytes([m, n, o, p]), port, service, beginning)
}

/// Number of places for watched sequence numbers.
const WATCHED: usize = 1 << 9;
/// Number of windows after which a place may be reused: at least 1.5 s, the time for which an answered
/// connection is followed.
const WATCHED_WINDOWS: u32 = 24;

/// Sequence numbers of connections whose data is watched. A segment is read if the number before its
/// sequence number, or before its acknowledgement number, is among them. Every segment with PSH needs two
/// lookups, so a lookup is usually a single load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct WatchedData {
    numbers: [u32; WATCHED],
    /// Window in which each number was stored; zero if the place was never used.
    windows: [u32; WATCHED],
}

impl WatchedData {
    pub const NONE: WatchedData = WatchedData {
        numbers: [0; WATCHED],
        windows: [0; WATCHED],
    };

    #[inline(always)]
    fn place(number: u32) -> usize {
        (number.wrapping_mul(0x9e37_79b1) >> 23) as usize & (WATCHED - 1)
    }

    /// Watches for data after a sequence number, if its place is free.
    #[inline(always)]
    pub fn watch(&mut self, window: u32, number: u32) {
        let place = Self::place(number);
        if window.wrapping_sub(self.windows[place]) >= WATCHED_WINDOWS {
            self.numbers[place] = number;
            self.windows[place] = window;
        }
    }

    /// Whether data after a sequence number is watched.
    #[inline(always)]
    pub fn has(&self, number: u32) -> bool {
        let place = Self::place(number);
        self.numbers[place] == number && self.windows[place] != 0
    }
}
