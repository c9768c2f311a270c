//! What a sighting makes of a connection's state: the transition, pure, and the only writer of
//! states.
//!
//! It knows nothing of packets, maps or devices; `classify` tells it what was seen.

use crate::abi::{LOSS_WINDOW_NS, RETRANSMIT_NS};
use crate::evidence::{Outcome, Pending, state};
use crate::service::{Owed, frontend_flag};

/// What was seen of a connection that is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sighting {
    /// Its SYN came in again.
    Again,
    /// Another connection uses its initial sequence number.
    Shared,
    /// Left for a current endpoint; `proven` if by the device that the route names.
    ToEndpoint {
        /// See above.
        proven: bool,
    },
    /// Left for an endpoint that left its slice.
    ToLeft,
    /// Left for an address that is no endpoint, or no local one where only those are owed.
    ToStranger,
    /// An endpoint of this node leaves by an uplink.
    Misdelivered,
    /// Left untranslated.
    Untranslated,
    /// An answer came in.
    AnswerIn {
        /// Its source is a current endpoint of the Service.
        from_endpoint: bool,
    },
    /// An answer leaves for the client.
    AnswerOut,
    /// A refusal leaves for the client.
    RefusalOut {
        /// By ICMP.
        icmp: bool,
    },
}

/// What a sighting makes of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The new state; the old one if nothing changes.
    pub state: u32,
    /// Counted once, by whoever moves the state.
    pub outcome: Option<Outcome>,
    /// Whether this proves the connection.
    pub proof: bool,
}

/// The transition: pure, and the only writer of states. After the loss window a connection that had
/// made no progress was given up as lost: what it does later is progress and may be proof, but is
/// not counted as another outcome.
#[inline(always)]
pub fn advance(old: u32, sighting: Sighting, fields: &Pending, age_ns: u64) -> Step {
    let late = age_ns > LOSS_WINDOW_NS;
    let stay = Step {
        state: old,
        outcome: None,
        proof: false,
    };
    if old & state::AMBIGUOUS != 0 {
        return stay;
    }
    let first = old & (state::PROGRESS | state::RETRANSMITTED) == 0 && !late;
    let lost = old & state::LATE != 0 || (late && old & state::PROGRESS == 0);
    let owed = Owed::from_byte(fields.owed).is_forward();
    let host = fields.flags & frontend_flag::HOST_ENDPOINT != 0;
    // A failure of a connection to which nothing was owed is none.
    let failed = |bit: u32, outcome: Outcome| {
        if owed {
            Step {
                state: old | bit,
                outcome: Some(outcome),
                proof: false,
            }
        } else {
            Step {
                state: old | state::REJECTED,
                outcome: Some(Outcome::Rejected),
                proof: false,
            }
        }
    };
    match sighting {
        Sighting::Shared => Step {
            state: old | state::AMBIGUOUS,
            ..stay
        },
        // Sooner than any stack retransmits: the same sighting by a second program, while links
        // are exchanged.
        Sighting::Again if age_ns < RETRANSMIT_NS => stay,
        Sighting::Again => again(old),
        Sighting::ToEndpoint { proven } => to_endpoint_step(old, proven, lost),
        Sighting::ToLeft if first => failed(state::STALE, Outcome::Stale),
        Sighting::ToStranger | Sighting::Misdelivered if first => {
            failed(state::MISROUTED, Outcome::Misrouted)
        }
        Sighting::Untranslated if old & state::PROGRESS == 0 && !late => {
            failed(state::LEAKED, Outcome::Leaked)
        }
        Sighting::AnswerIn { from_endpoint } => {
            answer_step(old, state::ANSWER_IN, from_endpoint, lost)
        }
        Sighting::AnswerOut => answer_step(old, state::ANSWER_OUT, host, lost),
        // An ICMP error about what was sent on may come from any router behind: no answer of the
        // endpoint's, so no proof, and no refusal by this node [10].
        Sighting::RefusalOut { icmp: true } if old & (state::FORWARDED | state::ANSWERED) != 0 => {
            stay
        }
        Sighting::RefusalOut { .. } if old & (state::FORWARDED | state::ANSWERED) != 0 => {
            // The endpoint's own refusal on its way back: the datapath works.
            answer_step(old, state::ANSWER_OUT, false, lost)
        }
        Sighting::RefusalOut { .. } if old & state::PROGRESS == 0 && !host && !late => {
            failed(state::REFUSED, Outcome::Refused)
        }
        _ => stay,
    }
}

#[inline(always)]
fn again(old: u32) -> Step {
    let unheard = old & state::ANSWERED != 0 && old & (state::UNHEARD | state::ENDED) == 0;
    let outcome = if unheard {
        Outcome::Unheard
    } else {
        Outcome::Retransmitted
    };
    let bit = if unheard { state::UNHEARD } else { 0 };
    Step {
        state: old | state::RETRANSMITTED | bit,
        outcome: Some(outcome),
        proof: false,
    }
}

#[inline(always)]
fn to_endpoint_step(old: u32, proven: bool, lost: bool) -> Step {
    if old & state::ENDED != 0 {
        return Step {
            state: old,
            outcome: None,
            proof: false,
        };
    }
    let proof = proven && old & state::PROVEN == 0;
    let bits = state::FORWARDED | if proof { state::PROVEN } else { 0 };
    let outcome =
        (old & (state::FORWARDED | state::ANSWERED) == 0 && !lost).then_some(Outcome::Forwarded);
    Step {
        state: old | bits | if lost { state::LATE } else { 0 },
        outcome,
        proof,
    }
}

/// `trusted`: the answer proves the datapath by itself, even where no departure was seen (a
/// redirect to the peer skips egress; an endpoint on the node itself has none).
#[inline(always)]
fn answer_step(old: u32, bit: u32, trusted: bool, lost: bool) -> Step {
    let stay = Step {
        state: old,
        outcome: None,
        proof: false,
    };
    if old & state::ENDED != 0 || old & bit != 0 {
        return stay;
    }
    let through = old & (state::FORWARDED | state::ANSWER_IN) != 0;
    if !trusted && !through && bit == state::ANSWER_IN {
        // From somewhere else and never seen leaving: not an answer of this node's doing.
        return stay;
    }
    let proof = (trusted || through) && old & state::PROVEN == 0;
    let outcome = (old & state::ANSWERED == 0 && !lost).then_some(Outcome::Answered);
    let bits = bit | if proof { state::PROVEN } else { 0 };
    Step {
        state: old | bits | if lost { state::LATE } else { 0 },
        outcome,
        proof,
    }
}
