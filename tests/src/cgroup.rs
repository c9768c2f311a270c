//! Control groups of a test's own, in the hierarchies of v1 and v2 that this machine has: programs and
//! limits are put on them alone, never on what was there before.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::skip;
use crate::wait::until;

/// The last processes of a group leave it a moment after they were killed.
const PATIENCE: Duration = Duration::from_secs(10);

/// A group. Removed when dropped, with those below it, once its processes have ended.
#[derive(Debug)]
pub struct Cgroup {
    path: PathBuf,
    handle: File,
}

impl Cgroup {
    /// Makes one in the unified hierarchy, below this process's. Nothing, loudly, where none can be
    /// made.
    pub fn new(test: &str) -> Option<Self> {
        let made = Hierarchy::unified().and_then(|of| Self::below(&of.own));
        skip::needed(test, made.context("a cgroup of the unified hierarchy"))
    }

    /// One that also takes single threads of this process: clients in several pods are threads.
    pub fn of_threads(test: &str) -> Option<Self> {
        let cgroup = Self::new(test)?;
        let threaded = cgroup.set("cgroup.type", "threaded");
        skip::needed(test, threaded.context("a cgroup that takes threads"))?;
        Some(cgroup)
    }

    /// Makes one below another, under a name of its own.
    pub(crate) fn below(parent: &Path) -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("pathproof-test-{}-{number}", std::process::id());
        Self::make(parent.join(name))
    }

    pub(crate) fn make(path: PathBuf) -> Result<Self> {
        fs::create_dir(&path).with_context(|| format!("make {}", path.display()))?;
        let handle = File::open(&path)?;
        Ok(Self { path, handle })
    }

    /// Writes one of its files.
    pub(crate) fn set(&self, file: &str, value: &str) -> Result<()> {
        let file = self.path.join(file);
        fs::write(&file, value).with_context(|| format!("write {value} to {}", file.display()))
    }

    /// Reads one of its files.
    pub(crate) fn get(&self, file: &str) -> Result<String> {
        Ok(fs::read_to_string(self.path.join(file))?)
    }

    /// File that takes the thread in that writes "0" to it.
    pub fn threads(&self) -> PathBuf {
        self.path.join("cgroup.threads")
    }

    /// File that takes processes in.
    pub fn procs(&self) -> String {
        self.path.join("cgroup.procs").display().to_string()
    }

    /// Its folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its descriptor.
    pub fn handle(&self) -> RawFd {
        self.handle.as_raw_fd()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        if until(PATIENCE, || remove(&self.path).ok()).is_none() {
            eprintln!("{} has processes and stays", self.path.display());
        }
    }
}

/// Removes a group with those below it, the deepest first: its files go by themselves.
pub(crate) fn remove(group: &Path) -> io::Result<()> {
    for entry in fs::read_dir(group)?.flatten() {
        if entry.file_type()?.is_dir() {
            remove(&entry.path())?;
        }
    }
    fs::remove_dir(group)
}

/// A hierarchy of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hierarchy {
    /// As the kernel writes them: "cpu,cpuacct", "name=systemd"; empty for the unified one.
    pub(crate) controllers: String,
    /// Where it is mounted.
    pub(crate) root: PathBuf,
    /// The group that this process is in; the root where that cannot be seen from here.
    pub(crate) own: PathBuf,
}

impl Hierarchy {
    /// All that are mounted.
    pub(crate) fn all() -> Result<Vec<Self>> {
        let groups = fs::read_to_string("/proc/self/cgroup").context("read /proc/self/cgroup")?;
        Ok(groups.lines().filter_map(Self::of_line).collect())
    }

    /// Of a line "4:cpu,cpuacct:/group", where distributions mount it.
    fn of_line(line: &str) -> Option<Self> {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, group) = (parts.next()?, parts.next()?);
        let places = match controllers {
            "" => ["unified", ""],
            some => [some.trim_start_matches("name="); 2],
        };
        let mut roots = places
            .map(|of| Path::new("/sys/fs/cgroup").join(of))
            .into_iter();
        let root = roots.find(|root| root.join("cgroup.procs").exists())?;
        let own = root.join(group.trim_start_matches('/'));
        Some(Self {
            controllers: controllers.to_owned(),
            own: if own.is_dir() { own } else { root.clone() },
            root,
        })
    }

    /// The one of v2.
    pub(crate) fn unified() -> Result<Self> {
        let mut all = Self::all()?.into_iter();
        let unified = all.find(|one| one.controllers.is_empty());
        unified.context("cgroup v2, which is not mounted")
    }

    /// Whether it is of v1 and has this controller.
    pub(crate) fn has(&self, controller: &str) -> bool {
        self.controllers.split(',').any(|one| one == controller)
    }
}
