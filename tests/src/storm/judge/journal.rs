//! Checks the agent's journal, which `pathproof report` shows: each fault that was answered with 503 is an episode,
//! and each episode is a fault that clients felt.

use anyhow::{Context as _, Result};
use jiff::{SignedDuration, Timestamp};

use super::*;

/// Episodes begin at a full second, and the poller sees a 503 a little later than the agent.
const ROUNDING: Duration = Duration::from_secs(2);

/// An episode, as a time span since the start of the storm.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Entry {
    from: Duration,
    to: Duration,
}

impl Entry {
    /// The episodes of a journal that began after the storm.
    pub(in super::super) fn all(journal: &Value, start: Timestamp) -> Result<Vec<Self>> {
        let episodes = journal["episodes"].as_array();
        let episodes = episodes.context("a journal without `episodes`")?;
        let entries = episodes.iter().map(|episode| {
            let begin: Timestamp = serde_json::from_value(episode["begin"].clone())?;
            let lasted = episode["lasted_ns"].as_u64().context("no `lasted_ns`")?;
            let from = begin.duration_since(start).max(SignedDuration::ZERO);
            let from = from.unsigned_abs();
            let to = from + Duration::from_nanos(lasted);
            Ok(Entry { from, to })
        });
        entries.collect()
    }
}

pub(in super::super) fn judge_journal(seen: &Seen, journal: &[Entry], findings: &mut Findings) {
    let mut wrong = Findings::default();
    for &(at, action) in &findings.told {
        let mut entries = journal.iter();
        if !entries.any(|one| one.from <= at + ROUNDING && at <= one.to + ROUNDING) {
            wrong.accuse(at, format!("{action:?}: its 503 is not in the journal"));
        }
    }
    let codes = Codes {
        healthz: 503,
        livez: 503,
    };
    for entry in journal {
        let from = (entry.from + Duration::from_secs(1)).min(entry.to);
        let to = entry.to;
        let mut unfounded = Findings::default();
        seen.false_alarm(&Answered { from, to, codes }, &mut unfounded);
        for (at, what) in unfounded.violations {
            wrong.accuse(at, format!("an episode in the journal: {what}"));
        }
    }
    findings.violations.extend(wrong.violations);
}
