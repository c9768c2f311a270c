//! Which nodes the rotator withdraws from load balancers without health checks (MetalLB, kube-vip, the
//! cloud's list of targets), by a label that such load balancers read. Nothing here reads a cluster.
//!
//! The label's value names its owner. A label set by a person or another tool is never removed, and does
//! not count as a withdrawal. When in doubt, pathproof removes its label, also from a node whose agent is
//! silent.

use std::time::Duration;

use pathproof_facts::time::Mono;

use super::census::{Census, Member};

/// Label that excludes a node from load balancers, whatever its value ([KEP-1143][kep], stable since
/// Kubernetes 1.21).
///
/// [kep]: https://github.com/kubernetes/enhancements/tree/master/keps/sig-architecture/1143-node-role-labels
pub const LABEL: &str = "node.kubernetes.io/exclude-from-external-load-balancers";
/// The value that pathproof writes.
pub const VALUE: &str = "pathproof";
/// Minimum time for which a node must have been sound before its label is removed.
const BACK: Duration = Duration::from_secs(30);

/// Whether a node has the label, and whose it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Excluded {
    #[default]
    No,
    /// Set by pathproof.
    Ours,
    /// Set by another owner.
    Others,
}

impl Excluded {
    pub fn of(value: Option<&str>) -> Self {
        match value {
            None => Self::No,
            Some(VALUE) => Self::Ours,
            Some(_) => Self::Others,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WithdrawalLimits {
    /// Minimum time for which a node must fail before it is withdrawn.
    pub after: Duration,
    /// Maximum share of the counted nodes, in percent, but at least one node.
    pub share: u32,
    /// Emergency switch for the whole cluster: all withdrawn nodes come back, and none is withdrawn.
    pub recalls: bool,
}

/// A write to a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    pub node: String,
    /// The version that was read: the write fails if the node changed since.
    pub version: String,
    /// Whether to set or remove the label.
    pub withdraw: bool,
}

impl Census {
    /// Writes that are due. There are none before all nodes are known, or while the watch of Nodes is
    /// `silent`.
    pub fn withdrawals(&self, limits: WithdrawalLimits, silent: bool, now: Mono) -> Vec<Step> {
        if !self.is_whole || silent {
            return Vec::new();
        }
        let step = |name: &str, member: &Member, withdraw| Step {
            node: name.to_owned(),
            version: member.version.to_string(),
            withdraw,
        };
        let (mut steps, mut failing) = (Vec::new(), Vec::new());
        let (mut counted, mut withdrawn) = (0, 0);
        for (name, member) in &self.nodes {
            let (is_counted, long) = (member.is_counted(now), now.since(member.since));
            counted += usize::from(is_counted);
            match (member.excluded, member.failing.is_some() && is_counted) {
                (Excluded::Ours, fails)
                    if limits.recalls || (!fails && (!is_counted || long >= BACK)) =>
                {
                    steps.push(step(name, member, false));
                }
                (Excluded::Ours, _) => withdrawn += 1,
                _ if limits.recalls => {}
                (Excluded::No, true) if long >= limits.after => failing.push((name, member)),
                _ => {}
            }
        }
        let most = (counted * limits.share as usize / 100).max(1);
        failing.sort_by_key(|(name, member)| (member.since, *name));
        let room = failing.into_iter().take(most.saturating_sub(withdrawn));
        steps.extend(room.map(|(name, member)| step(name, member, true)));
        steps.sort_by(|a, b| (a.withdraw, &a.node).cmp(&(b.withdraw, &b.node)));
        steps
    }

    /// Number of nodes with pathproof's label.
    pub fn withdrawn(&self) -> usize {
        let ours = |member: &&Member| member.excluded == Excluded::Ours;
        self.nodes.values().filter(ours).count()
    }
}

#[cfg(test)]
mod tests {
    use pathproof_facts::time::Wall;
    use pathproof_report::condition::Status;

    use super::*;
    use crate::ConditionSeen;

    const NOW: Wall = Wall(1_700_000_000_000_000_000);
    const LIMITS: WithdrawalLimits = WithdrawalLimits {
        after: Duration::from_secs(60),
        share: 20,
        recalls: false,
    };

    fn s(seconds: u64) -> Mono {
        Mono((10_000 + seconds) * 1_000_000_000)
    }

    fn put(census: &mut Census, node: &str, fails: bool, label: Option<&str>, at: u64) {
        let wall = Wall(NOW.0 + at as i64 * 1_000_000_000);
        let heartbeat = Some(wall);
        let condition = ConditionSeen {
            status: if fails { Status::False } else { Status::True },
            reason: "DatapathBrokenLeaked".to_owned(),
            message: String::new(),
            transition: heartbeat,
            heartbeat,
        };
        census.put(node, Some(&condition), wall, s(at));
        census.exclude(node, Excluded::of(label), "7");
    }

    fn cluster(nodes: u32, failing: &[&str]) -> Census {
        let mut census = Census::default();
        census.begin_list();
        for number in 0..nodes {
            let name = format!("n{number}");
            put(&mut census, &name, failing.contains(&&*name), None, 0);
        }
        census.end_list();
        census
    }

    fn steps(census: &Census, at: u64) -> Vec<(String, bool)> {
        let steps = census.withdrawals(LIMITS, false, s(at));
        steps
            .into_iter()
            .map(|step| (step.node, step.withdraw))
            .collect()
    }

    fn set(node: &str) -> (String, bool) {
        (node.to_owned(), true)
    }

    fn taken_off(node: &str) -> (String, bool) {
        (node.to_owned(), false)
    }

    #[test]
    fn a_node_that_fails_for_long_is_withdrawn_and_comes_back() {
        let mut census = cluster(5, &["n3"]);
        assert_eq!(steps(&census, 59), []);
        assert_eq!(steps(&census, 60), [set("n3")]);
        assert!(census.withdrawals(LIMITS, true, s(60)).is_empty(), "silent");
        // The node's heartbeats continue, and it has the label.
        put(&mut census, "n3", true, Some(VALUE), 61);
        assert_eq!((steps(&census, 400), census.withdrawn()), (vec![], 1));
        put(&mut census, "n3", false, Some(VALUE), 401);
        assert_eq!(steps(&census, 430), []);
        assert_eq!(steps(&census, 431), [taken_off("n3")]);
        put(&mut census, "n3", false, None, 432);
        put(&mut census, "n3", true, None, 500);
        assert_eq!(steps(&census, 559), [], "it fails anew");
        assert_eq!(steps(&census, 560), [set("n3")]);
    }

    #[test]
    fn all_are_recalled_at_once_and_nobody_is_withdrawn() {
        let mut census = cluster(5, &["n1", "n3"]);
        put(&mut census, "n3", true, Some(VALUE), 60);
        put(&mut census, "n4", true, Some("somebody"), 60);
        let limits = WithdrawalLimits {
            recalls: true,
            ..LIMITS
        };
        let steps = census.withdrawals(limits, false, s(61));
        let steps: Vec<_> = steps
            .into_iter()
            .map(|step| (step.node, step.withdraw))
            .collect();
        assert_eq!(steps, [taken_off("n3")]);
        assert!(census.withdrawals(limits, true, s(61)).is_empty(), "silent");
    }

    #[test]
    fn labels_of_others_are_not_touched() {
        for value in ["", "true", "somebody"] {
            let mut census = cluster(5, &[]);
            put(&mut census, "n1", true, Some(value), 0);
            assert_eq!(steps(&census, 100), [], "{value:?}");
            put(&mut census, "n1", false, Some(value), 101);
            assert_eq!(steps(&census, 800), [], "{value:?}");
        }
    }

    #[test]
    fn no_more_than_the_share_and_one_in_any_case() {
        let all: Vec<String> = (0..10).map(|number| format!("n{number}")).collect();
        let names: Vec<&str> = all.iter().map(String::as_str).collect();
        let mut census = cluster(10, &names);
        assert_eq!(steps(&census, 60), [set("n0"), set("n1")]);
        put(&mut census, "n0", true, Some(VALUE), 61);
        assert_eq!(steps(&census, 62), [set("n1")]);
        put(&mut census, "n1", true, Some(VALUE), 63);
        assert_eq!(steps(&census, 64), []);
        let census = cluster(2, &["n0", "n1"]);
        assert_eq!(steps(&census, 60), [set("n0")]);
    }

    /// Without its agent, the state of a node is unknown.
    #[test]
    fn a_node_whose_agent_fell_silent_comes_back() {
        let mut census = cluster(5, &[]);
        put(&mut census, "n2", true, Some(VALUE), 0);
        assert_eq!(steps(&census, 900), []);
        assert_eq!(steps(&census, 901), [taken_off("n2")]);
        let census = cluster(5, &["n2"]);
        assert_eq!(steps(&census, 901), []);
    }
}
