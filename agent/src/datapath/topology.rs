//! Reads the facts that determine the datapath's topology: foreign programs behind pathproof's, and programs
//! that run when a socket connects. Reading takes a few dozen microseconds, changes nothing, and attaches
//! nothing to a cgroup. Facts that the kernel does not report are left out, and `pathproof_witness::topology`
//! then makes a weaker statement.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;

use pathproof_facts::owners::OwnersRead;
use pathproof_wire::service::FAMILIES;
use pathproof_witness::topology::{DeviceFacts, ForeignPrograms, Role, TopologyFacts};

use super::attach::Direction;
use super::attach::filters::{AttachedFilter, filters};
use super::devices::{Device, Interfaces};
use super::syscall::{BPF_CGROUP_CONNECT, BPF_CGROUP_POST_BIND, programs_at, socket_programs};

pub struct Seen<'a> {
    pub interfaces: &'a Interfaces,
    /// Names of the sentinel's near ends.
    pub sentinel: &'a [String],
    /// Owners of the existing rules, by family.
    pub owners: OwnersRead,
}

/// Reads the current facts. `ours` returns the ids of pathproof's programs. It runs after the hooks were
/// read, because agents record their programs before they attach them.
pub(super) fn read(seen: &Seen<'_>, ours: impl FnOnce() -> BTreeSet<u32>) -> TopologyFacts {
    let devices = &seen.interfaces.devices;
    let telling = devices
        .iter()
        .filter_map(|device| Some((device, role(device, seen.sentinel)?)));
    let programs: Vec<_> = telling
        .map(|(device, role)| (device, role, hooks(device)))
        .collect();
    let ours = ours();
    let facts =
        |(device, role, hooks): (&Device, Role, Option<[AttachedPrograms; 2]>)| DeviceFacts {
            name: device.name.clone(),
            role,
            xdp: seen.interfaces.accelerated.contains(&device.index),
            hooks: hooks.map(|hooks| hooks.map(|programs| programs.foreign_programs(&ours))),
        };
    let cgroup = own_cgroup().and_then(|path| File::open(path).ok());
    TopologyFacts {
        devices: programs.into_iter().map(facts).collect(),
        netkit: seen.interfaces.netkit,
        connect: at_sockets(cgroup.as_ref(), BPF_CGROUP_CONNECT),
        bound: at_sockets(cgroup.as_ref(), BPF_CGROUP_POST_BIND),
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

/// Programs attached at one hook: ids of link programs, and filters.
struct AttachedPrograms {
    links: Vec<u32>,
    filters: Vec<AttachedFilter>,
}

impl AttachedPrograms {
    fn read(device: &Device, way: Direction) -> Option<Self> {
        Some(Self {
            links: or_none(programs_at(device.index, way.tcx()))?,
            filters: or_none(filters(device.index, way, 0))?,
        })
    }

    /// The foreign programs. Another agent's filters do not count, even if that agent could not record them:
    /// their names begin with "pathproof".
    fn foreign_programs(self, ours: &BTreeSet<u32>) -> ForeignPrograms {
        let links = self.links.iter().filter(|id| !ours.contains(id));
        let filters = self.filters.into_iter();
        let filters = filters.filter(|filter| !ours.contains(&filter.program));
        let names = filters.map(|filter| filter.name);
        let is_ours = |name: &String| name.starts_with("pathproof");
        ForeignPrograms {
            // The kernel reports names of link programs only with CAP_SYS_ADMIN.
            links: links.map(|_| None).collect(),
            filters: names
                .filter(|name| !name.as_ref().is_some_and(is_ours))
                .collect(),
        }
    }
}

/// Treats EINVAL as an empty list: a kernel without TCX supports only filters, and an interface without the
/// qdisc has no filters.
fn or_none<T>(found: io::Result<Vec<T>>) -> Option<Vec<T>> {
    match found {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Some(Vec::new()),
        found => found.ok(),
    }
}

fn hooks(device: &Device) -> Option<[AttachedPrograms; 2]> {
    let [ingress, egress] = Direction::BOTH.map(|way| AttachedPrograms::read(device, way));
    Some([ingress?, egress?])
}

/// Programs of these attach types that run for this process's sockets, by family.
fn at_sockets(
    cgroup: Option<&File>,
    attach_types: [u32; FAMILIES],
) -> [Option<ForeignPrograms>; FAMILIES] {
    attach_types.map(|attach_type| {
        let programs = socket_programs(cgroup?.as_fd(), attach_type).ok()?;
        Some(ForeignPrograms {
            links: vec![None; programs.len()],
            filters: Vec::new(),
        })
    })
}

/// Path of this process's cgroup in the unified hierarchy, if that is mounted.
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
    fn an_agents_programs_are_no_strangers() {
        let filter = |program, name: Option<&str>| AttachedFilter {
            handle: 1,
            priority: 1,
            program,
            name: name.map(str::to_owned),
        };
        let programs = AttachedPrograms {
            links: vec![7, 8],
            filters: vec![
                filter(7, None),
                filter(8, Some("cil_x")),
                filter(9, Some("pathproof_ingre")),
                filter(10, None),
            ],
        };
        let foreign_programs = programs.foreign_programs(&BTreeSet::from([7]));
        assert_eq!(foreign_programs.links, [None]);
        assert_eq!(foreign_programs.filters, [Some("cil_x".to_owned()), None]);
    }
}
