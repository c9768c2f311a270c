//! Successful connections, by the parts of the datapath that they needed.
//!
//! A success refutes only a fault that would have stopped it. For example, a masqueraded node port works even
//! if packets with a pod's address are not forwarded. So successes are separated by class of the client, kind
//! of frontend and place of the endpoint. The kernel records its last proofs only by class.

use std::collections::BTreeMap;
use std::net::IpAddr;

use pathproof_facts::time::Mono;
use pathproof_wire::evidence::{Pending, PendingKey, state};
use pathproof_wire::service::{Family, FrontendKind, NEAR, SourceClass, frontend_flag};
use serde::{Deserialize, Serialize};

use super::ip_of;

/// Place of an endpoint relative to this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// A pod of this node other than the client.
    Near,
    Remote,
    /// The node itself: connections are translated but not forwarded.
    Host,
    /// The client itself, or an endpoint whose node is not in the cluster view.
    Unknown,
}

/// The latest successful connections that needed the same parts of the datapath.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Success {
    pub family: Family,
    pub class: SourceClass,
    /// Kind of the address that they dialled.
    pub kind: FrontendKind,
    pub place: Place,
    /// Arrival of the latest one. It was answered, or delivered to a pod of this node by the device that
    /// the route specifies.
    pub at: Mono,
    /// Arrival of the latest one whose answer was forwarded to the client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answered: Option<Mono>,
    /// Arrival and client of the latest one with data both ways, if its data was watched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_answered: Option<(Mono, IpAddr)>,
    /// Client of the connection in `at`, and index of the interface by which it dialled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<(IpAddr, u32)>,
}

/// The key that separates successes.
type Need = (Family, SourceClass, FrontendKind, Place);

/// The latest successes, each with whether it changed since it was last taken.
#[derive(Clone, Debug, Default)]
pub struct Successes(BTreeMap<Need, (Success, bool)>);

impl Successes {
    /// Adds a connection; repetitions do not matter. UDP entries must not be added: their `note` contains a
    /// time instead of a peer.
    pub fn add(&mut self, key: &PendingKey, pending: &Pending) {
        let Some(new) = success(key, pending) else {
            return;
        };
        let need = (new.family, new.class, new.kind, new.place);
        let (latest, has_moved) = self.0.entry(need).or_insert((new, true));
        if new.at > latest.at {
            (latest.at, latest.client, *has_moved) = (new.at, new.client, true);
        }
        if new.answered > latest.answered {
            (latest.answered, *has_moved) = (new.answered, true);
        }
        let time = |data: Option<(Mono, IpAddr)>| data.map(|(at, _)| at);
        if time(new.data_answered) > time(latest.data_answered) {
            (latest.data_answered, *has_moved) = (new.data_answered, true);
        }
    }

    /// Returns the entries that changed since the previous call.
    pub fn take(&mut self) -> Vec<Success> {
        let all = self.0.values_mut();
        all.filter_map(|(latest, has_moved)| std::mem::take(has_moved).then_some(*latest))
            .collect()
    }
}

/// A connection as a success; `None` if it did not succeed or is no evidence.
fn success(key: &PendingKey, pending: &Pending) -> Option<Success> {
    let has = |bits: u32| pending.state & bits != 0;
    let is_probe = pending.flags & frontend_flag::SENTINEL != 0;
    if is_probe || pending.is_direct() || has(state::ALIAS | state::AMBIGUOUS) {
        return None;
    }
    // A repeated SYN proves nothing: it follows the first SYN's conntrack entry, even if all rules are gone.
    // A lost first SYN leaves none (docs/internal/kernel-findings.md, finding 11).
    let follows_former = has(state::RETRANSMITTED) && !has(state::LATE);
    if follows_former || !has(state::PROVEN) {
        return None;
    }
    let place = match pending.peer() {
        NEAR => Place::Near,
        0 if has(state::FORWARDED) => Place::Unknown,
        0 if pending.flags & frontend_flag::HOST_ENDPOINT != 0 => Place::Host,
        0 => Place::Unknown,
        _ => Place::Remote,
    };
    if place != Place::Near && !has(state::ANSWER_OUT) {
        return None;
    }
    let (at, client) = (Mono(pending.arrived_ns), ip_of(&pending.client));
    // Data must be seen in both directions: a hook that misses the client's data could not show its loss.
    let has_data = has(state::DATA_FORWARDED) && has(state::DATA_ANSWERED);
    Some(Success {
        family: Family::ALL[usize::from(key.family == Family::V6 as u32)],
        class: SourceClass::from_index(pending.class.into()),
        kind: FrontendKind::from_byte(pending.kind),
        place,
        at,
        answered: has(state::ANSWER_OUT).then_some(at),
        data_answered: has_data.then_some((at, client)),
        client: Some((client, pending.device)),
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const OUT: u32 = state::FORWARDED | state::PROVEN | state::ANSWER_IN | state::ANSWER_OUT;
    const DELIVERED: u32 = state::FORWARDED | state::PROVEN;
    const REMOTE: u32 = 7;

    fn arrived(at: u64, peer: u32, state: u32) -> Pending {
        Pending {
            arrived_ns: at,
            state,
            note: peer,
            kind: FrontendKind::NodePort as u8,
            class: SourceClass::External as u8,
            ..Pending::default()
        }
    }

    #[rstest]
    #[case::remote(REMOTE, OUT, 0, Some(Place::Remote))]
    #[case::remote_and_sent_on(REMOTE, state::FORWARDED, 0, None)]
    #[case::remote_and_the_answer_stays(REMOTE, state::FORWARDED | state::ANSWER_IN, 0, None)]
    #[case::near(NEAR.into(), OUT, 0, Some(Place::Near))]
    #[case::near_and_delivered(NEAR.into(), DELIVERED, 0, Some(Place::Near))]
    #[case::near_by_another_device(NEAR.into(), state::FORWARDED, 0, None)]
    #[case::the_client_itself(0, OUT, 0, Some(Place::Unknown))]
    #[case::not_known_where_and_silent(0, DELIVERED, 0, None)]
    #[case::node(0, state::PROVEN | state::ANSWER_OUT, frontend_flag::HOST_ENDPOINT, Some(Place::Host))]
    #[case::answered_by_somebody(0, state::ANSWER_OUT, 0, None)]
    #[case::arrived(0, 0, 0, None)]
    #[case::probe(NEAR.into(), OUT, frontend_flag::SENTINEL, None)]
    #[case::direct(NEAR.into(), OUT, frontend_flag::DEPARTED, None)]
    #[case::ambiguous(NEAR.into(), OUT | state::AMBIGUOUS, 0, None)]
    #[case::second_name(NEAR.into(), OUT | state::ALIAS, 0, None)]
    #[case::came_again(NEAR.into(), OUT | state::RETRANSMITTED, 0, None)]
    #[case::came_again_and_was_lost(NEAR.into(), OUT | state::RETRANSMITTED | state::LATE, 0, Some(Place::Near))]
    fn places(
        #[case] peer: u32,
        #[case] state: u32,
        #[case] flags: u8,
        #[case] expected: Option<Place>,
    ) {
        let mut successes = Successes::default();
        let pending = Pending {
            flags,
            ..arrived(1, peer, state)
        };
        successes.add(&PendingKey::default(), &pending);
        let taken = successes.take();
        assert_eq!(taken.first().map(|one| one.place), expected);
        assert!(taken.iter().all(|one| {
            (one.family, one.class, one.kind)
                == (Family::V4, SourceClass::External, FrontendKind::NodePort)
        }));
    }

    #[test]
    fn an_entry_is_taken_when_it_moved() {
        let mut successes = Successes::default();
        let mut take = |all: &[(u64, u32)]| {
            // After a pass that fails, connections are added again.
            for (at, state) in all.iter().take(1).chain(all) {
                successes.add(&PendingKey::default(), &arrived(*at, NEAR.into(), *state));
            }
            let taken = successes.take().into_iter();
            let taken = taken.map(|one| (one.at.0, one.answered));
            taken.collect::<Vec<_>>()
        };
        let answered = |at| Some(Mono(at));
        assert_eq!(
            take(&[(5, OUT), (3, OUT), (6, DELIVERED)]),
            [(6, answered(5))]
        );
        assert_eq!(take(&[(5, OUT), (3, OUT), (6, DELIVERED)]), []);
        assert_eq!(take(&[(6, OUT)]), [(6, answered(6))]);
        assert_eq!(take(&[(6, OUT), (9, OUT)]), [(9, answered(9))]);
        assert_eq!(take(&[]), []);
    }

    #[test]
    fn needs_are_kept_apart() {
        let mut successes = Successes::default();
        let of = |family: Family, class: SourceClass, kind: FrontendKind, peer: u32| {
            let key = PendingKey {
                isn: 1,
                family: family as u32,
            };
            let pending = Pending {
                class: class as u8,
                kind: kind as u8,
                ..arrived(4, peer, OUT)
            };
            (key, pending)
        };
        let (v4, v6) = (Family::V4, Family::V6);
        let (pod, outside) = (SourceClass::Pod, SourceClass::External);
        let (cluster, node) = (FrontendKind::ClusterIp, FrontendKind::NodePort);
        let all = [
            of(v4, pod, cluster, NEAR.into()),
            of(v4, pod, cluster, REMOTE),
            of(v4, pod, node, REMOTE),
            of(v4, outside, node, REMOTE),
            of(v6, outside, node, REMOTE),
        ];
        for (key, pending) in &all {
            successes.add(key, pending);
        }
        assert_eq!(successes.take().len(), all.len());
    }
}
