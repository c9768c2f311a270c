//! Everything that a world creates on the machine (namespaces, the folder, the pins), and its removal.
//!
//! Names of worlds contain the process id, so that a later run can remove what a killed one left.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, ensure};

use super::netns::{NETNS_DIR, feed};

/// Prefix of the names of worlds, followed by process id and counter.
const PREFIX: &str = "pp-t";
/// Folder of all worlds. It is not the agent's default one, which an agent of this machine may use.
const WORLDS: &str = "/run/pathproof-worlds";
/// Folder in memory, for programs that sync at every write.
const QUICK: &str = "/dev/shm/pathproof-worlds";
/// The host's bpffs, in which agents pin.
const BPFFS: &str = "/sys/fs/bpf";
/// Folder whose lock guards what exists once on the machine: the first `ip netns add`, the bpffs mount, the
/// sweep. An existing folder serves as the lock, so that no lock file is left behind.
const LOCK: &str = "/run";

static COUNTER: AtomicU32 = AtomicU32::new(0);

#[derive(Debug)]
pub(super) struct Remains {
    pub(super) name: String,
    pub(super) dir: PathBuf,
    pub(super) pins: PathBuf,
    /// The world's folder in memory.
    pub(super) quick: PathBuf,
}

impl Remains {
    pub(super) fn new() -> Result<Self> {
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let name = format!("{PREFIX}{}-{number}", std::process::id());
        let [dir, pins, quick] = folders(&name);
        fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
        Ok(Self {
            name,
            dir,
            pins,
            quick,
        })
    }
}

impl Drop for Remains {
    fn drop(&mut self) {
        if let Err(error) = remove(&self.name) {
            eprintln!("test world {}: {error:#}", self.name);
        }
    }
}

/// Makes all namespaces in one process.
pub(super) fn make_namespaces(names: &[String]) -> Result<()> {
    let _lock = lock()?;
    let lines = names.iter().map(|name| format!("netns add {name}\n"));
    host("ip", &["-batch", "-"], &lines.collect::<String>()).context("make namespaces")
}

/// Removes what worlds of processes that have ended left behind.
pub(super) fn sweep() -> Result<()> {
    let _lock = lock()?;
    let names = [NETNS_DIR, WORLDS, BPFFS].into_iter().flat_map(names_in);
    let left: BTreeSet<String> = names
        .filter_map(|name| world_of_dead_process(&name))
        .collect();
    for world in left {
        eprintln!("test world {world}: its process is gone, removing what it left");
        remove(&world)?;
    }
    Ok(())
}

/// The name of a world from the name of one of its parts, such as "pp-t123-0" from "pp-t123-0-node". `None`
/// if the world's process still runs.
pub(crate) fn world_of_dead_process(file: &str) -> Option<String> {
    let mut parts = file.strip_prefix(PREFIX)?.split('-');
    let pid: u32 = parts.next()?.parse().ok()?;
    let counter: u32 = parts.next()?.parse().ok()?;
    (!Path::new(&format!("/proc/{pid}")).exists()).then(|| format!("{PREFIX}{pid}-{counter}"))
}

fn remove(world: &str) -> Result<()> {
    let prefix = format!("{world}-");
    let names = names_in(NETNS_DIR).filter(|name| name.starts_with(&prefix));
    let lines = names.map(|name| format!("netns del {name}\n"));
    let namespaces = host("ip", &["-force", "-batch", "-"], &lines.collect::<String>());
    let mut failures: Vec<String> = Vec::new();
    failures.extend(namespaces.err().map(|error| format!("{error:#}")));
    for dir in folders(world) {
        match fs::remove_dir_all(&dir) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                failures.push(format!("remove {}: {error}", dir.display()));
            }
            _ => {}
        }
    }
    // Remove the folder of all worlds; this succeeds only with the last world.
    for worlds in [WORLDS, QUICK] {
        let _ = fs::remove_dir(worlds);
    }
    ensure!(failures.is_empty(), "{}", failures.join("; "));
    Ok(())
}

fn names_in(folder: &str) -> impl Iterator<Item = String> + use<> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok())
}

/// A world's folder, pins, and folder in memory.
fn folders(world: &str) -> [PathBuf; 3] {
    [WORLDS, BPFFS, QUICK].map(|folder| Path::new(folder).join(world))
}

/// Mounts bpffs at /sys/fs/bpf if it is missing, as in containers. On other machines systemd usually mounts
/// it.
pub(super) fn ensure_bpffs() -> Result<()> {
    let _lock = lock()?;
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    if mounts.contains(&format!(" {BPFFS} bpf ")) {
        return Ok(());
    }
    host("mount", &["-t", "bpf", "bpf", BPFFS], "")
}

/// Locks [`LOCK`] until the file is dropped.
fn lock() -> Result<File> {
    let file = File::open(LOCK).with_context(|| format!("open {LOCK}"))?;
    file.lock().with_context(|| format!("lock {LOCK}"))?;
    Ok(file)
}

/// Runs a command in the host's namespace. Only for the names of namespaces and the bpffs mount.
pub(super) fn host(program: &str, args: &[&str], input: &str) -> Result<()> {
    let mut command = Command::new(program);
    command.args(args);
    feed(command, input).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_worlds_of_dead_processes_are_swept() {
        // 4194305 exceeds the largest process id of Linux.
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
