//! A control group that keeps a process from running: the kernel freezes it, or gives it little CPU time.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::cgroup::Cgroup;
use crate::prelude::*;
use crate::process::Process;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// The freezer of cgroup v1.
    FreezerV1,
    /// `cgroup.freeze` of cgroup v2.
    FreezerV2,
    /// CPU time in each period, both in microseconds. Busy processes in the group compete for it.
    Cpu { quota: u32, period: u32 },
}

/// The group. When dropped, its processes run without the limit, in this process's group.
#[derive(Debug)]
pub struct Throttle {
    limit: Limit,
    /// Processes that use all CPU time that they get.
    busy: Vec<Process>,
    group: Cgroup,
    /// `cgroup.procs` of this process's group.
    home: PathBuf,
    /// Name of the limit's file, with the values that set and lift the limit.
    file: &'static str,
    set: String,
    lifted: &'static str,
}

impl Throttle {
    /// Makes the group, without processes. Returns an error if this machine lacks such a limit.
    pub fn new(limit: Limit) -> Result<Self> {
        let (group, hierarchy) = match limit {
            Limit::FreezerV1 => Cgroup::with("freezer")?,
            Limit::FreezerV2 => Cgroup::of_v2()?,
            Limit::Cpu { .. } => Cgroup::with("cpu")?,
        };
        let (file, set, lifted) = match limit {
            Limit::FreezerV1 => ("freezer.state", "FROZEN".to_owned(), "THAWED"),
            Limit::FreezerV2 => ("cgroup.freeze", "1".to_owned(), "0"),
            Limit::Cpu { quota, period } if hierarchy.has("cpu") => {
                group.set("cpu.cfs_period_us", &period.to_string())?;
                ("cpu.cfs_quota_us", quota.to_string(), "-1")
            }
            Limit::Cpu { quota, period } => ("cpu.max", format!("{quota} {period}"), "max"),
        };
        // Write to the file once, because a kernel may be built without this limit.
        group.set(file, lifted)?;
        Ok(Self {
            limit,
            busy: Vec::new(),
            group,
            home: hierarchy.own.join("cgroup.procs"),
            file,
            set,
            lifted,
        })
    }

    /// Moves a running process into the group, and sets the limit. Logs of busy processes go to `logs`.
    pub fn hold(&mut self, pid: u32, logs: &Path) -> Result<()> {
        self.take(pid)?;
        if matches!(self.limit, Limit::Cpu { .. }) {
            // Two for each processor: wherever the process runs, another one competes with it.
            for _ in 0..2 * thread::available_parallelism()?.get() {
                let mut command = Command::new("sh");
                command.args(["-c", "while :; do :; done"]);
                let busy = Process::start(command, "busy", logs)?;
                self.take(busy.pid())?;
                self.busy.push(busy);
            }
        }
        self.group.set(self.file, &self.set)
    }

    fn take(&self, pid: u32) -> Result<()> {
        self.group.set("cgroup.procs", &pid.to_string())
    }

    /// Lifts the limit, and ends the busy processes.
    pub fn release(&mut self) -> Result<()> {
        for busy in &self.busy {
            busy.signal(libc::SIGKILL);
        }
        // Lift the limit before their end is waited for: they need CPU time to end.
        let lifted = self.group.set(self.file, self.lifted);
        self.busy.clear();
        lifted
    }
}

impl Drop for Throttle {
    fn drop(&mut self) {
        let _ = self.release();
        self.group.empty_into(&self.home);
    }
}
