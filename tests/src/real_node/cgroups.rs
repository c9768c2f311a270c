//! The node's control group in every hierarchy of the machine. The node's cgroup namespace makes it the root
//! that kubelet and containerd see.
//!
//! With cgroup v1 the groups are below those of this process, also in a unified hierarchy beside v1. With
//! only v2, the group is directly below the root: other groups with processes cannot pass controllers on to
//! subgroups. For the same reason the node's processes are in a subgroup of the node's group.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::cgroup::{Cgroup, Hierarchy, remove};
use crate::world::world_of_dead_process;

/// Hierarchies of v1 that kubelet requires.
const NEEDED: [&str; 5] = ["cpu", "cpuset", "memory", "pids", "name=systemd"];
/// Controllers of v2 that kubelet requires, in the kernel's syntax.
const NEEDED_OF_V2: &str = "+cpu +cpuset +memory +pids";
/// Name of the v2 subgroup for those processes of the node that are outside of containers.
const INNER: &str = "daemons";
/// Memory limit of the node, above its need. It protects the machine if the node uses too much.
const MEMORY: &str = "6G";

/// The cgroup version, 1 or 2, that provides everything kubelet requires on this machine. The error names
/// what is missing.
pub(super) fn version() -> Result<u8> {
    let found = Hierarchy::all()?;
    let has = |controller: &str| found.iter().any(|one| one.has(controller));
    if NEEDED.into_iter().all(has) {
        return Ok(1);
    }
    let unified = Hierarchy::unified().context("the cgroup controllers, of v1 or v2")?;
    // Enable the controllers, of which systemd may have enabled some already. A single write enables all or
    // none. If only some were enabled, other groups of the machine could no longer have processes.
    let given = fs::write(unified.root.join("cgroup.subtree_control"), NEEDED_OF_V2);
    given.with_context(|| format!("the cgroup controllers {NEEDED_OF_V2}, of v1 or v2"))?;
    Ok(2)
}

/// The node's groups. When dropped, they are removed once everything in them has ended.
#[derive(Debug)]
pub(super) struct Groups {
    pub(super) version: u8,
    /// Each group with the controllers of its hierarchy, which are empty for v2.
    groups: Vec<(String, Cgroup)>,
}

impl Groups {
    /// Makes groups of this name. First removes groups that killed processes left.
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
                // Copy the group's processors and memory nodes: if they are empty, no process can enter the
                // group.
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

    /// The v1 hierarchies, in the syntax of `mount -o`, for mounting them on the node. There are none for v2.
    pub(super) fn controllers(&self) -> impl Iterator<Item = &String> {
        let all = self.groups.iter().map(|(controllers, _)| controllers);
        all.filter(|controllers| !controllers.is_empty())
    }

    /// The files to which the node's first process is written to enter the groups.
    pub(super) fn first_doors(&self) -> Vec<PathBuf> {
        let groups = self.groups.iter().map(|(_, group)| group.path());
        groups.map(|group| group.join("cgroup.procs")).collect()
    }

    /// The files to which later processes are written to enter the groups. In v2 they enter the inner group,
    /// and this call moves the first processes there: a group with processes cannot pass controllers on to
    /// the groups of pods.
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

/// Makes the command's process enter the node's control groups before it executes the program.
pub(super) fn enter(command: &mut Command, doors: Vec<PathBuf>) {
    let enter = move || doors.iter().try_for_each(|door| std::fs::write(door, "0"));
    // SAFETY: between fork and exec the closure calls open, write and close only. It allocates nothing: std
    // has room on the stack for paths of less than 384 bytes.
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
