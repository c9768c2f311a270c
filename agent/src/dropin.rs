//! The agent in kube-proxy's place, under its name and with its flags: what RKE 1 starts, checks
//! and restarts where something else routes Services (docs/rke1.md, docs/adr/0014-drop-in.md).
//!
//! ```text
//! words ─parse─▶ Said ─wanted─▶ Settings ─(file)─▶ options of `pathproof run` ─▶ Config
//! ```
//!
//! Only the configuration's file and what `--cleanup` removes are touched here; the agent that runs
//! is the same as ever.

use std::fs;
use std::path::Path;

use clap::Parser as _;
use thiserror::Error;

use crate::args::{Args, Command};
use crate::config::{Config, ConfigError, Surroundings};

pub mod cleanup;
mod file;
pub mod flags;
mod help;
mod options;
pub mod parse;
pub mod wanted;

pub use help::{help, version};

use parse::WordError;
use wanted::{Settings, Wanted};

/// The name that kube-proxy is called by.
pub const NAME: &str = "kube-proxy";

/// Why the agent cannot stand in for kube-proxy.
#[derive(Debug, Error)]
pub enum DropInError {
    /// Bytes that are no text.
    #[error("{word:?} is no text: give words in UTF-8")]
    Bytes {
        /// What was said, as far as it is text.
        word: String,
    },
    /// A word that is no flag.
    #[error("{0}")]
    Word(#[from] WordError),
    /// A word beside the flags.
    #[error("kube-proxy takes no arguments, and {word:?} is one: give flags as --NAME=VALUE")]
    Argument {
        /// What was said.
        word: String,
    },
    /// A value that the flag cannot have.
    #[error("--{name}: {value:?} is not {wanted}")]
    Value {
        /// Which.
        name: &'static str,
        /// What was said.
        value: String,
        /// What can be.
        wanted: &'static str,
    },
    /// The file of --config.
    #[error("--config: {path} is no configuration of kube-proxy: {problem}")]
    File {
        /// Where it is.
        path: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The file of --config cannot be read.
    #[error("--config: {path} cannot be read; give a file that can, or leave --config out")]
    Read {
        /// Where it is.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// There is no configuration to write.
    #[error(
        "--write-config-to: pathproof has no configuration of kube-proxy's to write to {path}; call kube-proxy itself"
    )]
    WriteConfig {
        /// Where it would go.
        path: String,
    },
    /// The options of `pathproof run` that this comes to.
    #[error("{said}")]
    Options {
        /// What is wrong with them, in kube-proxy's words.
        said: String,
    },
}

/// The words that are meant for kube-proxy: of a call by its name, or by `pathproof kube-proxy`.
///
/// # Errors
/// One of them is no text.
pub fn words(
    mut call: impl Iterator<Item = std::ffi::OsString>,
) -> Option<Result<Vec<String>, DropInError>> {
    let program = call.next()?;
    if Path::new(&program).file_name()? != NAME && call.next()? != NAME {
        return None;
    }
    let word = |word: std::ffi::OsString| {
        word.into_string().map_err(|word| DropInError::Bytes {
            word: word.to_string_lossy().into_owned(),
        })
    };
    Some(call.map(word).collect())
}

/// What those words ask for.
///
/// # Errors
/// They cannot be taken.
pub fn read(words: &[String]) -> Result<Wanted, DropInError> {
    wanted::wanted(&parse::parse(words)?)
}

/// The configuration to run with, and what is to be said of it once, in the log.
///
/// # Errors
/// A setting is unsound.
pub fn resolve(
    settings: Settings,
    around: &Surroundings,
    is_set: &dyn Fn(&str) -> bool,
) -> Result<(Config, Vec<String>), DropInError> {
    let settings = match &settings.config {
        None => settings,
        Some(path) => {
            let path = path.clone();
            let text = fs::read_to_string(&path).map_err(|source| DropInError::Read {
                path: path.clone(),
                source,
            })?;
            file::over(settings, &path, &text)?
        }
    };
    let words = options::of(&settings, is_set);
    let args = Args::try_parse_from(words).map_err(|error| {
        let text = error.to_string();
        let said = text.lines().next().unwrap_or_default();
        DropInError::Options {
            said: options::in_their_words(said.trim_start_matches("error: ")),
        }
    })?;
    let Command::Run(said) = args.command else {
        return Err(DropInError::Options {
            said: "the options are not those of `pathproof run`".to_owned(),
        });
    };
    let own_words = |error: ConfigError| DropInError::Options {
        said: options::in_their_words(&error.to_string()),
    };
    let mut config = Config::resolve(&said, around).map_err(own_words)?;
    config.drop_in = true;
    let notes = options::notes(&settings, &config);
    Ok((config, notes))
}

#[cfg(test)]
mod tests;
