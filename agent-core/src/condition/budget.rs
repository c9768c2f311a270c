//! A budget of things that may be done: so many at once, and one more each while.

use std::time::Duration;

use crate::time::Mono;

/// The budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Budget {
    /// What is saved up at most, as time.
    saved: Duration,
    /// One each.
    each: Duration,
    /// When all of it would be there again.
    full_at: Mono,
}

impl Budget {
    /// `burst` at once, and one more for `each` that passes.
    pub(super) fn new(burst: u32, each: Duration) -> Self {
        Self {
            saved: each.saturating_mul(burst.saturating_sub(1)),
            each,
            full_at: Mono(0),
        }
    }

    /// From when on one may be spent.
    pub(super) fn free_at(&self) -> Mono {
        self.full_at.minus(self.saved)
    }

    /// One was spent.
    pub(super) fn spend(&mut self, now: Mono) {
        self.full_at = self.full_at.max(now).plus(self.each);
    }
}
