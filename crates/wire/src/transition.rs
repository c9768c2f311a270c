//! Computes a connection's next state from a sighting, without side effects.
//!
//! It does not depend on packets, maps or devices; `classify` passes it the sighting.

use crate::abi::{LOSS_WINDOW_NS, RETRANSMIT_NS};
use crate::evidence::{Outcome, Pending, state};
use crate::service::{ExpectedHandling, frontend_flag};

/// A sighting: a packet of a followed connection, seen at a hook. The details are a field beside the kind
/// rather than data of its variants. A variant without data would leave these bytes uninitialised in the
/// compiled program, and the verifier rejects a read of such bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sighting {
    pub kind: Kind,
    /// Bits of [`detail`].
    pub details: u32,
}

/// Kinds of sightings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Its SYN entered again.
    Again,
    /// Another connection uses its initial sequence number.
    Shared,
    /// Left for a current endpoint.
    ToEndpoint,
    /// Left for an endpoint that left its slice.
    ToLeft,
    /// Left for an address that is not an endpoint, or not a local one if a local one is required.
    ToStranger,
    /// Left by an uplink although its endpoint is on this node.
    Misdelivered,
    /// Left by an uplink, untranslated.
    Untranslated,
    /// An answer entered.
    AnswerIn,
    /// An answer left for the client, by a device that leads there.
    AnswerOut,
    /// A refusal left for the client, by a device that leads there.
    RefusalOut,
    /// The client's first data entered.
    DataIn,
    /// The client's first data left for an endpoint.
    DataOut,
    /// Data that acknowledges the client's first data left for the client.
    DataAnswered,
}

/// Bits of a sighting.
pub mod detail {
    /// [`ToEndpoint`](super::Kind::ToEndpoint): the endpoint is on this node, and the packet leaves by the
    /// device that the route specifies.
    pub const PROVEN: u32 = 1;
    /// [`AnswerIn`](super::Kind::AnswerIn): its source is a current endpoint of the Service.
    pub const FROM_ENDPOINT: u32 = 2;
    /// [`AnswerIn`](super::Kind::AnswerIn): it accepts the connection, rather than refusing it.
    pub const ACCEPTS: u32 = 4;
    /// [`AnswerIn`](super::Kind::AnswerIn): it may pass no other hook on its way to the client. The client
    /// is the node itself, or another program at this device may redirect the answer to a pod past all
    /// other hooks.
    pub const LAST: u32 = 8;
    /// [`RefusalOut`](super::Kind::RefusalOut): by ICMP.
    pub const ICMP: u32 = 16;
    /// [`ToEndpoint`](super::Kind::ToEndpoint): the endpoint is on this node, but the packet leaves by
    /// another device than the route specifies.
    pub const ASIDE: u32 = 32;
    /// [`ToEndpoint`](super::Kind::ToEndpoint): no new connection was sent to this endpoint before.
    pub const UNMET: u32 = 64;
    /// [`ToEndpoint`](super::Kind::ToEndpoint): number of the endpoint's node, from
    /// [`PEER_SHIFT`](crate::service::PEER_SHIFT) on.
    pub const PEER: u32 = !0 << crate::service::PEER_SHIFT;
}

impl Sighting {
    #[inline(always)]
    pub fn new(kind: Kind, details: u32) -> Self {
        Self { kind, details }
    }

    #[inline(always)]
    pub(crate) fn has(&self, detail: u32) -> bool {
        self.details & detail != 0
    }
}

/// Effect of a sighting on a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The new state, or the old one if nothing changes.
    pub state: u32,
    /// Outcome to count. Only the CPU that changes the state counts it, so it is counted once.
    pub outcome: Option<Outcome>,
    /// An apparent failure that is seen for the first time. An answer may still outweigh it, so it is
    /// counted only after the loss window ([`failed`]).
    pub doubt: Option<Outcome>,
    /// Whether the sighting proves that the datapath forwards the connection.
    pub proof: bool,
}

impl Step {
    #[inline(always)]
    pub(crate) fn stay(old: u32) -> Self {
        Self {
            state: old,
            outcome: None,
            doubt: None,
            proof: false,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Failed {
    /// Refused by the node.
    Refused,
    /// Left by an uplink, untranslated.
    Leaked,
    /// Left for an address that is not an endpoint of the Service.
    Misrouted,
    /// Left for an endpoint that has left its slice.
    Stale,
    /// Not seen again after its arrival, or its answer entered and did not leave for the client.
    Lost,
}

/// The failure of a connection, which is known after the loss window. `None` during the loss window, for a
/// connection that got through, and for one that was not expected to.
///
/// An apparent failure may be caused by another program (a mirror, a router that returns the packet, a
/// second translator), so it counts only if no answer came. If the Service has an endpoint on the node
/// itself, a connection without any other sighting is not reported as lost: packets to that endpoint leave
/// by no device, so its silence may be the endpoint's fault.
pub fn failed(fields: &Pending, age_ns: u64) -> Option<Failed> {
    let has = |bits: u32| fields.state & bits != 0;
    if age_ns <= LOSS_WINDOW_NS
        || !ExpectedHandling::from_byte(fields.owed).is_forward()
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

/// Whether a connection in this state got through, or was sent to an endpoint that may be silent.
#[inline(always)]
fn is_through(state: u32) -> bool {
    let forwarded = state & state::FORWARDED != 0;
    let answered_in_time = state & (state::ANSWER_IN | state::SLOW) == state::ANSWER_IN;
    state & state::ANSWER_OUT != 0 || (forwarded && !answered_in_time)
}

/// The effect of a sighting. A connection that has not got through by the end of the loss window is
/// reported as failed. Later events still change its state and may be proof, but are not counted as another
/// outcome.
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
        // No stack retransmits so soon. The old and the new program both saw the same packet, while an
        // agent replaces its predecessor's programs.
        Kind::Again if age_ns < RETRANSMIT_NS => stay,
        Kind::Again => again(old),
        // A copy of a misdelivered packet.
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
            // Ignore an answer that is not from an endpoint if the connection never left this node: the
            // node did not cause it. But if the connection seemed to fail, another program may have carried
            // it to its endpoint.
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
        // The connection was forwarded, so a RST is the endpoint's refusal on its way back, and proves the
        // datapath. An ICMP error may come from any router on the path to the endpoint. So it is neither
        // proof nor a refusal by this node (finding 10).
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

/// Records data only of a connection that was forwarded and answered through this node, because the node
/// must then forward its data too.
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

/// Whether data of the client entered three times and was never forwarded. A slow or hanging endpoint does
/// not cause this, since data for it is still forwarded.
pub fn is_data_lost(state: u32) -> bool {
    let seen = state & (state::DATA_THRICE | state::DATA_FORWARDED | state::DATA_ANSWERED);
    seen == state::DATA_THRICE && state & (state::AMBIGUOUS | state::ALIAS | state::REJECTED) == 0
}

/// The step for an apparent failure. If the connection was not expected to get through, it is counted as
/// rejected at once.
#[inline(always)]
fn doubt(old: u32, fields: &Pending, bit: u32, outcome: Outcome) -> Step {
    if ExpectedHandling::from_byte(fields.owed).is_forward() {
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
    let not_delivered =
        old & state::ANSWER_OUT != 0 && old & (state::ANSWER_NOT_DELIVERED | state::REJECTED) == 0;
    let outcome = if not_delivered {
        Outcome::AnswerNotDelivered
    } else {
        Outcome::Retransmitted
    };
    let bit = if not_delivered {
        state::ANSWER_NOT_DELIVERED
    } else {
        0
    };
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

/// `trusted`: the answer proves the datapath. An untrusted answer comes from an unknown origin (a local
/// proxy, a SYN proxy) and proves nothing. `told`: the connection was already reported as failed.
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
