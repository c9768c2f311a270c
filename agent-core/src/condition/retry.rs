//! When to try again what the API server did not take.

use std::time::Duration;

use super::schedule::Pace;
use super::spread::spread;
use crate::time::Mono;

/// Why a write did not succeed, as far as it matters for the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Rights are missing: nothing to gain by asking soon.
    Denied,
    /// Anything else. It may have been done all the same where no answer came.
    Failed {
        /// The API server said to wait for so long.
        wait: Option<Duration>,
    },
}

/// The API server is believed up to here.
const WAIT_MAX: Duration = Duration::from_secs(300);

/// Pauses between tries: longer each time, and each node's own, so that nodes do not come back in
/// one moment when the API server does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Retry {
    first: Duration,
    longest: Duration,
    denied: Duration,
    failures: u32,
    not_before: Mono,
}

impl Retry {
    pub(super) fn new(pace: &Pace) -> Self {
        Self {
            first: pace.retry,
            longest: pace.retry_max,
            denied: pace.denied,
            failures: 0,
            not_before: Mono(0),
        }
    }

    /// Nothing is tried before.
    pub(super) fn not_before(&self) -> Mono {
        self.not_before
    }

    pub(super) fn succeeded(&mut self) {
        self.failures = 0;
        self.not_before = Mono(0);
    }

    pub(super) fn failed(&mut self, node: &str, refusal: Refusal, now: Mono) {
        let doubled = 1u32.checked_shl(self.failures).unwrap_or(u32::MAX);
        // The pause, and a part of it that is the node's own: all of it where it is short.
        let (pause, over) = match refusal {
            Refusal::Denied => (self.denied, self.denied / 10),
            Refusal::Failed { wait } => {
                let pause = self.first.saturating_mul(doubled).min(self.longest);
                let pause = pause.max(wait.unwrap_or_default().min(WAIT_MAX));
                (pause, pause)
            }
        };
        self.failures = self.failures.saturating_add(1);
        let own = spread(node, u64::from(self.failures), over);
        self.not_before = now.plus(pause + own);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const MINUTE: Duration = Duration::from_secs(60);

    fn retry() -> Retry {
        Retry::new(&Pace::default())
    }

    #[test]
    fn pauses_grow_to_a_bound_and_begin_anew() {
        let mut retry = retry();
        let mut last = Duration::ZERO;
        for _ in 0..40 {
            retry.failed("node-1", Refusal::Failed { wait: None }, Mono(0));
            last = retry.not_before().since(Mono(0));
            assert!(last >= SECOND && last <= 2 * MINUTE, "{last:?}");
        }
        assert!(last >= MINUTE);
        retry.succeeded();
        assert_eq!(retry.not_before(), Mono(0));
        retry.failed("node-1", Refusal::Failed { wait: None }, Mono(0));
        assert!(retry.not_before().since(Mono(0)) <= 2 * SECOND);
    }

    #[test]
    fn the_api_server_may_ask_for_more_within_reason() {
        let mut retry = retry();
        let wait = Some(Duration::from_secs(30));
        retry.failed("node-1", Refusal::Failed { wait }, Mono(0));
        assert!(retry.not_before().since(Mono(0)) >= Duration::from_secs(30));
        let wait = Some(Duration::MAX);
        retry.failed("node-1", Refusal::Failed { wait }, Mono(0));
        assert!(retry.not_before().since(Mono(0)) <= 2 * WAIT_MAX);
    }

    #[test]
    fn missing_rights_are_asked_for_seldom() {
        let mut retry = retry();
        retry.failed("node-1", Refusal::Denied, Mono(0));
        let pause = retry.not_before().since(Mono(0));
        assert!(pause >= 10 * MINUTE && pause <= 11 * MINUTE, "{pause:?}");
    }
}
