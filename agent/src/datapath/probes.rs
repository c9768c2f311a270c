//! The maps of the sentinel's probes: registers what will be sent, reads what was seen of it, waits
//! for what the programs tell. What a probe's stamps mean is not known here.
//!
//! All by handles of their own, so that a prober can run on a thread of its own while the observer's
//! maps stay where they are.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use agent_common::abi::map;
use agent_common::evidence::{Pending, PendingKey};
use agent_common::probe::{HostProbe, Probe, ProbeEvent, ProbeKey};
use agent_common::service::Family;
use aya::Ebpf;
use aya::maps::{HashMap, Map, MapData, MapError, RingBuf};
use thiserror::Error;

use super::load::LoadError;

/// A map of the probes could not be opened, read or written.
#[derive(Debug, Error)]
pub enum ProbeMapError {
    /// The object lacks it.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// No further handle.
    #[error("cannot open the map {map} once more: {source}")]
    Handle {
        /// Its name.
        map: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// The kernel refused.
    #[error("cannot {operation} the map {map}: {source}")]
    Map {
        /// `open`, `read`, `write to`.
        operation: &'static str,
        /// Its name.
        map: &'static str,
        /// Why not.
        source: MapError,
    },
}

/// The maps of the sentinel's probes, and the observer's map of connections to look things up in.
pub struct ProbeMaps {
    probes: HashMap<MapData, ProbeKey, Probe>,
    sockets: HashMap<MapData, u64, HostProbe>,
    events: RingBuf<MapData>,
    connections: HashMap<MapData, PendingKey, Pending>,
}

impl ProbeMaps {
    /// Opens them. `pending` is the map of connections, which the object holds no more once a
    /// sampler took it.
    pub fn open(ebpf: &Ebpf, pending: BorrowedFd<'_>) -> Result<Self, ProbeMapError> {
        let connections = Map::HashMap(handle(map::PENDING, pending)?);
        Ok(Self {
            probes: open(ebpf, map::PROBES)?,
            sockets: open(ebpf, map::HOST_PROBES)?,
            events: open(ebpf, map::PROBE_EVENTS)?,
            connections: HashMap::try_from(connections).map_err(refused("open", map::PENDING))?,
        })
    }

    /// Registers a probe that is about to be sent; from now on the echo answers it. `flags`: bits of
    /// [`probe_flag`](agent_common::probe::probe_flag). What stood under the key is forgotten.
    pub fn register(&mut self, key: ProbeKey, flags: u32) -> Result<(), ProbeMapError> {
        let probe = Probe {
            flags,
            ..Probe::default()
        };
        self.probes
            .insert(key, probe, 0)
            .map_err(refused("write to", map::PROBES))
    }

    /// What was seen of a probe; nothing where none is registered.
    pub fn read(&self, key: &ProbeKey) -> Result<Option<Probe>, ProbeMapError> {
        match self.probes.get(key, 0) {
            Ok(probe) => Ok(Some(probe)),
            Err(MapError::KeyNotFound) => Ok(None),
            Err(source) => Err(refused("read", map::PROBES)(source)),
        }
    }

    /// Forgets a probe: no packet of it is answered any more. One that is not there is none.
    pub fn remove(&mut self, key: &ProbeKey) {
        let _ = self.probes.remove(key);
    }

    /// Lets the first SYN of the socket with this cookie (`SO_COOKIE`) be a probe. To be called
    /// before its `connect`.
    pub fn register_socket(&mut self, cookie: u64) -> Result<(), ProbeMapError> {
        self.sockets
            .insert(cookie, HostProbe::default(), 0)
            .map_err(refused("write to", map::HOST_PROBES))
    }

    /// What is known of a socket that was registered.
    pub fn socket(&self, cookie: u64) -> Option<HostProbe> {
        self.sockets.get(&cookie, 0).ok()
    }

    /// Forgets a socket; its probe stays until it is removed.
    pub fn remove_socket(&mut self, cookie: u64) {
        let _ = self.sockets.remove(&cookie);
    }

    /// What the observer knows of the TCP connection with this initial sequence number: bits of
    /// [`state`](agent_common::evidence::state). Nothing where it does not follow it.
    pub fn connection_state(&self, isn: u32, family: Family) -> Option<u32> {
        let key = PendingKey {
            isn,
            family: family as u32,
        };
        self.connections
            .get(&key, 0)
            .ok()
            .map(|pending| pending.state)
    }

    /// Readable while [`next_event`](Self::next_event) has something to tell.
    pub fn events_fd(&self) -> RawFd {
        self.events.as_raw_fd()
    }

    /// The oldest event that was not read yet.
    pub fn next_event(&mut self) -> Option<ProbeEvent> {
        // A record of another size is not of this layout: there is none.
        while let Some(record) = self.events.next() {
            if record.len() >= size_of::<ProbeEvent>() {
                // SAFETY: long enough, read unaligned, and `ProbeEvent` takes any bytes.
                return Some(unsafe { record.as_ptr().cast::<ProbeEvent>().read_unaligned() });
            }
        }
        None
    }
}

/// Another handle of a map of the object, as the type it is used as.
fn open<T: TryFrom<Map, Error = MapError>>(
    ebpf: &Ebpf,
    name: &'static str,
) -> Result<T, ProbeMapError> {
    let map = match ebpf.map(name) {
        Some(Map::HashMap(data)) => Map::HashMap(handle(name, data.fd().as_fd())?),
        Some(Map::RingBuf(data)) => Map::RingBuf(handle(name, data.fd().as_fd())?),
        _ => Err(LoadError::Missing { kind: "map", name })?,
    };
    T::try_from(map).map_err(refused("open", name))
}

fn handle(map: &'static str, fd: BorrowedFd<'_>) -> Result<MapData, ProbeMapError> {
    let fd = fd
        .try_clone_to_owned()
        .map_err(|source| ProbeMapError::Handle { map, source })?;
    MapData::from_fd(fd).map_err(refused("open", map))
}

fn refused(operation: &'static str, map: &'static str) -> impl FnOnce(MapError) -> ProbeMapError {
    move |source| ProbeMapError::Map {
        operation,
        map,
        source,
    }
}

/// A prober may take them to its own thread.
const _: fn() = || {
    fn sent<T: Send>() {}
    sent::<ProbeMaps>();
};
