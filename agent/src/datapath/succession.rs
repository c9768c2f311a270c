//! Succession of agents on one node: which programs were attached behind this agent's steering
//! program, and whether one of them is another agent's (docs/internal/design/fleet.md#succession).
//!
//! The kernel reports a program's owner only with CAP_SYS_ADMIN. So each agent marks its program in a folder
//! that only the host's root can write. There are three marks: the agent steers, the agent answers load
//! balancers, and the agent maintains the maps of expectations. A mark counts while the program is attached,
//! and the attachment ends with the process in every case.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use super::pins::Pins;
use super::syscall::lookup_programs;

/// Programs that were attached behind this agent's program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behind {
    Nobody,
    /// Another owner's program: it may take the connections, or select different ones.
    Foreign,
    /// Another agent's program: the successor.
    Agent {
        /// Whether load balancers' connections go to the successor already, and no longer to this agent.
        answers: bool,
        /// Whether the successor knows the cluster and maintains the maps of expectations, with different
        /// ids. Until then this agent maintains them.
        plans: bool,
    },
}

/// Mark of an agent that steers: the program is an agent's.
const STEERS: &str = "steer";
/// Mark of an agent that receives load balancers' connections.
const ANSWERS: &str = "answers";
/// Mark of an agent that writes its plan to the maps of expectations.
const PLANS: &str = "plans";

const FOLDER: &str = "agents";
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// Number of unattached programs whose marks are kept: they may be about to be attached.
const KEPT: usize = 16;

/// Marks of agents' programs: symlinks `<program>-<mark>`, since a BPF file system has no plain files and
/// refuses names with a dot. The target names the boot, because program ids are unique only within a boot.
#[derive(Debug)]
pub(super) struct Marks {
    /// Marks are written to all of these folders and read from all, because a successor may use other
    /// folders.
    folders: Vec<PathBuf>,
    boot: PathBuf,
}

impl Marks {
    /// Uses the folder of pins and the state folder, if present.
    pub(super) fn new(pins: Option<&Pins>, state_dir: Option<&Path>) -> Self {
        let boot = fs::read_to_string(BOOT_ID).unwrap_or_default();
        let pinned = pins.map(Pins::claims);
        let kept = state_dir.map(|dir| dir.join(FOLDER));
        Self {
            folders: pinned.into_iter().chain(kept).collect(),
            boot: format!("boot-{}", boot.trim()).into(),
        }
    }

    /// Fails if no folder accepts the mark.
    fn set(&self, mark: &str, program: u32) -> io::Result<()> {
        let mut set = Err(io::Error::other("no --pin-dir and no --state-dir"));
        for folder in &self.folders {
            let path = folder.join(format!("{program}-{mark}"));
            let made = fs::create_dir_all(folder).and_then(|()| self.link(&path));
            set = set.or(made);
        }
        set
    }

    fn link(&self, path: &Path) -> io::Result<()> {
        match symlink(&self.boot, path) {
            // A mark of an earlier boot, if the folder outlives a boot.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && !self.counts(path) => {
                fs::remove_file(path)?;
                symlink(&self.boot, path)
            }
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(()),
        }
    }

    fn has(&self, mark: &str, program: u32) -> bool {
        let name = format!("{program}-{mark}");
        let mut paths = self.folders.iter().map(|folder| folder.join(&name));
        paths.any(|path| self.counts(&path))
    }

    fn counts(&self, path: &Path) -> bool {
        fs::read_link(path).is_ok_and(|target| target == self.boot)
    }

    /// Removes marks of an earlier boot, and those of programs that are not `attached`, except the
    /// newest.
    fn forget(&self, attached: &BTreeSet<u32>) {
        for folder in &self.folders {
            let found: Vec<_> = marks_in(folder).collect();
            let counting = found.iter().filter(|(.., path)| self.counts(path));
            let ids: BTreeSet<u32> = counting.map(|(id, ..)| *id).collect();
            let newest = ids.iter().rev().take(KEPT);
            let kept: BTreeSet<u32> = newest.chain(ids.intersection(attached)).copied().collect();
            for (.., path) in found.iter().filter(|(id, ..)| !kept.contains(id)) {
                let _ = fs::remove_file(path);
            }
        }
    }
}

/// The marks in a folder, each with its program and path, including those that do not count.
fn marks_in(folder: &Path) -> impl Iterator<Item = (u32, String, PathBuf)> + use<> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let (id, mark) = name.split_once('-')?;
        Some((id.parse().ok()?, mark.to_owned(), entry.path()))
    })
}

/// Marks of this agent's program, and access to those of other agents.
pub struct Succession {
    program: u32,
    pub(super) namespace: File,
    marks: Marks,
    /// Whether the kernel did not list the programs once.
    unlisted: AtomicBool,
}

impl Succession {
    /// Call it before the program is attached: another agent that sees the program must find its mark.
    pub(super) fn begin(program: u32, namespace: File, marks: Marks) -> Self {
        let begun = Self {
            program,
            namespace,
            marks,
            unlisted: AtomicBool::new(false),
        };
        begun.marks.forget(&begun.programs().into_iter().collect());
        begun.mark(STEERS);
        begun
    }

    /// Marks that load balancers' connections come to this agent from now on.
    pub(super) fn answer(&self) {
        self.mark(ANSWERS);
    }

    /// Marks that this agent maintains the maps of expectations from now on. Call it before they are read.
    pub fn plan(&self) {
        self.mark(PLANS);
    }

    /// Marks this agent's program. Without the mark, another agent takes the program for a foreign one.
    fn mark(&self, mark: &str) {
        if let Err(error) = self.marks.set(mark, self.program) {
            tracing::warn!(%error, mark, "the steering program cannot be marked: another agent may \
                                          not recognise it");
        }
    }

    /// The attached programs, in the order in which they run. None if the kernel does not list them: then this
    /// agent acts as if it were alone.
    fn programs(&self) -> Vec<u32> {
        lookup_programs(self.namespace.as_fd()).unwrap_or_else(|error| {
            // Logged once, because the programs are read every second.
            if !self.unlisted.swap(true, Relaxed) {
                tracing::warn!(%error, "the kernel does not list the programs that steer connections: \
                                        another agent is not recognised");
            }
            Vec::new()
        })
    }

    /// Whether an agent that answers load balancers precedes this one: its program is attached before this
    /// agent's, or this agent's is about to be attached behind it.
    pub fn follows_an_agent(&self) -> bool {
        let programs = self.programs();
        let mut before = programs.iter().take_while(|id| **id != self.program);
        before.any(|id| self.marks.has(ANSWERS, *id))
    }

    /// Whether no other agent and no later program may answer load balancers. False if the kernel does not list
    /// the programs.
    pub fn answers_alone(&self) -> bool {
        let programs = self.programs();
        let has_mark = |mark: &str, id: u32| self.marks.has(mark, id);
        let mut before = programs.iter().take_while(|id| **id != self.program);
        let follows = before.any(|id| has_mark(ANSWERS, *id));
        // Somebody may have detached it.
        let is_attached = programs.contains(&self.program);
        is_attached && !follows && behind(&programs, self.program, has_mark) == Behind::Nobody
    }

    /// Programs of other agents that maintained the maps of expectations in this boot. The mark of an agent
    /// that ended remains for some time. Empty if agents have no folder.
    pub fn planners(&self) -> BTreeSet<u32> {
        let marks = (self.marks.folders.iter()).flat_map(|folder| marks_in(folder));
        let plans = marks.filter(|(_, mark, path)| mark == PLANS && self.marks.counts(path));
        let planners = plans.map(|(id, ..)| id);
        planners.filter(|id| *id != self.program).collect()
    }

    /// Reads from the kernel which programs are attached behind this one.
    pub fn ask(&self) -> Behind {
        let programs = self.programs();
        behind(&programs, self.program, |mark, id| self.marks.has(mark, id))
    }
}

fn behind(programs: &[u32], own: u32, has_mark: impl Fn(&str, u32) -> bool) -> Behind {
    let later = || programs.iter().skip_while(|id| **id != own).skip(1);
    if later().next().is_none() {
        Behind::Nobody
    } else if later().any(|id| has_mark(STEERS, *id)) {
        Behind::Agent {
            answers: later().any(|id| has_mark(ANSWERS, *id)),
            plans: later().any(|id| has_mark(PLANS, *id)),
        }
    } else {
        Behind::Foreign
    }
}

#[cfg(test)]
mod tests;
