//! The account of connections under way: which of them are lost, and which can be forgotten.
//!
//! Lost is what arrived, was owed forwarding and made no progress for the loss window; it is told
//! from the entries themselves, never by subtracting counts. An entry outlives its outcome, since
//! only an entry that is still there tells a SYN that comes again from a first one (finding 11).
//!
//! So every connection is met at least once, with its client, which counts do not tell.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io;
use std::os::fd::BorrowedFd;

use agent_common::abi::{LOSS_WINDOW_NS, MAX_PENDING};
use agent_common::evidence::{Pending, PendingKey, state};
use agent_common::service::{FrontendKind, Owed, SourceClass, frontend_flag};

use super::syscall;
use agent_core::drain::{Arrival, Outside};
use agent_core::time::Mono;

/// An answered connection is forgotten after this long: its client retransmits no SYN, unless the
/// answer did not reach it, and then after one second.
const KEEP_ANSWERED_NS: u64 = 1_500_000_000;
/// An unanswered one is kept for as long as Linux sends its SYN again (6 times, 127 s).
const KEEP_UNANSWERED_NS: u64 = 130_000_000_000;
/// A probe of the sentinel's: it is not sent again, and judged within its timeout.
const KEEP_PROBE_NS: u64 = 3_000_000_000;
/// The second name of a connection with payload in its SYN.
const KEEP_ALIAS_NS: u64 = 3_000_000_000;
/// Above this many entries the oldest are forgotten early.
const CROWDED: usize = MAX_PENDING as usize / 4 * 3;
/// Down to this many.
const RELIEVED: usize = MAX_PENDING as usize / 2;
/// A program reads the clock before it puts an entry in: after this long it has.
const IN_THE_MAP_NS: u64 = 50_000_000;

/// What one sweep found.
#[derive(Debug, Default)]
pub struct Swept {
    /// Connections that became lost since the last sweep.
    pub lost: Vec<Pending>,
    /// Entries under way.
    pub under_way: usize,
    /// Entries that had to be forgotten early: a SYN that comes again may now pass for a first one.
    pub forgotten_early: usize,
    /// Connections from outside that came since the last sweep. Of the first one nothing: what came
    /// before was a former agent's.
    pub outside: Outside,
}

/// Sweeps the map of connections.
#[derive(Debug, Default)]
pub struct Sweeper {
    /// Lost connections that were told already and are still in the map.
    told: HashSet<PendingKey>,
    /// Connections from outside were told up to here.
    told_until: Option<u64>,
    /// Devices by which default routes leave.
    uplinks: BTreeSet<u32>,
}

impl Sweeper {
    /// The devices by which default routes leave, from now on.
    pub fn set_uplinks(&mut self, uplinks: BTreeSet<u32>) {
        self.uplinks = uplinks;
    }

    /// One sweep at `now`. Cost: a batch of lookups, nothing per device or Service.
    pub fn sweep(&mut self, map: BorrowedFd<'_>, now: u64) -> io::Result<Swept> {
        let mut swept = Swept::default();
        let mut lost: HashMap<PendingKey, Pending> = HashMap::new();
        let mut kept: Vec<(u64, PendingKey)> = Vec::new();
        let mut forget = Vec::new();
        let until = now.saturating_sub(IN_THE_MAP_NS);
        let news = self.told_until.unwrap_or(until)..until;
        syscall::for_each(map, |key: PendingKey, pending: Pending| {
            swept.under_way += 1;
            let age = now.saturating_sub(pending.arrived_ns);
            if is_lost(&pending, age) && !self.told.contains(&key) {
                lost.insert(key, pending);
            }
            if news.contains(&pending.arrived_ns) && is_from_outside(&pending, &self.uplinks) {
                swept.outside.arrivals.push(Arrival {
                    at: Mono(pending.arrived_ns),
                    client: pending.client,
                });
            }
            if age > keep_for(&pending) {
                forget.push(key);
            } else if age > LOSS_WINDOW_NS {
                kept.push((pending.arrived_ns, key));
            }
        })?;
        let staying = swept.under_way.saturating_sub(forget.len());
        if staying > CROWDED {
            kept.sort_unstable();
            let surplus = (staying - RELIEVED).min(kept.len());
            swept.forgotten_early = surplus;
            forget.extend(kept[..surplus].iter().map(|(_, key)| *key));
        }
        syscall::delete(map, &forget)?;
        // Only now: what a sweep that fails had found is found again.
        self.told.extend(lost.keys());
        for key in &forget {
            self.told.remove(key);
        }
        swept.lost = lost.into_values().collect();
        let until = news.start.max(news.end);
        self.told_until = Some(until);
        swept.outside.until = Mono(until);
        Ok(swept)
    }
}

/// Whether an entry is a new connection from outside the node. The sentinel's probes are none, nor
/// is who else dials it.
///
/// Where the CNI gives pods other addresses than the Node says, only pods that are endpoints are known
/// as such; the others are told by what they dial: a cluster IP that did not come in by an uplink.
/// Everything else counts wherever it came in, since the first sighting may be at a part of the
/// uplink (a bond's or a bridge's), or at a second way in without a default route.
fn is_from_outside(pending: &Pending, uplinks: &BTreeSet<u32>) -> bool {
    pending.class == SourceClass::External as u8
        && pending.state & state::ALIAS == 0
        && pending.flags & frontend_flag::SENTINEL == 0
        && (pending.kind != FrontendKind::ClusterIp as u8 || uplinks.contains(&pending.device))
}

/// How long an entry is kept.
fn keep_for(pending: &Pending) -> u64 {
    if pending.state & state::ALIAS != 0 {
        KEEP_ALIAS_NS
    } else if pending.flags & frontend_flag::SENTINEL != 0 {
        KEEP_PROBE_NS
    } else if pending.state & state::ANSWERED != 0 {
        KEEP_ANSWERED_NS
    } else {
        KEEP_UNANSWERED_NS
    }
}

/// Whether a connection is lost: it was owed forwarding, and nothing but its arrival was seen. An
/// endpoint on the node itself is reached without leaving by a device, so its silence is its own;
/// what became of a probe is told by the prober.
fn is_lost(pending: &Pending, age: u64) -> bool {
    age > LOSS_WINDOW_NS
        && pending.state & state::PROGRESS == 0
        && Owed::from_byte(pending.owed).is_forward()
        && pending.flags & (frontend_flag::HOST_ENDPOINT | frontend_flag::SENTINEL) == 0
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const FORWARD: u8 = Owed::Forward as u8;

    #[rstest]
    #[case::arrived(0, FORWARD, 0, true)]
    #[case::arrived_twice(state::RETRANSMITTED, FORWARD, 0, true)]
    #[case::forwarded(state::FORWARDED, FORWARD, 0, false)]
    #[case::leaked(state::LEAKED, FORWARD, 0, false)]
    #[case::ambiguous(state::AMBIGUOUS, FORWARD, 0, false)]
    #[case::alias(state::ALIAS, FORWARD, 0, false)]
    #[case::nothing_owed(0, Owed::Nothing as u8, 0, false)]
    #[case::reject_owed(0, Owed::Reject as u8, 0, false)]
    #[case::local_owed(0, Owed::LocalOnly as u8, 0, true)]
    #[case::probe(0, FORWARD, frontend_flag::SENTINEL, false)]
    #[case::endpoint_on_the_node(0, FORWARD, frontend_flag::HOST_ENDPOINT, false)]
    fn lost(#[case] state: u32, #[case] owed: u8, #[case] flags: u8, #[case] expected: bool) {
        let pending = Pending {
            state,
            owed,
            flags,
            ..Pending::default()
        };
        assert_eq!(is_lost(&pending, LOSS_WINDOW_NS + 1), expected);
        assert!(
            !is_lost(&pending, LOSS_WINDOW_NS),
            "not before the window is over"
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
}
