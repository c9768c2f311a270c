//! Steps that run beside others: each is a process of its own. Its output goes to a file, and is shown
//! whole once it has ended.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

use crate::tally::{Counted, Tally};
use crate::{ahead, run};

/// The processor time that a step gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Time {
    /// As much as any other.
    Shared,
    /// The time that other steps leave. It builds in a target folder of its own, or cargo's lock would hold
    /// up the builds of the others.
    Idle,
}

/// Where idle steps build.
const IDLE_TARGET: &str = "target/idle";

/// A step that was started.
pub(super) struct Running {
    name: &'static str,
    since: Instant,
    /// Of its process, which leads a group of its own if it is idle.
    pid: libc::pid_t,
    /// When it ended, and how; nothing once it was stopped.
    ended: Option<JoinHandle<(Instant, io::Result<ExitStatus>)>>,
}

impl Running {
    pub(super) fn start(name: &'static str, time: Time) -> Result<Self> {
        eprintln!("\n== {name} begins; its output follows when it has ended");
        Self::begin(name, time, (time == Time::Idle).then_some(IDLE_TARGET))
    }

    fn begin(name: &'static str, time: Time, target: Option<&str>) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["step", name]);
        if let Some(folder) = target {
            command.env("CARGO_TARGET_DIR", run::root().join(folder));
        }
        let log = log(name);
        let folder = log.parent().context("a folder")?;
        fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
        let file = File::create(&log).with_context(|| format!("make {}", log.display()))?;
        command
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file);
        let since = Instant::now();
        let started = match time {
            Time::Shared => command.spawn(),
            Time::Idle => ahead::start(command.process_group(0)),
        };
        let mut child =
            started.with_context(|| format!("cannot start {}", run::shown(&command)))?;
        let pid = libc::pid_t::try_from(child.id())?;
        let ended = thread::spawn(move || {
            let status = child.wait();
            (Instant::now(), status)
        });
        Ok(Self {
            name,
            since,
            pid,
            ended: Some(ended),
        })
    }

    /// Stops an idle step that has not ended, when nothing else is left to do: processes that are not
    /// ours may leave no idle time. [`Running::end`] begins it again. All idle ones are stopped first,
    /// since they wait for each other's locks.
    pub(super) fn stop_idle(mut self) -> Self {
        if self
            .ended
            .as_ref()
            .is_some_and(|ended| !ended.is_finished())
        {
            // SAFETY: takes numbers alone. The group is that of a process which was there just now.
            unsafe { libc::kill(-self.pid, libc::SIGKILL) };
            let _ = self.ended.take().map(JoinHandle::join);
        }
        self
    }

    /// Waits for its end, shows its output, and tells how long it took.
    pub(super) fn end(mut self) -> Result<(Duration, Result<Counted>)> {
        let (name, since) = (self.name, self.since);
        if self.ended.is_none() {
            // With what it built so far.
            self = Self::begin(name, Time::Shared, Some(IDLE_TARGET))?;
        }
        let (end, status) = match self.ended.map(JoinHandle::join) {
            Some(Ok(ended)) => ended,
            _ => bail!("nothing waited for its process"),
        };
        let text = output(&log(name));
        eprintln!("\n== {name}\n{}", text.trim_end());
        let status = status.context("wait for its process")?;
        let result = match status.success() {
            true => Ok(counted(name, &text)),
            false => Err(anyhow!("{}", why(&text).unwrap_or(status.to_string()))),
        };
        Ok((end - since, result))
    }
}

fn log(name: &str) -> PathBuf {
    run::root().join(format!("target/ci/{name}.log"))
}

fn output(log: &Path) -> String {
    let bytes = fs::read(log).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A step that ended well passed, or said with [`Counted::skip`] why it did not run.
fn counted(name: &str, text: &str) -> Counted {
    let begin = format!("{name}: ");
    let skips = text
        .lines()
        .filter_map(|line| line.strip_prefix("SKIPPED  "));
    let skipped: Vec<String> = skips
        .filter(|skip| skip.starts_with(&begin))
        .map(str::to_owned)
        .collect();
    let tally = match skipped.len() {
        0 => Tally::PASSED,
        skipped => Tally {
            skipped,
            ..Tally::default()
        },
    };
    Counted {
        tally,
        skipped,
        ..Counted::default()
    }
}

/// The error that the process ended with.
fn why(text: &str) -> Option<String> {
    let last = text.lines().rfind(|line| line.starts_with("error: "))?;
    last.strip_prefix("error: ").map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_passes_or_is_skipped() {
        let passed = counted("storm", "+ storm --seed 1\nSKIPPED  demo: needs root\n");
        assert_eq!((passed.tally, passed.skipped), (Tally::PASSED, vec![]));
        let skipped = counted("storm", "SKIPPED  storm: needs root\n");
        assert_eq!(skipped.tally.to_string(), "0 passed, 0 failed, 1 skipped");
        assert_eq!(skipped.skipped, ["storm: needs root"]);
    }

    #[test]
    fn the_last_error_is_told() {
        let text = "error: one lint\nwords\nerror: `cargo clippy` failed (exit status: 101)\n";
        let last = "`cargo clippy` failed (exit status: 101)";
        assert_eq!(why(text).as_deref(), Some(last));
        assert_eq!(why("words\n"), None);
    }
}
