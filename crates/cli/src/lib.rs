//! The commands that read what agents know, and the output and exit codes of all commands. Nothing here needs
//! Linux.

use std::error::Error;
use std::io::{self, IsTerminal as _, Write as _};
use std::process;

use clap::error::ErrorKind;
use pathproof_facts::text::{self, styled, visible};
use pathproof_shared::causes::{causes, chain};
use serde::Serialize;

use args::Output;

pub mod args;
pub mod check;
pub mod drain;
pub mod fetch;
pub mod fleet;
mod page;
mod parts;
pub mod preflight;
pub mod recording;
pub mod report;
pub mod status;
pub mod why;

use fetch::FetchError;

/// Exit code of the process, from sysexits(3) if a code there fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    Success = 0,
    /// Failed, or the checked part is broken.
    Failure = 1,
    /// The state of the checked part is unknown.
    Unknown = 3,
    /// The configuration is wrong.
    Configuration = 64,
    /// A defect in pathproof.
    Internal = 70,
    /// Permissions are missing.
    Permission = 77,
}

impl From<Exit> for process::ExitCode {
    fn from(exit: Exit) -> Self {
        process::ExitCode::from(exit as u8)
    }
}

impl Exit {
    /// The exit code of a command that printed a result: `result`, unless printing failed.
    fn then(self, result: Exit) -> Exit {
        match self {
            Exit::Success => result,
            failed => failed,
        }
    }

    /// Whether an error was caused by missing permissions. Errors of the configuration are the agent's.
    pub fn of(error: &(dyn Error + 'static)) -> Self {
        let is_denied = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
        let mut errors = causes(error).filter_map(|error| error.downcast_ref::<io::Error>());
        match errors.any(is_denied) {
            true => Exit::Permission,
            false => Exit::Failure,
        }
    }
}

/// Prints help, version or the error of a command line.
pub fn refused(error: &clap::Error) -> Exit {
    // A failure to write this message cannot be reported.
    let _ = error.print();
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Exit::Success,
        _ => Exit::Configuration,
    }
}

/// Reports an error and its causes in one line on standard error, and returns the exit code.
pub fn fail(error: &(dyn Error + 'static)) -> Exit {
    let _ = write!(io::stderr(), "{}", complaint(&chain(error)));
    Exit::of(error)
}

fn complaint(text: &str) -> String {
    format!("pathproof: {}\n", visible(&text.replace('\n', " ")))
}

/// Returns the exit code of a result, and reports its error if there is one.
fn end<E: Error + 'static>(result: Result<Exit, E>) -> Exit {
    result.unwrap_or_else(|error| fail(&error))
}

/// Writes a page to standard output, without control sequences from untrusted text. A closed pipe is not a
/// failure.
pub fn print(text: &str) -> Exit {
    write_out(&styled(text, colours()))
}

fn write_out(text: &str) -> Exit {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Exit::Success,
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Exit::Success,
        Err(_) => Exit::Failure,
    }
}

/// Prints a result: as a page for people, with colours or without, or as a document for programs.
fn show(output: Output, document: &impl Serialize, page: impl FnOnce(bool) -> String) -> Exit {
    match output {
        Output::Text => print(&page(colours())),
        Output::Json => match serde_json::to_string_pretty(document) {
            Ok(body) => write_out(&text::json(&format!("{body}\n"))),
            Err(error) => fail(&error),
        },
    }
}

/// Whether standard output shows colours (<https://no-color.org>).
fn colours() -> bool {
    let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let able = std::env::var_os("TERM").is_none_or(|term| term != "dumb");
    wanted && able && io::stdout().is_terminal()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_complaint_is_one_line_whatever_it_quotes() {
        let said = complaint("the server said\n\x1b[2J\u{202e}узел");
        assert_eq!(said, "pathproof: the server said \\u{1b}[2J\\u{202e}узел\n");
    }
}
