//! Direct access to the kernel for tests: pinned maps and links, the programs at a hook, a foreign program,
//! and devices of any kind.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use aya::Ebpf;
use aya::maps::{Array, HashMap, Map, MapData};
use aya::programs::links::{FdLink, LinkOrder, PinnedLink};
use aya::programs::tc::{SchedClassifierLink, TcAttachOptions};
use aya::programs::{SchedClassifier, TcAttachType};
use node_tests::bpf;
use node_tests::prelude::*;
use pathproof::datapath::load;
use pathproof_wire::abi::{self, ABI_VERSION, map};
use pathproof_wire::evidence::{Outcome, Pending, PendingKey, ServiceCounts};

pub(crate) fn links(world: &World) -> PathBuf {
    world.pin_dir().join(format!("v{ABI_VERSION}/links"))
}

/// Path of a pinned link. `direction` is "ingress" or "egress".
pub(crate) fn link(world: &World, device: u32, direction: &str) -> PathBuf {
    links(world).join(format!("{device}-{direction}"))
}

pub(crate) fn map_data(world: &World, name: &str) -> MapData {
    let path = world.pin_dir().join(format!("v{ABI_VERSION}/maps/{name}"));
    MapData::from_pin(path).expect("open a pinned map")
}

/// The kernel's count of an outcome over all Services, paths and families since the maps were made.
pub(crate) fn counted(world: &World, outcome: Outcome) -> u64 {
    let map = Map::Array(map_data(world, map::COUNTS));
    let counts: Array<_, ServiceCounts> = map.try_into().expect("the map of counts");
    let of = |id| counts.get(&id, 0).expect("read a count").counts;
    // The ids of the tests' few Services are below this number.
    let services = (0..256).flat_map(of);
    services
        .map(|by_outcome| u64::from(by_outcome[outcome as usize]))
        .sum()
}

/// Number of connections that the kernel follows.
pub(crate) fn pending(world: &World) -> usize {
    let map = Map::HashMap(map_data(world, map::PENDING));
    let pending: HashMap<_, PendingKey, Pending> = map.try_into().expect("the map of connections");
    pending
        .keys()
        .flatten()
        .take(abi::MAX_PENDING as usize + 1)
        .count()
}

pub(crate) fn link_id(pin: &Path) -> Option<u32> {
    let link = PinnedLink::from_pin(pin).ok()?;
    Some(FdLink::from(link).info().ok()?.id())
}

/// Names of the programs at a TCX hook, in the order in which they run.
pub(crate) fn programs_at(ns: &Namespace, device: &str, direction: TcAttachType) -> Vec<String> {
    let (_, programs) = ns
        .run(|| SchedClassifier::query_tcx(device, direction))
        .expect("ask for the programs");
    programs
        .iter()
        .map(|one| one.name_as_str().unwrap_or_default().to_owned())
        .collect()
}

/// Detaches a pinned link that another process holds, as an administrator's tool would.
pub(crate) fn detach(pin: &Path) -> io::Result<()> {
    detach_link(link_id(pin).ok_or(io::ErrorKind::NotFound)?)
}

/// Detaches all TCX links at the ingress of a device, and returns their number.
pub(crate) fn detach_all(ns: &Namespace, device: &str) -> io::Result<usize> {
    const BPF_PROG_QUERY: libc::c_int = 16;
    const BPF_TCX_INGRESS: u64 = 46;
    let index = u64::from(ns.ifindex(device).expect("the device"));
    let (mut programs, mut links) = ([0u32; 16], [0u32; 16]);
    // Fields: target and attach type; flags; programs; their number; their flags; links; link flags;
    // revision.
    let mut query = [0; 8];
    query[0] = index | BPF_TCX_INGRESS << 32;
    query[2] = programs.as_mut_ptr() as u64;
    query[3] = programs.len() as u64;
    query[5] = links.as_mut_ptr() as u64;
    ns.run(|| bpf::call(BPF_PROG_QUERY, &mut query))?;
    let count = query[3] as u32 as usize;
    for id in &links[..count] {
        detach_link(*id)?;
    }
    Ok(count)
}

fn detach_link(id: u32) -> io::Result<()> {
    const BPF_LINK_GET_FD_BY_ID: libc::c_int = 30;
    const BPF_LINK_DETACH: libc::c_int = 34;
    let link = bpf::descriptor(BPF_LINK_GET_FD_BY_ID, &mut [id, 0, 0])?;
    bpf::call(BPF_LINK_DETACH, &mut [link.as_raw_fd() as u64, 0]).map(drop)
}

/// A program of another tool, which attaches itself ahead of all others.
pub(crate) struct Foreign {
    ebpf: Ebpf,
    ns: Namespace,
    links: Vec<SchedClassifierLink>,
}

impl Foreign {
    /// Loads a program that passes every packet.
    pub(crate) fn load(ns: &Namespace) -> Self {
        let mut ebpf = Ebpf::load(load::OBJECT).expect("load the object");
        let program = load::classifier(&mut ebpf, abi::program::EMPTY).expect("the empty program");
        program.load().expect("load the empty program");
        Self {
            ebpf,
            ns: ns.clone(),
            links: Vec::new(),
        }
    }

    /// Attaches the program ahead of all others, and drops an earlier attachment.
    pub(crate) fn attach(&mut self, device: &str, direction: TcAttachType) {
        self.links.clear();
        let program =
            load::classifier(&mut self.ebpf, abi::program::EMPTY).expect("the empty program");
        // A program can be at a hook only once. Retry, because a child process that another test forks may
        // hold the old link until it calls exec.
        let ns = &self.ns;
        let link = until(PATIENCE, || {
            ns.run(|| {
                let first = TcAttachOptions::TcxOrder(LinkOrder::first());
                let id = program.attach_with_options(device, direction, first).ok()?;
                program.take_link(id).ok()
            })
        });
        self.links.push(link.expect("attach the empty program"));
    }
}

impl Foreign {
    pub(crate) fn pin(&mut self, pin: &Path) {
        let program =
            load::classifier(&mut self.ebpf, abi::program::EMPTY).expect("the empty program");
        program.pin(pin).expect("pin the empty program");
    }

    /// Pins the attachment, so that it outlives this process.
    pub(crate) fn pin_link(&mut self, pin: &Path) {
        let link = self.links.pop().expect("an attachment");
        let link = FdLink::try_from(link).expect("a link of TCX");
        link.pin(pin).expect("pin the link");
    }
}

/// Makes a device of this kind (ARPHRD). It exists as long as the file is open.
pub(crate) fn device_of_kind(ns: &Namespace, name: &str, kind: u16) -> Needed<File> {
    const TUNSETLINK: libc::Ioctl = 0x4004_54cd;
    let path = "/dev/net/tun";
    // The device appears in the namespace in which the file was opened.
    let file = ns.run(|| File::options().read(true).write(true).open(path));
    let file = skip::needed(file.context(path))?;
    ns.run(|| {
        // SAFETY: an all-zero ifreq is valid.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (slot, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *slot = byte as libc::c_char;
        }
        request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
        // SAFETY: the descriptor is open, the request is valid for the call.
        let made = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
        assert_eq!(made, 0, "{}", io::Error::last_os_error());
        // SAFETY: this ioctl takes a number, not a pointer.
        let set = unsafe { libc::ioctl(file.as_raw_fd(), TUNSETLINK, libc::c_ulong::from(kind)) };
        assert_eq!(set, 0, "{}", io::Error::last_os_error());
    });
    Ok(file)
}
