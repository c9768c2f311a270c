//! What is written to the API server is counted here, without a lock.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};

use agent_core::time::Wall;

/// What is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Published {
    /// The Node's condition.
    Condition,
    /// An Event.
    Event,
}

impl Published {
    pub(super) const ALL: [Published; 2] = [Published::Condition, Published::Event];

    /// Name in metrics and log.
    pub fn name(self) -> &'static str {
        match self {
            Published::Condition => "condition",
            Published::Event => "event",
        }
    }
}

/// What became of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteResult {
    /// It was taken.
    Ok,
    /// Rights are missing (403).
    Forbidden,
    /// The object is not there (404).
    NotFound,
    /// Somebody else wrote at the same moment (409).
    Conflict,
    /// The API server is busy (429).
    Throttled,
    /// The API server refused it for another reason (4xx).
    Rejected,
    /// The API server failed (5xx).
    ServerError,
    /// There was no connection.
    Unreachable,
    /// No answer came in time.
    Timeout,
}

impl WriteResult {
    pub(super) const ALL: [WriteResult; 9] = [
        WriteResult::Ok,
        WriteResult::Forbidden,
        WriteResult::NotFound,
        WriteResult::Conflict,
        WriteResult::Throttled,
        WriteResult::Rejected,
        WriteResult::ServerError,
        WriteResult::Unreachable,
        WriteResult::Timeout,
    ];

    /// Name in metrics and log.
    pub fn name(self) -> &'static str {
        match self {
            WriteResult::Ok => "ok",
            WriteResult::Forbidden => "forbidden",
            WriteResult::NotFound => "not_found",
            WriteResult::Conflict => "conflict",
            WriteResult::Throttled => "throttled",
            WriteResult::Rejected => "rejected",
            WriteResult::ServerError => "server_error",
            WriteResult::Unreachable => "unreachable",
            WriteResult::Timeout => "timeout",
        }
    }
}

/// Counters of one kind.
#[derive(Debug, Default)]
pub(super) struct Writes {
    pub(super) wanted: AtomicBool,
    pub(super) results: [AtomicU64; WriteResult::ALL.len()],
    /// Nanoseconds of the wall clock; zero if never.
    pub(super) last_ok: AtomicI64,
}

/// Counters of what is written to the API server.
#[derive(Debug, Default)]
pub struct PublishStats([Writes; 2]);

impl PublishStats {
    /// It is to be written: its series are shown from now on.
    pub fn want(&self, kind: Published) {
        self.of(kind).wanted.store(true, Relaxed);
    }

    /// A write ended, at this time of the wall clock.
    pub fn wrote(&self, kind: Published, result: WriteResult, at: Wall) {
        let writes = self.of(kind);
        writes.results[result as usize].fetch_add(1, Relaxed);
        if result == WriteResult::Ok {
            writes.last_ok.store(at.0, Relaxed);
        }
    }

    /// How often writes ended so.
    pub fn count(&self, kind: Published, result: WriteResult) -> u64 {
        self.of(kind).results[result as usize].load(Relaxed)
    }

    pub(super) fn of(&self, kind: Published) -> &Writes {
        &self.0[kind as usize]
    }

    pub(super) fn wanted(&self) -> impl Iterator<Item = (Published, &Writes)> {
        Published::ALL
            .into_iter()
            .map(|kind| (kind, self.of(kind)))
            .filter(|(_, writes)| writes.wanted.load(Relaxed))
    }
}
