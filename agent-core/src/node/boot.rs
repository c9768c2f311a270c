//! The wait of a boot: from Starting until something gets through, new connections are not let in.

use agent_common::service::{FAMILIES, SourceClass};

use crate::cause::State;
use crate::verdict::report::Verdict;

/// Whether a wait goes on, or begins, with this verdict. A failure is no reason to let new connections
/// in, so failures do not end it. Degraded does, since something gets through, unless connections of pods
/// are waited for.
pub(super) fn still_waits(
    waited: bool,
    verdict: &Verdict,
    pods_expected: [bool; FAMILIES],
) -> bool {
    let lacks_pods = verdict.families.iter().any(|judged| {
        let of_pods = &judged.paths[SourceClass::Pod as usize];
        pods_expected[judged.family as usize] && of_pods.last_proof.is_none()
    });
    match verdict.state {
        State::Starting => true,
        State::Suspect => waited && (lacks_pods || !verdict.finding.is_refuted()),
        State::Degraded => waited && lacks_pods,
        _ => false,
    }
}

/// Whether new connections were let in, or would have been but for a fault.
pub(super) fn has_served(state: State) -> bool {
    !matches!(state, State::Starting | State::Unknown)
}
