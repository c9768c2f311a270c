//! Little memory for one process: a control group that takes back every page that can be read again,
//! as a node does that runs out. What the process itself holds it keeps; nothing is killed.

use std::fs;
use std::path::PathBuf;

use anyhow::Result;

use crate::cgroup::Cgroup;
use crate::usage;

/// Above what cannot be taken back: a process that works holds now more, now less.
const ROOM: u64 = 2 << 20;

/// Such a group. Removed when dropped; who is in it then goes back to where we are.
#[derive(Debug)]
pub struct MemoryGroup {
    group: Cgroup,
    /// File that takes processes in where we are.
    home: PathBuf,
    /// Files of the limit and of what is held, and the word for no limit.
    words: [&'static str; 3],
}

impl MemoryGroup {
    /// An error where this machine has no control groups for memory that we may divide.
    pub fn new() -> Result<Self> {
        let (group, hierarchy) = Cgroup::with("memory")?;
        let home = hierarchy.own.join("cgroup.procs");
        let mut words = ["memory.high", "memory.current", "max"];
        if hierarchy.has("memory") {
            words = ["memory.limit_in_bytes", "memory.usage_in_bytes", "-1"];
            // Who gets no page waits for it, and is not killed.
            group.set("memory.oom_control", "1")?;
        }
        Ok(Self { group, home, words })
    }

    /// What is started in `work` is in the group: pages count where they were first asked for.
    pub fn inside<T>(&self, work: impl FnOnce() -> T) -> Result<T> {
        let own = std::process::id();
        self.take(own)?;
        let done = work();
        fs::write(&self.home, own.to_string())?;
        Ok(done)
    }

    /// Takes a process in that runs already: what it held before counts where it was.
    pub fn take(&self, pid: u32) -> Result<()> {
        self.group.set("cgroup.procs", &pid.to_string())
    }

    /// All in the group together get no more than these bytes, with what the kernel holds for them;
    /// version 1 leaves out the buffers of sockets.
    pub fn limit(&self, bytes: u64) -> Result<()> {
        self.group.set(self.words[0], &bytes.to_string())
    }

    /// Bytes that all in the group hold now.
    pub fn held(&self) -> Result<u64> {
        Ok(self.group.get(self.words[1])?.trim().parse()?)
    }

    /// Leaves all in the group hardly more than what a process of it holds.
    pub fn tighten(&self, pid: u32) -> Result<()> {
        let least = usage::memory(pid)?.anonymous_kib * 1024 + ROOM;
        // The least that the kernel lets us ask for.
        let mut tried = (0..64).map(|more| self.limit(least + more * (ROOM / 4)));
        let set = tried.find(Result::is_ok);
        set.unwrap_or_else(|| self.limit(least))
    }

    /// Takes the limit away.
    pub fn loosen(&self) -> Result<()> {
        self.group.set(self.words[0], self.words[2])
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        let _ = self.loosen();
        for pid in self.group.get("cgroup.procs").unwrap_or_default().lines() {
            let _ = fs::write(&self.home, pid);
        }
    }
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
        let Some(group) = skip::needed(name, MemoryGroup::new()) else {
            return;
        };
        let sleep = || Command::new("sleep").arg("60").stdin(Stdio::null()).spawn();
        let mut child = group.inside(sleep).expect("inside").expect("sleep");
        let held = group.group.get("cgroup.procs").expect("processes");
        // Whatever another test begins at this moment is inside as well.
        let child_id = child.id().to_string();
        assert!(held.lines().any(|pid| pid == child_id), "{held}");
        group.tighten(child.id()).expect("a limit");
        let limit = group.group.get(group.words[0]).expect("a limit");
        let limit: u64 = limit.trim().parse().expect("a number");
        assert!(limit < 16 << 20, "{limit}");
        group.loosen().expect("no limit");
        let place = group.group.path().to_owned();
        drop(group);
        assert!(!place.exists());
        assert!(child.try_wait().expect("wait").is_none(), "it lives");
        let _ = child.kill();
        let _ = child.wait();
    }
}
