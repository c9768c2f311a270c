//! The journal of a node's episodes: times in which its datapath was answered with 503, or would have been
//! without audit mode and the fleet brake. `pathproof report` shows them, to decide whether to enforce.
//!
//! The agent serves the journal as `/episodes` and keeps it across reboots. It is plain data, bounded by
//! number and not by age, so that a clock that is set deletes no more than one day.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::Offset;
use pathproof_facts::cause::{Cause, State, Why};
use pathproof_facts::directory::Directory;
use pathproof_facts::limits::PREDECESSOR_VERDICT_AGE;
use pathproof_facts::time::{Mono, nanos, ns};
use pathproof_facts::{named, text};
use pathproof_wire::service::SourceClass;
use pathproof_witness::evidence::CountDelta;
use serde::{Deserialize, Serialize};

use crate::Report;

pub const SCHEMA: u32 = 1;
/// Maximum number of days, of episodes, and of Services that an episode counts by name. With the longest
/// names, the journal has less than 500 KiB.
pub const DAYS_KEPT: usize = 31;
pub const EPISODES_KEPT: usize = 200;
pub const SERVICES_KEPT: usize = 8;
/// Time between two verdicts above which the time between them was not observed.
const GAP: Duration = Duration::from_secs(5);
/// Interval between writes of the journal while no episode begins or ends.
const WRITE_INTERVAL: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Journal {
    pub schema: u32,
    pub node: String,
    /// Boot of the node to which `at` belongs.
    pub boot_id: String,
    /// Time of the last verdict.
    at: Mono,
    /// Time with evidence, which is every state but Unknown and Starting: nanoseconds by day (UTC).
    pub observed_ns: BTreeMap<Date, u64>,
    /// The oldest first.
    pub episodes: VecDeque<Episode>,
    /// Number of episodes that were deleted to make room for later ones.
    pub deleted: u64,
    /// Whether the last verdict had evidence.
    #[serde(skip)]
    has_evidence: bool,
    /// When the journal was last written; `None` if an episode has changed since.
    #[serde(skip)]
    written: Option<Mono>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Episode {
    /// To the second, as an operator writes it.
    pub begin: Timestamp,
    /// Duration until its end, or until the last verdict before the agent stopped.
    #[serde(rename = "lasted_ns", with = "ns")]
    pub lasted: Duration,
    pub end: End,
    /// Cause of the verdict with which it began, or its reason for Unknown.
    pub cause: String,
    /// Status of /livez when it began: 200 if the 503 was held back.
    pub answered: u16,
    /// Whether the fleet brake, and not audit mode, held its 503 back when it began.
    pub held: bool,
    /// File name of the recording that was written when it began, while the agent keeps that file.
    pub recording: Option<String>,
    /// Connections that failed meanwhile, by Service as in `verdict.services`.
    pub failed: BTreeMap<String, u64>,
    /// Connections to further Services that failed meanwhile.
    pub failed_others: u64,
    /// Failed connections of clients outside the cluster, to all Services. After a 503, load balancers send
    /// such clients to other nodes.
    pub failed_outside: u64,
}

named! {
    /// How an episode ended.
    pub enum End {
        /// It lasts.
        Open = "open",
        /// The answer for the datapath became 200.
        Recovered = "recovered",
        /// The node rebooted, or no agent ran, before that was observed.
        NotObserved = "not_observed",
    }
}

impl Journal {
    /// Continues the journal that an earlier agent of this node wrote. An open episode continues too, if the
    /// node has not rebooted since and that agent stopped a moment ago.
    pub fn resume(before: Option<Self>, node: &str, boot_id: &str, now: Mono) -> Self {
        let before = before.filter(|before| before.schema == SCHEMA && before.node == node);
        let mut journal = before.unwrap_or_else(|| Self {
            schema: SCHEMA,
            node: node.to_owned(),
            at: now,
            ..Self::default()
        });
        let same_boot = journal.boot_id == boot_id && !boot_id.is_empty();
        if !same_boot || now.since(journal.at) > PREDECESSOR_VERDICT_AGE {
            journal.at = now;
            if let Some(episode) = journal.open() {
                episode.end = End::NotObserved;
            }
        }
        boot_id.clone_into(&mut journal.boot_id);
        journal
    }

    /// Records a verdict and its answers. Returns whether the journal should be written.
    pub fn judged(&mut self, report: &Report) -> bool {
        let now = report.verdict.at;
        let passed = now.since(self.at);
        let is_observed = passed <= GAP;
        self.at = now;
        let has_evidence = report.verdict.state >= State::Proven;
        if std::mem::replace(&mut self.has_evidence, has_evidence) && is_observed {
            let observed = self.observed_ns.entry(day(report.written)).or_default();
            *observed = observed.saturating_add(nanos(passed));
        }
        let fails = report.answers.livez.would_fail;
        let mut changed = false;
        if let Some(episode) = self.open() {
            // A restarted agent that finds the node failing still: the episode went on without it.
            if fails || is_observed {
                episode.lasted = episode.lasted.saturating_add(passed);
            }
            if !fails {
                episode.end = match is_observed {
                    true => End::Recovered,
                    false => End::NotObserved,
                };
                let is_answered = !episode.lasted.is_zero() || !is_observed;
                changed = true;
                // What an agent remembers of the node may be refuted in the moment in which it starts.
                if !is_answered {
                    self.episodes.pop_back();
                }
            }
        } else if fails {
            self.episodes.push_back(Episode::begin(report));
            changed = true;
        }
        self.written = self.written.filter(|_| !changed);
        (self.written).is_none_or(|written| now.since(written) >= WRITE_INTERVAL)
    }

    /// Counts the failed connections of an open episode, except those of pathproof's probes.
    pub fn count(&mut self, counts: &[CountDelta], directory: &dyn Directory) {
        let Some(episode) = self.open() else { return };
        for delta in counts.iter().filter(|delta| delta.failed() > 0) {
            let service = directory.service(delta.service);
            let users = service.filter(|info| !(info.udp || info.sentinel || info.echo));
            if let Some(info) = users {
                episode.fail(info.label(), delta);
            }
        }
    }

    /// Notes that this recording was written.
    pub fn recorded(&mut self, file: &str) {
        if let Some(episode) = self.open() {
            episode.recording.get_or_insert_with(|| file.to_owned());
            self.written = None;
        }
    }

    /// Forgets the names of recordings that were deleted.
    pub fn forget_recordings(&mut self, is_kept: impl Fn(&str) -> bool) {
        for episode in &mut self.episodes {
            episode.recording = episode.recording.take().filter(|file| is_kept(file));
        }
    }

    /// The document that is served and written. It counts as written from now on.
    pub fn document(&mut self) -> String {
        self.bound();
        self.written = Some(self.at);
        // Plain data with string keys can always be encoded.
        let document = serde_json::to_string(self).unwrap_or_default();
        text::json(&document).into_owned()
    }

    fn bound(&mut self) {
        while self.observed_ns.len() > DAYS_KEPT {
            self.observed_ns.pop_first();
        }
        let is_full = self.observed_ns.len() == DAYS_KEPT;
        if let Some(first) = (self.observed_ns.keys().next().copied()).filter(|_| is_full) {
            self.episodes
                .retain(|episode| episode.end == End::Open || day(episode.begin) >= first);
        }
        while self.episodes.len() > EPISODES_KEPT {
            self.episodes.pop_front();
            self.deleted = self.deleted.saturating_add(1);
        }
    }

    fn open(&mut self) -> Option<&mut Episode> {
        let last = self.episodes.back_mut();
        last.filter(|episode| episode.end == End::Open)
    }
}

impl Episode {
    fn begin(report: &Report) -> Self {
        let verdict = &report.verdict;
        let cause = verdict.cause.map(Cause::name);
        let cause = cause.or_else(|| verdict.why.map(Why::name));
        let second = report.written.as_second();
        Self {
            begin: Timestamp::from_second(second).unwrap_or(report.written),
            lasted: Duration::ZERO,
            end: End::Open,
            cause: cause.unwrap_or(verdict.state.name()).to_owned(),
            answered: report.answers.livez.status,
            held: report.answers.livez.status == 200
                && report.answers.audit.is_none()
                && report.answers.held.is_some(),
            recording: None,
            failed: BTreeMap::new(),
            failed_others: 0,
            failed_outside: 0,
        }
    }

    fn fail(&mut self, service: String, delta: &CountDelta) {
        let count = delta.failed();
        if delta.class == SourceClass::External {
            self.failed_outside = self.failed_outside.saturating_add(count);
        }
        let has_room = self.failed.len() < SERVICES_KEPT || self.failed.contains_key(&service);
        let failed = match has_room {
            true => self.failed.entry(service).or_default(),
            false => &mut self.failed_others,
        };
        *failed = failed.saturating_add(count);
    }

    /// Number of connections of all Services that failed meanwhile.
    pub fn connections(&self) -> u64 {
        let named = self.failed.values();
        named.fold(self.failed_others, |sum, count| sum.saturating_add(*count))
    }

    /// Whether it lasted at this time, to the second.
    pub fn contains(&self, at: Timestamp) -> bool {
        let since = at.as_second() - self.begin.as_second();
        // An episode of half a second may end in the next second.
        u64::try_from(since).is_ok_and(|since| since <= self.lasted.as_secs().saturating_add(1))
    }
}

/// Day of a time, in UTC.
pub fn day(at: Timestamp) -> Date {
    Offset::UTC.to_datetime(at).date()
}
