//! The sentinel's programs, and the maps of its probes: registers probes before they are sent, reads
//! where they were seen, waits for the programs' events. It does not interpret a probe's stamps.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use aya::Ebpf;
use aya::maps::{HashMap, Map, MapData, MapError, RingBuf};
use pathproof_shared::causes::chain;
use pathproof_wire::abi::{map, program};
use pathproof_wire::evidence::{Pending, PendingKey};
use pathproof_wire::packet::Link;
use pathproof_wire::probe::{HostProbe, Probe, ProbeEvent, ProbeKey};
use pathproof_wire::service::Family;
use thiserror::Error;

use super::attach::hook::{Hook, Place, Spot};
use super::attach::{Direction, HookError, Mechanism, Mode};
use super::load::{MapsError, classifier, load_sentinel, missing, refused};
use super::sample::record;
use super::syscall::programs_at;
use crate::netlink::name_of;
use crate::probe::Kernel;

/// The maps of the sentinel's probes, and the observer's map of connections for lookups. All
/// through separate handles, so that a prober can run on another thread than the observer.
pub struct ProbeMaps {
    probes: HashMap<MapData, ProbeKey, Probe>,
    sockets: HashMap<MapData, u64, HostProbe>,
    events: RingBuf<MapData>,
    connections: HashMap<MapData, PendingKey, Pending>,
}

impl ProbeMaps {
    /// Opens the maps. `pending` is the map of connections, which is no longer in the object once a sampler
    /// took it.
    pub fn open(ebpf: &Ebpf, pending: BorrowedFd<'_>) -> Result<Self, MapsError> {
        let connections = handle(map::PENDING, pending, Map::HashMap)?;
        Ok(Self {
            probes: open(ebpf, map::PROBES)?,
            sockets: open(ebpf, map::HOST_PROBES)?,
            events: open(ebpf, map::PROBE_EVENTS)?,
            connections: HashMap::try_from(connections).map_err(refused("open", map::PENDING))?,
        })
    }
}

impl Kernel for ProbeMaps {
    fn register(&mut self, key: ProbeKey, flags: u32) -> Result<(), String> {
        let probe = Probe {
            flags,
            ..Probe::default()
        };
        let inserted = self.probes.insert(key, probe, 0);
        inserted.map_err(sentence("write to", map::PROBES))
    }

    fn read(&self, key: &ProbeKey) -> Result<Option<Probe>, String> {
        match self.probes.get(key, 0) {
            Ok(probe) => Ok(Some(probe)),
            Err(MapError::KeyNotFound) => Ok(None),
            Err(error) => Err(sentence("read", map::PROBES)(error)),
        }
    }

    fn remove(&mut self, key: &ProbeKey) {
        let _ = self.probes.remove(key);
    }

    fn register_socket(&mut self, cookie: u64) -> Result<(), String> {
        let inserted = self.sockets.insert(cookie, HostProbe::default(), 0);
        inserted.map_err(sentence("write to", map::HOST_PROBES))
    }

    fn socket(&self, cookie: u64) -> Option<HostProbe> {
        self.sockets.get(&cookie, 0).ok()
    }

    fn remove_socket(&mut self, cookie: u64) {
        let _ = self.sockets.remove(&cookie);
    }

    fn connection_state(&self, isn: u32, family: Family) -> Option<u32> {
        let key = PendingKey {
            isn,
            family: family as u32,
        };
        let pending = self.connections.get(&key, 0).ok()?;
        Some(pending.state)
    }

    fn events_fd(&self) -> RawFd {
        self.events.as_raw_fd()
    }

    fn next_event(&mut self) -> Option<ProbeEvent> {
        while let Some(bytes) = self.events.next() {
            if let Some(event) = record(&bytes) {
                return Some(event);
            }
        }
        None
    }
}

fn sentence(operation: &'static str, map: &'static str) -> impl FnOnce(MapError) -> String {
    move |error| refused(operation, map)(error).to_string()
}

/// Opens another handle of a map of the object, converted to its type.
fn open<T: TryFrom<Map, Error = MapError>>(
    ebpf: &Ebpf,
    name: &'static str,
) -> Result<T, MapsError> {
    let map = match ebpf.map(name).ok_or(missing("map", name))? {
        Map::HashMap(data) => handle(name, data.fd().as_fd(), Map::HashMap),
        Map::RingBuf(data) => handle(name, data.fd().as_fd(), Map::RingBuf),
        _ => Err(refused("open", name)("it has another type")),
    };
    T::try_from(map?).map_err(refused("open", name))
}

fn handle(
    map: &'static str,
    fd: BorrowedFd<'_>,
    kind: fn(MapData) -> Map,
) -> Result<Map, MapsError> {
    let fd = fd.try_clone_to_owned().map_err(refused("open", map))?;
    MapData::from_fd(fd).map(kind).map_err(refused("open", map))
}

/// Interface indexes of the ends of the sentinel's two veth pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeEnds {
    /// End by which probes enter the node.
    pub client_near: u32,
    /// End at which probes are sent and answers collected.
    pub client_far: u32,
    /// End by which probes leave the node for the echo.
    pub server_near: u32,
    /// End at which the echo program is attached.
    pub server_far: u32,
}

impl ProbeEnds {
    /// Every program with its device and direction. The far ends first: without the program that
    /// collects answers, the node itself would receive them.
    fn places(&self) -> [(&'static str, u32, Direction); 5] {
        [
            (program::COLLECT, self.client_far, Direction::Ingress),
            (program::ECHO, self.server_far, Direction::Ingress),
            (program::RETURNED, self.server_near, Direction::Ingress),
            (program::TRANSLATED, self.server_near, Direction::Egress),
            (program::ARRIVED, self.client_near, Direction::Ingress),
        ]
    }
}

#[derive(Debug, Error)]
pub enum ProbeHooksError {
    /// The programs could not be loaded. The observer is not affected.
    #[error("the sentinel's programs cannot be loaded: {0}")]
    Load(String),
    #[error("the sentinel's device with index {index} cannot be found: {source}")]
    Device { index: u32, source: io::Error },
    #[error("cannot attach {program} to {device}: {}", chain(source))]
    Attach {
        program: &'static str,
        device: String,
        source: HookError,
    },
}

/// The sentinel's five programs at the four ends of its veth pairs, right behind the observer's.
/// Dropping this detaches them.
///
/// Never pinned: probes end with the agent that sends them, and the far ends then drop what reaches
/// them. Devices are not created here, and only these four are touched.
pub struct ProbeHooks(Vec<Hook>);

impl ProbeHooks {
    pub(super) fn load(ebpf: &mut Ebpf) -> Result<(), ProbeHooksError> {
        load_sentinel(ebpf).map_err(|error| ProbeHooksError::Load(error.to_string()))
    }

    /// Loads the programs, if they are not loaded, and attaches all five or none. `ours` are the programs of
    /// all agents.
    pub fn attach(
        ebpf: &mut Ebpf,
        ends: &ProbeEnds,
        mode: Mode,
        ours: &BTreeSet<u32>,
    ) -> Result<Self, ProbeHooksError> {
        Self::load(ebpf)?;
        let mut hooks = Vec::new();
        for (program, index, direction) in ends.places() {
            let device = name_of(index);
            let device = device.map_err(|source| ProbeHooksError::Device { index, source })?;
            let is_near = index == ends.client_near || index == ends.server_near;
            let observer = is_near.then(|| observer(ebpf, (index, direction), ours));
            let spot = Spot {
                index,
                device: &device,
                direction,
                place: Place::behind(observer.flatten()),
                may_add_qdisc: true,
                // Not used: the qdisc is removed with its device.
                added_qdisc: Cell::default(),
            };
            let hook = classifier(ebpf, program)
                .map_err(HookError::from)
                .and_then(|classifier| Hook::attach(classifier, &spot, mode, None));
            hooks.push(hook.map_err(|source| ProbeHooksError::Attach {
                program,
                device,
                source,
            })?);
        }
        Ok(Self(hooks))
    }

    pub fn mechanism(&self) -> Mechanism {
        self.0.first().map_or(Mechanism::Tcx, Hook::mechanism)
    }

    /// Whether all five are still attached. If not, drop these and attach again.
    pub fn are_attached(&self) -> bool {
        self.0.iter().all(Hook::is_attached)
    }
}

/// The observer's program at a near end: this agent's, or that of a successor which took over its link. A
/// program that is placed before a successor's observer would make the successor attach it again.
fn observer(
    ebpf: &mut Ebpf,
    (index, direction): (u32, Direction),
    ours: &BTreeSet<u32>,
) -> Option<u32> {
    let own = classifier(ebpf, direction.program(Link::Ethernet)).ok()?;
    let own = own.info().ok()?.id();
    let attached = programs_at(index, direction.tcx()).unwrap_or_default();
    let head = attached.first().filter(|head| ours.contains(head));
    match attached.contains(&own) {
        true => Some(own),
        false => head.copied(),
    }
}
