//! Delays of answers to datagrams, and of endpoints that accept a connection.

use pathproof_wire::evidence::{Pending, PendingKey, state};
use pathproof_wire::service::frontend_flag;
use pathproof_wire::udp::is_flow;

/// The delay of an answer to a datagram, or of an accepted connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Id of the Service port and family.
    pub service: u32,
    /// Microseconds since the datagram arrived, or the connection's first SYN.
    pub after_us: u32,
}

/// The answer to a datagram. Call it once, when the datagram is forgotten.
pub(in crate::datapath) fn answer_of(key: &PendingKey, pending: &Pending) -> Option<Answer> {
    (!is_flow(key) && pending.note != 0).then_some(Answer {
        service: pending.service,
        after_us: pending.note,
    })
}

/// The answer to a connection. Call it once, when its loss window is over.
pub(super) fn accepted_of(pending: &Pending) -> Option<Answer> {
    let is_user = pending.flags & frontend_flag::SENTINEL == 0
        && !pending.is_direct()
        && pending.state & state::ALIAS == 0;
    let after = pending.accepted_after_ns().filter(|_| is_user)?;
    Some(Answer {
        service: pending.service,
        after_us: u32::try_from(after / 1_000).unwrap_or(u32::MAX),
    })
}

#[cfg(test)]
mod tests {
    use pathproof_wire::udp::flow_key;

    use super::*;

    #[test]
    fn an_answer_is_reported_once_for_the_datagram() {
        let pending = Pending {
            service: 7,
            state: state::FORWARDED | state::ANSWER_OUT,
            note: 400,
            ..Pending::default()
        };
        let told = answer_of(&PendingKey::default(), &pending);
        assert_eq!(
            told,
            Some(Answer {
                service: 7,
                after_us: 400
            })
        );
        let flow = flow_key((&[0; 16], [0; 2]), [0; 2], [0; 2], 0);
        assert_eq!(answer_of(&flow, &pending), None);
    }
}
