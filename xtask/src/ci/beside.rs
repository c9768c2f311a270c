//! Steps that run in parallel, and tools that are built in parallel, each in its own process. Output goes
//! to a file. The whole output of a step is shown after the step has ended.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};

use crate::run;
use crate::tally::{Counted, Tally};

/// Processor time that a process gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Time {
    /// The same share as other processes.
    Shared,
    /// Only idle time. The process ends with the thread that started it.
    Idle,
}

/// Target folder of idle steps: in a shared one, cargo's lock would delay other builds.
const IDLE_TARGET: &str = "target/idle";

/// Lock of the thread that builds tools.
const AHEAD: &str = "ahead";

/// `cargo xtask step WORDS`, with this target folder if it is not the default one.
fn command(words: &str, time: Time, target: Option<&str>) -> Result<Command> {
    let xtask = std::env::current_exe()?;
    let mut command = match time {
        Time::Idle if cfg!(target_os = "linux") => {
            let mut command = Command::new("setpriv");
            // Programs that it starts inherit this scheduling class.
            command.args(["--pdeathsig", "KILL", "chrt", "--idle", "0"]);
            command.arg(xtask);
            command
        }
        _ => Command::new(xtask),
    };
    command.arg("step").args(words.split(' '));
    if let Some(folder) = target {
        command.env("CARGO_TARGET_DIR", run::root().join(folder));
    }
    Ok(command)
}

fn start(words: &str, mut command: Command) -> Result<Child> {
    fs::create_dir_all(run::root().join("target/ci")).context("make target/ci")?;
    let log = log(words);
    let file = File::create(&log).with_context(|| format!("make {}", log.display()))?;
    command.stdin(Stdio::null()).stdout(file.try_clone()?);
    let child = command.stderr(file).spawn();
    child.with_context(|| format!("cannot start {}", run::shown(&command)))
}

fn log(words: &str) -> PathBuf {
    let name = words.replace(' ', "");
    run::root().join(format!("target/ci/{name}.log"))
}

/// Builds the tools of these steps in order, while tests wait for packets and leave processors
/// idle. A step that begins before its tools are ready waits for them, by the locks of cargo and of
/// [`run::alone`]. A failure repeats in the step itself, which reports it.
pub(super) fn build_tools(steps: Vec<&'static str>) -> Result<JoinHandle<()>> {
    let tools = run::alone(AHEAD)?;
    Ok(thread::spawn(move || {
        let _tools = tools;
        for step in steps {
            if let Err(error) = build_tools_of(step) {
                eprintln!("building ahead for {step}: {error:#}");
            }
        }
    }))
}

/// Makes an idle step wait until [`build_tools`] has ended: tests need the tools, and nothing needs the
/// step.
pub(super) fn after_tools() -> Result<()> {
    run::alone(AHEAD).map(drop)
}

fn build_tools_of(step: &str) -> Result<()> {
    let words = format!("{step} --tools");
    let status = start(&words, command(&words, Time::Idle, None)?)?.wait()?;
    ensure!(status.success(), "{status}; see {}", log(&words).display());
    Ok(())
}

pub(super) struct Running {
    name: &'static str,
    since: Instant,
    /// Process id; an idle process leads its own process group.
    pid: libc::pid_t,
    /// When the process ended, and how.
    ended: JoinHandle<(Instant, io::Result<ExitStatus>)>,
    was_stopped: bool,
}

impl Running {
    pub(super) fn start(name: &'static str, time: Time) -> Result<Self> {
        eprintln!("\n== {name} begins; its output follows when it has ended");
        Self::begin(name, time, (time == Time::Idle).then_some(IDLE_TARGET))
    }

    fn begin(name: &'static str, time: Time, target: Option<&str>) -> Result<Self> {
        let since = Instant::now();
        let mut command = command(name, time, target)?;
        // Its own process group, so that `stop_idle` can kill all of it. Ctrl-C does not reach this group.
        if time == Time::Idle {
            command.process_group(0);
        }
        let mut child = start(name, command)?;
        let pid = libc::pid_t::try_from(child.id())?;
        let ended = thread::spawn(move || {
            let status = child.wait();
            (Instant::now(), status)
        });
        Ok(Self {
            name,
            since,
            pid,
            ended,
            was_stopped: false,
        })
    }

    /// Stops an unfinished idle step when nothing else is left to do; [`Running::end`] starts it again
    /// with a full share of time, because other processes may leave none idle. Stop all idle steps before
    /// `end` starts one: they wait for each other's locks.
    pub(super) fn stop_idle(&mut self) {
        if !self.ended.is_finished() {
            // SAFETY: takes only numbers. The process of this group was running a moment ago.
            unsafe { libc::kill(-self.pid, libc::SIGKILL) };
            self.was_stopped = true;
        }
    }

    /// Waits for the end, shows the output, and returns the duration.
    pub(super) fn end(mut self) -> Result<(Duration, Result<Counted>)> {
        let (name, since) = (self.name, self.since);
        if self.was_stopped {
            let _ = self.ended.join();
            // The new process continues with the parts that were already built.
            self = Self::begin(name, Time::Shared, Some(IDLE_TARGET))?;
        }
        let ended = self.ended.join();
        let (end, status) = ended.map_err(|_| anyhow!("nothing waited for its process"))?;
        let text = fs::read(log(name)).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        eprintln!("\n== {name}\n{}", text.trim_end());
        let status = status.context("wait for its process")?;
        let result = match status.success() {
            true => Ok(counted(name, &text)),
            false => Err(anyhow!("{}", why(&text).unwrap_or(status.to_string()))),
        };
        Ok((end - since, result))
    }
}

/// Counts a step that succeeded: as passed, or as skipped if it reported a reason with [`Counted::skip`].
fn counted(name: &str, text: &str) -> Counted {
    let begin = format!("{name}: ");
    let skips = text
        .lines()
        .filter_map(|line| line.strip_prefix("SKIPPED  "));
    let skips = skips.filter(|skip| skip.starts_with(&begin));
    let skips: Vec<String> = skips.map(str::to_owned).collect();
    match skips.is_empty() {
        true => Tally::PASSED.into(),
        false => Counted::skips(skips),
    }
}

/// The last error of the process, and the last conditions that it reported as not met. The table of steps
/// must show them, because CI may show only the end of a long output.
fn why(text: &str) -> Option<String> {
    let last = |begin| text.lines().rev().find_map(|line| line.strip_prefix(begin));
    let error = last("error: ")?;
    let missed = last("Not met: ").map(|missed| format!("; not met: {missed}"));
    Some(error.to_owned() + &missed.unwrap_or_default())
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
    fn the_last_error_is_reported() {
        let text = "error: one lint\nwords\nerror: `cargo clippy` failed (exit status: 101)\n";
        let last = "`cargo clippy` failed (exit status: 101)";
        assert_eq!(why(text).as_deref(), Some(last));
        assert_eq!(why("words\n"), None);
        let text = "Not met: no wrong answer (at 3.0s: 404).\nerror: `storm` failed\n";
        let both = "`storm` failed; not met: no wrong answer (at 3.0s: 404).";
        assert_eq!(why(text).as_deref(), Some(both));
    }
}
