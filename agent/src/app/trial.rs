//! The first minute after another agent's: where the node's verdict begins to fail with this agent,
//! the agent is not ready, so that a rolling update stops at this node. Its answers are not changed
//! by that: a fault that came at the same moment is a fault.

use std::time::Duration;

use crate::lifecycle::ready::{Guard, Readiness};
use agent_core::cause::State;
use agent_core::time::Mono;

/// Longer than a rollout waits at each node (minReadySeconds of the manifests, 30 s).
const TRIAL: Duration = Duration::from_secs(60);
/// What an agent said that ended longer ago is not compared with: a pod is replaced, its image
/// fetched, within this time.
const RECENT: Duration = Duration::from_secs(600);
const PENDING: &str = "a verdict that does not fail as it did not before this agent";

/// What is compared.
pub(super) struct Trial {
    readiness: Readiness,
    /// The former agent's verdict did not fail; nothing where there was none lately.
    since: Option<Mono>,
    failed: Option<Guard>,
}

impl Trial {
    /// From `now` on, after an agent whose last verdict was `before`, said last at that time of the
    /// same boot.
    pub(super) fn begin(readiness: Readiness, before: Option<(State, Mono)>, now: Mono) -> Self {
        let sound = |(state, at): &(State, Mono)| !fails(*state) && now.since(*at) <= RECENT;
        Self {
            readiness,
            since: before.filter(sound).map(|_| now),
            failed: None,
        }
    }

    /// The verdict as of `now`. What began to fail in time is waited for, however long.
    pub(super) fn judge(&mut self, state: State, now: Mono) {
        if !fails(state) {
            self.failed = None;
            return;
        }
        let early = self.since.is_some_and(|since| now.since(since) <= TRIAL);
        if early && self.failed.is_none() {
            tracing::warn!(
                "the verdict began to fail with this agent, which is therefore not ready: a rolling update stops here"
            );
            self.failed = Some(self.readiness.guard(PENDING));
        }
    }
}

/// Whether load balancers are told 503 for it.
pub(super) fn fails(state: State) -> bool {
    matches!(state, State::Broken | State::Stale)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn at(seconds: u64) -> Mono {
        Mono(seconds * 1_000_000_000)
    }

    #[rstest]
    #[case::began_with_it(Some(State::Proven), 20, false)]
    #[case::so_did_stale(Some(State::Unknown), 60, false)]
    #[case::long_after(Some(State::Proven), 61, true)]
    #[case::as_before(Some(State::Broken), 20, true)]
    #[case::first_of_its_boot(None, 20, true)]
    fn only_what_began_with_this_agent_keeps_it_from_being_ready(
        #[case] before: Option<State>,
        #[case] failed: u64,
        #[case] ready: bool,
    ) {
        let readiness = Readiness::new();
        let before = before.map(|state| (state, at(990)));
        let mut trial = Trial::begin(readiness.clone(), before, at(1000));
        trial.judge(State::Degraded, at(1001));
        assert!(readiness.pending().is_empty());
        trial.judge(State::Broken, at(1000 + failed));
        trial.judge(State::Stale, at(1000 + failed + 100));
        assert_eq!(readiness.pending().is_empty(), ready);
        trial.judge(State::Proven, at(1000 + failed + 101));
        assert!(readiness.pending().is_empty());
    }

    #[rstest]
    #[case::just_now(400, false)]
    #[case::long_ago(399, true)]
    #[case::by_a_version_that_did_not_say_when(0, true)]
    fn an_agent_of_long_ago_is_no_measure(#[case] said: u64, #[case] ready: bool) {
        let readiness = Readiness::new();
        let before = Some((State::Proven, at(said)));
        let mut trial = Trial::begin(readiness.clone(), before, at(1000));
        trial.judge(State::Broken, at(1001));
        assert_eq!(readiness.pending().is_empty(), ready);
    }
}
