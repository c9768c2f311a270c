//! The agent in kube-proxy's place, with its name and flags: RKE 1 starts, checks and restarts it
//! where another program routes Services (docs/rke1.md, docs/internal/design/shell.md#drop-in).
//!
//! ```text
//! words ─flags::read─▶ Settings ─(file)─▶ options of `pathproof run` ─▶ Config
//! ```
//!
//! This crate only reads the configuration file. The agent itself is that of `pathproof run`.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::Path;

use clap::Parser;
use pathproof::config::{Config, ConfigError, RunArgs, Surroundings};
use pathproof_shared::input;
use thiserror::Error;

pub mod flags;
mod options;

pub use flags::{Action, Settings, read};

pub const NAME: &str = "kube-proxy";

/// Reason why the agent cannot run in kube-proxy's place.
#[derive(Debug, Error)]
pub enum DropInError {
    /// Neither a flag's name nor a terminator.
    #[error("{0:?} is not a flag: give --NAME=VALUE")]
    Syntax(String),
    /// A single dash with an unknown letter.
    #[error("{0:?}: there is no flag -{1}; flags longer than one letter begin with two dashes")]
    Letter(String, char),
    /// The last word is a flag that lacks its value.
    #[error("--{0} needs a value: give --{0}=VALUE")]
    NoValue(&'static str),
    /// A word that is neither a flag nor its value.
    #[error("kube-proxy takes no arguments, but {0:?} is one: give flags as --NAME=VALUE")]
    Argument(String),
    /// A flag, its invalid value, and what it accepts.
    #[error("--{0}: {1:?} is not {2}")]
    Value(&'static str, String, &'static str),
    /// The path of --config, and the fault of the file.
    #[error("--config: {0} is not a kube-proxy configuration: {1}")]
    File(String, String),
    #[error("--config: {0} cannot be read; make it readable, or omit --config")]
    Read(String, #[source] std::io::Error),
    #[error(
        "--write-config-to: pathproof cannot write a kube-proxy configuration to {0}; run \
         kube-proxy itself"
    )]
    WriteConfig(String),
    #[error(
        "--cleanup: pathproof does not remove kube-proxy's rules; run the cluster's own kube-proxy \
         with --cleanup, from its image without pathproof's mount"
    )]
    Cleanup,
    /// An error in the resulting options of `pathproof run`, with kube-proxy's names.
    #[error("{0}")]
    Options(String),
}

/// Maximum size of a configuration, far more than kube-proxy's settings need.
const MAX_CONFIG: u64 = 1 << 20;

const HELP: &str = "\
pathproof runs in place of kube-proxy, where another program routes Services. It observes packets \
and judges from them what /healthz and /livez answer. It writes no rules.

Every flag of kube-proxy 1.36 is accepted; ignored flags are logged once. Set pathproof's own options \
by environment variables, such as PATHPROOF_ENFORCEMENT.

Usage:
  kube-proxy [flags]

Flags:
";

/// Text of `--help`: every flag, as kube-proxy lists them.
pub fn help() -> String {
    let shown = || flags::FLAGS.iter().filter(|flag| !flag.is_hidden());
    let width = shown().map(|flag| flag.usage().len()).max().unwrap_or(0);
    let mut page = HELP.to_owned();
    for flag in shown() {
        let meaning = flag.meaning().unwrap_or("accepted and ignored");
        // Writing to a String cannot fail.
        let _ = writeln!(page, "{:width$}   {meaning}", flag.usage());
    }
    page
}

pub fn version() -> String {
    let version = env!("CARGO_PKG_VERSION");
    format!("pathproof {version} in place of kube-proxy\n")
}

/// Words of the command line for kube-proxy, if it was called by its name or by `pathproof kube-proxy`. Bytes
/// that are not UTF-8 are replaced: an error then shows the word.
pub fn words(mut call: impl Iterator<Item = OsString>) -> Option<Vec<String>> {
    let program = call.next()?;
    if Path::new(&program).file_name()? != NAME && call.next()? != NAME {
        return None;
    }
    let text = |word: OsString| word.to_string_lossy().into_owned();
    Some(call.map(text).collect())
}

/// The command line that kube-proxy's settings become.
#[derive(Parser)]
enum Line {
    Run(Box<RunArgs>),
}

/// Configuration to run with, and notes to log once.
pub fn resolve(
    settings: &Settings,
    around: &Surroundings,
    is_set: &dyn Fn(&str) -> bool,
) -> Result<(Config, Vec<String>), DropInError> {
    let options = |said: String| DropInError::Options(options::in_their_words(said.trim()));
    let effective = match settings.get("config") {
        None => settings.clone(),
        Some(path) => {
            let text = input::read(Path::new(path), MAX_CONFIG)
                .and_then(|bytes| String::from_utf8(bytes).map_err(std::io::Error::other));
            let text = text.map_err(|source| DropInError::Read(path.to_owned(), source))?;
            options::over(settings.clone(), path, &text)?
        }
    };
    let words = options::of(&effective, is_set);
    let Line::Run(said) = Line::try_parse_from(words).map_err(|error| {
        let text = error.to_string();
        // The other paragraphs are about `pathproof run`, which the user did not call.
        let first = text.split("\n\n").next().unwrap_or_default();
        let said: Vec<&str> = first.split_whitespace().collect();
        options(said.join(" ").trim_start_matches("error: ").to_owned())
    })?;
    let own_words = |error: ConfigError| options(error.to_string());
    let mut config = Config::resolve(&said, around).map_err(own_words)?;
    config.drop_in = true;
    let notes = options::notes(settings, &config);
    Ok((config, notes))
}

#[cfg(test)]
mod tests;
