//! Gives up what the process does not need, before it has threads, so that every thread is born
//! without it: capabilities, system calls, files (docs/adr/0021-privileges.md).
//!
//! Never an error: what a kernel or a container does not allow is left out and told. Nothing here
//! knows what the agent is; `confine` says what it needs.

use std::io;
use std::path::PathBuf;

use caps::Capability;

use crate::causes::chain;
use agent_core::report::{FilesReport, HardeningReport};

mod calls;
mod files;
mod loader;
mod rights;

pub use files::SYSTEM;
pub use loader::{Loader, LoaderError};
pub use rights::can_without;

/// What a process goes on needing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Capabilities until the loader has done its work, beside those for good.
    pub loading: Vec<Capability>,
    /// Capabilities for good.
    pub capabilities: Vec<Capability>,
    /// Folders that are read, with all in them. One that is missing is no error.
    pub read: Vec<PathBuf>,
    /// Folders that are written, with all in them.
    pub written: Vec<PathBuf>,
    /// Folders in which folders and files are made, and nothing that is there is changed.
    pub made: Vec<PathBuf>,
    /// Why other programs are started, where they are: those have to be left the files and calls
    /// that they may need.
    pub programs: Option<&'static str>,
}

/// Gives everything up but `needs`, in this thread and in those that it will start; says what came
/// of it. The loader alone, which does one piece of work, still has `needs.loading`, may load
/// programs into the kernel, and write anywhere.
pub fn confine(needs: &Needs) -> (HardeningReport, Loader) {
    let mut missing = Missing::default();
    missing.unless(
        "new privileges cannot be ruled out",
        rights::no_new_privileges(),
    );
    let all = [&needs.loading[..], &needs.capabilities].concat();
    missing.unless(NO_RIGHTS, rights::keep(&all));
    let filtered = calls::forbid_common(needs.programs.is_some());
    let filtered = missing.unless("system calls cannot be filtered", filtered);
    let loader = missing.unless(
        "what loading takes is kept, for want of a thread",
        Loader::start(),
    );
    if loader.is_some() {
        missing.unless(NO_RIGHTS, rights::keep(&needs.capabilities));
    }
    // Without the first filter there was a reason, and it was told.
    if loader.is_some() && filtered.is_some() {
        let forbidden = calls::forbid_loading();
        missing.unless(
            "loading programs into the kernel cannot be forbidden",
            forbidden,
        );
    }
    let files = match needs.programs {
        Some(why) => missing.because("files are not confined", why),
        None => missing.unless("files are not confined", files::confine(needs)),
    };
    let files = files.unwrap_or(FilesReport::Open);
    (
        report(files, missing.0),
        loader.unwrap_or_else(Loader::here),
    )
}

const NO_RIGHTS: &str = "capabilities cannot be given up";

/// What could not be given up, in sentences.
#[derive(Default)]
struct Missing(Vec<String>);

impl Missing {
    fn unless<T, E: std::error::Error + 'static>(
        &mut self,
        what: &str,
        result: Result<T, E>,
    ) -> Option<T> {
        match result {
            Ok(done) => Some(done),
            Err(error) => self.because(what, &chain(&error)),
        }
    }

    fn because<T>(&mut self, what: &str, why: &str) -> Option<T> {
        self.0.push(format!("{what}: {why}"));
        None
    }
}

/// What is in force in this thread, as the kernel says.
fn report(files: FilesReport, missing: Vec<String>) -> HardeningReport {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.map(|value| value.trim_start_matches(':').trim())
    };
    HardeningReport {
        wanted: true,
        capabilities: rights::held(),
        no_new_privs: field("NoNewPrivs") == Some("1"),
        seccomp_filters: field("Seccomp_filters")
            .and_then(|count| count.parse().ok())
            .unwrap_or_default(),
        files,
        missing,
    }
}

/// A call of the system that failed.
fn failed(result: libc::c_int) -> io::Result<()> {
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
