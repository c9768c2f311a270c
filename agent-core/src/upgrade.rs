//! The first minute after another agent's: where the node's verdict begins to fail with this agent,
//! the agent is not ready, so that a rolling update stops at this node. Its answers do not change
//! because of that: a fault that came at the same moment is a fault.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::cause::State;
use crate::time::Mono;

/// Longer than a rollout waits at each node (minReadySeconds of the manifests, 30 s).
const WATCHED: Duration = Duration::from_secs(60);
/// A verdict that a former agent gave longer ago is not compared with: a pod is replaced, its image
/// fetched, within this time.
const RECENT: Duration = Duration::from_secs(600);

/// Compares this agent's verdicts with its predecessor's.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct UpgradeGate {
    /// When this agent began; nothing where the former agent's verdict failed, or there was none
    /// lately.
    since: Option<Mono>,
    closed: bool,
}

impl UpgradeGate {
    /// After an agent whose last verdict was `before`, given at that time of the same boot.
    pub fn new(before: Option<(State, Mono)>, now: Mono) -> Self {
        let sound = |(state, at): &(State, Mono)| !fails(*state) && now.since(*at) <= RECENT;
        Self {
            since: before.filter(sound).map(|_| now),
            closed: false,
        }
    }

    /// Takes in a state. A failure that began in time keeps the gate closed for as long as it lasts.
    /// Returns whether it has just closed.
    pub fn judge(&mut self, state: State, now: Mono) -> bool {
        let before = self.closed;
        let early = self.since.is_some_and(|since| now.since(since) <= WATCHED);
        self.closed = fails(state) && (self.closed || early);
        self.closed && !before
    }

    /// Whether the agent is not ready because of it.
    pub fn is_closed(&self) -> bool {
        self.closed
    }
}

/// Whether load balancers are told 503 for it.
pub fn fails(state: State) -> bool {
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
    #[case::began_with_it(Some(State::Proven), 20, true)]
    #[case::so_did_stale(Some(State::Unknown), 60, true)]
    #[case::long_after(Some(State::Proven), 61, false)]
    #[case::as_before(Some(State::Broken), 20, false)]
    #[case::first_of_its_boot(None, 20, false)]
    fn only_a_failure_that_began_with_this_agent_closes_the_gate(
        #[case] before: Option<State>,
        #[case] failed: u64,
        #[case] closed: bool,
    ) {
        let mut gate = UpgradeGate::new(before.map(|state| (state, at(990))), at(1000));
        assert!(!gate.judge(State::Degraded, at(1001)));
        assert_eq!(gate.judge(State::Broken, at(1000 + failed)), closed);
        assert!(!gate.judge(State::Stale, at(1000 + failed + 100)), "once");
        assert_eq!(gate.is_closed(), closed);
        gate.judge(State::Proven, at(1000 + failed + 101));
        assert!(!gate.is_closed());
    }

    #[rstest]
    #[case::just_now(400, true)]
    #[case::long_ago(399, false)]
    #[case::by_a_version_that_did_not_say_when(0, false)]
    fn a_verdict_of_long_ago_is_no_measure(#[case] given: u64, #[case] closed: bool) {
        let mut gate = UpgradeGate::new(Some((State::Proven, at(given))), at(1000));
        assert_eq!(gate.judge(State::Broken, at(1001)), closed);
    }
}
