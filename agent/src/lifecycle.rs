//! The process itself: its log, whether it is ready and alive, its limits and its memory.

pub mod starting;

use std::collections::BTreeSet;
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use clap::ValueEnum;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::fmt;

use agent_core::text;

/// Without the client's own lines: whoever sends a request reports its failure once.
pub const DEFAULT_FILTER: &str = "info,kube_client=off";

/// Format of lines of the log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Plain text, with colours on a terminal unless NO_COLOR is set
    #[default]
    Text,
    /// One JSON object per line
    Json,
}

/// Sets up the process's log, on standard error: call it once. The directives were checked when the
/// option was read.
pub fn start_log(format: LogFormat, directives: &str) {
    let colours = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    // A line that cannot be written is lost: telling it there too would end the agent.
    let log = fmt()
        .with_env_filter(directives)
        .with_writer(move || Lines {
            to: io::stderr(),
            format,
            colours,
        })
        .log_internal_errors(false);
    match format {
        LogFormat::Text => log.with_ansi(colours).init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
}

/// Writes lines of the log, each with one call, without what others wrote into it.
struct Lines<W> {
    to: W,
    format: LogFormat,
    colours: bool,
}

impl<W: Write> Write for Lines<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        let text = text.strip_suffix('\n').unwrap_or(&text);
        let clean = match self.format {
            LogFormat::Text => text::styled(&text.replace('\n', "\\n"), self.colours),
            LogFormat::Json => text::json(text).into_owned(),
        };
        self.to.write_all((clean + "\n").as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// Longest pause after which the main loop counts as alive. A turn takes a quarter of a second.
const STALLED_AFTER: Duration = Duration::from_secs(10);

/// Time of the main loop's last turn, in nanoseconds of `CLOCK_MONOTONIC`. All clones are one.
#[derive(Debug, Clone)]
pub struct Heartbeat(Arc<AtomicU64>);

impl Heartbeat {
    /// Begins with a beat, so that a start that takes long is not an end.
    pub fn new(now: u64) -> Self {
        Self(Arc::new(AtomicU64::new(now)))
    }

    /// The main loop turned.
    pub fn beat(&self, now: u64) {
        self.0.store(now, Ordering::Relaxed);
    }

    /// Time since the last turn.
    pub fn age(&self, now: u64) -> Duration {
        Duration::from_nanos(now.saturating_sub(self.0.load(Ordering::Relaxed)))
    }

    pub fn is_alive(&self, now: u64) -> bool {
        self.age(now) <= STALLED_AFTER
    }
}

/// Names of what the agent still waits for before it is ready. All clones are one.
#[derive(Debug, Clone, Default)]
pub struct Readiness(Arc<Mutex<BTreeSet<&'static str>>>);

impl Readiness {
    /// Records whether this part is ready from now on.
    pub fn set(&self, part: &'static str, is_ready: bool) {
        let mut pending = self.lock();
        match is_ready {
            true => pending.remove(part),
            false => pending.insert(part),
        };
    }

    /// Names of what is missing, sorted; empty is ready.
    pub fn pending(&self) -> Vec<&'static str> {
        self.lock().iter().copied().collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<&'static str>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Raises the number of files that may be open to the most that is allowed without privileges, and
/// returns what it is then. Shells set it to 1,024, which is fewer than the connections that a health
/// port must bear.
pub(crate) fn raise_open_files() -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: 1024,
        rlim_max: 1024,
    };
    // SAFETY: the pointer is to a local that outlives the call, which writes no more than it.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    let before = std::mem::replace(&mut limit.rlim_cur, limit.rlim_max);
    // SAFETY: the pointer is to a local that outlives the call, which only reads it.
    match unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } {
        0 => limit.rlim_cur,
        _ => before,
    }
}

/// SIGTERM and SIGINT, which end the process in order.
pub(crate) struct Shutdown {
    terminate: Signal,
    interrupt: Signal,
}

impl Shutdown {
    /// From now on neither ends the process by itself.
    ///
    /// # Errors
    /// Signals cannot be received.
    pub(crate) fn listen() -> Result<Self, String> {
        let listen = |kind| signal(kind).map_err(|why| format!("cannot receive signals: {why}"));
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
        })
    }

    /// Waits for the next one, and returns its name.
    pub(crate) async fn requested(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// Returns freed memory to the kernel: a large view is read once, and most of what that took is free
/// afterwards (docs/adr/0025-plain-builds.md has the figures). Takes some milliseconds at scale, so
/// only after a large change. Other C libraries than glibc do so by themselves.
pub(crate) fn give_back_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes a number and touches free memory alone.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alive_until_stalled() {
        let second = |n: u64| n * 1_000_000_000;
        let heartbeat = Heartbeat::new(second(1));
        assert!(heartbeat.is_alive(second(11)));
        assert!(!heartbeat.is_alive(second(12)));
        heartbeat.clone().beat(second(12));
        assert!(heartbeat.is_alive(second(13)));
        assert_eq!(heartbeat.age(second(15)), Duration::from_secs(3));
    }

    #[test]
    fn ready_when_every_part_is() {
        let readiness = Readiness::default();
        readiness.set("interfaces", false);
        readiness.set("cluster view", false);
        assert_eq!(readiness.clone().pending(), ["cluster view", "interfaces"]);
        readiness.set("interfaces", true);
        readiness.set("never missing", true);
        assert_eq!(readiness.pending(), ["cluster view"]);
        readiness.set("cluster view", true);
        assert!(readiness.pending().is_empty());
    }

    fn written(format: LogFormat, line: &str) -> String {
        let mut lines = Lines {
            to: Vec::new(),
            format,
            colours: true,
        };
        lines.write_all(line.as_bytes()).unwrap();
        String::from_utf8(lines.to).unwrap()
    }

    #[test]
    fn a_line_of_the_log_is_one_line_whatever_is_in_it() {
        let text = "\x1b[33mWARN\x1b[0m a name: x\u{202e}\nINFO all is well\n";
        let clean = "\x1b[33mWARN\x1b[0m a name: x\\u{202e}\\nINFO all is well\n";
        assert_eq!(written(LogFormat::Text, text), clean);
        let json = "{\"name\":\"x\u{202e}\\n\"}\n";
        let clean = "{\"name\":\"x\\u202e\\n\"}\n";
        assert_eq!(written(LogFormat::Json, json), clean);
        for format in [LogFormat::Text, LogFormat::Json] {
            let plain = "{\"node\":\"узел-1\"}\n";
            assert_eq!(written(format, plain), plain);
        }
    }

    #[test]
    fn the_limit_can_be_raised_again_and_again() {
        let first = raise_open_files();
        assert_eq!(raise_open_files(), first);
    }
}
