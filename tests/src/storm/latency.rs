//! Times of the poller's answers. Requests that wait for an agent that cannot answer are left out.

use std::fmt;
use std::time::Duration;

use super::judge::{Findings, Seen};
use crate::detect::{Figure, ms};

/// Timeout of a request.
const TIMEOUT: Duration = Duration::from_secs(1);
/// The promise for p99. It is printed and does not fail a storm, which shares its processors.
const PROMISED: Duration = Duration::from_millis(100);

/// When a request was sent, and the time until its answer, if one came.
pub(super) type Asked = (Duration, Option<Duration>);

#[derive(Clone, Debug, Default)]
pub(super) struct Latency {
    times: Figure,
    /// Requests without an answer, although the agent ran and nothing took its processors.
    unanswered: Vec<Duration>,
}

impl Latency {
    pub(super) fn of(seen: &Seen, asked: &[Asked]) -> Self {
        let mut latency = Self::default();
        for (sent, took) in asked {
            let until = *sent + took.unwrap_or(TIMEOUT);
            if seen.explains_silence(*sent, until) {
                continue;
            }
            latency.times.note(*took);
            if took.is_none() && !seen.explains_delay(*sent, until) {
                latency.unanswered.push(*sent);
            }
        }
        latency
    }

    pub(super) fn accuse(&self, findings: &mut Findings) {
        for at in &self.unanswered {
            findings.accuse(*at, "a request got no answer");
        }
    }
}

impl fmt::Display for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let times = &self.times;
        let [median, p99] = [50, 99].map(|percent| times.rank(percent));
        let is_met = p99.is_some_and(|p99| p99 < PROMISED);
        let (median, p99) = (ms(median), ms(p99));
        let met = if is_met { "within" } else { "not within" };
        let (count, never) = (times.count(), times.never);
        let promised = PROMISED.as_millis();
        write!(
            f,
            "{count} requests at the health port: p50 {median} ms, p99 {p99} ms, {met} the promise of \
             {promised} ms; {never} without an answer"
        )
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::super::plan::{Action, AgentFault, Harmless, Step};
    use super::*;

    const LATE: Duration = Duration::from_secs(30);

    /// A minute of requests that take 5 ms each, with this action from 29 s to 31 s. The request at 30 s
    /// takes this time.
    fn latency(action: Option<Action>, took: Option<Duration>) -> Latency {
        let [from, to] = [29, 31].map(Duration::from_secs);
        let step = |action| Step { action, from, to };
        let seen = Seen {
            steps: action.map(step).into_iter().collect(),
            ..Seen::default()
        };
        let quick = Duration::from_millis(5);
        let all = (0..600).map(|tenth| Duration::from_millis(tenth * 100));
        let asked = all.map(|at| (at, if at == LATE { took } else { Some(quick) }));
        Latency::of(&seen, &asked.collect::<Vec<_>>())
    }

    #[rstest]
    #[case::nothing(None, &[LATE], 1)]
    #[case::replaced(Some(Action::Agent(AgentFault::Replaced)), &[LATE], 1)]
    #[case::stopped(Some(Action::Agent(AgentFault::Stopped)), &[], 0)]
    #[case::starved(Some(Action::Harmless(Harmless::ProcessorsTaken)), &[], 1)]
    fn a_request_without_an_answer_needs_an_action_that_explains_it(
        #[case] action: Option<Action>,
        #[case] unanswered: &[Duration],
        #[case] never: usize,
    ) {
        let lost = latency(action, None);
        assert_eq!(lost.unanswered, unanswered);
        assert_eq!(lost.times.never, never);
        let mut findings = Findings::default();
        lost.accuse(&mut findings);
        assert_eq!(findings.violations.len(), unanswered.len());
        // The negative control: a late answer is an answer.
        let late = latency(action, Some(Duration::from_millis(900)));
        assert!(late.unanswered.is_empty());
    }

    #[test]
    fn the_promise_is_judged_by_p99() {
        let words = latency(None, Some(Duration::from_millis(900))).to_string();
        let wanted = "600 requests at the health port: p50 5.00 ms, p99 5.00 ms, within the promise of \
                      100 ms; 0 without an answer";
        assert_eq!(words, wanted);
        let slow = Latency::of(&Seen::default(), &[(LATE, Some(PROMISED))]).to_string();
        assert!(slow.contains("p99 100.00 ms, not within"), "{slow}");
        // A figure of nothing meets no promise.
        let none = Latency::default().to_string();
        assert!(none.contains("not within"), "{none}");
    }
}
