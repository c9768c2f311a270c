//! The process itself: its log, readiness, liveness, limits and memory.

pub(crate) mod memory_limit;
pub mod release;
pub mod stall;
pub mod starting;

use std::collections::BTreeSet;
use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clap::ValueEnum;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use pathproof_facts::text;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tracing_subscriber::fmt;

/// Omits the log lines of kube's client, because the code that sends a request reports its failure.
pub const DEFAULT_FILTER: &str = "info,kube_client=off";

/// Format of log lines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Plain text, with colours on a terminal unless NO_COLOR is set
    #[default]
    Text,
    /// One JSON object per line
    Json,
}

/// Sets up the log on standard error; call it once. The directives were checked when the option was parsed.
pub fn start_log(format: LogFormat, directives: &str) {
    let colours = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    // A line that cannot be written is lost: reporting the failure on standard error would end the agent.
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

/// Writes each log line with one call, without control sequences from untrusted text.
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

/// Maximum age of the main loop's last turn while the loop counts as alive. A healthy loop turns every
/// quarter second.
const STALLED_AFTER: Duration = Duration::from_secs(10);

/// Time of the main loop's last turn, in nanoseconds of `CLOCK_MONOTONIC`. Clones share it.
#[derive(Debug, Clone)]
pub struct Heartbeat(Arc<AtomicU64>);

impl Heartbeat {
    /// Begins with a beat, so that a slow start does not count as a stall.
    pub fn new(now: u64) -> Self {
        Self(Arc::new(AtomicU64::new(now)))
    }

    /// Records a turn of the main loop.
    pub fn beat(&self, now: u64) {
        self.0.store(now, Ordering::Relaxed);
    }

    /// Records that the main loop is not supposed to run: it has not started yet, or has ended. Until the next
    /// beat it does not count as stalled.
    pub fn rest(&self) {
        self.beat(u64::MAX);
    }

    /// Time since the last turn; zero while the loop is not supposed to run.
    pub fn age(&self, now: u64) -> Duration {
        Duration::from_nanos(now.saturating_sub(self.0.load(Ordering::Relaxed)))
    }

    pub fn is_alive(&self, now: u64) -> bool {
        self.age(now) <= STALLED_AFTER
    }
}

/// Parts that the agent waits for before it is ready. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Readiness(watch::Sender<BTreeSet<&'static str>>);

impl Readiness {
    /// Records whether this part is ready from now on.
    pub fn set(&self, part: &'static str, is_ready: bool) {
        self.0.send_if_modified(|pending| match is_ready {
            true => pending.remove(part),
            false => pending.insert(part),
        });
    }

    /// Sorted names of the missing parts; empty means ready.
    pub fn pending(&self) -> Vec<&'static str> {
        self.0.borrow().iter().copied().collect()
    }
}

/// Raises the limit of open files to the maximum that needs no privileges, and returns it. Shells set it to
/// 1,024, which is fewer than a health port's connections may need.
pub(crate) fn raise_open_files() -> u64 {
    let (before, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or((1024, 1024));
    match setrlimit(Resource::RLIMIT_NOFILE, most, most) {
        Ok(()) => most,
        Err(_) => before,
    }
}

/// SIGTERM and SIGINT, which shut the process down.
pub(crate) struct Shutdown {
    terminate: Signal,
    interrupt: Signal,
}

impl Shutdown {
    /// From now on neither signal ends the process by itself.
    pub(crate) fn listen() -> Result<Self, String> {
        let listen = |kind| signal(kind).map_err(|why| format!("cannot receive signals: {why}"));
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
        })
    }

    /// Waits for the next signal, and returns its name.
    pub(crate) async fn requested(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// Keeps at most 1 MiB of freed memory at the end of each thread's heap. After a large allocation, glibc keeps
/// twice as much. Call it at start.
pub(crate) fn keep_little_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes numbers and sets a limit.
    unsafe {
        libc::mallopt(libc::M_TRIM_THRESHOLD, 1 << 20);
    }
}

/// Returns freed memory to the kernel: most memory is free after a large view was read (figures:
/// docs/internal/design/building.md#yaml-and-build-profiles). It takes milliseconds at scale, so call it
/// only after a large change. Of other threads' heaps, the end is not returned: a thread that freed much calls
/// it too. C libraries other than glibc return memory by themselves.
pub(crate) fn give_back_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes a number and affects only free memory.
    unsafe {
        libc::malloc_trim(0);
    }
    // When this is freed, glibc returns the end of the calling thread's heap.
    drop(std::hint::black_box(Vec::<u8>::with_capacity(100 << 10)));
}

#[cfg(test)]
pub(crate) mod tests;
