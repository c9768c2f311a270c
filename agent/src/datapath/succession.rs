//! Succession to this agent's connections: which programs were attached behind its own, and whether
//! one of them is another agent's (docs/adr/0037-succession.md).
//!
//! The kernel reports a program's owner only with CAP_SYS_ADMIN. So an agent marks its program
//! itself, in a folder that only root of the host can write: that it steers, that load balancers'
//! connections come to it, and that it keeps the maps of expectations. A mark counts while the
//! program is attached, which ends with the process, however that ends.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd as _;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::symlink;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::pins::Pins;
use super::syscall::lookup_programs;

/// Programs that were attached behind this agent's program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behind {
    /// Nobody.
    Nobody,
    /// A program of somebody else's: it may take the connections, or have to do with others.
    Stranger,
    /// Another agent's: the successor.
    Agent {
        /// Load balancers' connections go to it; before, they still come here.
        answers: bool,
        /// It knows the cluster and keeps the maps of expectations, with ids of its own; before, they
        /// are kept from here.
        plans: bool,
    },
}

/// Mark of an agent that steers: this program is an agent's.
const STEERS: &str = "steer";
/// Mark of an agent that load balancers' connections go to.
const ANSWERS: &str = "answers";
/// Mark of an agent that keeps the maps of expectations as it planned them.
const PLANS: &str = "plans";

/// Folder of marks below the state folder.
const FOLDER: &str = "agents";
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// Agents whose marks are kept though their programs are not attached: they may be about to be.
const KEPT: usize = 16;

/// Marks of agents' programs: links `<program>.<mark>`, whose target names the boot, since a program's
/// id is given once in a boot. A BPF file system has no plain files.
#[derive(Debug)]
pub(super) struct Marks {
    /// Each agent writes to all that it has, and reads all: a successor may have others.
    folders: Vec<PathBuf>,
    /// Nothing where nothing can be pinned.
    pins: Option<Pins>,
    boot: PathBuf,
}

impl Marks {
    /// In the folder of pins and in the state folder, as far as there are any.
    pub(super) fn new(pins: Option<&Pins>, state_dir: Option<&Path>) -> Self {
        let boot = fs::read_to_string(BOOT_ID).unwrap_or_default();
        let pinned = pins.map(Pins::claims);
        let kept = state_dir.map(|dir| dir.join(FOLDER));
        Self {
            folders: pinned.into_iter().chain(kept).collect(),
            pins: pins.cloned(),
            boot: format!("boot-{}", boot.trim()).into(),
        }
    }

    /// # Errors
    /// No folder takes it.
    fn set(&self, mark: &str, program: u32) -> io::Result<()> {
        let mut set = Err(io::ErrorKind::NotFound.into());
        for folder in &self.folders {
            let path = folder.join(format!("{program}.{mark}"));
            let made = fs::create_dir_all(folder).and_then(|()| self.link(&path));
            set = set.or(made);
        }
        set
    }

    fn link(&self, path: &Path) -> io::Result<()> {
        match symlink(&self.boot, path) {
            // Of an earlier boot, where the folder outlives it.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && !self.counts(path) => {
                fs::remove_file(path)?;
                symlink(&self.boot, path)
            }
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(()),
        }
    }

    fn has(&self, mark: &str, program: u32) -> bool {
        let name = format!("{program}.{mark}");
        let mut paths = self.folders.iter().map(|folder| folder.join(&name));
        paths.any(|path| self.counts(&path))
    }

    /// Programs with this mark, attached or not.
    fn bearers(&self, mark: &str) -> BTreeSet<u32> {
        let marks = self.folders.iter().flat_map(|folder| marks_in(folder));
        let borne = marks.filter(|(_, of, path)| of == mark && self.counts(path));
        borne.map(|(id, ..)| id).collect()
    }

    fn counts(&self, path: &Path) -> bool {
        fs::read_link(path).is_ok_and(|target| target == self.boot)
    }

    /// Removes marks of an earlier boot, and those of programs that are not `attached`, but for the
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

    /// Whether a version before ADR 37 may have loaded the program: it has no mark, and claims its
    /// programs among the pins. Without pins that cannot be known.
    fn may_be_older(&self, program: u32) -> bool {
        let pins = self.pins.as_ref();
        pins.is_none_or(|pins| pins.claimed().contains(&program))
    }
}

/// The marks in a folder, each with its program and path, whether they count or not.
fn marks_in(folder: &Path) -> impl Iterator<Item = (u32, String, PathBuf)> + use<> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let (id, mark) = name.split_once('.')?;
        Some((id.parse().ok()?, mark.to_owned(), entry.path()))
    })
}

/// Removes the marks below a state folder; those among the pins go with these.
///
/// # Errors
/// One stays.
pub fn forget(state_dir: &Path) -> io::Result<()> {
    match fs::remove_dir_all(state_dir.join(FOLDER)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Marks of this agent's program, and of other agents' programs.
pub struct Succession {
    program: u32,
    namespace: File,
    marks: Marks,
    steers: Name,
    answers: Name,
    plans: Name,
}

impl Succession {
    /// To be called before the program is attached: who sees it must find its mark.
    pub(super) fn begin(program: u32, namespace: File, marks: Marks) -> Self {
        let attached = lookup_programs(namespace.as_fd()).unwrap_or_default();
        marks.forget(&attached.into_iter().collect());
        let begun = Self {
            program,
            namespace,
            marks,
            steers: Name::default(),
            answers: Name::default(),
            plans: Name::default(),
        };
        begun.say(STEERS, &begun.steers);
        begun
    }

    pub(super) fn namespace(&self) -> &File {
        &self.namespace
    }

    /// Load balancers' connections come here from now on.
    pub(super) fn answer(&self) {
        self.say(ANSWERS, &self.answers);
    }

    /// The maps of expectations are kept from here from now on: to be called before they are read.
    pub fn plan(&self) {
        self.say(PLANS, &self.plans);
    }

    /// Marks the program, and bears the name for agents of older versions.
    fn say(&self, mark: &str, name: &Name) {
        let marked = self.marks.set(mark, self.program);
        if let Err(error) = marked
            && !self.marks.folders.is_empty()
        {
            tracing::warn!(%error, mark, "the steering program cannot be marked: another agent may \
                                          not recognise it");
        }
        name.bear(mark, self.program);
    }

    /// Whether another agent's connections came before: its program stands, attached before this
    /// one, or about to be followed by it.
    pub fn follows_an_agent(&self) -> bool {
        let programs = lookup_programs(self.namespace.as_fd()).unwrap_or_default();
        let mut before = programs.iter().take_while(|id| **id != self.program);
        before.any(|id| self.says(ANSWERS, *id))
    }

    /// Programs of agents that kept the maps of expectations in this boot, but for this one's: one that
    /// ended keeps its mark for a while. Nothing where agents have no folder.
    pub fn planners(&self) -> BTreeSet<u32> {
        let mut planners = self.marks.bearers(PLANS);
        planners.remove(&self.program);
        planners
    }

    /// Asks the kernel.
    pub fn ask(&self) -> Behind {
        let programs = lookup_programs(self.namespace.as_fd()).unwrap_or_default();
        behind(&programs, self.program, |mark, id| self.says(mark, id))
    }

    /// Whether an agent says this of its program. Marks alone count for a program that has one: any
    /// process of the network namespace can hold a name.
    fn says(&self, mark: &str, program: u32) -> bool {
        match self.marks.has(STEERS, program) {
            true => self.marks.has(mark, program),
            false => self.marks.may_be_older(program) && is_borne(mark, program),
        }
    }
}

fn behind(programs: &[u32], own: u32, says: impl Fn(&str, u32) -> bool) -> Behind {
    let later = || programs.iter().skip_while(|id| **id != own).skip(1);
    if later().next().is_none() {
        Behind::Nobody
    } else if later().any(|id| says(STEERS, *id)) {
        Behind::Agent {
            answers: later().any(|id| says(ANSWERS, *id)),
            plans: later().any(|id| says(PLANS, *id)),
        }
    } else {
        Behind::Stranger
    }
}

/// An abstract Unix socket that is named after a program and a mark, as agents before ADR 37 know each
/// other, and agents without a folder still do. It belongs to the network namespace.
#[derive(Default)]
struct Name(OnceLock<UnixDatagram>);

impl Name {
    /// A name that could not be had is tried for again.
    fn bear(&self, mark: &str, program: u32) {
        if self.0.get().is_some() {
            return;
        }
        match name_of(mark, program).and_then(|name| UnixDatagram::bind_addr(&name)) {
            Ok(socket) => drop(self.0.set(socket)),
            Err(error) => tracing::warn!(
                %error,
                "the abstract socket pathproof/{mark}/{program} cannot be bound; if it is in use, \
                 a process in the host's network namespace (see `ss -xap`) impersonates an agent, \
                 and older agents may accept it"
            ),
        }
    }
}

/// Whether anyone holds the name of this program. One that may not be spoken to is there.
fn is_borne(mark: &str, program: u32) -> bool {
    let asked = || UnixDatagram::unbound()?.connect_addr(&name_of(mark, program)?);
    match asked() {
        Ok(()) => true,
        Err(error) => error.kind() == io::ErrorKind::PermissionDenied,
    }
}

fn name_of(mark: &str, program: u32) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("pathproof/{mark}/{program}"))
}

#[cfg(test)]
mod tests;
