//! What a world leaves on the machine, and its removal: namespaces, the folder, the pins.
//!
//! Names of short-lived worlds carry the process id, so that a later run can tell and sweep what
//! a killed one left. Kept worlds (the demo's) have fixed names and go by [`remove_kept`] alone.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::process::signal;
use crate::wait::until;

/// Prefix of the names of short-lived worlds, followed by process id and counter.
const PREFIX: &str = "pp-t";
/// Folders of worlds. Not the agent's own default folder, which an agent of this machine may use.
const WORLDS: &str = "/run/pathproof-worlds";
/// Folder of what needs a quick disk.
const QUICK: &str = "/dev/shm/pathproof-worlds";
/// Where agents pin; the host's bpffs.
const BPFFS: &str = "/sys/fs/bpf";
/// Serialises what is one for the machine: the first `ip netns add`, the bpffs mount, the sweep.
/// A folder that is there anyway: a lock file would be left behind.
const LOCK: &str = "/run";

static COUNTER: AtomicU32 = AtomicU32::new(0);

/// What must go when a world goes.
#[derive(Debug)]
pub(super) struct Remains {
    prefix: String,
    dir: PathBuf,
    pins: PathBuf,
    keep: bool,
}

impl Remains {
    /// Names for a new world. `fixed` is the name of a world that may be kept.
    pub(super) fn new(fixed: Option<&str>) -> Result<Self> {
        let name = fixed.map_or_else(
            || {
                format!(
                    "{PREFIX}{}-{}",
                    std::process::id(),
                    COUNTER.fetch_add(1, Ordering::Relaxed)
                )
            },
            str::to_owned,
        );
        let dir = world_dir(&name);
        fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
        Ok(Self {
            pins: pin_dir(&name),
            dir,
            prefix: name,
            keep: false,
        })
    }

    pub(super) fn name(&self) -> &str {
        &self.prefix
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(super) fn pins(&self) -> &Path {
        &self.pins
    }

    pub(super) fn keep(&mut self) {
        self.keep = true;
    }

    /// Makes namespaces, in one process.
    pub(super) fn make_namespaces(&self, names: &[String]) -> Result<()> {
        let _lock = lock()?;
        let lines: String = names
            .iter()
            .map(|name| format!("netns add {name}\n"))
            .collect();
        ip_batch(&lines, false).context("make namespaces")
    }

    pub(super) fn remove_namespace(&self, name: &str) -> Result<()> {
        ip_batch(&format!("netns del {name}\n"), false)
    }
}

impl Drop for Remains {
    fn drop(&mut self) {
        if !self.keep
            && let Err(error) = remove(&self.prefix)
        {
            eprintln!("test world {}: {error:#}", self.prefix);
        }
    }
}

/// Whether a kept world of this name is there.
pub(super) fn exists(name: &str) -> bool {
    namespaces_of(name).is_ok_and(|names| !names.is_empty()) || world_dir(name).exists()
}

/// Removes a kept world: its processes (by the ids they left in its folder), namespaces, pins and
/// folder. Gives whether there was one.
pub fn remove_kept(name: &str) -> Result<bool> {
    if !exists(name) {
        return Ok(false);
    }
    stop_recorded(&world_dir(name));
    remove(name)?;
    Ok(true)
}

/// Removes what worlds of dead processes left.
pub(super) fn sweep() -> Result<()> {
    let _lock = lock()?;
    let mut left: Vec<String> = Vec::new();
    for place in ["/run/netns", WORLDS, BPFFS] {
        let Ok(entries) = fs::read_dir(place) else {
            continue;
        };
        for entry in entries.flatten() {
            let file = entry.file_name();
            let Some(world) = file.to_str().and_then(world_of_dead_process) else {
                continue;
            };
            if !left.contains(&world) {
                left.push(world);
            }
        }
    }
    for world in left {
        eprintln!("test world {world}: its process is gone, removing what it left");
        remove(&world)?;
    }
    Ok(())
}

/// Whether this is the name of a short-lived world, or of a part of it, whose process is gone.
pub(crate) fn of_dead_process(name: &str) -> bool {
    world_of_dead_process(name).is_some()
}

/// "pp-t123-0-node" -> "pp-t123-0" where no process 123 is.
fn world_of_dead_process(file: &str) -> Option<String> {
    let mut parts = file.strip_prefix(PREFIX)?.split('-');
    let pid: u32 = parts.next()?.parse().ok()?;
    let counter: u32 = parts.next()?.parse().ok()?;
    (!Path::new(&format!("/proc/{pid}")).exists()).then(|| format!("{PREFIX}{pid}-{counter}"))
}

fn remove(world: &str) -> Result<()> {
    let mut failures = Vec::new();
    let lines: String = namespaces_of(world)?
        .iter()
        .map(|name| format!("netns del {name}\n"))
        .collect();
    if let Err(error) = ip_batch(&lines, true) {
        failures.push(format!("{error:#}"));
    }
    for dir in [pin_dir(world), quick_dir(world), world_dir(world)] {
        match fs::remove_dir_all(&dir) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => failures.push(format!("remove {}: {error}", dir.display())),
        }
    }
    // The folder of all worlds goes with the last of them.
    for worlds in [WORLDS, QUICK] {
        let _ = fs::remove_dir(worlds);
    }
    if failures.is_empty() {
        Ok(())
    } else {
        bail!("{}", failures.join("; "))
    }
}

fn namespaces_of(world: &str) -> Result<Vec<String>> {
    let prefix = format!("{world}-");
    let entries = match fs::read_dir("/run/netns") {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).context("list /run/netns"),
    };
    let names = entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok());
    Ok(names.filter(|name| name.starts_with(&prefix)).collect())
}

fn world_dir(name: &str) -> PathBuf {
    Path::new(WORLDS).join(name)
}

/// Where a world keeps what waits for a disk at every write. Removed with the world.
pub(super) fn quick_dir(name: &str) -> PathBuf {
    Path::new(QUICK).join(name)
}

fn pin_dir(name: &str) -> PathBuf {
    Path::new(BPFFS).join(name)
}

/// Ends the processes whose ids lie in `*.pid` files, if they still run the program noted there.
fn stop_recorded(dir: &Path) {
    let Ok(entries) = fs::read_dir(dir) else {
        return;
    };
    for entry in entries
        .flatten()
        .filter(|e| e.path().extension().is_some_and(|x| x == "pid"))
    {
        let Ok(text) = fs::read_to_string(entry.path()) else {
            continue;
        };
        let mut lines = text.lines();
        let (Some(pid), Some(started)) = (lines.next(), lines.next()) else {
            continue;
        };
        // The start time tells the process apart from a later one with the same id.
        if let Ok(pid) = pid.parse::<u32>()
            && start_time(pid).as_deref() == Some(started)
        {
            signal(pid, libc::SIGTERM);
            let gone = || (!Path::new("/proc").join(pid.to_string()).exists()).then_some(());
            if until(Duration::from_secs(3), gone).is_none() {
                signal(pid, libc::SIGKILL);
            }
        }
    }
}

/// Notes a process that a kept world leaves running, for [`remove_kept`].
pub(super) fn record(dir: &Path, name: &str, pid: u32) -> Result<()> {
    let started = start_time(pid).context("start time of a child")?;
    fs::write(
        dir.join(format!("{name}.pid")),
        format!("{pid}\n{started}\n"),
    )?;
    Ok(())
}

/// Field 22 of /proc/PID/stat; the fields are counted after the last parenthesis.
fn start_time(pid: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(')')
        .next()?
        .split_whitespace()
        .nth(19)
        .map(str::to_owned)
}

/// Mounts bpffs at /sys/fs/bpf where it is absent (a container or a bare init; systemd does it).
pub(super) fn ensure_bpffs() -> Result<()> {
    let _lock = lock()?;
    if fs::read_to_string("/proc/self/mounts")?
        .lines()
        .any(|line| {
            let mut words = line.split(' ').skip(1);
            words.next() == Some(BPFFS) && words.next() == Some("bpf")
        })
    {
        return Ok(());
    }
    let status = Command::new("mount")
        .args(["-t", "bpf", "bpf", BPFFS])
        .status()?;
    if status.success() {
        Ok(())
    } else {
        bail!("mount bpffs at {BPFFS}: {status}")
    }
}

/// A lock of the machine, held until dropped.
fn lock() -> Result<File> {
    let file = File::open(LOCK).with_context(|| format!("open {LOCK}"))?;
    // SAFETY: the descriptor is open; flock has no other precondition.
    if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) } != 0 {
        return Err(io::Error::last_os_error()).with_context(|| format!("lock {LOCK}"));
    }
    Ok(file)
}

/// `ip -batch` in the host's namespace, for the names of namespaces only.
fn ip_batch(lines: &str, force: bool) -> Result<()> {
    if lines.is_empty() {
        return Ok(());
    }
    let mut command = Command::new("ip");
    if force {
        command.arg("-force");
    }
    command
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().context("start ip (iproute2)")?;
    if let Some(mut stdin) = child.stdin.take() {
        io::Write::write_all(&mut stdin, lines.as_bytes())?;
    }
    let output = child.wait_with_output()?;
    if output.status.success() {
        return Ok(());
    }
    bail!("ip -batch: {}", String::from_utf8_lossy(&output.stderr))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_worlds_of_dead_processes_are_swept() {
        // Beyond the largest process id that Linux gives.
        assert_eq!(
            world_of_dead_process("pp-t4194305-3-node").as_deref(),
            Some("pp-t4194305-3")
        );
        let own = format!("{PREFIX}{}-0-node", std::process::id());
        assert_eq!(world_of_dead_process(&own), None);
        for other in ["pp-demo-node", "cni-1234", "pp-tx-0-node", "pp-t1"] {
            assert_eq!(world_of_dead_process(other), None, "{other}");
        }
    }
}
