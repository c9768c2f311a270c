//! Temporary control groups for tests, in the v1 and v2 hierarchies of this machine. Programs and limits
//! apply to these groups only, never to existing ones.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::{fs, io};

use anyhow::{Context, Result, ensure};

use crate::prelude::*;

/// A process leaves its group a moment after it was killed, so removal of a group is retried this long.
const PATIENCE: Duration = Duration::from_secs(10);

/// A group. When dropped, it is removed with its subgroups once its processes have ended.
#[derive(Debug)]
pub struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    /// Makes a group below this process's group in the unified hierarchy. The group accepts single threads,
    /// because the clients in different pods are threads of this one process.
    pub fn of_threads() -> Needed<Self> {
        let made = || -> Result<Self> {
            let (cgroup, _) = Self::of_v2()?;
            cgroup.set("cgroup.type", "threaded")?;
            Ok(cgroup)
        };
        skip::needed(made().context("a cgroup that takes threads"))
    }

    /// Makes a group below this process's group in the unified hierarchy, which is returned as well.
    pub(crate) fn of_v2() -> Result<(Self, Hierarchy)> {
        let v2 = Hierarchy::unified()?;
        Ok((Self::below(&v2.own)?, v2))
    }

    /// Makes a group for which this controller can set limits, and returns its hierarchy as well. In v2 the
    /// group is directly below the root, because a group with processes cannot pass controllers on to
    /// subgroups.
    pub fn with(controller: &str) -> Result<(Self, Hierarchy)> {
        let mut all = Hierarchy::all()?.into_iter();
        if let Some(v1) = all.find(|one| one.has(controller)) {
            return Ok((Self::below(&v1.own)?, v1));
        }
        let v2 = Hierarchy::unified()?;
        let given = fs::read_to_string(v2.root.join("cgroup.subtree_control"))?;
        let is_given = given.split_whitespace().any(|one| one == controller);
        ensure!(is_given, "the cgroup controller {controller}, of v1 or v2");
        Ok((Self::below(&v2.root)?, v2))
    }

    fn below(parent: &Path) -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("pathproof-test-{}-{number}", std::process::id());
        Self::make(parent.join(name))
    }

    pub(crate) fn make(path: PathBuf) -> Result<Self> {
        fs::create_dir(&path).with_context(|| format!("make {}", path.display()))?;
        Ok(Self { path })
    }

    pub fn set(&self, file: &str, value: &str) -> Result<()> {
        let file = self.path.join(file);
        fs::write(&file, value).with_context(|| format!("write {value} to {}", file.display()))
    }

    pub(crate) fn get(&self, file: &str) -> Result<String> {
        Ok(fs::read_to_string(self.path.join(file))?)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Moves the group's processes to the group with this `cgroup.procs` file.
    pub(crate) fn empty_into(&self, procs: &Path) {
        for pid in self.get("cgroup.procs").unwrap_or_default().lines() {
            let _ = fs::write(procs, pid);
        }
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let mut failure = None;
        let gone = until(PATIENCE, || {
            failure = remove(&self.path).err();
            (!self.path.exists()).then_some(())
        });
        if let (None, Some(error)) = (gone, failure) {
            eprintln!("{} stays: {error}", self.path.display());
        }
    }
}

/// Removes a group with its subgroups, deepest first. The kernel removes the files in them.
pub(crate) fn remove(group: &Path) -> io::Result<()> {
    for entry in fs::read_dir(group)?.flatten() {
        if entry.file_type()?.is_dir() {
            remove(&entry.path())?;
        }
    }
    fs::remove_dir(group)
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hierarchy {
    /// As the kernel writes them: "cpu,cpuacct", "name=systemd"; empty for the unified hierarchy.
    pub(crate) controllers: String,
    pub(crate) root: PathBuf,
    /// The group of this process, or the root if the process's group is not visible here.
    pub(crate) own: PathBuf,
}

impl Hierarchy {
    pub(crate) fn all() -> Result<Vec<Self>> {
        let groups = fs::read_to_string("/proc/self/cgroup").context("read /proc/self/cgroup")?;
        let of_line = |line| Self::of_line(Path::new("/sys/fs/cgroup"), line);
        Ok(groups.lines().filter_map(of_line).collect())
    }

    /// Parses a line such as "4:cpu,cpuacct:/group"; distributions mount the hierarchy below `mounts`.
    fn of_line(mounts: &Path, line: &str) -> Option<Self> {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, group) = (parts.next()?, parts.next()?);
        let places = match controllers {
            "" => ["unified", ""],
            some => [some.trim_start_matches("name="); 2],
        };
        let mut roots = places.map(|place| mounts.join(place)).into_iter();
        let root = roots.find(|root| root.join("cgroup.procs").exists())?;
        let own = root.join(group.trim_start_matches('/'));
        Some(Self {
            controllers: controllers.to_owned(),
            own: if own.is_dir() { own } else { root.clone() },
            root,
        })
    }

    /// The hierarchy of v2.
    pub(crate) fn unified() -> Result<Self> {
        let all = Self::all()?;
        let unified = all.iter().find(|one| one.controllers.is_empty());
        let lacking = || format!("cgroup v2 is not mounted, only {all:?}");
        unified.cloned().with_context(lacking)
    }

    /// Whether this is the v1 hierarchy with this controller.
    pub fn has(&self, controller: &str) -> bool {
        self.controllers.split(',').any(|one| one == controller)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hierarchies_are_found_where_they_are_mounted() {
        let mounts = tempfile::tempdir().expect("a folder");
        for root in ["cpu,cpuacct", "systemd", "unified"] {
            let root = mounts.path().join(root);
            fs::create_dir_all(root.join("own")).expect("a group");
            fs::write(root.join("cgroup.procs"), "").expect("its file");
        }
        let own = |line| {
            let found = Hierarchy::of_line(mounts.path(), line)?;
            let own = found.own.strip_prefix(mounts.path()).expect("a group");
            Some(own.display().to_string())
        };
        let found = |path: &str| Some(path.to_owned());
        assert_eq!(own("4:cpu,cpuacct:/own"), found("cpu,cpuacct/own"));
        assert_eq!(own("1:name=systemd:/own"), found("systemd/own"));
        // This group is not visible here.
        assert_eq!(own("0::/hidden"), found("unified"));
        for missing in ["7:memory:/own", "0:", ""] {
            assert_eq!(own(missing), None, "{missing}");
        }
        // Without v1 hierarchies, v2 is mounted at the top.
        fs::remove_dir_all(mounts.path().join("unified")).expect("no v2");
        assert_eq!(own("0::/"), None);
        fs::write(mounts.path().join("cgroup.procs"), "").expect("its file");
        assert_eq!(own("0::/"), found(""));
    }
}
