//! Steering of new connections to the agent's listeners, even if another process listens at the dialled
//! port: the rules in the layout of their map, and their meaning.

use crate::service::{Address, FAMILIES, Family};

/// Number of rules. Their sockets have the same indexes.
pub const RULES: u32 = 2;
/// The rule of `/healthz` and `/livez`.
pub const HEALTHZ: u32 = 0;
/// The rule of the admin port.
pub const ADMIN: u32 = 1;
/// Index of the socket for connections to Services' health check node ports.
pub const SERVICES: u32 = 2;
/// Number of sockets: one for each rule, and the one at [`SERVICES`].
pub const SOCKETS: u32 = 3;

/// Time for which the agent can be expected to answer after its answering thread wrote to the map, in
/// nanoseconds: on a busy node the thread may be late by a second.
pub const ALIVE_NS: u64 = 3_000_000_000;

/// Words of the map of health check node ports, with one bit for each port of each family.
pub const PORT_WORDS: u32 = FAMILIES as u32 * WORDS_OF_FAMILY;
const WORDS_OF_FAMILY: u32 = (1 << 16) / u64::BITS;

/// Word and bit of a port in the map of health check node ports. The port is in host order.
#[inline(always)]
pub fn port_bit(family: Family, port: u16) -> (u32, u64) {
    let word = family as u32 * WORDS_OF_FAMILY + u32::from(port) / u64::BITS;
    (word, 1 << (u32::from(port) % u64::BITS))
}

/// Rule that selects the connections to steer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct SteerRule {
    /// Destination address of the connections, unless [`steer_flag::EVERYWHERE`] is set.
    pub address: Address,
    /// Destination port of the connections in host order; zero means no rule.
    pub port: u32,
    /// Bits of [`steer_flag`].
    pub flags: u32,
}

/// Flags of a [`SteerRule`].
pub mod steer_flag {
    /// All addresses of the node.
    pub const EVERYWHERE: u32 = 1;
    /// The port belongs to pathproof alone, so the node's connections are steered as well.
    pub const OURS: u32 = 2;
    /// The agent is not ready yet. It answers only if nobody else would, which is better than a refusal.
    pub const WAITS: u32 = 4;
}

/// A new connection for which the kernel is about to select a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dialled {
    pub source: Address,
    pub destination: Address,
    /// Port that it dials, in host order.
    pub port: u32,
}

impl SteerRule {
    /// Whether the rule applies to this connection.
    #[inline(always)]
    pub fn names(&self, dialled: &Dialled) -> bool {
        self.port == dialled.port
            && self.port != 0
            && (self.flags & steer_flag::EVERYWHERE != 0 || self.address == dialled.destination)
    }

    /// Whether this connection stays with another process, if one listens at its destination.
    #[inline(always)]
    pub fn yields(&self, dialled: &Dialled, is_frozen: bool) -> bool {
        let is_ours = self.flags & steer_flag::OURS != 0;
        !is_ours && (dialled.is_for_owner() || is_frozen || self.waits())
    }

    /// Whether the agent takes a connection for which an earlier program, such as its predecessor's, has
    /// already selected a listener.
    #[inline(always)]
    pub fn replaces(&self, is_frozen: bool) -> bool {
        !is_frozen && !self.waits()
    }

    /// This rule while its agent is not ready.
    pub fn waiting(self) -> Self {
        let flags = self.flags | steer_flag::WAITS;
        Self { flags, ..self }
    }

    #[inline(always)]
    fn waits(&self) -> bool {
        self.flags & steer_flag::WAITS != 0
    }
}

impl Dialled {
    /// Whether the node itself is the client. Its source is then a loopback address, or equal to the
    /// destination, because a node that dials one of its addresses also uses it as the source. No outside
    /// client can use such a source, because the answer would never leave the node.
    #[inline(always)]
    pub fn is_own(&self) -> bool {
        self.source == self.destination || is_loopback(&self.source)
    }

    /// Whether the connection is for the process that listens at the port, because the node itself is the
    /// client and did not dial [`CHECKS`].
    #[inline(always)]
    pub fn is_for_owner(&self) -> bool {
        self.is_own() && self.destination != CHECKS
    }

    /// The wildcard address of the destination's family.
    #[inline(always)]
    pub fn any(&self) -> Address {
        if is_v4(&self.destination) {
            ANY_V4
        } else {
            ANY_V6
        }
    }
}

/// Wildcard address of IPv4. A listener bound to it accepts connections to every IPv4 address.
pub const ANY_V4: Address = mapped([0; 4]);
/// Wildcard address of IPv6. A listener bound to it accepts connections to every IPv6 address.
pub const ANY_V6: Address = [0; 16];
/// Loopback address where checks made on the node, such as keepalived's, get what clients outside get:
/// everywhere else on the node the port's owner answers. IPv6 has only one loopback address.
pub const CHECKS: Address = mapped([127, 10, 2, 56]);
const LOOPBACK_V6: Address = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];

/// The 16-byte form of an IPv4 address.
#[inline(always)]
pub const fn mapped(v4: [u8; 4]) -> Address {
    let [a, b, c, d] = v4;
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d]
}

#[inline(always)]
fn is_v4(address: &Address) -> bool {
    let [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, ..] = *address else {
        return false;
    };
    true
}

/// Whether the address is unreachable from outside.
#[inline(always)]
pub fn is_loopback(address: &Address) -> bool {
    (is_v4(address) && address[12] == 127) || *address == LOOPBACK_V6
}

#[cfg(test)]
mod tests {
    use core::net::{IpAddr, Ipv6Addr};

    use super::*;

    fn address(text: &str) -> Address {
        match text.parse().expect("an address") {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => Ipv6Addr::octets(&v6),
        }
    }

    fn dialled(source: &str, destination: &str) -> Dialled {
        Dialled {
            source: address(source),
            destination: address(destination),
            port: 10256,
        }
    }

    #[test]
    fn the_node_itself_dials_from_loopback_or_from_what_it_dials() {
        for (source, destination, own) in [
            ("127.0.0.1", "127.0.0.1", true),
            ("127.9.9.9", "192.0.2.10", true),
            ("192.0.2.10", "192.0.2.10", true),
            ("::1", "::1", true),
            ("2001:db8::10", "2001:db8::10", true),
            ("192.0.2.1", "192.0.2.10", false),
            ("126.255.255.255", "192.0.2.10", false),
            ("2001:db8::1", "2001:db8::10", false),
            ("7f00::1", "2001:db8::10", false),
        ] {
            assert_eq!(dialled(source, destination).is_own(), own, "{source}");
        }
    }

    /// Whether the node is the client, and whether the owner answers it.
    #[test]
    fn a_check_on_the_node_gets_the_answer_of_clients_outside_at_one_address() {
        for (source, destination, own, is_for_owner) in [
            ("127.0.0.1", "127.10.2.56", true, false),
            ("127.10.2.56", "127.10.2.56", true, false),
            ("192.0.2.10", "127.10.2.56", false, false),
            ("127.10.2.56", "127.0.0.1", true, true),
            ("127.0.0.1", "127.10.2.57", true, true),
            ("192.0.2.10", "192.0.2.10", true, true),
            ("192.0.2.1", "192.0.2.10", false, false),
        ] {
            let dialled = dialled(source, destination);
            let seen = (dialled.is_own(), dialled.is_for_owner());
            assert_eq!(seen, (own, is_for_owner), "{source} {destination}");
            assert_eq!(SteerRule::default().yields(&dialled, false), is_for_owner);
            assert!(SteerRule::default().yields(&dialled, true), "frozen");
        }
    }

    #[test]
    fn a_rule_names_its_port_and_its_address() {
        let everywhere = SteerRule {
            port: 10256,
            flags: steer_flag::EVERYWHERE,
            ..SteerRule::default()
        };
        let one = SteerRule {
            address: address("192.0.2.10"),
            port: 10256,
            flags: 0,
        };
        let to = |destination| dialled("192.0.2.1", destination);
        assert!(everywhere.names(&to("192.0.2.10")) && everywhere.names(&to("2001:db8::10")));
        assert!(one.names(&to("192.0.2.10")));
        assert!(!one.names(&to("192.0.2.11")) && !one.names(&to("2001:db8::10")));
        let mut other = to("192.0.2.10");
        other.port = 10257;
        assert!(!everywhere.names(&other) && !one.names(&other));
        other.port = 0;
        assert!(!SteerRule::default().names(&other), "no rule");
    }

    /// Who else would answer: an owner that listens there, or an earlier program's agent.
    #[test]
    fn a_rule_that_waits_takes_only_what_nobody_else_takes() {
        let answers = SteerRule {
            port: 10256,
            flags: steer_flag::EVERYWHERE,
            ..SteerRule::default()
        };
        let outside = dialled("192.0.2.1", "192.0.2.10");
        let takes = |rule: SteerRule, is_frozen| {
            assert!(rule.names(&outside));
            let others = [(false, false), (true, false), (false, true)];
            others.map(|(owner, earlier)| {
                let is_left = owner && rule.yields(&outside, is_frozen);
                !is_left && (!earlier || rule.replaces(is_frozen))
            })
        };
        assert_eq!(takes(answers.waiting(), false), [true, false, false]);
        assert_eq!(takes(answers, true), [true, false, false], "frozen");
        assert_eq!(takes(answers, false), [true; 3], "the negative control");
    }

    #[test]
    fn the_nodes_own_connections_stay_with_an_owner_except_at_our_port() {
        let own = dialled("127.0.0.1", "127.0.0.1");
        for (flags, is_frozen, yields) in [
            (0, false, true),
            (steer_flag::OURS, false, false),
            (steer_flag::OURS, true, false),
        ] {
            let rule = SteerRule {
                flags,
                ..SteerRule::default()
            };
            assert_eq!(rule.yields(&own, is_frozen), yields, "{flags} {is_frozen}");
        }
    }

    #[test]
    fn every_port_of_a_family_has_a_bit_of_its_own() {
        let mut bits = std::collections::BTreeSet::new();
        for family in Family::ALL {
            for port in 0..=u16::MAX {
                let (word, bit) = port_bit(family, port);
                assert!(word < PORT_WORDS && bit.is_power_of_two());
                assert!(bits.insert((word, bit)), "{family:?} {port}");
            }
        }
        assert_eq!(bits.len() as u32, PORT_WORDS * u64::BITS);
    }

    #[test]
    fn every_address_of_a_family_has_one_name() {
        assert_eq!(dialled("::1", "2001:db8::10").any(), ANY_V6);
        assert_eq!(dialled("192.0.2.1", "192.0.2.10").any(), ANY_V4);
    }
}
