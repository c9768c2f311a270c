//! A process of a world, with its log. The process ends when its value is dropped.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use anyhow::{Context, Result, bail};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::prelude::*;

/// Number of log lines that a failed test prints, few enough that the test's messages above them stay
/// visible.
const TAIL: usize = 12;

#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
    tail: usize,
}

impl Process {
    /// Starts a command whose output goes to NAME.log in `dir`. Call this function from the thread that owns
    /// the process: the kernel kills the process when that thread ends, so that a killed test leaves none.
    pub fn start(mut command: Command, name: &str, dir: &Path) -> Result<Self> {
        // SAFETY: prctl with these arguments is async-signal-safe and touches no memory.
        unsafe { command.pre_exec(|| Ok(set_pdeathsig(Signal::SIGKILL)?)) };
        let log = dir.join(format!("{name}.log"));
        let output = File::options().create(true).append(true).open(&log)?;
        command
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .process_group(0);
        let child = command.spawn().with_context(|| format!("start {name}"))?;
        Ok(Self {
            name: name.to_owned(),
            child,
            log,
            tail: TAIL,
        })
    }

    /// Prints the whole log, not only its end, if a test fails.
    pub fn verbose(mut self) -> Self {
        self.tail = usize::MAX;
        self
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn exited(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until a condition holds. On timeout, or if the process ends, returns an error with the log.
    pub fn wait(
        &mut self,
        what: &str,
        patience: Duration,
        mut holds: impl FnMut() -> bool,
    ) -> Result<()> {
        let end = until(patience, || match holds() {
            true => Some(None),
            false => self.exited().ok().flatten().map(Some),
        });
        let why = match end {
            Some(None) => return Ok(()),
            Some(Some(status)) => format!("ended with {status}"),
            None => format!("not within {:?}", scaled(patience)),
        };
        bail!("{}: {what}: {why}:\n{}", self.name, self.log())
    }

    /// Sends a signal, such as `libc::SIGSTOP`. Returns whether the process exists.
    pub fn signal(&self, number: i32) -> bool {
        signal(self.pid(), number)
    }

    /// Sends SIGTERM. Returns the exit status, or `None` if the process still runs after `patience`.
    pub fn terminate(&mut self, patience: Duration) -> Option<ExitStatus> {
        if let Ok(None) = self.exited() {
            self.signal(libc::SIGTERM);
        }
        until(patience, || self.exited().ok().flatten())
    }

    /// Kills the process with SIGKILL, even if it is stopped.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.kill();
        if thread::panicking() {
            let log = self.log();
            // Omit a line that the API server repeats every second with an etcd older than 3.4.25.
            let told = log.lines().filter(|line| !line.contains("stats.go"));
            let mut tail: Vec<&str> = told.collect();
            tail.drain(..tail.len().saturating_sub(self.tail));
            eprintln!("--- the end of {} ---", self.log.display());
            tail.iter().for_each(|line| eprintln!("{line}"));
        }
    }
}

/// PATH with these folders in front.
pub fn path_with(folders: impl IntoIterator<Item = PathBuf>) -> OsString {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let all = folders.into_iter().chain(std::env::split_paths(&path));
    std::env::join_paths(all).expect("no folder has a colon in its name")
}

/// Sends a signal to a process. Returns whether the process exists.
pub fn signal(pid: u32, number: i32) -> bool {
    // Reject process 0, which would address the whole process group.
    let pid = i32::try_from(pid).ok().filter(|pid| *pid > 0);
    let signal = Signal::try_from(number).ok();
    pid.is_some_and(|pid| kill(Pid::from_raw(pid), signal).is_ok())
}
