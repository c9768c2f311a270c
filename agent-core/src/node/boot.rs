//! The wait of a boot: from Starting until something gets through, new connections are not let in. It ends
//! with the boot's two minutes, after which the snapshot of an older recording knows nothing of it.

use agent_common::service::{FAMILIES, Family, SourceClass};

use crate::cause::State;
use crate::effect::Remembered;
use crate::event::Facts;
use crate::expect::node::address;
use crate::verdict::Rule;
use crate::verdict::report::Verdict;

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
    let addresses = || facts.node.iter().flat_map(|node| &node.addresses);
    // Without a sentinel of the family only clients could prove it, and they are kept away.
    let has = |family: Family| {
        facts.sentinel.families[family as usize].is_some()
            && addresses().any(|ip| Family::of(&address(ip)) == family)
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
        _ => false,
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
