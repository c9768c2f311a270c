//! Gives the agent the connections to a port that it does not hold: its listeners have ports of
//! their own, and a program in the network namespace picks them when the kernel looks for who
//! listens (docs/adr/0010-port-takeover.md).
//!
//! Never pinned: the program goes with the process, however that ends, and the port is its owner's
//! again with the next connection.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd as _, RawFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::{Arc, OnceLock};

use agent_common::abi::{map, program};
use agent_common::service::Address;
use agent_common::steer::{ANY_V4, ANY_V6, Dialled, HEALTHZ, SteerRule, steer_flag};
use aya::Ebpf;
use aya::maps::{Array, HashMap, MapData, MapError, SockMap};
use aya::programs::sk_lookup::SkLookupLink;
use aya::programs::{ProgramError, SkLookup};
use thiserror::Error;

use super::listeners::listeners;
use super::load::{self, MapsError, insist, refused, take};
use super::syscall::lookup_programs;
use crate::causes::chain;

/// Addresses of the node's interfaces, one to a line.
const IPV6_ADDRESSES: &str = "/proc/thread-self/net/if_inet6";
/// The network namespace that the agent is in.
const NAMESPACE: &str = "/proc/thread-self/ns/net";

/// Connections cannot be steered.
#[derive(Debug, Error)]
pub enum SteerError {
    /// Nothing of pathproof's is in the kernel.
    #[error("connections cannot be steered: there is no observer")]
    NoObserver,
    /// The kernel refused the program.
    #[error(
        "the kernel refused to steer connections ({}): it takes Linux 5.9",
        chain(source)
    )]
    Program {
        /// The kernel's error.
        source: ProgramError,
    },
    /// A map or the program is missing, or a map cannot be written.
    #[error(transparent)]
    Maps(#[from] MapsError),
    /// The namespace cannot be opened.
    #[error("cannot open the network namespace {NAMESPACE}: {source}")]
    Namespace {
        /// The kernel's error.
        source: io::Error,
    },
}

/// Connections to steer, and the listener that they go to.
pub struct Steer {
    /// Index of the rule: `agent_common::steer::HEALTHZ` or `ADMIN`.
    pub index: u32,
    /// Rule that selects the connections.
    pub rule: SteerRule,
    /// A listening TCP socket, for both families where the rule is. Needs to be open until this is
    /// attached, no longer.
    pub listener: RawFd,
}

/// The program, attached. Dropped, it is detached: the next connection is the port owner's.
pub struct Steering {
    _link: SkLookupLink,
    succession: Arc<Succession>,
    /// Closing these would empty them, though the program holds them as well.
    _sockets: SockMap<MapData>,
    rules: Array<MapData, SteerRule>,
    /// The rule of the healthz port, while load balancers are answered by somebody else.
    held: Option<SteerRule>,
}

impl Steering {
    /// Attaches the program behind those that stand: its choice counts from now on. The first look
    /// at who else listens at `port` was taken before.
    ///
    /// If a predecessor or the port's owner answers load balancers already, their connections stay
    /// there until [`Steering::answer`].
    pub(super) fn attach(
        ebpf: &mut Ebpf,
        port: u16,
        steers: &[Steer],
    ) -> Result<(Self, Owners), SteerError> {
        let mut sockets: SockMap<MapData> = take(ebpf, map::STEER_SOCKETS)?;
        let mut rules: Array<MapData, SteerRule> = take(ebpf, map::STEER_RULES)?;
        // The rule of the port that the node asks its load balancers to ask.
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
            tracing::warn!(%error, port, "who else listens there cannot be told: the node's own connections are left to whoever does");
            owners.assume();
        }
        for steer in steers {
            let failed = refused("write to", map::STEER_SOCKETS);
            sockets
                .set(steer.index, &steer.listener, 0)
                .map_err(failed)?;
            if steer.index != HEALTHZ {
                set(&mut rules, steer.index, steer.rule)?;
            }
        }
        let namespace = File::open(NAMESPACE).map_err(|source| SteerError::Namespace { source })?;
        let failed = |source| SteerError::Program { source };
        let program = load(ebpf)?;
        let id = program.info().map_err(failed)?.id();
        let succession = Succession::begin(id, namespace);
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
        Ok((steering, owners))
    }

    /// Has load balancers' connections come here, if they do not.
    ///
    /// # Errors
    /// The rule cannot be written: they stay where they are.
    pub fn answer(&mut self) -> Result<(), SteerError> {
        if let Some(rule) = self.held {
            set(&mut self.rules, HEALTHZ, rule)?;
            self.held = None;
            // Only now: a predecessor ends when it finds the name.
            self.succession.answer();
        }
        Ok(())
    }

    /// Whether load balancers' connections come here.
    pub fn answers(&self) -> bool {
        self.held.is_none()
    }

    pub fn succession(&self) -> &Arc<Succession> {
        &self.succession
    }
}

fn set(
    rules: &mut Array<MapData, SteerRule>,
    index: u32,
    rule: SteerRule,
) -> Result<(), MapsError> {
    let failed = refused("write to", map::STEER_RULES);
    rules.set(index, rule, 0).map_err(failed)
}

/// Loads the program, if it is not.
pub(super) fn load(ebpf: &mut Ebpf) -> Result<&mut SkLookup, SteerError> {
    let program: &mut SkLookup = load::program(ebpf, program::STEER).map_err(MapsError::from)?;
    if program.fd().is_err() {
        insist(|| program.load()).map_err(|source| SteerError::Program { source })?;
    }
    Ok(program)
}

/// Other listeners at the port, as the program reads them.
pub struct Owners {
    map: HashMap<MapData, Address, u32>,
    port: u16,
    rule: SteerRule,
    known: BTreeSet<Address>,
    /// Nobody was seen: the kernel does not tell.
    assumed: bool,
}

impl Owners {
    /// Looks, and tells the program; says whether anyone listens.
    ///
    /// # Errors
    /// The kernel does not tell, or the map cannot be written: what was told before stands.
    pub fn look(&mut self) -> io::Result<bool> {
        let found = listeners(self.port)?;
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
        self.assumed = false;
        Ok(!self.known.is_empty())
    }

    /// Whether whoever listens hears everyone from outside whose connections are steered now, in
    /// every family that the machine has. No where the kernel does not tell.
    pub fn answer_outsiders(&self) -> bool {
        !self.assumed && hear_all(&self.known, &self.rule, has_ipv6)
    }

    /// Takes it that somebody listens at every address.
    fn assume(&mut self) {
        self.assumed = true;
        for address in [ANY_V4, ANY_V6] {
            if self.map.insert(address, 1, 0).is_ok() {
                self.known.insert(address);
            }
        }
    }
}

/// Whether those who listen at the addresses `known` hear all that the rule names.
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

/// Whether anyone outside this link can reach the machine by IPv6.
fn has_ipv6() -> bool {
    let addresses = fs::read_to_string(IPV6_ADDRESSES).unwrap_or_default();
    addresses.lines().any(is_global)
}

/// Whether the address of a line has global scope. Fields of a line: the address, the interface's
/// index, the prefix's length, the scope, flags and a name.
fn is_global(line: &str) -> bool {
    line.split_whitespace().nth(3) == Some("00")
}

/// Programs that were attached behind this agent's program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behind {
    /// Nobody.
    Nobody,
    /// A program of somebody else's: it may take the connections, or have to do with others.
    Stranger,
    /// Another agent's: the successor.
    Agent {
        /// Load balancers' connections go to it; before, they still come here.
        answers: bool,
        /// It knows the cluster and keeps the maps of expectations, with ids of its own; before, they
        /// are kept from here.
        plans: bool,
    },
}

/// Name that an agent holds while it steers: this program is an agent's.
const STEERS: &str = "steer";
/// Name that it holds once load balancers' connections go to it.
const ANSWERS: &str = "answers";
/// Name that it holds once the maps of expectations are as it planned them.
const PLANS: &str = "plans";

/// Succession to this agent's connections: which programs were attached behind its own, and whether
/// one of them is another agent's.
///
/// The kernel reports a program's owner only with CAP_SYS_ADMIN. So an agent announces it itself:
/// while it steers, it holds an abstract Unix socket that is named after its program, another one
/// once load balancers' connections come to it, and one once it keeps the maps of expectations.
/// Like the program, such a name belongs to a network namespace and goes with the process, however
/// that ends.
pub struct Succession {
    program: u32,
    namespace: File,
    /// Bear the names; nothing where they could not be had.
    _steers: Option<UnixDatagram>,
    answers: OnceLock<UnixDatagram>,
    plans: OnceLock<UnixDatagram>,
}

impl Succession {
    /// To be called before the program is attached: who sees it must find its name.
    fn begin(program: u32, namespace: File) -> Self {
        Self {
            program,
            namespace,
            _steers: bear(STEERS, program),
            answers: OnceLock::new(),
            plans: OnceLock::new(),
        }
    }

    /// Load balancers' connections come here from now on.
    fn answer(&self) {
        self.bear_once(&self.answers, ANSWERS);
    }

    /// The maps of expectations are kept from here from now on: to be called before they are read.
    pub fn plan(&self) {
        self.bear_once(&self.plans, PLANS);
    }

    /// A name that could not be had is tried for again.
    fn bear_once(&self, place: &OnceLock<UnixDatagram>, name: &str) {
        if place.get().is_none()
            && let Some(socket) = bear(name, self.program)
        {
            let _ = place.set(socket);
        }
    }

    /// Whether another agent's connections came before: its program stands, attached before this
    /// one, or about to be followed by it.
    pub fn follows_an_agent(&self) -> bool {
        let programs = lookup_programs(self.namespace.as_fd()).unwrap_or_default();
        let mut before = programs.iter().take_while(|id| **id != self.program);
        before.any(|id| bears(ANSWERS, *id))
    }

    /// Asks the kernel.
    pub fn ask(&self) -> Behind {
        let programs = lookup_programs(self.namespace.as_fd()).unwrap_or_default();
        behind(&programs, self.program, bears)
    }
}

fn behind(programs: &[u32], own: u32, bears: impl Fn(&str, u32) -> bool) -> Behind {
    let later = || programs.iter().skip_while(|id| **id != own).skip(1);
    if later().next().is_none() {
        Behind::Nobody
    } else if later().any(|id| bears(STEERS, *id)) {
        Behind::Agent {
            answers: later().any(|id| bears(ANSWERS, *id)),
            plans: later().any(|id| bears(PLANS, *id)),
        }
    } else {
        Behind::Stranger
    }
}

fn bear(name: &str, program: u32) -> Option<UnixDatagram> {
    let named = name_of(name, program).and_then(|name| UnixDatagram::bind_addr(&name));
    if let Err(error) = &named {
        tracing::warn!(%error, "other agents cannot tell whose the steering program is");
    }
    named.ok()
}

/// Whether an agent holds the name of this program. One that may not be spoken to is there.
fn bears(name: &str, program: u32) -> bool {
    let asked = || UnixDatagram::unbound()?.connect_addr(&name_of(name, program)?);
    match asked() {
        Ok(()) => true,
        Err(error) => error.kind() == io::ErrorKind::PermissionDenied,
    }
}

fn name_of(what: &str, program: u32) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("pathproof/{what}/{program}"))
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use rstest::rstest;

    use super::*;
    use agent_core::expect::node::address;

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
    fn who_answers_everyone(#[case] at: &[&str], #[case] expected: [bool; 2]) {
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
    fn who_answers_at_one_address(#[case] at: &[&str], #[case] expected: bool) {
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
    fn addresses_that_are_reached_from_far(#[case] line: &str, #[case] expected: bool) {
        assert_eq!(is_global(line), expected);
    }

    #[rstest]
    #[case::alone(&[7], Behind::Nobody)]
    #[case::last(&[8, 3, 7], Behind::Nobody)]
    #[case::successor(&[3, 7, 8], Behind::Agent { answers: true, plans: true })]
    #[case::successor_that_begins(&[3, 7, 9], Behind::Agent { answers: false, plans: false })]
    #[case::successor_without_a_view(&[3, 7, 6], Behind::Agent { answers: true, plans: false })]
    #[case::two_successors(&[7, 8, 9], Behind::Agent { answers: true, plans: true })]
    #[case::stranger(&[8, 7, 3], Behind::Stranger)]
    #[case::successor_behind_a_stranger(&[7, 3, 8], Behind::Agent { answers: true, plans: true })]
    #[case::detached(&[8, 3], Behind::Nobody)]
    fn only_an_agent_that_was_attached_later_succeeds(
        #[case] programs: &[u32],
        #[case] expected: Behind,
    ) {
        let bears = |name: &str, id| match name {
            STEERS => [6, 8, 9].contains(&id),
            ANSWERS => id == 6 || id == 8,
            _ => id == 8,
        };
        assert_eq!(behind(programs, 7, bears), expected);
    }

    #[test]
    fn names_go_with_their_agent() {
        // No id that a kernel gives.
        let program = u32::MAX - std::process::id();
        let all = [STEERS, ANSWERS, PLANS];
        let borne = || all.map(|name| bears(name, program));
        assert_eq!(borne(), [false; 3]);
        let namespace = File::open("/proc/thread-self/ns/net").unwrap();
        let held = Succession::begin(program, namespace);
        assert_eq!(borne(), [true, false, false]);
        held.plan();
        held.plan();
        assert_eq!(borne(), [true, false, true]);
        held.answer();
        assert_eq!(borne(), [true; 3]);
        drop(held);
        assert_eq!(borne(), [false; 3]);
    }
}
