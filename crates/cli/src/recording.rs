//! `pathproof record` saves a recording from a running agent, and `pathproof replay` replays one.
//! `pathproof why --at` finds the recording that contains a past moment.

use std::fs;
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use jiff::{RoundMode, Timestamp, TimestampRound, Unit};
use pathproof_facts::text::visible;
use pathproof_facts::time::Wall;
use pathproof_node::replay::{Moment, Pseudonyms, RecordingError, Replayed, redact, replay};
use pathproof_report::Report;
use pathproof_shared::input;
use pathproof_shared::recordings::{files, folder};
use thiserror::Error;

use super::{Exit, FetchError, fetch};
use crate::args::{RecordArgs, ReplayArgs, WhyArgs};

/// Maximum size of a recording that is read; an agent writes at most 1 MiB.
const MAX_RECORDING: u64 = 16 << 20;

#[derive(Debug, Error)]
pub(super) enum Problem {
    #[error(transparent)]
    Agent(#[from] FetchError),
    #[error("{}: {}", .0.display(), .1)]
    File(PathBuf, #[source] std::io::Error),
    #[error("{}: {}", .0.display(), .1)]
    Recording(PathBuf, #[source] RecordingError),
    #[error(
        "no recording in {} covers {}: the agent writes one when /healthz changes; save one from a \
         running agent with `pathproof record`, and give it with --recording",
        .0.display(), .1
    )]
    NotRecorded(PathBuf, Wall),
    #[error("{} keeps no recording {}: it has the last six", .0.display(), .1)]
    NotKept(PathBuf, String),
    #[error("the recording {} begins at {}, after {}", .0.display(), .1, .2)]
    TooLate(PathBuf, Wall, Wall),
}

pub fn record(args: &RecordArgs) -> Exit {
    super::end(save(args).map(|text| super::print(&text)))
}

fn save(args: &RecordArgs) -> Result<String, Problem> {
    let (path, shown) = (&args.output, args.output.display());
    let mut recording = match &args.kept {
        Some(name) => kept(&args.state.path, name)?,
        None => fetch::recording(&args.admin.address)?,
    };
    let mut how = "";
    if args.redact {
        let redacted = redact(&recording, &mut Pseudonyms::default());
        recording = redacted.map_err(|source| Problem::Recording(path.clone(), source))?;
        how = ", addresses replaced";
    }
    if path == "-" {
        let written = io::stdout().write_all(&recording);
        return written.map_or_else(
            |source| Err(Problem::File(path.clone(), source)),
            |()| Ok(String::new()),
        );
    }
    fs::write(path, &recording).map_err(|source| Problem::File(path.clone(), source))?;
    let size = recording.len() / 1024;
    Ok(format!(
        "{shown}: {size} KiB{how}; replay it with `pathproof replay {shown}`\n"
    ))
}

/// Reads a recording in the state folder. A name with a folder would be a file that no agent has written.
fn kept(state_dir: &Path, name: &str) -> Result<Vec<u8>, Problem> {
    let files = files(&folder(state_dir)).unwrap_or_default();
    let is_it = |path: &PathBuf| path.file_name().is_some_and(|file| file == name);
    let path = files.into_iter().find(is_it);
    let path = path.ok_or_else(|| Problem::NotKept(state_dir.to_owned(), name.to_owned()))?;
    input::read(&path, MAX_RECORDING).map_err(|source| Problem::File(path, source))
}

pub fn run_replay(args: &ReplayArgs) -> Exit {
    super::end(load(&args.file, None).map(|replayed| {
        let printed = super::print(&timeline(&replayed));
        match replayed.differs {
            None => printed,
            Some(_) => Exit::Failure,
        }
    }))
}

/// The report of a past moment, from the recording that contains it.
pub(super) fn report_at(at: Wall, args: &WhyArgs) -> Result<Report, Problem> {
    let path = match &args.recording {
        Some(path) => path.clone(),
        None => recorded(&args.state.path, at)?,
    };
    let replayed = load(&path, Some(at))?;
    let begins = replayed.span.0;
    match replayed.latest.as_ref().filter(|_| begins <= at) {
        Some(moment) => Ok(Report::replayed(&replayed, moment)),
        None => Err(Problem::TooLate(path, begins, at)),
    }
}

/// The first recording that ends at or after `at`.
fn recorded(state_dir: &Path, at: Wall) -> Result<PathBuf, Problem> {
    let files = match files(&folder(state_dir)) {
        // The agent's folder is for its owner alone.
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            return Err(Problem::File(state_dir.to_owned(), error));
        }
        files => files.unwrap_or_default(),
    };
    let reaches = |path: &PathBuf| load(path, None).is_ok_and(|replayed| replayed.span.1 >= at);
    let found = files.into_iter().find(reaches);
    found.ok_or_else(|| Problem::NotRecorded(state_dir.to_owned(), at))
}

fn load(path: &Path, until: Option<Wall>) -> Result<Replayed, Problem> {
    let bytes = input::read(path, MAX_RECORDING)
        .map_err(|source| Problem::File(path.to_owned(), source))?;
    replay(&bytes, until).map_err(|source| Problem::Recording(path.to_owned(), source))
}

/// The page of a replay, for people. Names and reasons in a recording are untrusted: control
/// characters are removed.
pub fn timeline(replayed: &Replayed) -> String {
    let (from, to) = replayed.span;
    let mut text = format!(
        "{}, pathproof {}, {} events from {} to {}\n\n",
        visible(&replayed.node),
        visible(&replayed.agent),
        replayed.events,
        readable(from.timestamp()),
        readable(to.timestamp())
    );
    for Moment { at, update } in &replayed.moments {
        let (verdict, answers) = (&update.verdict, &update.answers);
        let cause = verdict.cause.map(|cause| format!(" ({})", cause.name()));
        text.push_str(&format!(
            "{}  /healthz {}  /livez {}  {}{}\n    {}\n",
            readable(at.timestamp()),
            answers.healthz.status,
            answers.livez.status,
            verdict.state.name(),
            cause.unwrap_or_default(),
            visible(&verdict.reason())
        ));
    }
    text + match replayed.differs {
        None => "\nThe replay reached the same verdicts as the agent.\n",
        Some(_) => {
            "\nThe replay reached OTHER verdicts than the agent: this version of pathproof judges \
             differently, or the recording was changed.\n"
        }
    }
}

/// Formats a time in milliseconds. It is rounded up, because a time copied to `why --at` must not precede
/// its event.
fn readable(time: Timestamp) -> String {
    let up = TimestampRound::new()
        .smallest(Unit::Millisecond)
        .mode(RoundMode::Ceil);
    format!("{:.3}", time.round(up).unwrap_or(time))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_no_recording_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        let message = load(&path, None).err().unwrap().to_string();
        assert!(
            message.ends_with("x: No such file or directory (os error 2)"),
            "{message}"
        );
        fs::write(&path, "hello").unwrap();
        let message = load(&path, None).err().unwrap().to_string();
        assert!(
            message.contains("x: this is not a pathproof recording"),
            "{message}"
        );
    }

    #[test]
    fn a_shown_time_is_not_before_its_event() {
        let readable = |time: &str| super::readable(time.parse().unwrap());
        assert_eq!(
            readable("2026-11-23T03:58:33.435049597Z"),
            "2026-11-23T03:58:33.436Z"
        );
        assert_eq!(
            readable("2026-11-23T03:58:33.435Z"),
            "2026-11-23T03:58:33.435Z"
        );
    }

    #[test]
    fn times_are_rfc_3339() {
        assert_eq!(
            Wall::parse("1970-01-01T00:00:01.5Z"),
            Some(Wall(1_500_000_000))
        );
        assert_eq!(Wall::parse("yesterday"), None);
    }

    #[test]
    fn a_missing_recording_is_reported_with_the_remedy() {
        let dir = tempfile::tempdir().unwrap();
        let message = recorded(dir.path(), Wall(0)).unwrap_err().to_string();
        assert!(
            message.contains("1970-01-01T00:00:00Z") && message.contains("pathproof record"),
            "{message}"
        );
    }
}
