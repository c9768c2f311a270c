//! Answers of the owners of health check node ports: kube-proxy or Cilium.
//!
//! The agent takes connections from outside over from the owner, so it must not answer 200 where the owner
//! refuses: kube-proxy may run under a wrong node name, or may not have programmed the Service. In doubt the
//! agent's answer stays, because a slow owner is not a refusing one.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use pathproof_facts::time::Mono;
use pathproof_wire::service::{Family, SourceClass};
use pathproof_witness::topology::DatapathTopology;

/// Minimum time from the first to the last of successive 503s that count. A new endpoint is ready at the API
/// before the owner has written its rules, so a single 503 is normal.
const UNHEALTHY: Duration = Duration::from_secs(1);
/// The same while nothing listens. An update of the owner may first pull its image, and kube-proxy listens
/// only after it has written all rules; meanwhile the old rules work.
const ABSENT: Duration = Duration::from_secs(60);
/// Ports that are not in the table are remembered for this time. While the API server is silent, the agent
/// leaves most of them to their owners.
const REMEMBERED: Duration = Duration::from_secs(10 * 60);

/// The family of the addresses that clients dial, and a health check node port in host order.
pub type PortKey = (Family, u16);

/// Ports that answer 503 because of their owner.
pub type OwnerRefusals = BTreeMap<PortKey, OwnerRefusal>;

/// Result of one request to a port's owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerReply {
    /// 200.
    Healthy,
    /// 503.
    Unhealthy,
    /// No process listens at the port.
    Absent,
    /// Any other answer, or none in time.
    Unclear,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerRefusal {
    Unhealthy,
    Absent,
}

impl OwnerRefusal {
    /// Minimum duration of a refusal that counts.
    fn least(self) -> Duration {
        match self {
            Self::Unhealthy => UNHEALTHY,
            Self::Absent => ABSENT,
        }
    }
}

impl fmt::Display for OwnerRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unhealthy => "the port's owner answers 503",
            Self::Absent => "no process listens at the port",
        })
    }
}

/// Whether the process that listens at the healthz port should listen at every health check node port of this
/// family, as kube-proxy does from its first sync on. Cilium can be configured without these ports, and an
/// unknown program need not have them.
pub fn is_expected(topology: &DatapathTopology, family: Family) -> bool {
    let mut paths = topology.paths.iter();
    let outside = paths.find(|path| (path.family, path.path) == (family, SourceClass::External));
    // Before its first sync kube-proxy has no rules, so no owner is found. If a hook could not be read, its
    // program may belong to another proxy.
    let before_sync = topology.cilium.is_none() && !topology.hooks_unread;
    outside
        .is_some_and(|path| path.owners.is_kube_proxy() || (path.owners.is_empty() && before_sync))
}

/// The replies of all owners.
#[derive(Debug, Default)]
pub struct OwnerReplies(BTreeMap<PortKey, Port>);

#[derive(Debug, Default)]
struct Port {
    /// The owner has answered, so it is expected from now on.
    has_answered: bool,
    /// The last reply was [`OwnerReply::Unclear`].
    is_unclear: bool,
    /// It is not requested now, so a refusal is only remembered.
    is_paused: bool,
    refusal: Option<Lasting>,
    /// When it was last in the table, or replied.
    seen: Mono,
}

#[derive(Clone, Copy, Debug)]
struct Lasting {
    kind: OwnerRefusal,
    began: Mono,
    counts: bool,
}

impl Lasting {
    /// If the reason changes, a refusal that counts already keeps its start time, and one that does not count
    /// yet starts again.
    fn after(before: Option<Self>, kind: OwnerRefusal, now: Mono) -> Self {
        let before = before.filter(|before| before.counts || before.kind == kind);
        let began = before.map_or(now, |before| before.began);
        let counted = before.is_some_and(|before| before.counts);
        let counts = counted || now.since(began) >= kind.least();
        Self {
            kind,
            began,
            counts,
        }
    }
}

impl OwnerReplies {
    /// Forgets ports that have not been among these for ten minutes.
    pub fn retain(&mut self, ports: &BTreeSet<PortKey>, now: Mono) {
        self.0.retain(|key, port| {
            if ports.contains(key) {
                port.seen = now;
            }
            now.since(port.seen) <= REMEMBERED
        });
    }

    /// Only these ports are requested now. A refusal of another one counts again with the owner's next refusal,
    /// because the owner may have recovered meanwhile.
    pub fn pause_all_but(&mut self, due: &BTreeSet<PortKey>) {
        let others = self.0.iter_mut().filter(|(key, _)| !due.contains(key));
        for (_, port) in others {
            (port.is_paused, port.is_unclear) = (true, true);
            // A single 503 from before must not make the next one count at once.
            port.refusal = port.refusal.filter(|refusal| refusal.counts);
        }
    }

    /// Records a reply. `expected`: a process should listen at the port, even if none ever answered.
    pub fn record(&mut self, port: PortKey, reply: OwnerReply, expected: bool, now: Mono) {
        let port = self.0.entry(port).or_default();
        (port.seen, port.is_paused) = (now, false);
        let was_unclear = std::mem::replace(&mut port.is_unclear, reply == OwnerReply::Unclear);
        let answers_503 = (port.refusal).is_some_and(|last| last.kind == OwnerRefusal::Unhealthy);
        let kind = match reply {
            OwnerReply::Unhealthy => Some(OwnerRefusal::Unhealthy),
            OwnerReply::Absent if port.has_answered || expected => Some(OwnerRefusal::Absent),
            // One lost reply does not end 503s. It ends an absence, because a process listens.
            OwnerReply::Unclear if !was_unclear && answers_503 => return,
            OwnerReply::Healthy | OwnerReply::Absent | OwnerReply::Unclear => None,
        };
        port.has_answered |= matches!(reply, OwnerReply::Healthy | OwnerReply::Unhealthy);
        port.refusal = kind.map(|kind| Lasting::after(port.refusal, kind, now));
    }

    /// The refusals that have lasted long enough to count.
    pub fn refusals(&self) -> OwnerRefusals {
        let counts = |(key, port): (&PortKey, &Port)| {
            let refusal = port.refusal.filter(|refusal| refusal.counts)?;
            let refusal = (!port.is_paused).then_some(refusal)?;
            Some((*key, refusal.kind))
        };
        self.0.iter().filter_map(counts).collect()
    }
}

#[cfg(test)]
mod tests {
    use pathproof_facts::owners::{DatapathOwners, Owner};
    use pathproof_witness::topology::{Cilium, PathTopology, Seen, Tristate};
    use rstest::rstest;

    use super::OwnerReply::{Absent, Healthy, Unclear, Unhealthy};
    use super::*;

    const PORT: PortKey = (Family::V4, 30_999);

    /// The refusal after replies that arrive every two seconds.
    fn after(replies: &[OwnerReply], expected: bool) -> Option<OwnerRefusal> {
        let mut owners = OwnerReplies::default();
        for (at, reply) in (0..).step_by(2).zip(replies) {
            owners.record(PORT, *reply, expected, Mono(at * 1_000_000_000));
        }
        owners.refusals().remove(&PORT)
    }

    #[rstest]
    #[case::not_requested_yet(&[], None)]
    #[case::agrees(&[Healthy, Healthy], None)]
    #[case::refuses(&[Unhealthy, Unhealthy], Some(OwnerRefusal::Unhealthy))]
    #[case::lags_behind_the_api(&[Healthy, Unhealthy, Healthy], None)]
    #[case::refused_before(&[Unhealthy, Unhealthy, Healthy], None)]
    #[case::slow(&[Unclear, Unclear, Unclear, Unclear, Unclear, Unclear, Unclear], None)]
    #[case::one_reply_is_lost(&[Unhealthy, Unhealthy, Unclear], Some(OwnerRefusal::Unhealthy))]
    #[case::becomes_slow(&[Unhealthy, Unhealthy, Unclear, Unclear], None)]
    #[case::one_503_after_a_restart(&[Absent, Absent, Unhealthy], None)]
    #[case::two_503s_after_a_restart(
        &[Absent, Absent, Unhealthy, Unhealthy], Some(OwnerRefusal::Unhealthy)
    )]
    fn an_owner_that_listens(
        #[case] replies: &[OwnerReply],
        #[case] expected: Option<OwnerRefusal>,
    ) {
        for is_expected in [true, false] {
            assert_eq!(after(replies, is_expected), expected);
        }
    }

    #[test]
    fn an_owner_that_does_not_listen() {
        let absent = [Absent; 31];
        let gone = |first: &[OwnerReply], expected| after(&[first, &absent].concat(), expected);
        assert_eq!(gone(&[], false), None, "nobody is expected");
        assert_eq!(gone(&[Unclear, Unclear], false), None, "not an owner");
        assert_eq!(gone(&[Healthy], false), Some(OwnerRefusal::Absent));
        assert_eq!(gone(&[], true), Some(OwnerRefusal::Absent));
        assert_eq!(after(&absent[1..], true), None, "it may be restarting");
        let restarted = [&absent[1..], &[Healthy], &absent[1..]].concat();
        assert_eq!(after(&restarted, true), None);
        let slow = [&absent[1..], &[Unclear], &absent[1..]].concat();
        assert_eq!(after(&slow, true), None, "a process listened in between");
    }

    /// The node answers 503 all the time.
    #[test]
    fn a_refusal_that_counts_continues_as_another_kind() {
        for gone in 1..40 {
            let replies = [&[Unhealthy; 2][..], &vec![Absent; gone]].concat();
            assert_eq!(after(&replies, true), Some(OwnerRefusal::Absent), "{gone}");
        }
        let once = [Unhealthy, Absent];
        assert_eq!(after(&once, true), None, "the 503 did not count yet");
    }

    #[test]
    fn ports_that_are_not_in_the_table_any_more_are_forgotten() {
        let mut owners = OwnerReplies::default();
        let other = (Family::V6, 30_999);
        for at in [0, 2_000_000_000] {
            owners.record(PORT, Unhealthy, false, Mono(at));
            owners.record(other, Unhealthy, false, Mono(at));
        }
        let at = |seconds: u64| Mono((2 + seconds) * 1_000_000_000);
        owners.retain(&[other].into(), at(600));
        assert_eq!(owners.refusals().len(), 2, "the API server may be silent");
        owners.retain(&[other].into(), at(601));
        assert_eq!(owners.refusals(), [(other, OwnerRefusal::Unhealthy)].into());
    }

    /// A port is not requested while the agent itself would answer 503, or leaves it to the owner.
    #[test]
    fn a_refusal_counts_again_with_the_owners_next_one() {
        let mut owners = OwnerReplies::default();
        let record = |owners: &mut OwnerReplies, reply, seconds: u64| {
            owners.record(PORT, reply, false, Mono(seconds * 1_000_000_000));
            owners.refusals().len()
        };
        assert_eq!(record(&mut owners, Unhealthy, 0), 0);
        owners.pause_all_but(&BTreeSet::new());
        assert_eq!(record(&mut owners, Unhealthy, 9), 0, "a single one");
        assert_eq!(record(&mut owners, Unhealthy, 11), 1);
        owners.pause_all_but(&[PORT].into());
        assert_eq!(owners.refusals().len(), 1, "it is still requested");
        owners.pause_all_but(&BTreeSet::new());
        assert!(owners.refusals().is_empty());
        assert_eq!(record(&mut owners, Unhealthy, 99), 1);
        owners.pause_all_but(&BTreeSet::new());
        assert_eq!(record(&mut owners, Unclear, 199), 0);
    }

    #[rstest]
    #[case::before_the_first_sync(&[], true)]
    #[case::kube_proxy(&[Owner::KubeProxyNftables], true)]
    #[case::cilium(&[Owner::Cilium], false)]
    #[case::either_of_both(&[Owner::Cilium, Owner::KubeProxyIptables], false)]
    #[case::unknown(&[Owner::Unknown], false)]
    fn who_is_expected_to_listen(#[case] owners: &[Owner], #[case] expected: bool) {
        let path = PathTopology {
            family: Family::V4,
            path: SourceClass::External,
            owners: owners.iter().copied().collect::<DatapathOwners>(),
            seen: Seen::Full,
            sentence: String::new(),
        };
        let topology = DatapathTopology {
            paths: vec![path],
            ..DatapathTopology::default()
        };
        assert_eq!(is_expected(&topology, Family::V4), expected);
        assert!(!is_expected(&topology, Family::V6), "not read yet");
        let cilium = DatapathTopology {
            cilium: Some(Cilium {
                replacement: Tristate::Unknown,
                socket_lb: Tristate::Unknown,
            }),
            ..topology.clone()
        };
        let unread = DatapathTopology {
            hooks_unread: true,
            ..topology
        };
        for doubtful in [cilium, unread] {
            let only_by_its_rules = expected && !owners.is_empty();
            assert_eq!(is_expected(&doubtful, Family::V4), only_by_its_rules);
        }
    }
}
