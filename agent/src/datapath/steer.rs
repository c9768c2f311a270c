//! Gives the agent the connections to a port that it does not hold: its listeners have ports of
//! their own, and a program in the network namespace picks them when the kernel looks for who
//! listens (docs/adr/0010-port-takeover.md).
//!
//! Never pinned: the program goes with the process, however that ends, and the port is its owner's
//! again with the next connection.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd, RawFd};

use agent_common::abi::{map, program};
use agent_common::service::Address;
use agent_common::steer::{ANY_V4, ANY_V6, SteerRule, is_loopback};
use aya::Ebpf;
use aya::maps::{Array, HashMap, MapData, MapError, SockMap};
use aya::programs::sk_lookup::SkLookupLink;
use aya::programs::{ProgramError, SkLookup};
use thiserror::Error;

use super::listeners::listeners;
use super::load::{chain, insist};
use super::syscall::lookup_programs;

/// The network namespace that the agent is in.
const NAMESPACE: &str = "/proc/thread-self/ns/net";

/// Why nothing is steered.
#[derive(Debug, Error)]
pub enum SteerError {
    /// Nothing of pathproof's is in the kernel.
    #[error("connections cannot be steered: there is no observer")]
    NoObserver,
    /// The object does not hold what this agent was built for.
    #[error("the eBPF object has no {name}: run cargo xtask build-ebpf")]
    Missing {
        /// Name of the program or map.
        name: &'static str,
    },
    /// The kernel refused the program.
    #[error(
        "the kernel refused to steer connections ({}): it takes Linux 5.9",
        chain(source)
    )]
    Program {
        /// What it said.
        source: ProgramError,
    },
    /// A map could not be written.
    #[error("cannot write to the map {name}: {}", chain(source))]
    Map {
        /// Its name.
        name: &'static str,
        /// What the kernel said.
        source: MapError,
    },
    /// The namespace cannot be opened.
    #[error("cannot open the network namespace {NAMESPACE}: {source}")]
    Namespace {
        /// Why not.
        source: io::Error,
    },
}

/// What is steered where.
pub struct Steer {
    /// Index of the rule: `agent_common::steer::HEALTHZ` or `ADMIN`.
    pub index: u32,
    /// Which connections.
    pub rule: SteerRule,
    /// A listening TCP socket, for both families where the rule is. Needs to be open until this is
    /// attached, no longer.
    pub listener: RawFd,
}

impl AsRawFd for Steer {
    fn as_raw_fd(&self) -> RawFd {
        self.listener
    }
}

/// The program, attached. Dropped, it is detached: the next connection is the port owner's.
pub struct Steering {
    _link: SkLookupLink,
    program: u32,
    namespace: File,
    /// Closing these would empty them, though the program holds them as well.
    _sockets: SockMap<MapData>,
}

impl Steering {
    /// Attaches the program behind those that stand: its choice counts from now on. The first look
    /// at who else listens at `port` was taken before.
    pub(super) fn attach(
        ebpf: &mut Ebpf,
        port: u16,
        steers: &[Steer],
    ) -> Result<(Self, Owners), SteerError> {
        let mut sockets: SockMap<MapData> = take(ebpf, map::STEER_SOCKETS)?;
        let mut rules: Array<MapData, SteerRule> = take(ebpf, map::STEER_RULES)?;
        let mut owners = Owners {
            map: take(ebpf, map::STEER_OWNERS)?,
            port,
            known: BTreeSet::new(),
        };
        if let Err(error) = owners.look() {
            tracing::warn!(%error, port, "who else listens there cannot be told: the node's own connections are left to whoever does");
            owners.assume();
        }
        for steer in steers {
            let failed = |name| move |source| SteerError::Map { name, source };
            rules
                .set(steer.index, steer.rule, 0)
                .map_err(failed(map::STEER_RULES))?;
            sockets
                .set(steer.index, steer, 0)
                .map_err(failed(map::STEER_SOCKETS))?;
        }
        let namespace = File::open(NAMESPACE).map_err(|source| SteerError::Namespace { source })?;
        let (link, program) = attach(ebpf, &namespace)?;
        let steering = Self {
            _link: link,
            program,
            namespace,
            _sockets: sockets,
        };
        Ok((steering, owners))
    }

    /// Whether another program was attached behind this one: that of the agent's successor, as far
    /// as can be told without the privileges to ask for its name.
    pub fn is_succeeded(&self) -> bool {
        let programs = lookup_programs(self.namespace.as_fd()).unwrap_or_default();
        let mut behind = programs.iter().skip_while(|id| **id != self.program);
        behind.nth(1).is_some()
    }
}

fn take<T: TryFrom<aya::maps::Map, Error = MapError>>(
    ebpf: &mut Ebpf,
    name: &'static str,
) -> Result<T, SteerError> {
    let map = ebpf.take_map(name).ok_or(SteerError::Missing { name })?;
    T::try_from(map).map_err(|source| SteerError::Map { name, source })
}

fn attach(ebpf: &mut Ebpf, namespace: &File) -> Result<(SkLookupLink, u32), SteerError> {
    let refused = |source| SteerError::Program { source };
    let program: &mut SkLookup = ebpf
        .program_mut(program::STEER)
        .and_then(|program| program.try_into().ok())
        .ok_or(SteerError::Missing {
            name: program::STEER,
        })?;
    insist(|| program.load()).map_err(refused)?;
    let id = program.info().map_err(refused)?.id();
    let link = program.attach(namespace).map_err(refused)?;
    let link = program.take_link(link).map_err(refused)?;
    Ok((link, id))
}

/// Who else listens at the port, as the program is told.
pub struct Owners {
    map: HashMap<MapData, Address, u32>,
    port: u16,
    known: BTreeSet<Address>,
}

impl Owners {
    /// Looks, and tells the program; says whether anyone listens.
    ///
    /// # Errors
    /// The kernel does not tell, or the map cannot be written: what was told before stands.
    pub fn look(&mut self) -> io::Result<bool> {
        let found = listeners(self.port, None)?;
        // Those that came first: until both are done a connection may find one of the two.
        for address in found.difference(&self.known) {
            self.map.insert(address, 1, 0).map_err(io::Error::other)?;
        }
        for address in self.known.difference(&found) {
            match self.map.remove(address) {
                Ok(()) | Err(MapError::KeyNotFound) => {}
                Err(error) => return Err(io::Error::other(error)),
            }
        }
        self.known = found;
        Ok(!self.known.is_empty())
    }

    /// Whether whoever listens hears outsiders as well.
    pub fn answer_outsiders(&self) -> bool {
        self.known.iter().any(|address| !is_loopback(address))
    }

    /// Takes it that somebody listens at every address.
    fn assume(&mut self) {
        for address in [ANY_V4, ANY_V6] {
            if self.map.insert(address, 1, 0).is_ok() {
                self.known.insert(address);
            }
        }
    }
}
