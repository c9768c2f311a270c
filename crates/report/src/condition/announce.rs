//! When an Event is due: only on transitions, and within a budget.
//!
//! A transition is the beginning or end of an accusation, or of the node's removal. A change is not
//! announced if it is over before the API server answers or the budget allows an Event: nothing is queued.

use std::time::Duration;

use pathproof_facts::time::Mono;

use super::schedule::{Budget, Pace, Refusal, Retry, spread};
use super::{ConditionState, Reason, Status, Written};

/// Number of Events that may be sent at once.
const AT_ONCE: u32 = 6;
/// Time after which one more Event may be sent.
const EACH: Duration = Duration::from_secs(60);

/// The subjects of Events: whether the datapath is accused, and whether the node is leaving.
fn subject(condition: ConditionState) -> (bool, bool) {
    (condition.status == Status::False, condition.leaving)
}

/// Salt of [`spread`].
const JITTER: u64 = 0x72;

/// Decides when Events about the datapath and the node's removal are due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announcer {
    node: String,
    pace: Pace,
    announced: (bool, bool),
    current: Option<(ConditionState, Mono)>,
    budget: Budget,
    retry: Retry,
}

impl Announcer {
    /// `found` is the condition of a previous agent: its content is not announced again.
    pub fn new(node: &str, pace: Pace, found: Option<Written>) -> Self {
        Self {
            node: node.to_owned(),
            pace,
            announced: (
                found.is_some_and(|found| found.status == Status::False),
                found.is_some_and(|found| found.reason == Some(Reason::Leaving)),
            ),
            current: None,
            budget: Budget::new(AT_ONCE, EACH),
            retry: Retry::default(),
        }
    }

    /// Records the current condition. Call it whenever the condition may have changed.
    pub fn observe(&mut self, condition: ConditionState, now: Mono) {
        let since = match self.current {
            Some((before, since)) if subject(before) == subject(condition) => since,
            _ => now,
        };
        self.current = Some((condition, since));
    }

    /// Time at which an Event is due, if one is.
    pub fn due(&self) -> Option<Mono> {
        let (condition, since) = self.current?;
        // Unknown must last for some time: an agent without memory starts with it, which is no recovery.
        let settle = match condition.status {
            Status::Unknown => self.pace.settle,
            Status::True | Status::False => Duration::ZERO,
        };
        let jitter = spread(&self.node, JITTER, self.pace.jitter);
        let allowed = self.budget.free_at().max(self.retry.not_before);
        let due = since.plus(settle).plus(jitter).max(allowed);
        (subject(condition) != self.announced).then_some(due)
    }

    /// Records the API server's answer to an Event about `condition`.
    pub fn sent(&mut self, condition: ConditionState, result: Result<(), Refusal>, now: Mono) {
        match result {
            Ok(()) => {
                self.announced = subject(condition);
                self.budget.spend(now);
                self.retry = Retry::default();
            }
            Err(refusal) => self.retry.failed(&self.node, &self.pace, refusal, now),
        }
    }
}

#[cfg(test)]
mod tests {
    use pathproof_facts::cause::Cause;
    use rstest::rstest;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(seconds: u64) -> Mono {
        Mono(0).plus(SECOND * seconds as u32)
    }

    fn jitter() -> Duration {
        let pace = Pace::default();
        let jitter = spread("node-1", JITTER, pace.jitter);
        assert!(jitter > Duration::ZERO && jitter < pace.jitter);
        jitter
    }

    fn of(status: Status, reason: Reason, leaving: bool) -> ConditionState {
        ConditionState {
            status,
            reason,
            leaving,
        }
    }

    fn sound() -> ConditionState {
        of(Status::True, Reason::Proven, false)
    }

    fn broken(cause: Cause) -> ConditionState {
        of(Status::False, Reason::Broken(Some(cause)), false)
    }

    fn unknown() -> ConditionState {
        of(Status::Unknown, Reason::Unknown(None), false)
    }

    fn announcer() -> Announcer {
        Announcer::new("node-1", Pace::default(), None)
    }

    #[rstest]
    #[case::sound(sound(), false)]
    #[case::unknown(unknown(), false)]
    #[case::broken(broken(Cause::Lost), true)]
    #[case::leaving(of(Status::True, Reason::Leaving, true), true)]
    #[case::leaving_unknown(of(Status::Unknown, Reason::Leaving, true), true)]
    fn an_event_is_about_accusation_and_removal(
        #[case] condition: ConditionState,
        #[case] due: bool,
    ) {
        let mut announcer = announcer();
        assert_eq!(announcer.due(), None, "nothing stands yet");
        announcer.observe(condition, at(100));
        assert_eq!(announcer.due().is_some(), due);
    }

    /// The time counts from a change of the subject, not of the message.
    #[test]
    fn what_lasts_is_due_after_the_jitter() {
        let mut announcer = announcer();
        announcer.observe(sound(), at(10));
        announcer.observe(broken(Cause::Leaked), at(100));
        assert_eq!(announcer.due(), Some(at(100).plus(jitter())));
        announcer.observe(broken(Cause::Refused), at(102));
        assert_eq!(announcer.due(), Some(at(100).plus(jitter())));
        announcer.sent(broken(Cause::Refused), Ok(()), at(105));
        assert_eq!(announcer.due(), None);
    }

    /// An unknown state has to last before it is announced.
    #[test]
    fn an_unknown_state_settles_first() {
        let mut announcer = announcer();
        announcer.observe(broken(Cause::Leaked), at(10));
        announcer.sent(broken(Cause::Leaked), Ok(()), at(15));
        announcer.observe(unknown(), at(100));
        let settle = Pace::default().settle;
        assert_eq!(announcer.due(), Some(at(100).plus(settle).plus(jitter())));
        announcer.observe(sound(), at(101));
        // The subject is the same: not accused since 100 s.
        assert_eq!(announcer.due(), Some(at(100).plus(jitter())));
    }

    #[test]
    fn an_event_is_retried_after_a_refusal() {
        let mut announcer = announcer();
        announcer.observe(broken(Cause::Leaked), at(10));
        announcer.sent(broken(Cause::Leaked), Err(Refusal::Denied), at(20));
        let denied = Pace::default().denied;
        let due = announcer.due().unwrap();
        assert!(due >= at(20).plus(denied), "{due:?}");
        announcer.sent(broken(Cause::Leaked), Ok(()), due);
        announcer.observe(sound(), due);
        assert_eq!(announcer.due(), Some(due.plus(jitter())));
    }

    /// A burst at once, and one more each minute.
    #[test]
    fn a_flapping_node_spends_its_budget() {
        let mut announcer = announcer();
        for number in 0..AT_ONCE {
            let condition = match number % 2 {
                0 => broken(Cause::Leaked),
                _ => sound(),
            };
            announcer.observe(condition, at(1_000));
            assert_eq!(announcer.due(), Some(at(1_000).plus(jitter())));
            announcer.sent(condition, Ok(()), at(1_000));
        }
        announcer.observe(broken(Cause::Leaked), at(1_000));
        assert_eq!(announcer.due(), Some(at(1_000).plus(EACH)));
    }
}
