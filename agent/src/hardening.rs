//! Drops privileges that the process does not need: capabilities, system calls, file access
//! (docs/internal/design/shell.md#privileges). It must run before there are threads, so that every thread
//! starts without them.
//!
//! It never fails: a restriction that the kernel or the container does not allow is skipped and reported.
//! This module does not depend on the agent: `confine` lists what the agent needs.

use std::error::Error;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc;

use caps::errors::CapsError;
use caps::{CapSet, Capability, CapsHashSet};
use pathproof_report::{FilesReport, HardeningReport};
use pathproof_shared::causes::chain;
use thiserror::Error;
use tokio::sync::oneshot;

mod calls;
mod files;

pub use files::SYSTEM;

/// Privileges that a process keeps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Capabilities until loading is complete, in addition to the permanent ones.
    pub loading: Vec<Capability>,
    /// Permanent capabilities.
    pub capabilities: Vec<Capability>,
    /// Folders that are read, with their content. A missing folder is not an error.
    pub read: Vec<PathBuf>,
    /// Folders that are written, with their content.
    pub written: Vec<PathBuf>,
    /// Folders in which folders and files are created, without changes to existing ones.
    pub made: Vec<PathBuf>,
    /// `Some` with the reason if other programs are started. Files and calls that they may need stay allowed.
    pub programs: Option<&'static str>,
}

/// Drops everything but `needs` in this thread and in those that it starts, and reports the result. Only the
/// loader, which does one job, keeps `needs.loading`, may load programs into the kernel, and may write
/// anywhere.
pub fn confine(needs: &Needs) -> (HardeningReport, Loader) {
    let mut missing = Missing::default();
    missing.unless("no_new_privs cannot be set", no_new_privileges());
    let all = [&needs.loading[..], &needs.capabilities].concat();
    missing.unless(NO_RIGHTS, keep(&all));
    let filtered = calls::forbid_common(needs.programs.is_some());
    let filtered = missing.unless("the seccomp filter cannot be installed", filtered);
    let loader = Loader::start();
    let loader = missing.unless(
        "the capabilities for loading BPF programs are kept: no thread could be started for them",
        loader,
    );
    if loader.is_some() {
        missing.unless(NO_RIGHTS, keep(&needs.capabilities));
    }
    // If the first filter failed, the reason was reported already.
    if loader.is_some() && filtered.is_some() {
        let what = "loading of further BPF programs cannot be forbidden";
        missing.unless(what, calls::forbid_loading());
    }
    let files = match needs.programs {
        Some(why) => Err(why.into()),
        None => files::confine(needs),
    };
    let files = missing.unless("file access is not restricted", files);
    let report = report(files.unwrap_or(FilesReport::Open), missing.0);
    (report, loader.unwrap_or_default())
}

const NO_RIGHTS: &str = "capabilities cannot be dropped";

/// Reason why a privilege could not be dropped.
type Refused = Box<dyn Error>;

/// Privileges that could not be dropped, in sentences.
#[derive(Default)]
struct Missing(Vec<String>);

impl Missing {
    fn unless<T>(&mut self, what: &str, result: Result<T, impl Into<Refused>>) -> Option<T> {
        let refused = result.map_err(|error| chain(&*error.into()));
        let sentence = refused.map_err(|why| format!("{what}: {why}"));
        sentence.map_err(|missing| self.0.push(missing)).ok()
    }
}

/// Hardening in force in this thread, as the kernel reports it.
fn report(files: FilesReport, missing: Vec<String>) -> HardeningReport {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.map(|value| value.trim_start_matches(':').trim())
    };
    HardeningReport {
        wanted: true,
        capabilities: held(),
        no_new_privs: field("NoNewPrivs") == Some("1"),
        seccomp_filters: field("Seccomp_filters").map_or(0, |count| count.parse().unwrap_or(0)),
        files,
        missing,
    }
}

/// Prevents started programs from gaining privileges, whatever their files grant.
fn no_new_privileges() -> io::Result<()> {
    // SAFETY: the call takes only numbers.
    match unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Drops all capabilities of this thread except `wanted`, and adds none. The bounding set is cleared if that
/// is allowed (CAP_SETPCAP); otherwise the container's bounding set stays in force.
fn keep(wanted: &[Capability]) -> Result<(), CapsError> {
    if caps::has_cap(None, CapSet::Effective, Capability::CAP_SETPCAP)? {
        caps::clear(None, CapSet::Bounding)?;
    }
    // Ignored, since capabilities that are not permitted leave the ambient set anyway.
    let _ = caps::clear(None, CapSet::Ambient);
    let wanted: CapsHashSet = wanted.iter().copied().collect();
    for set in [CapSet::Effective, CapSet::Permitted] {
        let held = caps::read(None, set)?;
        let kept = held.intersection(&wanted).copied().collect();
        caps::set(None, set, &kept)?;
    }
    caps::clear(None, CapSet::Inheritable)
}

/// Sorted names of the capabilities that this thread has.
fn held() -> Vec<String> {
    let held = caps::read(None, CapSet::Permitted).unwrap_or_default();
    let mut names: Vec<_> = held.iter().map(ToString::to_string).collect();
    names.sort_unstable();
    names
}

/// Whether `act` succeeds without these capabilities; they are restored afterwards. If it cannot be
/// tried without them, it counts as failed.
pub fn can_without(these: &[Capability], act: impl FnOnce() -> bool) -> bool {
    let Ok(before) = caps::read(None, CapSet::Effective) else {
        return false;
    };
    let less = before.iter().copied().filter(|one| !these.contains(one));
    if caps::set(None, CapSet::Effective, &less.collect()).is_err() {
        return false;
    }
    let done = act();
    // Never refused: the capabilities are still permitted.
    let restored = caps::set(None, CapSet::Effective, &before);
    done && restored.is_ok()
}

type Job = Box<dyn FnOnce() + Send>;

/// The loader ended without doing the work.
#[derive(Debug, Error)]
#[error("the thread that loads BPF programs ended early: this is a defect in pathproof")]
pub struct LoaderError;

/// The only thread that may load programs into the kernel. It waits for one job, does it, and ends. If this
/// handle is dropped, the thread ends without a job.
#[derive(Default)]
pub struct Loader(
    /// `None` if the caller's thread does the work.
    Option<mpsc::Sender<Job>>,
);

impl Loader {
    /// Starts the thread, with the privileges of this one.
    fn start() -> io::Result<Self> {
        let (jobs, work) = mpsc::channel::<Job>();
        std::thread::Builder::new()
            .name("loader".to_owned())
            .spawn(move || {
                // An error is ignored: without Landlock, loading only takes longer.
                let _ = files::confine_loader();
                if let Ok(job) = work.recv() {
                    job();
                }
            })?;
        Ok(Self(Some(jobs)))
    }

    /// Runs the work, once.
    pub async fn run<T: Send + 'static>(
        self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, LoaderError> {
        let Some(jobs) = self.0 else {
            return Ok(work());
        };
        let (done, result) = oneshot::channel();
        let job = Box::new(move || {
            // The caller may be gone.
            let _ = done.send(work());
        });
        jobs.send(job).map_err(|_| LoaderError)?;
        result.await.map_err(|_| LoaderError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs in a separate thread, so that the other threads keep their privileges.
    fn apart<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> T {
        std::thread::spawn(act).join().unwrap()
    }

    #[test]
    fn no_capability_is_gained() {
        let before = caps::read(None, CapSet::Permitted).unwrap();
        let after = apart(|| {
            keep(&[Capability::CAP_NET_ADMIN]).unwrap();
            caps::read(None, CapSet::Permitted).unwrap()
        });
        let wanted = CapsHashSet::from([Capability::CAP_NET_ADMIN]);
        assert_eq!(after, before.intersection(&wanted).copied().collect());
        let here = caps::read(None, CapSet::Permitted).unwrap();
        assert_eq!(here, before, "the calling thread keeps its capabilities");
    }

    #[test]
    fn tried_capabilities_are_restored() {
        let before = caps::read(None, CapSet::Effective).unwrap();
        let all: Vec<_> = before.iter().copied().collect();
        for succeeds in [true, false] {
            let act = || {
                let now = caps::read(None, CapSet::Effective).unwrap();
                assert!(now.is_empty(), "{now:?}");
                succeeds
            };
            assert_eq!(can_without(&all, act), succeeds);
            assert_eq!(caps::read(None, CapSet::Effective).unwrap(), before);
        }
    }

    #[tokio::test]
    async fn work_runs_with_and_without_a_thread() {
        let name = || std::thread::current().name().map(str::to_owned);
        let apart = Loader::start().unwrap();
        assert_eq!(apart.run(name).await.unwrap().as_deref(), Some("loader"));
        assert_eq!(Loader::default().run(name).await.unwrap(), name());
    }

    #[tokio::test]
    async fn a_panic_is_an_error() {
        let loader = Loader::start().unwrap();
        let result = loader.run(|| panic!("on purpose")).await;
        assert!(matches!(result, Err(LoaderError)));
    }
}
