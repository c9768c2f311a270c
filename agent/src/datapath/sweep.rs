//! Sweeps the maps of connections and datagrams under way: finds which of them failed, and which
//! can be forgotten.
//!
//! The failure of a connection is read from its entry once its loss window is over, never from
//! differences of counts. An entry outlives its outcome, because without it a retransmitted SYN
//! would count as a first one (finding 11). An entry that is evicted early is remembered instead
//! ([`evicted`]).
//!
//! So a sweep reads every connection at least once, with its client, which counts do not contain.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;

use aya::Ebpf;
use aya::maps::{HashMap as BpfHashMap, IterableMap as _, MapData};
use bounds::{ALIASES, Candidate, surplus};
use evicted::Evicted;
use pathproof_facts::time::Mono;
use pathproof_judge::drain::{Arrival, Outside};
use pathproof_node::event::KernelSample;
use pathproof_wire::abi::{LOSS_WINDOW_NS, map};
use pathproof_wire::evidence::{Pending, PendingKey, state};
use pathproof_wire::service::{ExpectedHandling, Family, FrontendKind, SourceClass, frontend_flag};
use pathproof_wire::transition::{Failed, failed};
use pathproof_wire::udp::is_flow;
use pathproof_witness::evidence::{LostData, Successes, came_back};

use super::load::{MapsError, refused, take};
use super::syscall;

mod bounds;
mod evicted;

/// Time for which an answered entry is kept. A client retransmits an answered SYN only if the answer was
/// lost, and then after one second. After this time the next datagram of an answered flow is followed again.
const KEEP_ANSWERED_NS: u64 = 1_500_000_000;
/// Time for which an unanswered connection that should be forwarded is kept: as long as Linux retransmits its
/// SYN (6 times, 127 s), within [`bounds`]. A connection that should be dropped or rejected is never judged,
/// and is evicted after its loss window.
const KEEP_CONNECTION_NS: u64 = 130_000_000_000;
/// Time for which an unanswered datagram is kept. The map is sized for the datagrams that arrive in that time
/// (`abi::MAX_UDP_PENDING`).
const KEEP_DATAGRAM_NS: u64 = 4_000_000_000;
/// Time for which entries of the sentinel's probes are kept. Probes are not retransmitted, and are judged
/// within their timeout. The second entry (alias) of a connection whose SYN has a payload is kept for this
/// long too.
const KEEP_PROBE_NS: u64 = 3_000_000_000;
/// Minimum age of an arrival time whose entry is certainly in the map: a program reads the clock before it
/// inserts the entry.
const IN_THE_MAP_NS: u64 = 50_000_000;

#[derive(Debug, Default)]
pub(super) struct Swept {
    /// Failures since the last sweep. The first sweep reports none, since a previous agent reported them.
    pub(super) failed: Vec<(PendingKey, Pending, Failed)>,
    pub(super) under_way: usize,
    /// Entries that were evicted while the memory of evictions was full: their retransmitted SYNs
    /// may now count as first ones.
    pub(super) forgotten_early: usize,
}

/// How a sweep treats an entry.
pub(super) struct Met {
    /// Whether this sweep removes the entry.
    pub(super) is_over: bool,
    /// Whether an earlier entry of the same connection was evicted.
    is_again: bool,
}

/// A map of connections or datagrams under way, and the failures already reported.
pub(super) struct Sweeper {
    name: &'static str,
    map: BpfHashMap<MapData, PendingKey, Pending>,
    /// Entries still in the map whose failure an earlier sweep reported.
    reported: HashSet<PendingKey>,
    evicted: Evicted,
    has_swept: bool,
}

impl Sweeper {
    /// Takes the map, [`map::PENDING`] or [`map::UDP_PENDING`].
    pub(super) fn open(ebpf: &mut Ebpf, name: &'static str) -> Result<Self, MapsError> {
        Ok(Self {
            name,
            map: take(ebpf, name)?,
            reported: HashSet::new(),
            evicted: Evicted::default(),
            has_swept: false,
        })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.map.map().fd().as_fd()
    }

    /// Sweeps once at `now` and passes every entry to `each`. Costs a batch of lookups, independent
    /// of the number of devices and Services.
    pub(super) fn sweep(
        &mut self,
        now: u64,
        mut each: impl FnMut(&PendingKey, &Pending, Met),
    ) -> Result<Swept, MapsError> {
        let (keep, is_bounded) = match self.name {
            map::PENDING => (KEEP_CONNECTION_NS, true),
            _ => (KEEP_DATAGRAM_NS, false),
        };
        let mut swept = Swept::default();
        // By key, because a sweep may see an entry twice.
        let mut failures = HashMap::new();
        let (mut candidates, mut forget, mut evict) = (Vec::new(), Vec::new(), Vec::new());
        // Reported failures that are still in the map. All others are forgotten: another agent may have
        // removed their entries, and a retransmitted payload then has the same key as the removed entry.
        let mut still_reported = HashSet::new();
        self.evicted.age(now, keep);
        let met = |key: PendingKey, pending: Pending| {
            swept.under_way += 1;
            let age = now.saturating_sub(pending.arrived_ns);
            let is_again = is_bounded && self.evicted.holds(&key);
            if let Some(failed) = failed_for(&pending, age).filter(|_| !is_again) {
                if self.reported.contains(&key) {
                    still_reported.insert(key);
                } else {
                    failures.insert(key, (key, pending, failed));
                }
            }
            let is_over = age > keep_for(&key, &pending, keep);
            if !is_over {
                candidates.extend(candidate(key, &pending, age).filter(|_| is_bounded));
            } else if is_owed_nothing(&pending) {
                evict.push(key);
            } else {
                forget.push(key);
            }
            each(&key, &pending, Met { is_over, is_again });
        };
        syscall::for_each(self.fd(), met).map_err(refused("sweep", self.name))?;
        evict.extend(surplus(candidates));
        let over = forget.len();
        forget.extend(evict);
        syscall::delete(self.fd(), &forget).map_err(refused("sweep", self.name))?;
        if is_bounded {
            let evicted = &forget[over..];
            evicted.iter().for_each(|key| self.evicted.note(key));
            if self.evicted.is_full() {
                swept.forgotten_early = evicted.len();
            }
        }
        // Record the failures only after the sweep succeeded: a failed sweep must find them again.
        self.reported = still_reported;
        self.reported.extend(failures.keys());
        for key in &forget {
            self.reported.remove(key);
        }
        if std::mem::replace(&mut self.has_swept, true) {
            swept.failed = failures.into_values().collect();
        }
        Ok(swept)
    }
}

/// New connections from outside the node, each reported once, and successes of all connections.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    /// Arrival time up to which connections were reported.
    reported_until: Option<u64>,
    pub(super) uplinks: BTreeSet<u32>,
    pub(super) devices: HashMap<u32, Arc<str>>,
    successes: Successes,
}

impl Arrivals {
    /// Sweeps the connections, and reports those that arrived since the last sweep. The first sweep reports
    /// none, since a previous agent reported them. Also returns the part of a sample that a sweep finds, and
    /// the misrouted connections that were answered, at most 64.
    pub(super) fn sweep(
        &mut self,
        connections: &mut Sweeper,
        now: u64,
    ) -> Result<(Swept, KernelSample, Vec<PendingKey>), MapsError> {
        let until = now.saturating_sub(IN_THE_MAP_NS);
        let news = self.reported_until.unwrap_or(until)..until;
        let mut arrivals = Vec::new();
        let mut sample = KernelSample::default();
        let mut back = Vec::new();
        // Connections whose data was not forwarded, at most 64; by key, since a sweep may see an entry twice.
        let mut lost_data = HashMap::new();
        let swept = connections.sweep(now, |key, pending, met| {
            // Each connection is used twice: in the first sweep after its arrival (`is_new`), and in the
            // first one after its loss window (`is_past_loss_window`).
            let loss_window_end = pending.arrived_ns.saturating_add(LOSS_WINDOW_NS);
            let is_new = news.contains(&pending.arrived_ns);
            let is_past_loss_window = news.contains(&loss_window_end);
            if !met.is_again {
                self.successes.add(key, pending);
                back.extend(Some(*key).filter(|_| back.len() < 64 && came_back(pending)));
            }
            if met.is_over && lost_data.len() < 64 {
                lost_data.extend(LostData::of(pending).map(|lost| (*key, lost)));
            }
            if is_past_loss_window && !met.is_again {
                sample.peers.add(key, pending);
            }
            if met.is_again
                || !(is_new || is_past_loss_window)
                || !is_from_outside(pending, &self.uplinks)
            {
                return;
            }
            if is_new {
                arrivals.push(Arrival {
                    at: Mono(pending.arrived_ns),
                    client: pending.client,
                });
            }
            if is_past_loss_window && is_unanswered(pending) {
                sample.unanswered[usize::from(key.family == Family::V6 as u32)] += 1;
            }
        })?;
        let until = news.start.max(news.end);
        self.reported_until = Some(until);
        let until = Mono(until);
        sample
            .peers
            .name_devices(|index| self.devices.get(&index).cloned());
        sample.outside = Outside { arrivals, until };
        sample.successes = self.successes.take();
        sample.lost_data = lost_data.into_values().collect();
        Ok((swept, sample, back))
    }
}

/// Whether an entry is a new connection from outside the node. The sentinel's probes and other connections to
/// its frontends do not count.
///
/// A connection to a cluster IP counts only if it arrived by an uplink, since it may come from a pod. If the
/// CNI gives pods other addresses than the Node object states, only endpoints are known as pods. Connections
/// to other frontends count wherever they arrived: the observer may first see them at a port of the uplink (a
/// bond's or a bridge's), or at a second interface without a default route.
fn is_from_outside(pending: &Pending, uplinks: &BTreeSet<u32>) -> bool {
    pending.class == SourceClass::External as u8
        && pending.state & state::ALIAS == 0
        && pending.flags & frontend_flag::SENTINEL == 0
        && !pending.is_direct()
        && (pending.kind != FrontendKind::ClusterIp as u8 || uplinks.contains(&pending.device))
}

fn is_unanswered(pending: &Pending) -> bool {
    pending.state & (state::FORWARDED | state::ANSWERED) == state::FORWARDED
}

/// Time for which an entry is kept; `unanswered` is the time without an answer. The entry of a flow is an
/// alias of its datagram's entry, but is kept as long as the datagram.
fn keep_for(key: &PendingKey, pending: &Pending, unanswered: u64) -> u64 {
    let is_other_name = pending.state & state::ALIAS != 0 && !is_flow(key);
    if is_other_name || pending.flags & frontend_flag::SENTINEL != 0 {
        KEEP_PROBE_NS
    } else if pending.state & state::ANSWER_OUT != 0 {
        KEEP_ANSWERED_NS
    } else if is_owed_nothing(pending) {
        LOSS_WINDOW_NS
    } else {
        unanswered
    }
}

/// Whether the connection should be dropped or rejected: then no outcome of it is a failure.
fn is_owed_nothing(pending: &Pending) -> bool {
    !ExpectedHandling::from_byte(pending.owed).is_forward()
}

/// An entry that can be evicted. Probes are never evicted, and neither are entries so new that [`Arrivals`]
/// has not read them.
fn candidate(key: PendingKey, pending: &Pending, age: u64) -> Option<Candidate> {
    let is_probe = pending.flags & frontend_flag::SENTINEL != 0;
    let is_answered = pending.state & state::ANSWER_OUT != 0;
    let is_late = age > LOSS_WINDOW_NS;
    (!is_probe && age > IN_THE_MAP_NS).then_some(Candidate {
        key,
        client: pending.client,
        service: match pending.state & state::ALIAS {
            0 => pending.service,
            _ => ALIASES,
        },
        arrived_ns: pending.arrived_ns,
        is_settled: is_late || is_answered || is_owed_nothing(pending),
        is_waiting: is_late && !is_answered,
    })
}

/// Failure of a connection or datagram. Probes are left out, because the prober reports their results.
fn failed_for(pending: &Pending, age: u64) -> Option<Failed> {
    let is_probe = pending.flags & frontend_flag::SENTINEL != 0;
    failed(pending, age).filter(|_| !is_probe)
}

#[cfg(test)]
mod tests {
    use pathproof_wire::service::ExpectedHandling;
    use pathproof_wire::udp::flow_key;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::arrived(0, 0, Some(Failed::Lost))]
    #[case::leaked(state::LEAKED, 0, Some(Failed::Leaked))]
    #[case::forwarded(state::FORWARDED, 0, None)]
    #[case::leaked_and_answered(state::LEAKED | state::ANSWER_OUT, 0, None)]
    #[case::flow(state::ALIAS, 0, None)]
    #[case::probe(state::LEAKED, frontend_flag::SENTINEL, None)]
    fn failures(#[case] state: u32, #[case] flags: u8, #[case] expected: Option<Failed>) {
        let pending = Pending {
            state,
            flags,
            owed: ExpectedHandling::Forward as u8,
            ..Pending::default()
        };
        assert_eq!(failed_for(&pending, LOSS_WINDOW_NS + 1), expected);
        assert_eq!(
            failed_for(&pending, LOSS_WINDOW_NS),
            None,
            "an answer may come"
        );
    }

    #[rstest]
    #[case::client(SourceClass::External, 0, 0, true)]
    #[case::failed(SourceClass::External, state::LEAKED, 0, true)]
    #[case::pod(SourceClass::Pod, 0, 0, false)]
    #[case::node(SourceClass::Host, state::LEAKED, 0, false)]
    #[case::probe(SourceClass::External, 0, frontend_flag::SENTINEL, false)]
    #[case::second_name(SourceClass::External, state::ALIAS, 0, false)]
    fn from_outside(
        #[case] class: SourceClass,
        #[case] state: u32,
        #[case] flags: u8,
        #[case] expected: bool,
    ) {
        let pending = Pending {
            class: class as u8,
            kind: FrontendKind::NodePort as u8,
            state,
            flags,
            ..Pending::default()
        };
        assert_eq!(is_from_outside(&pending, &BTreeSet::new()), expected);
    }

    #[rstest]
    #[case::a_pod_nobody_knows(FrontendKind::ClusterIp, 3, false)]
    #[case::a_routed_cluster_ip(FrontendKind::ClusterIp, 2, true)]
    #[case::part_of_a_bond(FrontendKind::NodePort, 3, true)]
    #[case::second_way_in(FrontendKind::LoadBalancer, 4, true)]
    #[case::external_ip(FrontendKind::ExternalIp, 2, true)]
    fn connections_of_an_unknown_source(
        #[case] kind: FrontendKind,
        #[case] device: u32,
        #[case] expected: bool,
    ) {
        let pending = Pending {
            class: SourceClass::External as u8,
            kind: kind as u8,
            device,
            ..Pending::default()
        };
        assert_eq!(is_from_outside(&pending, &BTreeSet::from([2])), expected);
    }

    /// A flow is kept like its datagram, unlike the alias of a connection.
    #[rstest]
    #[case::unanswered(false, 0, 0, KEEP_DATAGRAM_NS)]
    #[case::answered(false, state::ANSWER_OUT, 0, KEEP_ANSWERED_NS)]
    #[case::flow(true, state::ALIAS, 0, KEEP_DATAGRAM_NS)]
    #[case::answered_flow(true, state::ALIAS | state::ANSWER_OUT, 0, KEEP_ANSWERED_NS)]
    #[case::second_name(false, state::ALIAS, 0, KEEP_PROBE_NS)]
    #[case::probe(false, 0, frontend_flag::SENTINEL, KEEP_PROBE_NS)]
    fn kept(#[case] flow: bool, #[case] state: u32, #[case] flags: u8, #[case] expected: u64) {
        let key = match flow {
            true => flow_key((&[0; 16], [0; 2]), [0; 2], [0; 2], 0),
            false => PendingKey::default(),
        };
        let pending = Pending {
            state,
            flags,
            owed: ExpectedHandling::Forward as u8,
            ..Pending::default()
        };
        assert_eq!(keep_for(&key, &pending, KEEP_DATAGRAM_NS), expected);
    }

    #[rstest]
    #[case::forwarding(ExpectedHandling::Forward, 0, KEEP_CONNECTION_NS)]
    #[case::a_local_endpoint(ExpectedHandling::LocalOnly, state::FORWARDED, KEEP_CONNECTION_NS)]
    #[case::a_rejection(ExpectedHandling::Reject, 0, LOSS_WINDOW_NS)]
    #[case::a_rejection_that_came(ExpectedHandling::Reject, state::REJECTED, LOSS_WINDOW_NS)]
    #[case::nothing(ExpectedHandling::Nothing, state::FORWARDED, LOSS_WINDOW_NS)]
    #[case::answered(ExpectedHandling::Nothing, state::FORWARDED | state::ANSWER_OUT, KEEP_ANSWERED_NS)]
    fn kept_by_its_expected_handling(
        #[case] handling: ExpectedHandling,
        #[case] state: u32,
        #[case] expected: u64,
    ) {
        let pending = Pending {
            state,
            owed: handling as u8,
            ..Pending::default()
        };
        let kept = keep_for(&PendingKey::default(), &pending, KEEP_CONNECTION_NS);
        assert_eq!(kept, expected);
    }

    /// The field of an alias contains a sequence number, which a client chooses.
    #[rstest]
    #[case::connection(0, 7)]
    #[case::alias(state::ALIAS, ALIASES)]
    fn aliases_share_the_limit_of_one_service(#[case] state: u32, #[case] expected: u32) {
        let pending = Pending {
            state,
            service: 7,
            ..Pending::default()
        };
        let found = candidate(PendingKey::default(), &pending, LOSS_WINDOW_NS);
        assert_eq!(found.map(|candidate| candidate.service), Some(expected));
    }

    /// Probes are judged one by one, and an entry that the arrivals have not seen yet is not evicted.
    #[rstest]
    #[case::waits(ExpectedHandling::Forward, 0, 0, 2 * LOSS_WINDOW_NS, Some((true, true)))]
    #[case::answered(ExpectedHandling::Forward, state::ANSWER_OUT, 0, 2 * LOSS_WINDOW_NS, Some((true, false)))]
    #[case::under_way(ExpectedHandling::Forward, 0, 0, IN_THE_MAP_NS + 1, Some((false, false)))]
    #[case::to_be_rejected(ExpectedHandling::Reject, 0, 0, IN_THE_MAP_NS + 1, Some((true, false)))]
    #[case::just_came(ExpectedHandling::Forward, 0, 0, IN_THE_MAP_NS, None)]
    #[case::probe(ExpectedHandling::Forward, 0, frontend_flag::SENTINEL, 2 * LOSS_WINDOW_NS, None)]
    fn candidates(
        #[case] handling: ExpectedHandling,
        #[case] state: u32,
        #[case] flags: u8,
        #[case] age: u64,
        #[case] expected: Option<(bool, bool)>,
    ) {
        let pending = Pending {
            state,
            flags,
            owed: handling as u8,
            ..Pending::default()
        };
        let found = candidate(PendingKey::default(), &pending, age);
        assert_eq!(
            found.map(|candidate| (candidate.is_settled, candidate.is_waiting)),
            expected
        );
    }
}
