//! A control group of the node's own in every hierarchy of the machine. The node's cgroup namespace
//! makes it the root that kubelet and containerd see.
//!
//! Of cgroup v1 the groups are below those of this process, with the unified hierarchy beside them
//! where there is one. Of v2 alone the group is below the root: other groups with processes in them
//! give none of their controllers to groups below. For the same reason the node's processes are in a
//! group inside of the node's.

use std::ffi::CString;
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::world::of_dead_process;

/// Hierarchies of v1 that kubelet insists on.
const NEEDED: [&str; 5] = ["cpu", "cpuset", "memory", "pids", "name=systemd"];
/// Controllers of v2 that kubelet insists on.
const NEEDED_OF_V2: [&str; 4] = ["cpu", "cpuset", "memory", "pids"];
/// Group of the node's processes that are in no container, in its group of v2.
const INNER: &str = "daemons";
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

/// The version of control groups that carries the controllers of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    One,
    Two,
}

impl Version {
    /// The version that this machine has, with everything that kubelet insists on; if it has none,
    /// the reason.
    pub fn of_machine() -> Result<Self, String> {
        let found = hierarchies().map_err(|error| format!("{error:#}"))?;
        let has = |wanted: &str| {
            let mut all = found.iter().flat_map(|one| one.controllers.split(','));
            all.any(|controller| controller == wanted)
        };
        if NEEDED.into_iter().all(has) {
            return Ok(Self::One);
        }
        let unified = unified().map_err(|error| format!("{error:#}"))?;
        enable(&unified)?;
        Ok(Self::Two)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(match self {
            Self::One => "v1",
            Self::Two => "v2",
        })
    }
}

/// Lets groups below the root of v2 have the controllers that kubelet insists on. systemd lets them
/// have some already.
fn enable(root: &Path) -> Result<(), String> {
    let listed = |file: &str| fs::read_to_string(root.join(file)).unwrap_or_default();
    let (there, given) = (
        listed("cgroup.controllers"),
        listed("cgroup.subtree_control"),
    );
    let mut missing = Vec::new();
    for controller in NEEDED_OF_V2 {
        let has = |list: &str| list.split_whitespace().any(|one| one == controller);
        if !has(&there) {
            return Err(format!("the cgroup controller {controller}, of v1 or v2"));
        }
        if !has(&given) {
            missing.push(format!("+{controller}"));
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    // In one write, which gives all or none: with some alone, other groups of the machine could no longer
    // have processes.
    let (file, missing) = (root.join("cgroup.subtree_control"), missing.join(" "));
    fs::write(&file, &missing).map_err(|error| {
        let file = file.display();
        format!("the cgroup controllers {missing} in {file}, of v1 or v2: {error}")
    })
}

/// The groups; removed when dropped, after everything in them has ended.
#[derive(Debug)]
pub(super) struct Groups {
    pub(super) version: Version,
    hierarchies: Vec<Hierarchy>,
    name: String,
}

impl Groups {
    /// Makes groups of this name, and removes those that killed processes left.
    pub(super) fn make(name: &str) -> Result<Self> {
        let version = Version::of_machine().map_err(anyhow::Error::msg)?;
        let hierarchies = match version {
            Version::One => hierarchies()?,
            Version::Two => vec![Hierarchy {
                controllers: String::new(),
                own: unified()?,
            }],
        };
        let groups = Self {
            version,
            hierarchies,
            name: name.to_owned(),
        };
        for hierarchy in &groups.hierarchies {
            sweep(&hierarchy.own);
            hierarchy
                .make(name)
                .with_context(|| format!("make a group in {}", hierarchy.own.display()))?;
        }
        if version == Version::Two {
            let group = groups.hierarchies[0].own.join(name);
            fs::create_dir(group.join(INNER)).context("make a group of v2")?;
            fs::write(group.join("memory.max"), MEMORY).context("limit a group of v2")?;
        }
        Ok(groups)
    }

    /// The hierarchies of v1 as `mount -o` names them, for the node to mount them again; none of v2.
    pub(super) fn controllers(&self) -> Vec<&str> {
        let all = self.hierarchies.iter().map(|one| one.controllers.as_str());
        all.filter(|controllers| !controllers.is_empty()).collect()
    }

    /// The files by which the node's first process enters the groups: it writes "0" to each.
    pub(super) fn first_doors(&self) -> Result<Vec<CString>> {
        let door = |hierarchy: &Hierarchy| {
            let path = hierarchy.own.join(&self.name).join("cgroup.procs");
            Ok(CString::new(path.as_os_str().as_bytes())?)
        };
        self.hierarchies.iter().map(door).collect()
    }

    /// The same for all others. Of v2 they enter the inner group, where the first ones are moved to
    /// as well: a group with processes in it gives no controllers to those of pods.
    pub(super) fn doors(&self) -> Result<Vec<CString>> {
        if self.version == Version::One {
            return self.first_doors();
        }
        let group = self.hierarchies[0].own.join(&self.name);
        let inner = group.join(INNER).join("cgroup.procs");
        for process in fs::read_to_string(group.join("cgroup.procs"))?.lines() {
            fs::write(&inner, process).context("move a process to its group")?;
        }
        Ok(vec![CString::new(inner.as_os_str().as_bytes())?])
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
    Ok(parse(&groups, &mounts()?))
}

/// The root of the unified hierarchy.
fn unified() -> Result<PathBuf> {
    let mounts = mounts()?;
    let (place, _) = mounted(&mounts, "").context("the cgroup controllers, of v1 or v2")?;
    Ok(place.into())
}

fn mounts() -> Result<String> {
    fs::read_to_string("/proc/self/mountinfo").context("read mountinfo")
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
