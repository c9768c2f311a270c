//! A control group of the node's own in every hierarchy of the machine. The node's cgroup namespace
//! makes it the root that kubelet and containerd see.
//!
//! Of cgroup v1 the groups are below those of this process, with the unified hierarchy beside them
//! where there is one. Of v2 alone the group is below the root: other groups with processes in them
//! give none of their controllers to groups below. For the same reason the node's processes are in a
//! group inside of the node's.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::cgroup::{Cgroup, Hierarchy, remove};
use crate::world::world_of_dead_process;

/// Hierarchies of v1 that kubelet insists on.
const NEEDED: [&str; 5] = ["cpu", "cpuset", "memory", "pids", "name=systemd"];
/// Controllers of v2 that kubelet insists on, as the kernel is asked for them.
const NEEDED_OF_V2: &str = "+cpu +cpuset +memory +pids";
/// Group of the node's processes that are in no container, in its group of v2.
const INNER: &str = "daemons";
/// More than the node ever needs, for a machine that must not suffer if it does.
const MEMORY: &str = "6G";

/// The version of control groups, 1 or 2, that has everything on this machine that kubelet insists on;
/// the error names what is missing.
pub(super) fn version() -> Result<u8> {
    let found = Hierarchy::all()?;
    let has = |controller: &str| found.iter().any(|one| one.has(controller));
    if NEEDED.into_iter().all(has) {
        return Ok(1);
    }
    let unified = Hierarchy::unified().context("the cgroup controllers, of v1 or v2")?;
    // systemd lets groups below the root have some already. In one write, which gives all or none: with
    // some alone, other groups of the machine could no longer have processes.
    let given = fs::write(unified.root.join("cgroup.subtree_control"), NEEDED_OF_V2);
    given.with_context(|| format!("the cgroup controllers {NEEDED_OF_V2}, of v1 or v2"))?;
    Ok(2)
}

/// The groups; removed when dropped, after everything in them has ended.
#[derive(Debug)]
pub(super) struct Groups {
    pub(super) version: u8,
    /// Each with the controllers of its hierarchy; of v2 one without.
    groups: Vec<(String, Cgroup)>,
}

impl Groups {
    /// Makes groups of this name, and removes those that killed processes left.
    pub(super) fn make(name: &str) -> Result<Self> {
        let version = version()?;
        let mut all = Hierarchy::all()?;
        if version == 2 {
            let mut unified = Hierarchy::unified()?;
            unified.own.clone_from(&unified.root);
            all = vec![unified];
        }
        let mut groups = Vec::new();
        for hierarchy in all {
            sweep(&hierarchy.own);
            let group = Cgroup::make(hierarchy.own.join(name))?;
            if hierarchy.has("cpuset") {
                // Without these no process may enter; and so for the groups below it.
                for file in ["cpuset.cpus", "cpuset.mems"] {
                    group.set(file, &fs::read_to_string(hierarchy.own.join(file))?)?;
                }
                group.set("cgroup.clone_children", "1")?;
            }
            if hierarchy.has("memory") {
                group.set("memory.limit_in_bytes", MEMORY)?;
            }
            if version == 2 {
                fs::create_dir(group.path().join(INNER)).context("make a group of v2")?;
                group.set("memory.max", MEMORY)?;
            }
            groups.push((hierarchy.controllers, group));
        }
        Ok(Self { version, groups })
    }

    /// The hierarchies of v1 as `mount -o` names them, for the node to mount them again; none of v2.
    pub(super) fn controllers(&self) -> impl Iterator<Item = &String> {
        let all = self.groups.iter().map(|(controllers, _)| controllers);
        all.filter(|controllers| !controllers.is_empty())
    }

    /// The files by which the node's first process enters the groups.
    pub(super) fn first_doors(&self) -> Vec<PathBuf> {
        let groups = self.groups.iter().map(|(_, group)| group.path());
        groups.map(|group| group.join("cgroup.procs")).collect()
    }

    /// The same for all others. Of v2 they enter the inner group, where the first ones are moved to
    /// as well: a group with processes in it gives no controllers to those of pods.
    pub(super) fn doors(&self) -> Result<Vec<PathBuf>> {
        if self.version == 1 {
            return Ok(self.first_doors());
        }
        let (_, group) = &self.groups[0];
        let inner = group.path().join(INNER).join("cgroup.procs");
        for process in group.get("cgroup.procs")?.lines() {
            fs::write(&inner, process).context("move a process to its group")?;
        }
        Ok(vec![inner])
    }
}

/// The command's process enters the node's control groups before anything else.
pub(super) fn enter(command: &mut Command, doors: Vec<PathBuf>) {
    let enter = move || doors.iter().try_for_each(|door| std::fs::write(door, "0"));
    // SAFETY: between fork and exec it calls open, write and close alone. It allocates nothing: std has
    // room on the stack for paths of less than 384 bytes.
    unsafe { command.pre_exec(enter) };
}

/// Removes groups of worlds whose process is gone.
fn sweep(parent: &Path) {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name();
        if name.to_str().and_then(world_of_dead_process).is_some() {
            let _ = remove(&entry.path());
        }
    }
}
