//! The wait of a boot: from Starting until something gets through, new connections are not let in. It ends
//! with the boot's two minutes, after which the snapshot of an older recording knows nothing of it.

use agent_common::service::{FAMILIES, Family, SourceClass};

use crate::cause::State;
use crate::coverage::Hooks;
use crate::effect::Remembered;
use crate::event::Facts;
use crate::shape::{Seen, Shape};
use crate::verdict::Rule;
use crate::verdict::report::Verdict;

/// Families of the node in which Starting lasts until the pod probe's first connection. None if a socket
/// load balancer, netkit or interfaces that stay unobserved hide pods' connections; all, before the shape
/// is read.
pub(super) fn pods_expected(facts: &Facts, shape: &Shape, hooks: &Hooks) -> [bool; FAMILIES] {
    let all_seen = |family: Family| {
        let mut paths = shape.paths.iter();
        let seen = (family, SourceClass::Pod, Seen::Full);
        paths.len() == 0 || paths.any(|path| (path.family, path.path, path.seen) == seen)
    };
    let may = hooks.unseen <= hooks.new;
    let expected = |of| facts.pods_expected[of as usize] && facts.has_address(of);
    Family::ALL.map(|of| may && expected(of) && all_seen(of))
}

/// Whether a wait goes on, or begins, with this verdict. A failure is no reason to let new connections
/// in, so failures do not end it; nor does it end while nothing was read yet, or while a family is Starting
/// in which the node has an address. Degraded ends it, since something gets through, unless connections of
/// pods are waited for.
pub(super) fn still_waits(
    [waited, served]: [bool; 2],
    verdict: &Verdict,
    facts: &Facts,
    pods_expected: [bool; FAMILIES],
) -> bool {
    let lacks_pods = verdict.families.iter().any(|judged| {
        let of_pods = &judged.paths[SourceClass::Pod as usize];
        pods_expected[judged.family as usize] && of_pods.last_proof.is_none()
    });
    // Without a sentinel of the family only clients could prove it, and they are kept away.
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

/// Memory of a former agent: whether the boot waited, and whether the node was more than Starting.
pub(super) fn remembered(known: &Remembered) -> [bool; 2] {
    let state = known.verdict.state;
    let told = [state == State::Starting, has_served(state)];
    known.boot.unwrap_or(told)
}

/// Whether new connections were let in, or would have been but for a fault.
pub(super) fn has_served(state: State) -> bool {
    !matches!(state, State::Starting | State::Unknown)
}
