//! Little memory for one process: a control group that takes back every page that can be read again,
//! as a node does that runs out. What the process itself holds it keeps; nothing is killed.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, bail};

/// Above what cannot be taken back: a process that works holds now more, now less.
const ROOM: u64 = 2 << 20;

/// Such a group. Removed when dropped; who is in it then goes back to where we are.
#[derive(Debug)]
pub struct MemoryGroup {
    group: PathBuf,
    limit: &'static str,
    home: PathBuf,
}

impl MemoryGroup {
    /// An error where this machine has no control groups for memory that we may divide.
    pub fn new() -> Result<Self> {
        let (root, limit) = hierarchy()?;
        let home = root.join(own_place(&root, limit)?.trim_start_matches('/'));
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("pathproof-test-{}-{number}", std::process::id());
        let group = home.join(name);
        fs::create_dir(&group).with_context(|| format!("make {}", group.display()))?;
        let made = Self { group, limit, home };
        if limit == V1 {
            // Who gets no page waits for it, and is not killed.
            made.set("memory.oom_control", "1")?;
        }
        Ok(made)
    }

    /// What is started in `work` is in the group: pages count where they were first asked for.
    pub fn inside<T>(&self, work: impl FnOnce() -> T) -> Result<T> {
        let own = std::process::id().to_string();
        self.set("cgroup.procs", &own)?;
        let done = work();
        write(&self.home.join("cgroup.procs"), &own)?;
        Ok(done)
    }

    /// Takes a process in that runs already: what it held before counts where it was.
    pub fn take(&self, pid: u32) -> Result<()> {
        self.set("cgroup.procs", &pid.to_string())
    }

    /// All in the group together get no more than these bytes, with what the kernel holds for them;
    /// version 1 leaves out the buffers of sockets.
    pub fn limit(&self, bytes: u64) -> Result<()> {
        self.set(self.limit, &bytes.to_string())
    }

    /// Bytes that all in the group hold now.
    pub fn held(&self) -> Result<u64> {
        let file = match self.limit {
            V1 => "memory.usage_in_bytes",
            _ => "memory.current",
        };
        let text = fs::read_to_string(self.group.join(file))?;
        Ok(text.trim().parse()?)
    }

    /// Leaves all in the group hardly more than what a process of it holds.
    pub fn tighten(&self, pid: u32) -> Result<()> {
        let least = anonymous(pid)? + ROOM;
        let mut refused = None;
        // The least that the kernel lets us ask for.
        for more in 0..64 {
            let bytes = least + more * (ROOM / 4);
            match self.limit(bytes) {
                Ok(()) => return Ok(()),
                Err(error) => refused = Some(error),
            }
        }
        refused.map_or(Ok(()), Err)
    }

    /// Takes the limit away.
    pub fn loosen(&self) -> Result<()> {
        self.set(self.limit, if self.limit == V1 { "-1" } else { "max" })
    }

    fn set(&self, file: &str, value: &str) -> Result<()> {
        write(&self.group.join(file), value)
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        let _ = self.loosen();
        let held = fs::read_to_string(self.group.join("cgroup.procs")).unwrap_or_default();
        for pid in held.lines() {
            let _ = write(&self.home.join("cgroup.procs"), pid);
        }
        let _ = fs::remove_dir(&self.group);
    }
}

/// The files that limit, by hierarchy.
const V1: &str = "memory.limit_in_bytes";
const V2: &str = "memory.high";

/// Where the hierarchy for memory is, and what limits there.
fn hierarchy() -> Result<(PathBuf, &'static str)> {
    let v1 = Path::new("/sys/fs/cgroup/memory");
    let v2 = Path::new("/sys/fs/cgroup");
    let controllers = fs::read_to_string(v2.join("cgroup.controllers")).unwrap_or_default();
    if v1.join(V1).exists() {
        Ok((v1.to_owned(), V1))
    } else if controllers.split_whitespace().any(|one| one == "memory") {
        Ok((v2.to_owned(), V2))
    } else {
        bail!("no control groups for memory are mounted")
    }
}

/// This process's own group in it; the root where that is not to be seen from here.
fn own_place(root: &Path, limit: &str) -> Result<String> {
    let text = fs::read_to_string("/proc/self/cgroup")?;
    let mark = if limit == V1 { ":memory:" } else { "0::" };
    let place = text.lines().find_map(|line| Some(line.split_once(mark)?.1));
    let place = place.unwrap_or("/");
    let seen = root.join(place.trim_start_matches('/')).is_dir();
    Ok(if seen { place } else { "/" }.to_owned())
}

/// Bytes of a process that no file holds.
pub fn anonymous(pid: u32) -> Result<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let kib = text.lines().find_map(|line| {
        let rest = line.strip_prefix("RssAnon:")?.trim().strip_suffix("kB")?;
        rest.trim().parse::<u64>().ok()
    });
    Ok(kib.context("no RssAnon in its status")? * 1024)
}

/// Where there is no hierarchy the folder may be an ordinary one, in which writing would make a file.
fn write(file: &Path, value: &str) -> Result<()> {
    let mut open = OpenOptions::new().write(true).open(file)?;
    open.write_all(value.as_bytes())
        .with_context(|| format!("write {value} to {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::skip;
    use std::process::{Command, Stdio};

    #[test]
    fn a_process_is_squeezed_and_let_go() {
        let name = "a_process_is_squeezed_and_let_go";
        if skip::without_root(name) {
            return;
        }
        let group = match MemoryGroup::new() {
            Ok(group) => group,
            Err(error) => {
                return eprintln!("SKIPPED: {name} needs control groups for memory: {error:#}");
            }
        };
        let sleep = || Command::new("sleep").arg("60").stdin(Stdio::null()).spawn();
        let mut child = group.inside(sleep).expect("inside").expect("sleep");
        let held = fs::read_to_string(group.group.join("cgroup.procs")).expect("processes");
        // Whatever another test begins at this moment is inside as well.
        let child_id = child.id().to_string();
        assert!(held.lines().any(|pid| pid == child_id), "{held}");
        group.tighten(child.id()).expect("a limit");
        let limit = fs::read_to_string(group.group.join(group.limit)).expect("a limit");
        let limit: u64 = limit.trim().parse().expect("a number");
        assert!(limit < 16 << 20, "{limit}");
        group.loosen().expect("no limit");
        let place = group.group.clone();
        drop(group);
        assert!(!place.exists());
        assert!(child.try_wait().expect("wait").is_none(), "it lives");
        let _ = child.kill();
        let _ = child.wait();
    }
}
