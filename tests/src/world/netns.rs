//! One network namespace, with functions that run threads, commands, `ip`, `tc`, `nft` and sysctls in it.
//!
//! Threads and commands enter by `setns`, which changes only the network. With `ip netns exec`, the host's
//! /sys with its bpffs would not be visible.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Seek, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result, ensure};
use nix::sched::{CloneFlags, setns};

use crate::observer::index_of;

/// Folder of `ip netns` with the names of namespaces.
pub(super) const NETNS_DIR: &str = "/run/netns";

/// A named network namespace, cheap to clone. Its creator removes the name (see [`World`](super::World)); the
/// kernel removes the namespace when its last user is gone.
#[derive(Clone, Debug)]
pub struct Namespace {
    name: Arc<str>,
    handle: Arc<File>,
    /// The file `cgroup.threads` of a cgroup, which threads enter as well.
    cgroup: Option<Arc<Path>>,
}

impl Namespace {
    pub fn open(name: &str) -> Result<Self> {
        let path = format!("{NETNS_DIR}/{name}");
        let handle = File::open(&path).with_context(|| format!("open namespace {path}"))?;
        Ok(Self {
            name: name.into(),
            handle: Arc::new(handle),
            cgroup: None,
        })
    }

    /// The same namespace, but its threads also enter the cgroup with this `cgroup.threads` file.
    pub fn in_cgroup(&self, threads: &Path) -> Self {
        Self {
            cgroup: Some(threads.into()),
            ..self.clone()
        }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Moves the calling thread into this namespace permanently. Only for threads that were started for this
    /// purpose.
    pub fn enter(&self) -> io::Result<()> {
        setns(&self.handle, CloneFlags::CLONE_NEWNET)?;
        self.cgroup
            .as_ref()
            .map_or(Ok(()), |threads| fs::write(threads, "0"))
    }

    fn inside<T>(&self, work: impl FnOnce() -> T) -> T {
        self.enter()
            .expect("enter a namespace of the test world (is this root?)");
        work()
    }

    /// Runs `work` on a thread inside the namespace and waits for its end. Sockets that it opens stay in the
    /// namespace.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let ended = thread::scope(|scope| scope.spawn(|| self.inside(work)).join());
        ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    pub fn spawn<T: Send + 'static>(
        &self,
        name: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<JoinHandle<T>> {
        let namespace = self.clone();
        // A thread's name has at most 15 bytes.
        thread::Builder::new()
            .name(name.chars().take(15).collect())
            .spawn(move || namespace.inside(work))
    }

    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        let handle = Arc::clone(&self.handle);
        // SAFETY: between fork and exec the closure only calls setns, which is async-signal-safe.
        unsafe { command.pre_exec(move || Ok(setns(&handle, CloneFlags::CLONE_NEWNET)?)) };
        command
    }

    /// Runs one `ip` command; spaces separate its arguments: `ip("route del 10.0.0.1/32")`.
    pub fn ip(&self, words: &str) -> Result<String> {
        let words: Vec<&str> = words.split_whitespace().collect();
        self.feed("ip", &words, "")
    }

    /// Runs many `ip` commands in one process, one on each line.
    pub fn ip_batch(&self, lines: &str) -> Result<()> {
        self.feed("ip", &["-batch", "-"], lines).map(drop)
    }

    /// Runs many `tc` commands in one process, one on each line.
    pub fn tc_batch(&self, lines: &str) -> Result<()> {
        self.feed("tc", &["-batch", "-"], lines).map(drop)
    }

    /// Runs an nft script inside the namespace, atomically.
    pub fn nft(&self, script: &str) -> Result<String> {
        self.feed("nft", &["-f", "-"], script)
    }

    /// Runs a program with `input` on its standard input; returns its standard output.
    pub fn feed(&self, program: &str, args: &[&str], input: &str) -> Result<String> {
        self.feed_with(program, args, &[], input)
    }

    /// Like [`Namespace::feed`], with environment variables.
    pub fn feed_with(
        &self,
        program: &str,
        args: &[&str],
        env: &[(&str, &OsStr)],
        input: &str,
    ) -> Result<String> {
        let mut command = self.command(program);
        command.args(args).envs(env.iter().copied());
        feed(command, input).with_context(|| format!("in namespace {}", self.name))
    }

    /// Writes a sysctl of the namespace, such as `net/ipv4/ip_forward`.
    pub fn sysctl(&self, key: &str, value: &str) -> Result<()> {
        self.sysctls(&[(key, value)])
    }

    /// Writes several sysctls. A thread does this inside the namespace, because /proc/sys/net shows the
    /// namespace of the thread that opens it.
    pub fn sysctls(&self, settings: &[(&str, &str)]) -> Result<()> {
        self.run(|| {
            for (key, value) in settings {
                fs::write(format!("/proc/sys/{key}"), value)
                    .with_context(|| format!("set sysctl {key}={value} in {}", self.name))?;
            }
            Ok(())
        })
    }

    pub fn ifindex(&self, device: &str) -> Result<u32> {
        self.run(|| index_of(device))
            .with_context(|| format!("in namespace {}", self.name))
    }
}

/// Runs a command with `input` on its standard input; returns its standard output.
pub(crate) fn feed(mut command: Command, input: &str) -> Result<String> {
    // Use a file instead of a pipe: a child that writes output before it has read all input would block.
    let mut file = tempfile::tempfile()?;
    file.write_all(input.as_bytes())?;
    file.rewind()?;
    let output = command.stdin(file).output();
    let output = output.with_context(|| format!("start {command:?}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (told, failure) = (text(&output.stdout), text(&output.stderr));
    let status = output.status;
    ensure!(
        status.success(),
        "{command:?} <<< {input}: {status}: {failure}{told}"
    );
    Ok(told)
}
