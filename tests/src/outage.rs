//! Users of a Service during an outage, their failures, and the explanation that `pathproof why` gives.

use std::fmt;
use std::ops::AddAssign;
use std::process::Command;

use crate::prelude::*;
use crate::traffic::{Ended, Tally};

/// Timeout of the wait until clients are served, for busy machines.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time after which every connection has ended: slightly more than a client's timeout.
const ENDED: Duration = Duration::from_millis(1200);
/// Maximum wait until the page explains an outage.
const EXPLAINED: Duration = Duration::from_secs(3);

/// Alternative words for one part of an explanation.
pub type Words = &'static [&'static str];

/// Clients that run until this is dropped.
pub struct Users {
    clients: Vec<Client>,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Felt {
    pub ok: usize,
    pub all: usize,
    /// Start of the first connection that failed.
    pub first_failure: Option<Instant>,
}

impl Felt {
    /// Successful connections, in percent.
    pub fn percent(&self) -> f64 {
        100.0 * self.ok as f64 / self.all.max(1) as f64
    }
}

impl AddAssign<Ended> for Felt {
    fn add_assign(&mut self, ended: Ended) {
        self.all += 1;
        self.ok += usize::from(ended.ok);
        if !ended.ok {
            let first = self.first_failure.into_iter().chain([ended.begun]);
            self.first_failure = first.min();
        }
    }
}

impl fmt::Display for Felt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} % of {}", self.percent(), self.all)
    }
}

impl Users {
    pub fn start(plans: impl IntoIterator<Item = Plan>) -> Self {
        let plans = plans.into_iter();
        let clients = plans.map(|plan| plan.start().expect("a client")).collect();
        Self { clients }
    }

    /// Waits until every client was served, and none failed, for one second.
    pub fn wait_served(&self) {
        let mut last = Vec::new();
        let served = until(PATIENCE, || {
            let before: Vec<Tally> = self.clients.iter().map(Client::tally).collect();
            thread::sleep(Duration::from_secs(1));
            let now = self.clients.iter().zip(before);
            last = now.map(|(client, then)| client.tally() - then).collect();
            let served = |felt: &Tally| felt.ok > 0 && felt.failed() == 0;
            last.iter().all(served).then_some(())
        });
        assert!(served.is_some(), "not served: {last:?}");
    }

    /// Results of the connections that began between `since` and now. Results of earlier ones are discarded.
    pub fn felt(&self, since: Instant) -> Felt {
        let until = Instant::now();
        thread::sleep(ENDED);
        let mut felt = Felt::default();
        let ended = self.clients.iter().flat_map(Client::take_ended);
        let during = ended.filter(|one| one.begun >= since && one.begun < until);
        during.for_each(|one| felt += one);
        felt
    }
}

#[derive(Clone, Debug, Default)]
pub struct Explanation {
    /// Parts that are missing: the page contains none of their alternatives.
    pub missing: Vec<Words>,
    pub page: String,
}

impl Explanation {
    /// Runs the command until its page contains every part, for a few seconds at most.
    pub fn read(mut why: impl FnMut() -> Command, parts: &[Words]) -> Self {
        let mut last = Self::default();
        until(EXPLAINED, || {
            let output = why().output().ok()?;
            last = Self::of(String::from_utf8_lossy(&output.stdout).into_owned(), parts);
            last.missing.is_empty().then_some(())
        });
        last
    }

    fn of(page: String, parts: &[Words]) -> Self {
        // The page may break lines between any two words.
        let text = page.split_whitespace().collect::<Vec<_>>().join(" ");
        let is_missing = |part: &&Words| !part.iter().any(|word| text.contains(word));
        let missing = parts.iter().filter(is_missing).copied().collect();
        Self { missing, page }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_names_a_part_by_any_of_its_words() {
        let page = "BROKEN  node-1\nlost   nothing has\n       succeeded since 4 s ago\n";
        let parts: [Words; 2] = [&["dropped", "lost"], &["has succeeded since"]];
        let explained = Explanation::of(page.to_owned(), &parts);
        assert!(explained.missing.is_empty(), "{explained:?}");
        let explained = Explanation::of(page.to_owned(), &[&["stale", "removed"]]);
        assert_eq!(explained.missing, [&["stale", "removed"]]);
    }
}
