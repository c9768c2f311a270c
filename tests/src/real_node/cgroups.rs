//! A control group of the node's own in every hierarchy of the machine, below the group of this
//! process. The node's cgroup namespace makes it the root that kubelet and containerd see.
//!
//! Of cgroup v1, with the unified hierarchy beside it where there is one.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::world::of_dead_process;

/// What kubelet insists on.
const NEEDED: [&str; 5] = ["cpu", "cpuset", "memory", "pids", "name=systemd"];
/// The last processes of a group leave it a moment after they were killed.
const PATIENCE: Duration = Duration::from_secs(10);
/// More than the node ever needs, for a machine that must not suffer if it does.
const MEMORY: &str = "6G";

/// A hierarchy of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Hierarchy {
    /// As the kernel writes them: "cpu,cpuacct", "name=systemd"; empty for the unified one.
    controllers: String,
    /// The group that this process is in.
    own: PathBuf,
}

/// The groups; removed when dropped, after everything in them has ended.
#[derive(Debug)]
pub(super) struct Groups {
    hierarchies: Vec<Hierarchy>,
    name: String,
}

impl Groups {
    /// Whether this machine's hierarchies are such that kubelet runs below a group of them; if not,
    /// why.
    pub(super) fn possible() -> Result<(), String> {
        let found = hierarchies().map_err(|error| format!("{error:#}"))?;
        let has = |wanted: &str| {
            let mut all = found.iter().flat_map(|one| one.controllers.split(','));
            all.any(|controller| controller == wanted)
        };
        match NEEDED.iter().find(|wanted| !has(wanted)) {
            Some(missing) => Err(format!(
                "a cgroup v1 hierarchy of {missing}, the only version it was written for"
            )),
            None => Ok(()),
        }
    }

    /// Makes groups of this name, and removes those that killed processes left.
    pub(super) fn make(name: &str) -> Result<Self> {
        let groups = Self {
            hierarchies: hierarchies()?,
            name: name.to_owned(),
        };
        for hierarchy in &groups.hierarchies {
            sweep(&hierarchy.own);
            hierarchy
                .make(name)
                .with_context(|| format!("make a group in {}", hierarchy.own.display()))?;
        }
        Ok(groups)
    }

    /// The hierarchies of v1 as `mount -o` names them, for the node to mount them again.
    pub(super) fn controllers(&self) -> Vec<&str> {
        let all = self.hierarchies.iter().map(|one| one.controllers.as_str());
        all.filter(|controllers| !controllers.is_empty()).collect()
    }

    /// The files by which a process enters the groups: it writes "0" to each.
    pub(super) fn doors(&self) -> Result<Vec<CString>> {
        let door = |hierarchy: &Hierarchy| {
            let path = hierarchy.own.join(&self.name).join("cgroup.procs");
            Ok(CString::new(path.as_os_str().as_bytes())?)
        };
        self.hierarchies.iter().map(door).collect()
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        let end = Instant::now() + PATIENCE;
        for hierarchy in &self.hierarchies {
            let group = hierarchy.own.join(&self.name);
            while let Err(error) = remove(&group) {
                if Instant::now() > end {
                    eprintln!("{}: {error}", group.display());
                    break;
                }
                thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

impl Hierarchy {
    fn has(&self, controller: &str) -> bool {
        self.controllers.split(',').any(|one| one == controller)
    }

    fn make(&self, name: &str) -> io::Result<()> {
        let group = self.own.join(name);
        fs::create_dir(&group)?;
        if self.has("cpuset") {
            // Without these no process may enter; and so for the groups below it.
            for file in ["cpuset.cpus", "cpuset.mems"] {
                fs::write(group.join(file), fs::read(self.own.join(file))?)?;
            }
            fs::write(group.join("cgroup.clone_children"), "1")?;
        }
        if self.has("memory") {
            fs::write(group.join("memory.limit_in_bytes"), MEMORY)?;
        }
        Ok(())
    }
}

/// Enters the groups. Between fork and exec: it opens, writes and closes, and allocates nothing.
pub(super) fn enter(doors: &[CString]) -> io::Result<()> {
    for door in doors {
        // SAFETY: `door` ends in NUL and lives for the call; the descriptor is used here alone, and
        // the buffer is one byte of a constant.
        let written = unsafe {
            let file = libc::open(door.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
            if file < 0 {
                return Err(io::Error::last_os_error());
            }
            let written = libc::write(file, c"0".as_ptr().cast(), 1);
            libc::close(file);
            written
        };
        if written != 1 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

fn hierarchies() -> Result<Vec<Hierarchy>> {
    let groups = fs::read_to_string("/proc/self/cgroup").context("read /proc/self/cgroup")?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").context("read mountinfo")?;
    Ok(parse(&groups, &mounts))
}

/// Lines "4:cpu,cpuacct:/group", with where their hierarchies are mounted.
fn parse(groups: &str, mounts: &str) -> Vec<Hierarchy> {
    let hierarchy = |line: &str| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, group) = (parts.next()?, parts.next()?);
        let (mount, root) = mounted(mounts, controllers)?;
        let inside = group.strip_prefix(root.trim_end_matches('/'))?;
        Some(Hierarchy {
            controllers: controllers.to_owned(),
            own: Path::new(mount).join(inside.trim_start_matches('/')),
        })
    };
    groups.lines().filter_map(hierarchy).collect()
}

/// Where a hierarchy is mounted, and which group of it. The line of a mount:
/// "33 24 0:29 ROOT PLACE rw,nosuid shared:9 - cgroup cgroup rw,cpu,cpuacct".
fn mounted<'a>(mounts: &'a str, controllers: &str) -> Option<(&'a str, &'a str)> {
    mounts.lines().find_map(|line| {
        let (place, what) = line.split_once(" - ")?;
        let mut place = place.split(' ').skip(3);
        let (root, place) = (place.next()?, place.next()?);
        let mut what = what.split(' ');
        let (kind, options) = (what.next()?, what.nth(1)?);
        let has = |wanted: &str| options.split(',').any(|option| option == wanted);
        let is = match controllers {
            "" => kind == "cgroup2",
            some => kind == "cgroup" && some.split(',').all(has),
        };
        is.then_some((place, root))
    })
}

/// Removes groups of worlds whose process is gone.
fn sweep(parent: &Path) {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name();
        if name.to_str().is_some_and(of_dead_process) {
            let _ = remove(&entry.path());
        }
    }
}

/// Removes a group with those below it, the deepest first: its files go by themselves.
fn remove(group: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(group) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    for entry in entries.flatten() {
        if entry.file_type()?.is_dir() {
            remove(&entry.path())?;
        }
    }
    fs::remove_dir(group)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
        31 24 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n\
        32 24 0:28 / /sys/fs/cgroup/systemd rw shared:9 - cgroup cgroup rw,name=systemd\n\
        33 24 0:29 /box /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
        34 24 0:30 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n";

    #[test]
    fn every_hierarchy_is_found_where_it_is_mounted() {
        let groups = "9:name=systemd:/\n4:cpu,cpuacct:/box/tests\n3:cpuset:/a\n0::/user\n7:pids:/";
        let found = parse(groups, MOUNTS);
        let own = |controllers: &str| {
            let found = found.iter().find(|one| one.controllers == controllers);
            found.map(|one| one.own.display().to_string())
        };
        assert_eq!(own("name=systemd").unwrap(), "/sys/fs/cgroup/systemd/");
        assert_eq!(
            own("cpu,cpuacct").unwrap(),
            "/sys/fs/cgroup/cpu,cpuacct/tests"
        );
        assert_eq!(own("cpuset").unwrap(), "/sys/fs/cgroup/cpuset/a");
        assert_eq!(own("").unwrap(), "/sys/fs/cgroup/unified/user");
        assert_eq!(own("pids"), None, "not mounted");
    }
}
