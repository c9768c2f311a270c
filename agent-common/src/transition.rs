//! Transition of a connection's state by a sighting: pure, and the only writer of states.
//!
//! It does not depend on packets, maps or devices; `classify` passes it the sighting.

use crate::abi::{LOSS_WINDOW_NS, RETRANSMIT_NS};
use crate::evidence::{Outcome, Pending, state};
use crate::service::{Owed, frontend_flag};

/// A sighting of a connection that is followed. Its bits stand beside the kind, and not inside: for
/// bits that one kind lacks a compiled program would hold no value, and the verifier refuses that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sighting {
    pub kind: Kind,
    /// Bits of [`detail`].
    pub details: u32,
}

/// Kinds of sightings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Its SYN came in again.
    Again,
    /// Another connection uses its initial sequence number.
    Shared,
    /// Left for a current endpoint.
    ToEndpoint,
    /// Left for an endpoint that left its slice.
    ToLeft,
    /// Left for an address that is no endpoint, or no local one where only those are owed.
    ToStranger,
    /// An endpoint of this node leaves by an uplink.
    Misdelivered,
    /// Left by an uplink, untranslated.
    Untranslated,
    /// An answer came in.
    AnswerIn,
    /// An answer leaves for the client, by a device that leads there.
    AnswerOut,
    /// A refusal leaves for the client, by a device that leads there.
    RefusalOut,
    /// The client's first data came in.
    DataIn,
    /// It leaves for an endpoint.
    DataOut,
    /// Data that acknowledges it leaves for the client.
    DataAnswered,
}

/// Bits of a sighting.
pub mod detail {
    /// [`ToEndpoint`](super::Kind::ToEndpoint): of this node, by the device that the route names.
    pub const PROVEN: u32 = 1;
    /// [`AnswerIn`](super::Kind::AnswerIn): its source is a current endpoint of the Service.
    pub const FROM_ENDPOINT: u32 = 2;
    /// [`AnswerIn`](super::Kind::AnswerIn): it accepts the connection; else it refuses it.
    pub const ACCEPTS: u32 = 4;
    /// [`AnswerIn`](super::Kind::AnswerIn): it passes no other hook on its way to the client: the
    /// client is on this node, or a program behind this hook may carry it past all others.
    pub const LAST: u32 = 8;
    /// [`RefusalOut`](super::Kind::RefusalOut): by ICMP.
    pub const ICMP: u32 = 16;
    /// [`ToEndpoint`](super::Kind::ToEndpoint): of this node, by another device than the route names.
    pub const ASIDE: u32 = 32;
    /// [`ToEndpoint`](super::Kind::ToEndpoint): no new connection was sent to it before.
    pub const UNMET: u32 = 64;
    /// [`ToEndpoint`](super::Kind::ToEndpoint): number of the other node that it is on, from
    /// [`PEER_SHIFT`](crate::service::PEER_SHIFT) on.
    pub const PEER: u32 = !0 << crate::service::PEER_SHIFT;
}

impl Sighting {
    /// A sighting of a kind, with bits of [`detail`].
    #[inline(always)]
    pub fn new(kind: Kind, details: u32) -> Self {
        Self { kind, details }
    }

    #[inline(always)]
    pub(crate) fn has(&self, detail: u32) -> bool {
        self.details & detail != 0
    }
}

/// Change that a sighting makes to a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The new state; the old one if nothing changes.
    pub state: u32,
    /// Counted once, by whoever moves the state.
    pub outcome: Option<Outcome>,
    /// An apparent failure, seen now for the first time. An answer still makes up for it, so it is
    /// counted only when the loss window is over ([`failed`]).
    pub doubt: Option<Outcome>,
    /// Whether this proves the connection.
    pub proof: bool,
}

impl Step {
    #[inline(always)]
    fn stay(old: u32) -> Self {
        Self {
            state: old,
            outcome: None,
            doubt: None,
            proof: false,
        }
    }
}

/// Failures of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Failed {
    /// Refused by the node.
    Refused,
    /// Left by an uplink, untranslated.
    Leaked,
    /// Left for an address that is no endpoint of the Service.
    Misrouted,
    /// Left for an endpoint that has left its slice.
    Stale,
    /// Not seen again after its arrival, or its answer came in and did not go on to the client.
    Lost,
}

/// The failure of a connection, known once the loss window is over; nothing before that, and
/// nothing where it got through or nothing was owed.
///
/// An apparent failure may have been another program's doing (a mirror, a router that turns the
/// packet back, a second translator): only an answer that did not come is conclusive. Silence of an
/// endpoint on the node itself is the endpoint's own, since nothing leaves by a device for it.
pub fn failed(fields: &Pending, age_ns: u64) -> Option<Failed> {
    let has = |bits: u32| fields.state & bits != 0;
    if age_ns <= LOSS_WINDOW_NS
        || !Owed::from_byte(fields.owed).is_forward()
        || has(state::ALIAS | state::AMBIGUOUS | state::REJECTED)
        || is_through(fields.state)
    {
        return None;
    }
    if fields.is_direct() {
        return (has(state::STALE) && !has(state::ANSWERED)).then_some(Failed::Stale);
    }
    if has(state::ANSWER_IN) {
        return Some(Failed::Lost);
    }
    let seen = [
        (state::LEAKED, Failed::Leaked),
        (state::MISROUTED, Failed::Misrouted),
        (state::STALE, Failed::Stale),
        (state::REFUSED, Failed::Refused),
    ];
    if let Some((_, failed)) = seen.into_iter().find(|(bit, _)| has(*bit)) {
        return Some(failed);
    }
    (fields.flags & frontend_flag::HOST_ENDPOINT == 0).then_some(Failed::Lost)
}

/// Whether a state is that of a connection that got through, or was given to an endpoint that may
/// be silent.
#[inline(always)]
fn is_through(state: u32) -> bool {
    let forwarded = state & state::FORWARDED != 0;
    let answered_in_time = state & (state::ANSWER_IN | state::SLOW) == state::ANSWER_IN;
    state & state::ANSWER_OUT != 0 || (forwarded && !answered_in_time)
}

/// The transition: pure, and the only writer of states. After the loss window a connection that had
/// not got through was told as failed: what it does later is progress and may be proof, but is not
/// counted as another outcome.
#[inline(always)]
pub fn advance(old: u32, sighting: Sighting, fields: &Pending, age_ns: u64) -> Step {
    let late = age_ns > LOSS_WINDOW_NS;
    let stay = Step::stay(old);
    if old & state::AMBIGUOUS != 0 {
        return stay;
    }
    let first = old & (state::PROGRESS | state::RETRANSMITTED) == 0 && !late;
    let through = state::FORWARDED | state::ANSWERED;
    let told = old & state::LATE != 0 || (late && !is_through(old));
    let host = fields.flags & frontend_flag::HOST_ENDPOINT != 0;
    match sighting.kind {
        Kind::Shared => Step {
            state: old | state::AMBIGUOUS,
            ..stay
        },
        // Sooner than any stack retransmits: the same sighting by a second program, while links
        // are exchanged.
        Kind::Again if age_ns < RETRANSMIT_NS => stay,
        Kind::Again => again(old),
        // A copy of what was misdelivered.
        Kind::ToEndpoint if sighting.has(detail::ASIDE) && old & state::MISROUTED != 0 => stay,
        Kind::ToEndpoint => to_endpoint_step(old, sighting.has(detail::PROVEN), told),
        Kind::ToLeft if first => doubt(old, fields, state::STALE, Outcome::Stale),
        Kind::ToStranger | Kind::Misdelivered if first => {
            doubt(old, fields, state::MISROUTED, Outcome::Misrouted)
        }
        Kind::Untranslated if old & state::PROGRESS == 0 && !late => {
            doubt(old, fields, state::LEAKED, Outcome::Leaked)
        }
        Kind::AnswerIn => {
            // From somewhere else and never seen leaving: not an answer of this node's doing. One
            // that went astray may have been brought to its endpoint by somebody else.
            let astray = sighting.has(detail::ACCEPTS) && old & state::FAILING != 0;
            if !sighting.has(detail::FROM_ENDPOINT) && !astray && old & through == 0 {
                return stay;
            }
            let last = sighting.has(detail::LAST);
            let slow = late && old & state::ANSWER_IN == 0;
            let bits = state::ANSWER_IN
                | if last { state::ANSWER_OUT } else { 0 }
                | if slow { state::SLOW } else { 0 };
            answer_step(old, bits, true, told)
        }
        Kind::AnswerOut => {
            let trusted = host || old & (through | state::FAILING) != 0;
            answer_step(old, state::ANSWER_OUT, trusted, told)
        }
        // The endpoint's own refusal on its way back: the datapath works. An ICMP error about what
        // was sent on may come from any router behind: no answer of the endpoint's, so no proof,
        // and no refusal by this node [10].
        Kind::RefusalOut if old & through != 0 => {
            if sighting.has(detail::ICMP) {
                return stay;
            }
            answer_step(old, state::ANSWER_OUT, true, told)
        }
        Kind::RefusalOut if old & state::PROGRESS == 0 && !host && !late => {
            doubt(old, fields, state::REFUSED, Outcome::Refused)
        }
        Kind::DataIn | Kind::DataOut | Kind::DataAnswered => Step {
            state: data_step(old, sighting.kind),
            ..stay
        },
        _ => stay,
    }
}

/// Data is followed once the connection was forwarded and answered: then this node forwards its data too.
#[inline(always)]
fn data_step(old: u32, kind: Kind) -> u32 {
    const ESTABLISHED: u32 = state::FORWARDED | state::ANSWER_OUT;
    let bit = match kind {
        Kind::DataIn if old & ESTABLISHED != ESTABLISHED => 0,
        Kind::DataIn if old & state::DATA == 0 => state::DATA,
        Kind::DataIn if old & state::DATA_AGAIN == 0 => state::DATA_AGAIN,
        Kind::DataIn => state::DATA_THRICE,
        _ if old & state::DATA == 0 => 0,
        Kind::DataOut => state::DATA_FORWARDED,
        _ => state::DATA_ANSWERED,
    };
    old | bit
}

/// Whether data of the client came three times and was never forwarded. An endpoint that is slow or hangs does
/// not cause that: its data was forwarded.
pub fn is_data_lost(state: u32) -> bool {
    let seen = state & (state::DATA_THRICE | state::DATA_FORWARDED | state::DATA_ANSWERED);
    seen == state::DATA_THRICE && state & (state::AMBIGUOUS | state::ALIAS | state::REJECTED) == 0
}

/// Something seems to go wrong. Where nothing was owed it is no failure, and known at once.
#[inline(always)]
fn doubt(old: u32, fields: &Pending, bit: u32, outcome: Outcome) -> Step {
    if Owed::from_byte(fields.owed).is_forward() {
        Step {
            state: old | bit,
            doubt: Some(outcome),
            ..Step::stay(old)
        }
    } else {
        Step {
            state: old | state::REJECTED,
            outcome: Some(Outcome::Rejected),
            ..Step::stay(old)
        }
    }
}

#[inline(always)]
fn again(old: u32) -> Step {
    let unheard = old & state::ANSWER_OUT != 0 && old & (state::UNHEARD | state::REJECTED) == 0;
    let outcome = if unheard {
        Outcome::Unheard
    } else {
        Outcome::Retransmitted
    };
    let bit = if unheard { state::UNHEARD } else { 0 };
    Step {
        state: old | state::RETRANSMITTED | bit,
        outcome: Some(outcome),
        ..Step::stay(old)
    }
}

#[inline(always)]
fn to_endpoint_step(old: u32, proven: bool, told: bool) -> Step {
    if old & state::REJECTED != 0 {
        return Step::stay(old);
    }
    let proof = proven && old & state::PROVEN == 0;
    let bits = state::FORWARDED | if proof { state::PROVEN } else { 0 };
    let outcome =
        (old & (state::FORWARDED | state::ANSWERED) == 0 && !told).then_some(Outcome::Forwarded);
    Step {
        state: old | bits | if told { state::LATE } else { 0 },
        outcome,
        proof,
        ..Step::stay(old)
    }
}

/// `trusted`: it answers for the datapath. What is not has come from nowhere that is known (a local
/// proxy, a SYN proxy), and proves nothing.
#[inline(always)]
fn answer_step(old: u32, bits: u32, trusted: bool, told: bool) -> Step {
    if old & state::REJECTED != 0 || old & bits == bits {
        return Step::stay(old);
    }
    let passed_on = bits & state::ANSWER_OUT != 0;
    let proof = passed_on && trusted && old & state::PROVEN == 0;
    let counts = passed_on && old & state::ANSWER_OUT == 0 && !told;
    Step {
        state: old
            | bits
            | if proof { state::PROVEN } else { 0 }
            | if told { state::LATE } else { 0 },
        outcome: counts.then_some(Outcome::Answered),
        proof,
        ..Step::stay(old)
    }
}
