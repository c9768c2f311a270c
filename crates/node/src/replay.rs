//! Replays a recording, and compares the results with the recorded ones.

use std::io::{BufRead as _, BufReader, Read as _};

use flate2::bufread::MultiGzDecoder;
use pathproof_facts::time::{Mono, Wall};
use thiserror::Error;

use crate::effect::{Effect, VerdictUpdate};
use crate::event::Event;
use crate::record::{Line, RecordedResult, VERSION};
use crate::{Judge, Node};

mod redact;

#[cfg(test)]
mod tests;

pub use redact::{Pseudonyms, redact};

/// Maximum size of a recording, uncompressed.
const MOST: u64 = 256 << 20;

/// Why a file cannot be replayed.
#[derive(Debug, Error)]
pub enum RecordingError {
    #[error(
        "this is not a pathproof recording: it is not gzip, or does not begin with a \
         recording's header"
    )]
    Foreign,
    #[error(
        "the recording has format {found}, and this pathproof reads format {VERSION}: replay it with the version that wrote it, {agent}"
    )]
    Version { found: u32, agent: String },
    #[error("the recording is cut off after line {line}: copy the whole file again")]
    CutOff { line: usize },
    #[error("line {line} of the recording cannot be read: {source}")]
    Damaged {
        line: usize,
        source: serde_json::Error,
    },
    #[error("the recording is larger than {} MiB uncompressed: the agent never writes one of that \
             size", MOST >> 20)]
    TooLarge,
}

pub struct Replayed {
    pub node: String,
    /// Version of the agent that wrote it.
    pub agent: String,
    pub span: (Wall, Wall),
    pub events: usize,
    /// Every change of the verdict or an answer, in order, beginning with the first verdict.
    pub moments: Vec<Moment>,
    /// The last verdict, with its evidence.
    pub latest: Option<Moment>,
    /// Time at which the replay first differed from the recording.
    pub differs: Option<Wall>,
    /// The node at the end of the recording.
    pub last: Node,
    outcome: Option<RecordedResult>,
}

#[derive(Clone, Debug)]
pub struct Moment {
    pub at: Wall,
    pub update: VerdictUpdate,
}

/// Replays a recording, up to a moment or to its end.
///
/// # Errors
/// The file is no recording, truncated, damaged, or of another version.
pub fn replay(bytes: &[u8], until: Option<Wall>) -> Result<Replayed, RecordingError> {
    let mut lines = Lines::new(bytes);
    let first = lines.next()?.ok_or(RecordingError::Foreign)?;
    let Line::Part { agent, judge, .. } = first else {
        return Err(RecordingError::Foreign);
    };
    let start = judge.anchor.wall_of(judge.now);
    let mut replayed = Replayed {
        node: judge.settings.node.clone(),
        last: Node::replay(*judge),
        agent,
        span: (start, start),
        events: 0,
        moments: Vec::new(),
        latest: None,
        outcome: None,
        differs: None,
    };
    while let Some(line) = lines.next()? {
        if !replayed.play(line, until) {
            break;
        }
    }
    Ok(replayed)
}

impl Replayed {
    /// Replays a line. Returns whether to continue.
    fn play(&mut self, line: Line<Event, Box<Judge>>, until: Option<Wall>) -> bool {
        match line {
            Line::At(at, event) => {
                let wall = self.last.judge().anchor.wall_of(at);
                if until.is_some_and(|until| wall > until) {
                    return false;
                }
                self.span.1 = wall;
                self.events += 1;
                self.step(event, at, wall);
            }
            Line::Judged(outcome) if self.outcome != Some(outcome) => {
                self.differs.get_or_insert(self.span.1);
            }
            Line::Judged(_) => {}
            Line::Part { judge, .. } => {
                self.last.judge.advance(judge.now);
                // The judge's maps are ordered, so equal judges have equal bytes.
                let bytes = |judge: &Judge| serde_json::to_vec(judge).unwrap_or_default();
                if bytes(&judge) != bytes(self.last.judge()) {
                    self.differs.get_or_insert(self.span.1);
                }
            }
        }
        true
    }

    #[deny(clippy::wildcard_enum_match_arm)]
    fn step(&mut self, event: Event, at: Mono, wall: Wall) {
        for effect in self.last.step(event, at) {
            let update = match effect {
                Effect::Publish(update) => update,
                // A replay performs no effects.
                Effect::Maps(_)
                | Effect::Sentinel(_)
                | Effect::Read(_)
                | Effect::HealthPorts(_)
                | Effect::Write(_)
                | Effect::Measure(_)
                | Effect::Log(_) => continue,
            };
            let outcome = RecordedResult::of(&update);
            let moment = Moment {
                at: wall,
                update: *update,
            };
            if self.outcome.replace(outcome) != Some(outcome) {
                self.moments.push(moment.clone());
            }
            self.latest = Some(moment);
        }
    }
}

struct Lines<'a> {
    reader: BufReader<std::io::Take<MultiGzDecoder<&'a [u8]>>>,
    line: usize,
}

impl<'a> Lines<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self {
            reader: BufReader::new(MultiGzDecoder::new(bytes).take(MOST)),
            line: 0,
        }
    }

    /// The next raw line.
    fn text(&mut self) -> Result<Option<Vec<u8>>, RecordingError> {
        let mut text = Vec::new();
        let cut_off = RecordingError::CutOff { line: self.line };
        match self.reader.read_until(b'\n', &mut text) {
            Err(_) if self.line == 0 => return Err(RecordingError::Foreign),
            Err(_) => return Err(cut_off),
            Ok(0) if self.reader.get_ref().limit() == 0 => return Err(RecordingError::TooLarge),
            Ok(0) => return Ok(None),
            Ok(_) if text.last() != Some(&b'\n') => return Err(cut_off),
            Ok(_) => self.line += 1,
        }
        Ok(Some(text))
    }

    fn next(&mut self) -> Result<Option<Line<Event, Box<Judge>>>, RecordingError> {
        let Some(text) = self.text()? else {
            return Ok(None);
        };
        if let Some(error) = other_version(&text) {
            return Err(error);
        }
        match serde_json::from_slice(&text) {
            Ok(line) => Ok(Some(line)),
            Err(_) if self.line == 1 => Err(RecordingError::Foreign),
            Err(source) => {
                let line = self.line;
                Err(RecordingError::Damaged { line, source })
            }
        }
    }
}

/// The error for a part of another version, of which only the first fields need to be readable.
fn other_version(text: &[u8]) -> Option<RecordingError> {
    if !text.starts_with(b"{\"part\"") {
        return None;
    }
    let line: serde_json::Value = serde_json::from_slice(text).ok()?;
    let found = u32::try_from(line.pointer("/part/recording")?.as_u64()?).ok()?;
    let agent = line.pointer("/part/agent")?.as_str()?.to_owned();
    (found != VERSION).then_some(RecordingError::Version { found, agent })
}
