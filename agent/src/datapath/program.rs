//! Applies plans to the maps, in order, and reads back their content. Consecutive changes of one kind that
//! write endpoints or frontends share a system call. If that call fails, each change is tried by itself.
//!
//! A full map is no error: the change is returned, so that the planner counts it as missing and
//! retries when there is room.
//!
//! The agent marks the ports of UDP Services in a map. It marks a port before it installs entries with that
//! port, and unmarks it long after the last such entry was removed from the maps. Another agent may mark and
//! unmark at the same time. So an agent that installs entries marks their ports again afterwards, and an
//! agent that unmarks reads the maps again afterwards.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::mem::discriminant;
use std::os::fd::AsFd;
use std::time::Duration;

use aya::Ebpf;
use aya::maps::lpm_trie::{Key, LpmTrie};
use aya::maps::{Array, HashMap, IterableMap as _, MapData, MapError};
use pathproof_facts::node_context::SourcePrefix;
use pathproof_facts::time::Mono;
use pathproof_plan::{Installed, MapChange};
use pathproof_wire::abi::map;
use pathproof_wire::evidence::UdpPorts;
use pathproof_wire::service::{
    EndpointEntry, EndpointKey, FrontendKey, FrontendValue, Port, SourceClass, UDP, endpoint_flag,
};

use super::load::{MapsError, read, refused, take, write};
use super::syscall;

/// Entries per batch call: more are not faster, and need more memory.
const BATCH: usize = 1024;

/// Minimum time from the removal of a port's last entry to its unmarking: answers to followed datagrams have
/// arrived by then.
const UNMARK_AFTER: Duration = Duration::from_secs(60);

pub struct Programmer {
    frontends: HashMap<MapData, FrontendKey, FrontendValue>,
    endpoints: HashMap<MapData, EndpointKey, EndpointEntry>,
    sources: LpmTrie<MapData, [u8; 16], u32>,
    devices: HashMap<MapData, u32, u32>,
    udp_ports: Array<MapData, UdpPorts>,
    /// Whether marked ports may belong to no Service: entries were removed, or a previous agent marked them.
    has_leftovers: bool,
    /// Time at which ports of no Service are unmarked.
    unmark_at: Option<Mono>,
}

#[derive(Debug, Default)]
pub struct Outcome {
    /// Changes that did not fit.
    pub full: Vec<MapChange>,
    /// The first other error, as text.
    pub error: Option<String>,
}

impl Programmer {
    pub fn open(ebpf: &mut Ebpf) -> Result<Self, MapsError> {
        Ok(Self {
            frontends: take(ebpf, map::FRONTENDS)?,
            endpoints: take(ebpf, map::ENDPOINTS)?,
            sources: take(ebpf, map::SOURCES)?,
            devices: take(ebpf, map::DEVICES)?,
            udp_ports: take(ebpf, map::UDP_PORTS)?,
            has_leftovers: true,
            unmark_at: None,
        })
    }

    /// Applies a plan in order. Every change is attempted, even if earlier ones failed.
    pub fn apply(&mut self, plan: &[MapChange]) -> Outcome {
        let mut outcome = Outcome::default();
        self.mark_ports(plan, &mut outcome);
        for run in plan.chunk_by(|one, next| discriminant(one) == discriminant(next)) {
            for changes in run.chunks(BATCH) {
                // The batch fails if the map is full or the kernel lacks the call, perhaps after a part of it was
                // written. Single updates then show which changes fit; repeating a written one changes nothing.
                if self.change_together(changes).is_err() {
                    self.change_each(changes, &mut outcome);
                }
            }
        }
        self.mark_ports(plan, &mut outcome);
        outcome
    }

    fn mark_ports(&mut self, plan: &[MapChange], outcome: &mut Outcome) {
        let ports: Vec<Port> = plan.iter().filter_map(udp_port).collect();
        let gone: Vec<Port> = plan.iter().filter_map(gone_port).collect();
        if ports.is_empty() && gone.is_empty() {
            return;
        }
        let marked = self.marked_ports().and_then(|marked| {
            self.has_leftovers |= gone.iter().any(|port| marked.has(*port));
            self.mark(marked, ports)
        });
        if let Err(error) = marked {
            outcome.error.get_or_insert_with(|| error.to_string());
        }
    }

    fn mark(
        &mut self,
        mut marked: UdpPorts,
        ports: impl IntoIterator<Item = Port>,
    ) -> Result<(), MapsError> {
        let before = marked;
        ports.into_iter().for_each(|port| marked.mark(port));
        if marked == before {
            return Ok(());
        }
        write(&mut self.udp_ports, map::UDP_PORTS, 0, marked)
    }

    pub fn marked_ports(&self) -> Result<UdpPorts, MapsError> {
        read(&self.udp_ports, map::UDP_PORTS, 0)
    }

    /// Unmarks ports that have belonged to no Service for `UNMARK_AFTER`. Call it periodically.
    pub fn unmark_ports(&mut self, now: Mono) -> Result<(), MapsError> {
        if self.unmark_at.is_none() && std::mem::take(&mut self.has_leftovers) {
            self.unmark_at = Some(now.plus(UNMARK_AFTER));
        }
        if self.unmark_at.take_if(|at| now >= *at).is_none() {
            return Ok(());
        }
        let mut standing = UdpPorts::default();
        (self.standing_ports()?.into_iter()).for_each(|port| standing.mark(port));
        if standing == self.marked_ports()? {
            return Ok(());
        }
        write(&mut self.udp_ports, map::UDP_PORTS, 0, standing)?;
        let ports = self.standing_ports()?;
        self.mark(standing, ports)
    }

    /// Ports of the UDP frontends and endpoints in the maps.
    fn standing_ports(&self) -> Result<BTreeSet<Port>, MapsError> {
        let mut ports = BTreeSet::new();
        let fd = self.frontends.map().fd().as_fd();
        syscall::for_each(fd, |key: FrontendKey, _: FrontendValue| {
            ports.extend((key.protocol == UDP).then_some(key.port));
        })
        .map_err(refused("read", map::FRONTENDS))?;
        let fd = self.endpoints.map().fd().as_fd();
        syscall::for_each(fd, |key: EndpointKey, entry: EndpointEntry| {
            ports.extend((entry.value.flags & endpoint_flag::UDP != 0).then_some(key.port));
        })
        .map_err(refused("read", map::ENDPOINTS))?;
        Ok(ports)
    }

    /// Applies many changes of one kind in one call, at a fifth of the cost per change.
    fn change_together(&self, changes: &[MapChange]) -> io::Result<()> {
        let endpoints: Vec<_> = changes.iter().filter_map(endpoint).collect();
        let frontends: Vec<_> = changes.iter().filter_map(frontend).collect();
        match (&endpoints[..], &frontends[..]) {
            ([], []) => Err(io::ErrorKind::Unsupported.into()),
            ([], frontends) => syscall::update(self.frontends.map().fd().as_fd(), frontends),
            (endpoints, _) => syscall::update(self.endpoints.map().fd().as_fd(), endpoints),
        }
    }

    fn change_each(&mut self, changes: &[MapChange], outcome: &mut Outcome) {
        for change in changes {
            let Err(error) = self.change(change) else {
                continue;
            };
            let code = match &error {
                MapError::SyscallError(error) => error.io_error.raw_os_error(),
                _ => None,
            };
            match code {
                // A full hash map returns E2BIG, a full trie ENOSPC, and a map without
                // preallocation may return ENOMEM.
                Some(libc::E2BIG | libc::ENOSPC | libc::ENOMEM) => outcome.full.push(*change),
                // The entry is already gone.
                Some(libc::ENOENT) => {}
                _ => {
                    let first = || format!("{change:?}: {error}");
                    outcome.error.get_or_insert_with(first);
                }
            }
        }
    }

    fn change(&mut self, change: &MapChange) -> Result<(), MapError> {
        match change {
            // The sampler resets counts before the plan is applied (`Observer::apply`).
            MapChange::ResetCounts { .. } => Ok(()),
            MapChange::PutSource { prefix, class } => {
                self.sources.insert(&key(prefix), *class as u32, 0)
            }
            MapChange::DeleteSource { prefix } => self.sources.remove(&key(prefix)),
            MapChange::PutEndpoint { key, value }
            | MapChange::UpdateEndpoint { key, value }
            | MapChange::RetireEndpoint { key, value } => {
                self.endpoints.insert(key, EndpointEntry::from(*value), 0)
            }
            MapChange::DeleteEndpoint { key } => self.endpoints.remove(key),
            MapChange::PutFrontend { key, value } => self.frontends.insert(key, value, 0),
            MapChange::DeleteFrontend { key } => self.frontends.remove(key),
        }
    }

    /// Reads the content of the maps: a previous agent's, if they were pinned.
    pub fn installed(&self) -> Installed {
        let prefix = |key: Key<_>| SourcePrefix {
            address: key.data(),
            bits: key.prefix_len(),
        };
        let source = |(key, class)| (prefix(key), SourceClass::from_index(class));
        let endpoint = |(key, entry): (_, EndpointEntry)| (key, entry.value);
        Installed {
            frontends: self.frontends.iter().flatten().collect(),
            endpoints: self.endpoints.iter().flatten().map(endpoint).collect(),
            sources: self.sources.iter().flatten().map(source).collect(),
        }
    }

    /// The given endpoints to which a connection was sent ([`EndpointEntry::met_ns`]).
    pub fn met(&self, endpoints: &[EndpointKey]) -> Vec<EndpointKey> {
        let entry = |key: &EndpointKey| self.endpoints.get(key, 0);
        let is_met = |key: &&EndpointKey| entry(key).is_ok_and(|entry| entry.met_ns != 0);
        endpoints.iter().filter(is_met).copied().collect()
    }

    /// Sets the flags of devices ([`device_flag`](pathproof_wire::service::device_flag)) and clears
    /// all others. If one device is refused, the rest are still set.
    pub fn set_devices(&mut self, wanted: &BTreeMap<u32, u32>) -> Result<(), MapsError> {
        let standing: BTreeMap<u32, u32> = self.devices.iter().flatten().collect();
        for index in standing.keys().filter(|index| !wanted.contains_key(index)) {
            let _ = self.devices.remove(index);
        }
        let mut result = Ok(());
        for (index, flags) in wanted {
            if standing.get(index) != Some(flags)
                && let Err(error) = self.devices.insert(index, flags, 0)
            {
                result = Err(refused("write to", map::DEVICES)(error));
            }
        }
        result
    }
}

fn endpoint(change: &MapChange) -> Option<(EndpointKey, EndpointEntry)> {
    match change {
        MapChange::PutEndpoint { key, value }
        | MapChange::UpdateEndpoint { key, value }
        | MapChange::RetireEndpoint { key, value } => Some((*key, EndpointEntry::from(*value))),
        _ => None,
    }
}

fn frontend(change: &MapChange) -> Option<(FrontendKey, FrontendValue)> {
    match change {
        MapChange::PutFrontend { key, value } => Some((*key, *value)),
        _ => None,
    }
}

fn udp_port(change: &MapChange) -> Option<Port> {
    match change {
        MapChange::PutFrontend { key, .. } => (key.protocol == UDP).then_some(key.port),
        MapChange::PutEndpoint { key, value } | MapChange::UpdateEndpoint { key, value } => {
            (value.flags & endpoint_flag::UDP != 0).then_some(key.port)
        }
        _ => None,
    }
}

/// The port of a removed entry, which may belong to a UDP Service.
fn gone_port(change: &MapChange) -> Option<Port> {
    match change {
        MapChange::DeleteFrontend { key } => (key.protocol == UDP).then_some(key.port),
        MapChange::DeleteEndpoint { key } => Some(key.port),
        _ => None,
    }
}

fn key(prefix: &SourcePrefix) -> Key<[u8; 16]> {
    Key::new(prefix.bits, prefix.address)
}
