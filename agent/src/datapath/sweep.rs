//! The account of what is under way, connections and datagrams: which of them failed, and which can
//! be forgotten.
//!
//! Whether a connection failed is told from its entry once its loss window is over, never by
//! subtracting counts. An entry outlives its outcome, since it tells a SYN that comes again from a
//! first one (finding 11). One that is evicted before its time is remembered instead ([`evicted`]).
//!
//! So every connection is met at least once, with its client, which counts do not tell.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;

use agent_common::abi::{LOSS_WINDOW_NS, map};
use agent_common::evidence::{Pending, PendingKey, state};
use agent_common::service::{FAMILIES, Family, FrontendKind, Owed, SourceClass, frontend_flag};
use agent_common::transition::{Failed, failed};
use agent_common::udp::is_flow;
use aya::Ebpf;
use aya::maps::{Map, MapData};

use super::load::{LoadError, MapsError, refused};
use super::syscall;
use agent_core::drain::{Arrival, Outside};
use agent_core::event::Heaviest;
use agent_core::evidence::{LostData, Success, Successes, came_back};
use agent_core::peers::PeerSample;
use agent_core::time::Mono;
pub(super) use answers::Answer;
use answers::accepted_of;
pub(super) use answers::answer_of;
use bounds::{Candidate, heaviest, surplus};
use evicted::Evicted;

mod answers;
mod bounds;
mod evicted;

/// An answered entry is forgotten after this long: a client retransmits no SYN then, unless the
/// answer did not reach it, and then after one second. The next datagram of an answered flow is
/// followed again.
const KEEP_ANSWERED_NS: u64 = 1_500_000_000;
/// An unanswered connection that was owed forwarding is kept for as long as Linux sends its SYN again
/// (6 times, 127 s), within [`bounds`]. Of one that was owed nothing else than a rejection nothing is
/// judged: it is evicted after its loss window.
const KEEP_CONNECTION_NS: u64 = 130_000_000_000;
/// An unanswered datagram waits so long for its answer. The map has room for as many as come meanwhile
/// (`abi::MAX_UDP_PENDING`).
const KEEP_DATAGRAM_NS: u64 = 4_000_000_000;
/// A probe of the sentinel's, which is not sent again and is judged within its timeout; and the second
/// name of a connection with payload in its SYN.
const KEEP_PROBE_NS: u64 = 3_000_000_000;
/// A program reads the clock before it puts an entry in: after this long it has.
const IN_THE_MAP_NS: u64 = 50_000_000;

/// Result of one sweep.
#[derive(Debug, Default)]
pub(super) struct Swept {
    /// Failures since the last sweep; none of the first one: a former agent reported those.
    pub(super) failed: Vec<(PendingKey, Pending, Failed)>,
    /// Entries under way.
    pub(super) under_way: usize,
    /// Entries that were evicted although no more of them can be remembered: a SYN that comes again
    /// may now pass for a first one.
    pub(super) forgotten_early: usize,
    /// Service and client with most of the map, while it is crowded.
    pub(super) heaviest: Option<Heaviest>,
}

/// A view on an entry that a sweep met.
pub(super) struct Met {
    /// It is forgotten with this sweep.
    pub(super) is_over: bool,
    /// It is not the first entry of its connection.
    is_again: bool,
}

/// A map of what is under way, and what was told of it.
pub(super) struct Sweeper {
    name: &'static str,
    map: MapData,
    /// Entries that failed, were reported already and are still in the map.
    told: HashSet<PendingKey>,
    /// Connections whose entries were evicted.
    evicted: Evicted,
    has_swept: bool,
}

impl Sweeper {
    /// Takes the map, [`map::PENDING`] or [`map::UDP_PENDING`].
    pub(super) fn open(ebpf: &mut Ebpf, name: &'static str) -> Result<Self, MapsError> {
        let Some(Map::HashMap(map)) = ebpf.take_map(name) else {
            return Err(LoadError::Missing { kind: "map", name }.into());
        };
        Ok(Self {
            name,
            map,
            told: HashSet::new(),
            evicted: Evicted::default(),
            has_swept: false,
        })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.map.fd().as_fd()
    }

    /// One sweep at `now`, which gives every entry to `each`. Cost: a batch of lookups, nothing per
    /// device or Service.
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
        // An entry may be met twice.
        let mut failures = HashMap::new();
        let (mut candidates, mut forget, mut evict) = (Vec::new(), Vec::new(), Vec::new());
        // A payload that comes again has the same key, and another agent may forget it too.
        let mut still_told = HashSet::new();
        self.evicted.age(now, keep);
        let met = |key: PendingKey, pending: Pending| {
            swept.under_way += 1;
            let age = now.saturating_sub(pending.arrived_ns);
            let is_again = is_bounded && self.evicted.holds(&key);
            if let Some(failed) = failed_for(&pending, age).filter(|_| !is_again) {
                if self.told.contains(&key) {
                    still_told.insert(key);
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
        swept.heaviest = heaviest(&candidates);
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
        // Only now: what a sweep that fails had found is found again.
        self.told = still_told;
        self.told.extend(failures.keys());
        for key in &forget {
            self.told.remove(key);
        }
        if std::mem::replace(&mut self.has_swept, true) {
            swept.failed = failures.into_values().collect();
        }
        Ok(swept)
    }
}

/// Result of a sweep of connections.
#[derive(Debug, Default)]
pub(super) struct SweptConnections {
    pub(super) swept: Swept,
    pub(super) outside: Outside,
    /// See [`KernelSample::unanswered`](agent_core::event::KernelSample::unanswered).
    pub(super) unanswered: [u32; FAMILIES],
    pub(super) peers: PeerSample,
    pub(super) accepted: Vec<Answer>,
    pub(super) successes: Vec<Success>,
    /// Connections that went astray and were answered, at most 64 of a sweep.
    pub(super) came_back: Vec<PendingKey>,
    /// Connections whose data was not forwarded, at most 64 of a sweep.
    pub(super) lost_data: Vec<LostData>,
}

/// New connections from outside the node, each reported once, and successes of all connections.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    /// They were told up to here.
    told_until: Option<u64>,
    /// Devices by which default routes leave.
    pub(super) uplinks: BTreeSet<u32>,
    /// Names of all devices.
    pub(super) devices: HashMap<u32, Arc<str>>,
    successes: Successes,
}

impl Arrivals {
    /// Sweeps connections, and finds those that came since the last sweep. Of the first one none: what
    /// came before was a former agent's.
    pub(super) fn sweep(
        &mut self,
        connections: &mut Sweeper,
        now: u64,
    ) -> Result<SweptConnections, MapsError> {
        let until = now.saturating_sub(IN_THE_MAP_NS);
        let news = self.told_until.unwrap_or(until)..until;
        let mut arrivals = Vec::new();
        let mut unanswered = [0; FAMILIES];
        let mut peers = PeerSample::default();
        let mut accepted = Vec::new();
        let mut back = Vec::new();
        // An entry may be met twice.
        let mut lost_data = HashMap::new();
        self.successes.begin();
        let swept = connections.sweep(now, |key, pending, met| {
            let told = pending.arrived_ns.saturating_add(LOSS_WINDOW_NS);
            let is_new = news.contains(&pending.arrived_ns);
            let is_told = news.contains(&told);
            if !met.is_again {
                self.successes.add(key, pending);
                back.extend(Some(*key).filter(|_| back.len() < 64 && came_back(pending)));
            }
            if met.is_over && lost_data.len() < 64 {
                lost_data.extend(LostData::of(pending).map(|lost| (*key, lost)));
            }
            if is_told && !met.is_again {
                peers.add(key, pending);
                accepted.extend(accepted_of(pending));
            }
            if met.is_again || !(is_new || is_told) || !is_from_outside(pending, &self.uplinks) {
                return;
            }
            if is_new {
                arrivals.push(Arrival {
                    at: Mono(pending.arrived_ns),
                    client: pending.client,
                });
            }
            if is_told && is_unanswered(pending) {
                unanswered[usize::from(key.family == Family::V6 as u32)] += 1;
            }
        })?;
        peers.name_devices(|index| self.devices.get(&index).cloned());
        let until = news.start.max(news.end);
        self.told_until = Some(until);
        let until = Mono(until);
        Ok(SweptConnections {
            swept,
            outside: Outside { arrivals, until },
            unanswered,
            peers,
            accepted,
            successes: self.successes.take(),
            came_back: back,
            lost_data: lost_data.into_values().collect(),
        })
    }
}

/// Whether an entry is a new connection from outside the node. The sentinel's probes are none, nor
/// are other connections to its frontends.
///
/// If the CNI gives pods other addresses than the Node states, only pods that are endpoints are
/// known as such; the others are recognised by what they dial: a cluster IP that did not come in by
/// an uplink. Everything else counts wherever it came in, since the first sighting may be at a part
/// of the uplink (a bond's or a bridge's), or at a second way in without a default route.
fn is_from_outside(pending: &Pending, uplinks: &BTreeSet<u32>) -> bool {
    pending.class == SourceClass::External as u8
        && pending.state & state::ALIAS == 0
        && pending.flags & frontend_flag::SENTINEL == 0
        && !pending.is_direct()
        && (pending.kind != FrontendKind::ClusterIp as u8 || uplinks.contains(&pending.device))
}

/// Whether it was sent on and no answer came back.
fn is_unanswered(pending: &Pending) -> bool {
    pending.state & (state::FORWARDED | state::ANSWERED) == state::FORWARDED
}

/// Time for which an entry is kept; `unanswered` while there is no answer. The flow of a datagram,
/// which is another name of it too, is kept as long as the datagram.
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

/// Whether it was to be dropped or rejected: whatever became of it, it is no failure.
fn is_owed_nothing(pending: &Pending) -> bool {
    !Owed::from_byte(pending.owed).is_forward()
}

/// An entry as one that can be evicted. A probe cannot, nor can an entry that was not met by the
/// arrivals yet.
fn candidate(key: PendingKey, pending: &Pending, age: u64) -> Option<Candidate> {
    let is_probe = pending.flags & frontend_flag::SENTINEL != 0;
    let is_answered = pending.state & state::ANSWER_OUT != 0;
    let is_late = age > LOSS_WINDOW_NS;
    (!is_probe && age > IN_THE_MAP_NS).then_some(Candidate {
        key,
        client: pending.client,
        service: pending.service,
        arrived_ns: pending.arrived_ns,
        is_settled: is_late || is_answered || is_owed_nothing(pending),
        is_waiting: is_late && !is_answered,
    })
}

/// Failure of a connection or datagram; the prober reports what became of a probe.
fn failed_for(pending: &Pending, age: u64) -> Option<Failed> {
    let is_probe = pending.flags & frontend_flag::SENTINEL != 0;
    failed(pending, age).filter(|_| !is_probe)
}

#[cfg(test)]
mod tests {
    use agent_common::service::Owed;
    use agent_common::udp::flow_key;
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
            owed: Owed::Forward as u8,
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
    fn of_a_source_that_nobody_knows(
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

    /// A flow goes with its datagram, and not as the second name of a connection does.
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
            owed: Owed::Forward as u8,
            ..Pending::default()
        };
        assert_eq!(keep_for(&key, &pending, KEEP_DATAGRAM_NS), expected);
    }

    #[rstest]
    #[case::forwarding(Owed::Forward, 0, KEEP_CONNECTION_NS)]
    #[case::a_local_endpoint(Owed::LocalOnly, state::FORWARDED, KEEP_CONNECTION_NS)]
    #[case::a_rejection(Owed::Reject, 0, LOSS_WINDOW_NS)]
    #[case::a_rejection_that_came(Owed::Reject, state::REJECTED, LOSS_WINDOW_NS)]
    #[case::nothing(Owed::Nothing, state::FORWARDED, LOSS_WINDOW_NS)]
    #[case::answered(Owed::Nothing, state::FORWARDED | state::ANSWER_OUT, KEEP_ANSWERED_NS)]
    fn kept_by_what_is_owed(#[case] owed: Owed, #[case] state: u32, #[case] expected: u64) {
        let pending = Pending {
            state,
            owed: owed as u8,
            ..Pending::default()
        };
        let kept = keep_for(&PendingKey::default(), &pending, KEEP_CONNECTION_NS);
        assert_eq!(kept, expected);
    }

    /// Probes are judged one by one, and an entry that the arrivals did not meet yet is not evicted.
    #[rstest]
    #[case::waits(Owed::Forward, 0, 0, 2 * LOSS_WINDOW_NS, Some((true, true)))]
    #[case::answered(Owed::Forward, state::ANSWER_OUT, 0, 2 * LOSS_WINDOW_NS, Some((true, false)))]
    #[case::under_way(Owed::Forward, 0, 0, IN_THE_MAP_NS + 1, Some((false, false)))]
    #[case::to_be_rejected(Owed::Reject, 0, 0, IN_THE_MAP_NS + 1, Some((true, false)))]
    #[case::just_came(Owed::Forward, 0, 0, IN_THE_MAP_NS, None)]
    #[case::probe(Owed::Forward, 0, frontend_flag::SENTINEL, 2 * LOSS_WINDOW_NS, None)]
    fn candidates(
        #[case] owed: Owed,
        #[case] state: u32,
        #[case] flags: u8,
        #[case] age: u64,
        #[case] expected: Option<(bool, bool)>,
    ) {
        let pending = Pending {
            state,
            flags,
            owed: owed as u8,
            ..Pending::default()
        };
        let found = candidate(PendingKey::default(), &pending, age);
        assert_eq!(found.map(|of| (of.is_settled, of.is_waiting)), expected);
    }
}
