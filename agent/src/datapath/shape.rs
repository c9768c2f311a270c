//! Reads what tells the datapath's shape: which programs of others stand behind ours, and which
//! run when a socket connects. Read-only, a few dozen microseconds; nothing is ever attached to a
//! cgroup. What the kernel does not tell is left out, which `agent_core::shape` makes a weaker
//! statement of.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use agent_common::service::{FAMILIES, Family};

use super::attach::{Direction, filter};
use super::devices::{Device, Interfaces};
use super::syscall::{Call, program_name, programs_at, socket_programs};
use agent_core::owners::DatapathOwners;
use agent_core::shape::{DeviceFacts, Facts, Role, Strangers};

/// Names of programs that were asked for once; a node has a few hundred.
const NAMES_KEPT: usize = 4096;

/// What is known before anything is read.
pub struct Seen<'a> {
    /// All interfaces.
    pub interfaces: &'a Interfaces,
    /// Names of the sentinel's ends that face the node.
    pub sentinel: &'a [String],
    /// Whose rules are there, by [`Family`].
    pub owners: [DatapathOwners; FAMILIES],
}

/// Reads it, now. `ours` tells which programs are agents' of pathproof, and is asked after the hooks.
pub(super) fn read(seen: &Seen<'_>, ours: impl FnOnce() -> BTreeSet<u32>) -> Facts {
    let devices = &seen.interfaces.devices;
    let telling = devices
        .iter()
        .filter_map(|device| Some((device, role(device, seen.sentinel)?)));
    let standing: Vec<_> = telling
        .map(|(device, role)| (device, role, hooks(device)))
        .collect();
    let ours = ours();
    let facts = |(device, role, hooks): (&Device, Role, Option<[Standing; 2]>)| DeviceFacts {
        name: device.name.clone(),
        role,
        xdp: seen.interfaces.accelerated.contains(&device.index),
        hooks: hooks.map(|hooks| hooks.map(|standing| standing.strangers(&ours))),
    };
    let cgroup = own_cgroup().and_then(|path| File::open(path).ok());
    Facts {
        devices: standing.into_iter().map(facts).collect(),
        netkit: seen.interfaces.netkit,
        connect: at_sockets(cgroup.as_ref(), Call::Connect),
        bound: at_sockets(cgroup.as_ref(), Call::Bound),
        owners: seen.owners,
    }
}

fn role(device: &Device, sentinel: &[String]) -> Option<Role> {
    if sentinel.contains(&device.name) {
        Some(Role::Sentinel)
    } else if device.name.starts_with("cilium_") {
        Some(Role::Cilium)
    } else {
        device.uplink.then_some(Role::Uplink)
    }
}

/// What stands at one hook: ids of links' programs, ids and names of filters.
struct Standing {
    links: Vec<u32>,
    filters: Vec<(u32, Option<String>)>,
}

impl Standing {
    fn strangers(self, ours: &BTreeSet<u32>) -> Strangers {
        let links = self.links.into_iter().filter(|id| !ours.contains(id));
        let filters = self.filters.into_iter();
        let filters = filters.filter(|(id, _)| !ours.contains(id));
        Strangers {
            links: links.map(name_of).filter(is_foreign).collect(),
            filters: filters.map(|(_, name)| name).filter(is_foreign).collect(),
        }
    }
}

fn hooks(device: &Device) -> Option<[Standing; 2]> {
    let [ingress, egress] = Direction::BOTH.map(|way| standing(device, way));
    Some([ingress?, egress?])
}

fn standing(device: &Device, way: Direction) -> Option<Standing> {
    // A kernel without TCX has filters alone.
    let links = programs_at(device.index, way.tcx()).or_else(|error| {
        match error.raw_os_error() == Some(libc::EINVAL) {
            true => Ok(Vec::new()),
            false => Err(error),
        }
    });
    Some(Standing {
        links: links.ok()?,
        filters: filter::at(device.index, way).ok()?,
    })
}

/// Another agent's programs are no strangers, also where it could not claim them.
fn is_foreign(name: &Option<String>) -> bool {
    !name
        .as_ref()
        .is_some_and(|name| name.starts_with("pathproof"))
}

/// Name of a program, where the kernel tells it. An id is given to no other program later.
fn name_of(id: u32) -> Option<String> {
    static NAMES: Mutex<BTreeMap<u32, Option<String>>> = Mutex::new(BTreeMap::new());
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    if names.len() >= NAMES_KEPT {
        names.clear();
    }
    let name = names.entry(id).or_insert_with(|| program_name(id).ok());
    name.clone()
}

/// What runs when this process does so with a socket, by family.
fn at_sockets(cgroup: Option<&File>, call: Call) -> [Option<Strangers>; FAMILIES] {
    Family::ALL.map(|family| {
        let programs = socket_programs(cgroup?.as_fd(), call, family).ok()?;
        Some(Strangers {
            links: programs.into_iter().map(name_of).collect(),
            filters: Vec::new(),
        })
    })
}

/// Where this process is in the unified hierarchy, as far as it is mounted here.
fn own_cgroup() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    cgroup_path(&mounts, &own)
}

fn cgroup_path(mounts: &str, own: &str) -> Option<PathBuf> {
    let mut lines = mounts.lines().map(|line| line.split(' '));
    let root = lines.find_map(|mut words| {
        let (_, place, kind) = (words.next()?, words.next()?, words.next()?);
        (kind == "cgroup2").then_some(place)
    })?;
    let path = own.lines().find_map(|line| line.strip_prefix("0::"))?;
    Some(PathBuf::from(format!("{root}{path}")))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::unified(
        "cgroup2 /sys/fs/cgroup cgroup2 ro 0 0",
        "0::/",
        Some("/sys/fs/cgroup/")
    )]
    #[case::hybrid(
        "cgroup /sys/fs/cgroup/cpu cgroup rw 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0",
        "4:memory:/a\n0::/pods/b",
        Some("/sys/fs/cgroup/unified/pods/b")
    )]
    #[case::version_one("cgroup /sys/fs/cgroup/cpu cgroup rw 0 0", "4:memory:/a", None)]
    #[case::not_mounted("proc /proc proc rw 0 0", "0::/", None)]
    #[case::cut_short("cgroup2", "0::/", None)]
    fn the_own_cgroup(#[case] mounts: &str, #[case] own: &str, #[case] path: Option<&str>) {
        assert_eq!(cgroup_path(mounts, own), path.map(PathBuf::from));
    }

    #[test]
    fn what_an_agent_claims_is_no_stranger() {
        let standing = Standing {
            // No program has these ids, so that none has a name.
            links: vec![u32::MAX, u32::MAX - 1],
            filters: vec![(u32::MAX, None), (u32::MAX - 1, Some("cil_x".to_owned()))],
        };
        let strangers = standing.strangers(&BTreeSet::from([u32::MAX]));
        assert_eq!(strangers.links, [None]);
        assert_eq!(strangers.filters, [Some("cil_x".to_owned())]);
    }

    #[test]
    fn another_agent_is_no_stranger() {
        let foreign = |name: Option<&str>| is_foreign(&name.map(str::to_owned));
        assert!(!foreign(Some("pathproof_ingre")));
        assert!(foreign(Some("cil_from_netdev")));
        assert!(foreign(None));
    }
}
