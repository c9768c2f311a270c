//! The commands other than `run`, and the output and exit codes of all commands.

use std::error::Error;
use std::io::{self, IsTerminal as _, Write as _};
use std::process;

use clap::Parser as _;
use clap::error::ErrorKind;
use pathproof_facts::text::{self, styled, visible};
use pathproof_shared::causes::chain;
use pathproof_wire::abi::ABI_VERSION;
use serde::Serialize;

use crate::REVISION;
use crate::args::{Args, Command, Output, Plugin};
use crate::cluster::api::client::ClientError;
use crate::config::ConfigError;
use crate::http::bind::BindError;

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

    /// Selects the exit code by searching an error and its causes. No other function maps errors to exit
    /// codes.
    pub fn of(error: &(dyn Error + 'static)) -> Self {
        let mut configuration = false;
        let mut cause = Some(error);
        while let Some(error) = cause {
            if let Some(error) = error.downcast_ref::<io::Error>()
                && error.kind() == io::ErrorKind::PermissionDenied
            {
                return Exit::Permission;
            }
            // A failed credential plugin is no error of configuration: the network may not be up yet.
            let client = error.downcast_ref::<ClientError>();
            let is_wrong = |error| !matches!(error, &ClientError::Credentials(_));
            configuration |= error.is::<ConfigError>() || client.is_some_and(is_wrong);
            // An address or port that is not available needs another setting; a temporary shortage does not.
            let bind = error.downcast_ref::<BindError>();
            configuration |= bind.is_some_and(|error| {
                use io::ErrorKind::{AddrInUse, AddrNotAvailable};
                matches!(error.source.kind(), AddrInUse | AddrNotAvailable)
            });
            cause = error.source();
        }
        match configuration {
            true => Exit::Configuration,
            false => Exit::Failure,
        }
    }
}

/// Parses the command line.
///
/// # Errors
/// The exit code, once all output is written: success for help and version, [`Exit::Configuration`]
/// for words that cannot be parsed.
pub fn parse() -> Result<Args, Exit> {
    let called = std::env::args_os().next();
    let parsed = if called.is_some_and(|name| fleet::is_plugin(&name)) {
        Plugin::try_parse().map(|plugin| Args {
            command: Command::Fleet(Box::new(plugin.fleet)),
        })
    } else {
        Args::try_parse()
    };
    parsed.map_err(|error| {
        // A failure to write this message cannot be reported.
        let _ = error.print();
        match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Exit::Success,
            _ => Exit::Configuration,
        }
    })
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

/// `pathproof version`.
pub fn version() -> Exit {
    print(&format!(
        "pathproof {} (revision {REVISION}, layouts shared with the kernel: {ABI_VERSION})\n",
        env!("CARGO_PKG_VERSION")
    ))
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
    use std::net::SocketAddr;

    use rstest::rstest;

    use super::*;

    fn bind(kind: io::ErrorKind) -> BindError {
        let address: SocketAddr = "127.0.0.1:80".parse().unwrap();
        BindError {
            option: "--x",
            address: address.into(),
            source: kind.into(),
        }
    }

    #[rstest]
    #[case(bind(io::ErrorKind::AddrInUse), Exit::Configuration)]
    #[case(bind(io::ErrorKind::AddrNotAvailable), Exit::Configuration)]
    #[case(bind(io::ErrorKind::PermissionDenied), Exit::Permission)]
    #[case(bind(io::ErrorKind::OutOfMemory), Exit::Failure)]
    #[case(ConfigError::NoClusterView, Exit::Configuration)]
    #[case(ClientError::Url("".parse::<hyper::Uri>().unwrap_err()), Exit::Configuration)]
    #[case(io::Error::from(io::ErrorKind::PermissionDenied), Exit::Permission)]
    #[case(io::Error::from_raw_os_error(libc::EPERM), Exit::Permission)]
    #[case(io::Error::from(io::ErrorKind::NotFound), Exit::Failure)]
    fn codes(#[case] error: impl Error + 'static, #[case] expected: Exit) {
        assert_eq!(Exit::of(&error), expected);
    }

    #[test]
    fn a_complaint_is_one_line_whatever_it_quotes() {
        let said = complaint("the server said\n\x1b[2J\u{202e}узел");
        assert_eq!(said, "pathproof: the server said \\u{1b}[2J\\u{202e}узел\n");
    }

    #[test]
    fn a_folder_that_may_not_be_read_is_a_permission() {
        let error = ConfigError::Unreadable {
            option: "--manifests",
            path: "/secret".into(),
            source: io::Error::from_raw_os_error(libc::EACCES),
        };
        assert_eq!(Exit::of(&error), Exit::Permission);
        let said = chain(&error);
        assert!(
            said.contains("--manifests") && said.contains("Permission denied"),
            "{said}"
        );
    }
}
