//! Gives the agent the connections to a port that it does not hold. The agent's listeners have other ports,
//! and a program in the network namespace selects them at the kernel's listener lookup
//! (docs/internal/design/shell.md#port-takeover).
//!
//! The program is never pinned: however the process ends, the program ends with it, and the next connection
//! goes to the port's owner again.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use aya::Ebpf;
use aya::maps::{Array, HashMap, MapData, MapError, SockMap};
use aya::programs::sk_lookup::SkLookupLink;
use aya::programs::{ProgramError, SkLookup};
use pathproof_facts::time::Mono;
use pathproof_shared::causes::chain;
use pathproof_wire::abi::{map, program};
use pathproof_wire::service::{Address, Family};
use pathproof_wire::steer::{
    ALIVE_NS, ANY_V4, ANY_V6, Dialled, HEALTHZ, SERVICES, SteerRule, port_bit, steer_flag,
};
use thiserror::Error;

use super::listeners::listeners;
use super::load::{self, MapsError, insist, refused, take, write};
use super::succession::{Marks, Succession};

/// Addresses of the node's interfaces, one per line.
const IPV6_ADDRESSES: &str = "/proc/thread-self/net/if_inet6";
/// The network namespace that the agent is in.
const NAMESPACE: &str = "/proc/thread-self/ns/net";

#[derive(Debug, Error)]
pub enum SteerError {
    #[error("connections cannot be steered: the observer is not loaded")]
    NoObserver,
    #[error(
        "the kernel refused to steer connections ({}): pathproof needs Linux 6.1 or newer",
        chain(source)
    )]
    Program { source: ProgramError },
    #[error(transparent)]
    Maps(#[from] MapsError),
    #[error("cannot open the network namespace {NAMESPACE}: {source}")]
    Namespace { source: io::Error },
}

/// Connections to steer, and the listener that they go to.
pub struct Steer {
    /// Index of the rule: `pathproof_wire::steer::HEALTHZ` or `ADMIN`.
    pub index: u32,
    pub rule: SteerRule,
    /// A listening TCP socket, for both families if the rule covers both. It must be open until the
    /// program is attached.
    pub listener: RawFd,
}

/// The attached program, and the maps by which it is controlled.
pub struct Attached {
    pub steering: Steering,
    pub owners: Owners,
    pub ports: ServicePorts,
    pub pulse: Pulse,
}

/// The attached program. Dropping it detaches it: the next connection goes to the port's owner.
pub struct Steering {
    _link: SkLookupLink,
    pub succession: Arc<Succession>,
    /// Closing these would empty the map, even though the program holds it as well.
    _sockets: SockMap<MapData>,
    rules: Array<MapData, SteerRule>,
    /// The rule of the healthz port while another listener answers load balancers. Meanwhile the program
    /// has it as [`SteerRule::waiting`].
    held: Option<SteerRule>,
}

impl Steering {
    /// Attaches the program behind those already attached: the choice of the last one counts. Other listeners
    /// at `port` are read before the program is attached. Connections to Services' health check node ports go
    /// to the listener `services`, once [`ServicePorts::set`] has set the ports.
    ///
    /// If a predecessor or the port's owner already answers load balancers, their connections stay
    /// there until [`Steering::answer`], or come here once neither would answer.
    pub(super) fn attach(
        ebpf: &mut Ebpf,
        port: u16,
        steers: &[Steer],
        services: Option<RawFd>,
        marks: Marks,
    ) -> Result<Attached, SteerError> {
        let mut sockets: SockMap<MapData> = take(ebpf, map::STEER_SOCKETS)?;
        let mut rules: Array<MapData, SteerRule> = take(ebpf, map::STEER_RULES)?;
        // The rule of the port on which load balancers probe the node.
        let healthz = steers.iter().find(|steer| steer.index == HEALTHZ);
        let rule = healthz.map(|steer| steer.rule).unwrap_or_default();
        let mut owners = Owners {
            map: take(ebpf, map::STEER_OWNERS)?,
            port,
            rule,
            known: BTreeSet::new(),
            assumed: false,
        };
        if let Err(error) = owners.look() {
            tracing::warn!(%error, port, "other listeners on the healthz port cannot be read: the \
                                          node's own connections are not steered");
            owners.assume();
        }
        let listeners = steers.iter().map(|steer| (steer.index, steer.listener));
        for (index, listener) in listeners.chain(services.map(|listener| (SERVICES, listener))) {
            let failed = refused("write to", map::STEER_SOCKETS);
            sockets.set(index, &listener, 0).map_err(failed)?;
        }
        for steer in steers {
            let rule = match steer.index {
                HEALTHZ => steer.rule.waiting(),
                _ => steer.rule,
            };
            write(&mut rules, map::STEER_RULES, steer.index, rule)?;
        }
        let ports = ServicePorts {
            map: take(ebpf, map::STEER_PORTS)?,
            words: BTreeMap::new(),
        };
        let pulse = Pulse(take(ebpf, map::STEER_UNTIL)?);
        let namespace = File::open(NAMESPACE).map_err(|source| SteerError::Namespace { source })?;
        let failed = |source| SteerError::Program { source };
        let program = load(ebpf)?;
        let id = program.info().map_err(failed)?.id();
        let succession = Succession::begin(id, namespace, marks);
        let link = program.attach(&succession.namespace).map_err(failed)?;
        let link = program.take_link(link).map_err(failed)?;
        let mut steering = Self {
            held: Some(rule),
            rules,
            _link: link,
            succession: Arc::new(succession),
            _sockets: sockets,
        };
        if !steering.succession.follows_an_agent() && !owners.answer_outsiders() {
            steering.answer()?;
        }
        Ok(Attached {
            steering,
            owners,
            ports,
            pulse,
        })
    }

    /// Steers load balancers' connections to this agent, if that is not done yet.
    pub fn answer(&mut self) -> Result<(), SteerError> {
        if let Some(rule) = self.held {
            write(&mut self.rules, map::STEER_RULES, HEALTHZ, rule)?;
            self.held = None;
            // After the rule is written, because a predecessor ends when it finds this mark.
            self.succession.answer();
        }
        Ok(())
    }

    pub fn answers(&self) -> bool {
        self.held.is_none()
    }
}

/// Loads the program, if it is not loaded.
pub(super) fn load(ebpf: &mut Ebpf) -> Result<&mut SkLookup, SteerError> {
    let program: &mut SkLookup = load::program(ebpf, program::STEER).map_err(MapsError::from)?;
    if program.fd().is_err() {
        insist(|| program.load()).map_err(|source| SteerError::Program { source })?;
    }
    Ok(program)
}

/// Map of Services' health check node ports. The program reads it.
pub struct ServicePorts {
    map: Array<MapData, u64>,
    words: BTreeMap<u32, u64>,
}

impl ServicePorts {
    /// Steers connections to exactly these ports to the agent.
    ///
    /// # Errors
    /// The map cannot be written: the remaining ports are unchanged.
    pub fn set(&mut self, ports: impl Iterator<Item = (Family, u16)>) -> Result<(), MapsError> {
        let mut wanted: BTreeMap<u32, u64> = self.words.keys().map(|word| (*word, 0)).collect();
        for (family, port) in ports {
            let (word, bit) = port_bit(family, port);
            *wanted.entry(word).or_default() |= bit;
        }
        for (word, bits) in wanted {
            if self.words.get(&word) == Some(&bits) {
                continue;
            }
            write(&mut self.map, map::STEER_PORTS, word, bits)?;
            match bits {
                0 => self.words.remove(&word),
                _ => self.words.insert(word, bits),
            };
        }
        Ok(())
    }
}

/// Map in which the answering thread shows that it runs. While it does not, the program leaves connections to
/// the port's owner.
pub struct Pulse(Array<MapData, u64>);

impl Pulse {
    /// Interval of beats: several within the time that a beat lasts.
    pub const INTERVAL: Duration = Duration::from_millis(500);

    /// Shows that the thread runs at this moment.
    ///
    /// # Errors
    /// The map cannot be written: steering ends when the last beat has expired.
    pub fn beat(&mut self, now: Mono) -> Result<(), MapsError> {
        write(&mut self.0, map::STEER_UNTIL, 0, now.0 + ALIVE_NS)
    }
}

/// Map of the addresses at which other processes listen on the port. The program reads it.
pub struct Owners {
    map: HashMap<MapData, Address, u32>,
    port: u16,
    rule: SteerRule,
    known: BTreeSet<Address>,
    /// Whether a listener is assumed at every address, because the kernel does not list listeners.
    assumed: bool,
}

impl Owners {
    /// Reads the other listeners and updates the map; returns whether there are any.
    ///
    /// # Errors
    /// The kernel does not list them, or the map cannot be written: the previous content is kept.
    pub fn look(&mut self) -> io::Result<bool> {
        let found = listeners(self.port)?;
        // Insert before removing, so that a connection in between finds an old or a new address.
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
        self.assumed = false;
        Ok(!self.known.is_empty())
    }

    /// Whether the other listeners accept all outside connections that are steered now, in every
    /// family that the machine has. False if the kernel does not list them.
    pub fn answer_outsiders(&self) -> bool {
        !self.assumed && hear_all(&self.known, &self.rule, has_ipv6)
    }

    fn assume(&mut self) {
        self.assumed = true;
        for address in [ANY_V4, ANY_V6] {
            if self.map.insert(address, 1, 0).is_ok() {
                self.known.insert(address);
            }
        }
    }
}

/// Whether listeners at the addresses `known` accept all connections that the rule selects.
fn hear_all(known: &BTreeSet<Address>, rule: &SteerRule, has_ipv6: impl Fn() -> bool) -> bool {
    if rule.flags & steer_flag::EVERYWHERE == 0 {
        let dialled = Dialled {
            source: rule.address,
            destination: rule.address,
            port: rule.port,
        };
        return known.contains(&rule.address) || known.contains(&dialled.any());
    }
    known.contains(&ANY_V4) && (known.contains(&ANY_V6) || !has_ipv6())
}

/// Whether hosts beyond the link can reach the machine by IPv6.
fn has_ipv6() -> bool {
    let addresses = fs::read_to_string(IPV6_ADDRESSES).unwrap_or_default();
    addresses.lines().any(is_global)
}

/// Whether the address in a line has global scope. Fields of a line: address, interface index,
/// prefix length, scope, flags, name.
fn is_global(line: &str) -> bool {
    line.split_whitespace().nth(3) == Some("00")
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use pathproof_facts::node_context::address;
    use rstest::rstest;

    use super::*;

    fn known(addresses: &[&str]) -> BTreeSet<Address> {
        addresses.iter().map(|text| parse(text)).collect()
    }

    fn parse(text: &str) -> Address {
        address(&text.parse::<IpAddr>().unwrap())
    }

    #[rstest]
    #[case::nobody(&[], [false, false])]
    #[case::loopback(&["127.0.0.1", "::1"], [false, false])]
    #[case::one_of_the_nodes(&["192.0.2.10", "2001:db8::10"], [false, false])]
    #[case::ipv4(&["0.0.0.0"], [false, true])]
    #[case::ipv6_alone(&["::"], [false, false])]
    #[case::both(&["0.0.0.0", "::"], [true, true])]
    fn listeners_that_answer_everyone(#[case] at: &[&str], #[case] expected: [bool; 2]) {
        let rule = SteerRule {
            flags: steer_flag::EVERYWHERE,
            ..SteerRule::default()
        };
        let found = [true, false].map(|ipv6| hear_all(&known(at), &rule, || ipv6));
        assert_eq!(found, expected, "with IPv6, without");
    }

    #[rstest]
    #[case::nobody(&[], false)]
    #[case::at_it(&["192.0.2.10"], true)]
    #[case::at_another(&["192.0.2.11", "127.0.0.1"], false)]
    #[case::at_all_of_its_family(&["0.0.0.0"], true)]
    #[case::at_all_of_the_other(&["::"], false)]
    fn listeners_that_answer_one_address(#[case] at: &[&str], #[case] expected: bool) {
        let rule = SteerRule {
            address: parse("192.0.2.10"),
            ..SteerRule::default()
        };
        assert_eq!(hear_all(&known(at), &rule, || true), expected);
    }

    #[rstest]
    #[case("00000000000000000000000000000001 01 80 10 80       lo", false)]
    #[case("fe800000000000000000000000000001 02 40 20 80     eth0", false)]
    #[case("20010db8000000000000000000000010 02 40 00 80     eth0", true)]
    #[case("", false)]
    fn only_global_ipv6_addresses_count(#[case] line: &str, #[case] expected: bool) {
        assert_eq!(is_global(line), expected);
    }
}
