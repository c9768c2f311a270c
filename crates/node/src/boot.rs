//! The wait of a boot: a Starting node refuses new connections until something gets through. It ends
//! at most two minutes after boot; then its flags stay as they are, since older recordings lack them.

use pathproof_facts::cause::State;
use pathproof_judge::verdict::Rule;
use pathproof_judge::verdict::report::Verdict;
use pathproof_wire::service::{FAMILIES, Family, SourceClass};
use pathproof_witness::coverage::Hooks;
use pathproof_witness::topology::{DatapathTopology, Seen};

use crate::effect::PersistedState;
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

/// Whether the node waits with this verdict. Failures do not end a wait, because they are no reason
/// to let new connections in. A wait also lasts until the view and a sample were read, and while a
/// family with a node address is Starting. Degraded ends a wait, because something gets through,
/// unless connections of pods are expected.
pub(super) fn still_waits(
    [waited, served]: [bool; 2],
    verdict: &Verdict,
    facts: &ViewFacts,
    pods_expected: [bool; FAMILIES],
) -> bool {
    let lacks_pods = verdict.families.iter().any(|judged| {
        let of_pods = &judged.paths[SourceClass::Pod as usize];
        pods_expected[judged.family as usize] && of_pods.last_proof.is_none()
    });
    // Without a sentinel only clients could prove the family, and a waiting node has none.
    let has = |family: Family| {
        facts.sentinel.families[family as usize].is_some() && facts.has_address(family)
    };
    let mut families = verdict.families.iter();
    let starts = families.any(|judged| judged.state == State::Starting && has(judged.family));
    let is_read = facts.synced && verdict.finding.rule != Rule::NotSampled;
    match verdict.state {
        State::Starting => true,
        _ if starts && !served => true,
        State::Unknown => waited && !is_read,
        State::Suspect => waited && (lacks_pods || !verdict.finding.is_refuted()),
        State::Degraded => waited && lacks_pods,
        // The state after the repair is no proof yet.
        State::Broken | State::Stale => waited,
        State::Proven => false,
    }
}

/// From a former agent's memory: whether the boot waited, and whether the node was ever more than
/// Starting.
pub(super) fn persisted(known: &PersistedState) -> [bool; 2] {
    let state = known.verdict.state;
    let told = [state == State::Starting, has_served(state)];
    known.boot.unwrap_or(told)
}

/// Whether new connections were let in, or would have been without a fault.
pub(super) fn has_served(state: State) -> bool {
    !matches!(state, State::Starting | State::Unknown)
}
