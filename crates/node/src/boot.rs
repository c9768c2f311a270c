//! The wait after a boot: a Starting node refuses new connections until something gets through. The wait
//! ends at most two minutes after boot. After that, `left_starting` no longer changes.

use pathproof_facts::cause::State;
use pathproof_judge::verdict::Rule;
use pathproof_judge::verdict::report::Verdict;
use pathproof_wire::service::{FAMILIES, Family, SourceClass};
use pathproof_witness::coverage::Hooks;
use pathproof_witness::topology::{DatapathTopology, Seen};

use crate::event::ViewFacts;

/// Families in which this node stays Starting until the pod probe's first connection. A family does
/// not count if a socket load balancer, netkit, or interfaces that stay unobserved hide connections
/// of pods. Until the topology is read, no path counts as hidden.
pub(super) fn pods_expected(
    facts: &ViewFacts,
    topology: &DatapathTopology,
    hooks: &Hooks,
) -> [bool; FAMILIES] {
    let all_seen = |family: Family| {
        let mut paths = topology.paths.iter();
        let seen = (family, SourceClass::Pod, Seen::Full);
        paths.len() == 0 || paths.any(|path| (path.family, path.path, path.seen) == seen)
    };
    let may = hooks.unseen <= hooks.new;
    let expected = |family| facts.pods_expected[family as usize] && facts.has_address(family);
    Family::ALL.map(|family| may && expected(family) && all_seen(family))
}

/// Whether /healthz still answers 503 because of the boot. The wait lasts until the view and a sample are
/// read, and while a family with a sentinel and a node address is Starting. A failure or fault does not end
/// it: it is no reason to accept new connections. Degraded ends it, because something gets through, unless
/// expected connections of pods are still missing.
pub(super) fn still_waits(
    [waited, left_starting]: [bool; 2],
    verdict: &Verdict,
    facts: &ViewFacts,
    pods_expected: [bool; FAMILIES],
) -> bool {
    let lacks_pods = verdict.families.iter().any(|judged| {
        let of_pods = &judged.paths[SourceClass::Pod as usize];
        pods_expected[judged.family as usize] && of_pods.last_proof.is_none()
    });
    // A family without a sentinel is not waited for: only clients could prove it, and a waiting node gets
    // none.
    let has = |family: Family| {
        facts.sentinel.families[family as usize].is_some() && facts.has_address(family)
    };
    let mut families = verdict.families.iter();
    let starts = families.any(|judged| judged.state == State::Starting && has(judged.family));
    let is_read = facts.synced && verdict.finding.rule != Rule::NotSampled;
    match verdict.state {
        State::Starting => true,
        _ if starts && !left_starting => true,
        State::Unknown => waited && !is_read,
        State::Suspect => waited && (lacks_pods || !verdict.finding.is_refuted()),
        State::Degraded => waited && lacks_pods,
        // A fault does not end the wait: after its repair the same proofs are still missing.
        State::Broken | State::Stale => waited,
        State::Proven => false,
    }
}

/// Whether a node in this state accepts new connections, or would accept them without its fault.
pub(super) fn leaves_starting(state: State) -> bool {
    !matches!(state, State::Starting | State::Unknown)
}
