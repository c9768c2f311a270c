//! Tight memory for one process: a control group in which the kernel reclaims every page that it can read
//! again from a file, as on a node that runs out of memory. Anonymous memory stays, and nothing is killed.

use std::fs;
use std::path::PathBuf;

use anyhow::Result;

use crate::cgroup::Cgroup;
use crate::usage;

/// Room above the memory that cannot be reclaimed, because that memory varies while a process works.
const ROOM: u64 = 2 << 20;

/// Files of version 1 with the limit and the size of the buffers of TCP sockets.
const TCP: [&str; 2] = [
    "memory.kmem.tcp.limit_in_bytes",
    "memory.kmem.tcp.usage_in_bytes",
];

/// A group with tight memory. When dropped, its processes return to this process's group.
#[derive(Debug)]
pub struct MemoryGroup {
    group: Cgroup,
    /// `cgroup.procs` of this process's group.
    home: PathBuf,
    /// Names of the files of the limit and of current use, and the value for no limit.
    words: [&'static str; 3],
    /// File of the limit at which processes are killed.
    most: &'static str,
}

impl MemoryGroup {
    /// Returns an error if this machine has no usable memory control groups.
    pub fn new() -> Result<Self> {
        let (group, hierarchy) = Cgroup::with("memory")?;
        let home = hierarchy.own.join("cgroup.procs");
        let mut words = ["memory.high", "memory.current", "max"];
        let mut most = "memory.max";
        if hierarchy.has("memory") {
            words = ["memory.limit_in_bytes", "memory.usage_in_bytes", "-1"];
            most = words[0];
            // Disable the OOM killer: a process without memory for a page then waits for it.
            group.set("memory.oom_control", "1")?;
            // The kernel counts these buffers only from the first write of a limit on, even of none.
            group.set(TCP[0], "-1")?;
        }
        Ok(Self {
            group,
            home,
            words,
            most,
        })
    }

    /// Runs `work` inside the group, because a page counts in the group that allocates it. Processes that
    /// `work` starts stay in the group.
    pub fn inside<T>(&self, work: impl FnOnce() -> T) -> Result<T> {
        let own = std::process::id();
        self.take(own)?;
        let done = work();
        fs::write(&self.home, own.to_string())?;
        Ok(done)
    }

    /// Moves a running process into the group. Memory that it already holds still counts in its old
    /// group.
    pub fn take(&self, pid: u32) -> Result<()> {
        self.group.set("cgroup.procs", &pid.to_string())
    }

    /// Limits the memory of all processes in the group together, including kernel memory. Version 1 does not
    /// count socket buffers.
    pub fn limit(&self, bytes: u64) -> Result<()> {
        self.group.set(self.words[0], &bytes.to_string())
    }

    /// Limits the group as a container is limited. With version 1, processes wait for memory beyond it; with
    /// version 2 they are killed.
    pub fn limit_container(&self, bytes: u64) -> Result<()> {
        self.group.set(self.most, &bytes.to_string())
    }

    /// Bytes of the buffers of the group's TCP sockets, also of closed ones whose client has yet to
    /// acknowledge data.
    pub fn sockets(&self) -> Result<u64> {
        match self.includes_sockets() {
            true => self.stat(&["sock"]),
            false => Ok(self.group.get(TCP[1])?.trim().parse()?),
        }
    }

    /// Whether the group's usage includes the buffers of sockets. Version 1 counts them separately.
    fn includes_sockets(&self) -> bool {
        self.most != self.words[0]
    }

    /// File to which a process writes its id to move into the group. Memory that it already holds still
    /// counts in its old group.
    pub fn processes(&self) -> PathBuf {
        self.group.path().join("cgroup.procs")
    }

    /// Bytes in use by the group with its sockets, without the pages of files, which the kernel can reclaim.
    pub fn held(&self) -> Result<u64> {
        let all: u64 = self.group.get(self.words[1])?.trim().parse()?;
        let files = self.stat(&["active_file", "inactive_file"])?;
        let sockets = match self.includes_sockets() {
            true => 0,
            false => self.sockets()?,
        };
        Ok(all.saturating_sub(files) + sockets)
    }

    /// Sum of the lines of memory.stat with these names.
    fn stat(&self, names: &[&str]) -> Result<u64> {
        let stat = self.group.get("memory.stat")?;
        let values = stat.lines().filter_map(|line| {
            let (name, bytes) = line.split_once(' ')?;
            names.contains(&name).then(|| bytes.parse::<u64>().ok())?
        });
        Ok(values.sum())
    }

    /// Limits the group to little more than the anonymous memory of this process.
    pub fn tighten(&self, pid: u32) -> Result<()> {
        let least = usage::memory(pid)?.anonymous_kib * 1024 + ROOM;
        // Raise the limit in steps, because the kernel may refuse the lowest ones.
        let mut tried = (0..64).map(|more| self.limit(least + more * (ROOM / 4)));
        let set = tried.find(Result::is_ok);
        set.unwrap_or_else(|| self.limit(least))
    }

    pub fn loosen(&self) -> Result<()> {
        self.group.set(self.words[0], self.words[2])
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        let _ = self.loosen();
        self.group.empty_into(&self.home);
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;
    use crate::{needs, skip};

    #[test]
    fn a_process_is_squeezed_and_let_go() {
        needs!(skip::root());
        let group = needs!(skip::needed(MemoryGroup::new()));
        let sleep = || Command::new("sleep").arg("60").stdin(Stdio::null()).spawn();
        let mut child = group.inside(sleep).expect("inside").expect("sleep");
        let held = group.group.get("cgroup.procs").expect("processes");
        // Search for the child only: processes that other tests start at this moment are inside as well.
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
