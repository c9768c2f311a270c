//! The flight recorder: the events of the last minutes in a bounded ring. A replay of its file gives
//! exactly the same verdicts, so a disputed 503 can be explained with evidence.
//!
//! A recording is gzip of JSON, one `Line` per line. It consists of parts. Each part is a gzip member that
//! begins with the judge's state, so the oldest part can be dropped and the others can still be replayed. A
//! replay compares every change of the verdict, and the judge at every later part, with the recorded ones.
//!
//! The cost is one serialisation per event, and at most 1 MiB compressed. The recorder reads no
//! clock and writes no file; the shell does.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::Write as _;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use pathproof_facts::directory::{Directory, ServiceInfo};
use pathproof_facts::time::Mono;
use pathproof_judge::verdict::LastVerdict;
use serde::{Deserialize, Serialize};

use crate::effect::VerdictUpdate;
use crate::event::{Event, KernelSample, Service};

pub const VERSION: u32 = 1;
/// Maximum size of a recording, compressed.
pub const RING: usize = 1 << 20;
/// A part ends after this time.
const PART_TIME: Duration = Duration::from_secs(60);
/// A part also ends at this size, compressed.
const PART_SIZE: usize = RING / 8;
/// Number of bytes that are compressed at a time.
pub(crate) const CHUNK: usize = 64 << 10;

/// One line of a recording: borrowed for writing, owned for reading.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Line<E, J> {
    Part {
        recording: u32,
        agent: String,
        /// The judge at the start of the part.
        judge: J,
    },
    At(Mono, E),
    /// Verdict and answers after the preceding event, if it changed them.
    Judged(RecordedResult),
}

pub(crate) type EventLine<'a> = Line<&'a Event, ()>;

/// The result that a replay must reproduce.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RecordedResult {
    verdict: LastVerdict,
    healthz: u16,
    livez: u16,
    /// Whether /healthz would be 503 for the datapath's state when enforcing.
    would_fail: bool,
}

impl RecordedResult {
    pub(crate) fn of(update: &VerdictUpdate) -> Self {
        Self {
            verdict: LastVerdict::of(&update.verdict),
            healthz: update.answers.healthz.status,
            livez: update.answers.livez.status,
            would_fail: update.answers.livez.would_fail,
        }
    }
}

#[derive(Debug, Default)]
pub struct Recorder {
    parts: VecDeque<RecordedPart>,
    outcome: Option<RecordedResult>,
}

/// A part, complete or in progress.
#[derive(Debug, Default)]
struct RecordedPart {
    began: Mono,
    /// Gzip members.
    chunks: Vec<Vec<u8>>,
    /// Lines that are not compressed yet.
    raw: Vec<u8>,
    /// Services that this part has named.
    services: BTreeMap<u32, ServiceInfo>,
}

impl RecordedPart {
    fn begin(judge: &impl Serialize, now: Mono) -> Self {
        let mut part = Self {
            began: now,
            ..Self::default()
        };
        part.write(&Line::<(), _>::Part {
            recording: VERSION,
            agent: env!("CARGO_PKG_VERSION").to_owned(),
            judge,
        });
        part
    }

    fn write(&mut self, line: &impl Serialize) {
        // Every recorded event can be serialised, and writing to a vector cannot fail.
        if serde_json::to_writer(&mut self.raw, line).is_ok() {
            self.raw.push(b'\n');
        }
        if self.raw.len() >= CHUNK {
            self.chunks.push(compress(&std::mem::take(&mut self.raw)));
        }
    }

    fn size(&self) -> usize {
        self.chunks.iter().map(Vec::len).sum()
    }

    fn is_full(&self, now: Mono) -> bool {
        now.since(self.began) >= PART_TIME || self.size() >= PART_SIZE
    }

    /// Records the Services of a sample, and those that the judge follows, unless this part already
    /// has them unchanged.
    fn name(
        &mut self,
        (sample, followed): (&KernelSample, impl Iterator<Item = u32>),
        directory: &dyn Directory,
        now: Mono,
    ) {
        let counted = sample.counts.iter().map(|delta| delta.service);
        let sighted = sample
            .failed_connections
            .iter()
            .map(|failed_connection| failed_connection.service);
        let sent = sample.peers.services();
        let lost = sample.lost_data.iter().map(|lost| lost.service);
        let named = counted.chain(sighted).chain(sent).chain(lost);
        let ids: BTreeSet<u32> = named.chain(followed).collect();
        let mut services = Vec::new();
        for id in ids {
            let known = directory.service(id);
            if known.as_ref() == self.services.get(&id) {
                continue;
            }
            match &known {
                Some(service) => self.services.insert(id, service.clone()),
                None => self.services.remove(&id),
            };
            services.push(Service { id, known });
        }
        if !services.is_empty() {
            self.write(&EventLine::At(now, &Event::Services(services)));
        }
    }
}

impl Recorder {
    /// Records an event before the judge processes it.
    pub(crate) fn note(
        &mut self,
        (event, followed): (&Event, impl Iterator<Item = u32>),
        now: Mono,
        judge: &impl Serialize,
        directory: &dyn Directory,
    ) {
        if self.parts.back().is_none_or(|part| part.is_full(now)) {
            self.turn(judge, now);
        }
        let Some(part) = self.parts.back_mut() else {
            return;
        };
        if let Event::Sample(sample) = event {
            part.name((sample, followed), directory, now);
        }
        part.write(&EventLine::At(now, event));
    }

    /// Records the result. Returns whether /healthz changed, or would have changed when enforcing.
    pub(crate) fn record_update(&mut self, update: &VerdictUpdate) -> bool {
        let outcome = RecordedResult::of(update);
        let before = self.outcome.replace(outcome);
        if before == Some(outcome) {
            return false;
        }
        if let Some(part) = self.parts.back_mut() {
            part.write(&EventLine::Judged(outcome));
        }
        let shown = |outcome: RecordedResult| (outcome.healthz, outcome.would_fail);
        before.is_some_and(|before| shown(before) != shown(outcome))
    }

    fn turn(&mut self, judge: &impl Serialize, now: Mono) {
        if let Some(part) = self.parts.back_mut() {
            let raw = std::mem::take(&mut part.raw);
            part.chunks.push(compress(&raw));
        }
        // Room for one more part and its uncompressed lines.
        while self.size() > RING - PART_SIZE - CHUNK {
            self.parts.pop_front();
        }
        self.parts.push_back(RecordedPart::begin(judge, now));
    }

    /// Compressed size in bytes.
    pub fn size(&self) -> usize {
        self.parts.iter().map(RecordedPart::size).sum()
    }

    pub fn file(&self) -> Vec<u8> {
        let mut file = Vec::with_capacity(self.size() + CHUNK);
        for part in &self.parts {
            file.extend(part.chunks.iter().flatten());
            if !part.raw.is_empty() {
                file.extend(compress(&part.raw));
            }
        }
        file
    }
}

pub(crate) fn compress(lines: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    // Writing to a vector cannot fail.
    let _ = encoder.write_all(lines);
    encoder.finish().unwrap_or_default()
}
