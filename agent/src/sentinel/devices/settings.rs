//! Names, addresses and hardware addresses of the sentinel's devices, by rule. Pure.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use agent_common::service::Family;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use thiserror::Error;

/// Length of an interface's name without its end (`IFNAMSIZ - 1`).
const NAME_LEN: usize = 15;
/// Length of what follows the prefix: "-c0".
const SUFFIX_LEN: usize = 3;

/// Of the benchmarking ranges (RFC 2544, RFC 5180), the one of `family`: never routed on the
/// internet, not used by Kubernetes.
pub fn benchmark_range(family: Family) -> IpNet {
    match family {
        Family::V4 => Ipv4Net::new_assert(Ipv4Addr::new(198, 18, 0, 0), 15).into(),
        Family::V6 => Ipv6Net::new_assert(Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 0), 48).into(),
    }
}

/// One address of each family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// IPv4.
    pub v4: Ipv4Addr,
    /// IPv6.
    pub v6: Ipv6Addr,
}

impl Pair {
    /// The address of a family.
    pub fn of(self, family: Family) -> IpAddr {
        match family {
            Family::V4 => self.v4.into(),
            Family::V6 => self.v6.into(),
        }
    }

    /// The same with `address` in its family's place.
    #[must_use]
    pub fn with(mut self, address: IpAddr) -> Self {
        match address {
            IpAddr::V4(v4) => self.v4 = v4,
            IpAddr::V6(v6) => self.v6 = v6,
        }
        self
    }
}

/// Addresses of the node's podCIDRs that the operator reserved as the pod path's source; nothing
/// is guessed, since a route for an address that IPAM hands out would cut a pod off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PodSources {
    /// IPv4.
    pub v4: Option<Ipv4Addr>,
    /// IPv6.
    pub v6: Option<Ipv6Addr>,
}

impl PodSources {
    /// The address of a family.
    pub fn of(self, family: Family) -> Option<IpAddr> {
        match family {
            Family::V4 => self.v4.map(IpAddr::V4),
            Family::V6 => self.v6.map(IpAddr::V6),
        }
    }

    /// From a list with at most one address of each family.
    ///
    /// # Errors
    /// Two addresses of one family.
    pub fn from_list(list: &[IpAddr]) -> Result<Self, SettingsError> {
        let mut sources = Self::default();
        for &address in list {
            let again = match address {
                IpAddr::V4(v4) => sources.v4.replace(v4).is_some(),
                IpAddr::V6(v6) => sources.v6.replace(v6).is_some(),
            };
            if again {
                return Err(SettingsError::TwoPodSources { address });
            }
        }
        Ok(sources)
    }
}

/// Hardware address of an Ethernet device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HardwareAddress(pub [u8; 6]);

impl fmt::Display for HardwareAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// The four ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// `-c0`: the client's, in the node's routing.
    ClientNear,
    /// `-c1`: the client's, where the agent writes.
    ClientFar,
    /// `-s0`: the echo's, in the node's routing.
    ServerNear,
    /// `-s1`: the echo's, where it answers.
    ServerFar,
}

impl Role {
    /// All.
    pub const ALL: [Role; 4] = [
        Role::ClientNear,
        Role::ClientFar,
        Role::ServerNear,
        Role::ServerFar,
    ];
    /// The near ends.
    pub const NEAR: [Role; 2] = [Role::ClientNear, Role::ServerNear];

    /// The other end of the pair.
    pub fn peer(self) -> Role {
        match self {
            Role::ClientNear => Role::ClientFar,
            Role::ClientFar => Role::ClientNear,
            Role::ServerNear => Role::ServerFar,
            Role::ServerFar => Role::ServerNear,
        }
    }

    /// Whether it lies in the node's routing.
    pub fn is_near(self) -> bool {
        matches!(self, Role::ClientNear | Role::ServerNear)
    }

    fn suffix(self) -> &'static str {
        match self {
            Role::ClientNear => "-c0",
            Role::ClientFar => "-c1",
            Role::ServerNear => "-s0",
            Role::ServerFar => "-s1",
        }
    }

    /// Hardware address: locally administered, "path" and the end. By rule, and set when the device
    /// is created: udev's persistent policy leaves it alone then, and static neighbours stay right.
    pub fn mac(self) -> HardwareAddress {
        HardwareAddress(mac(match self {
            Role::ClientNear => 0xc0,
            Role::ClientFar => 0xc1,
            Role::ServerNear => 0xe0,
            Role::ServerFar => 0xe1,
        }))
    }

    /// Hardware address of the neighbours behind the pair. Not that of the far end: what reaches
    /// it is for another host then, so that without our programs the kernel drops it, whatever
    /// forwarding is set to.
    pub fn behind(self) -> HardwareAddress {
        HardwareAddress(mac(match self {
            Role::ClientNear | Role::ClientFar => 0xce,
            Role::ServerNear | Role::ServerFar => 0xee,
        }))
    }
}

const fn mac(last: u8) -> [u8; 6] {
    [0x02, b'p', b'a', b't', b'h', last]
}

/// What the operator may choose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// What the devices' names begin with.
    pub prefix: String,
    /// Off-cluster source of probes.
    pub client: Pair,
    /// The sentinel Service's only endpoint, the same on every node.
    pub echo: Pair,
    /// Source of the pod path, where one is reserved.
    pub pod: PodSources,
}

impl Default for Settings {
    fn default() -> Self {
        let v6 = |host| Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, host);
        Self {
            prefix: "pathproof".to_owned(),
            client: Pair {
                v4: Ipv4Addr::new(198, 18, 0, 1),
                v6: v6(1),
            },
            echo: Pair {
                v4: Ipv4Addr::new(198, 18, 0, 2),
                v6: v6(2),
            },
            pod: PodSources::default(),
        }
    }
}

impl Settings {
    /// Name of a device.
    pub fn name(&self, role: Role) -> String {
        format!("{}{}", self.prefix, role.suffix())
    }

    /// Whether a device bears one of our names.
    pub fn names(&self, name: &str) -> bool {
        Role::ALL.iter().any(|role| self.name(*role) == name)
    }

    /// Addresses of a family that are reached through a near end.
    pub fn behind(&self, role: Role, family: Family) -> Vec<IpAddr> {
        match role {
            Role::ClientNear => [Some(self.client.of(family)), self.pod.of(family)]
                .into_iter()
                .flatten()
                .collect(),
            Role::ServerNear => vec![self.echo.of(family)],
            Role::ClientFar | Role::ServerFar => Vec::new(),
        }
    }

    /// Checks what can be checked without looking at the node.
    ///
    /// # Errors
    /// A name that the kernel would refuse, an address that cannot be routed, one address twice.
    pub fn check(&self) -> Result<(), SettingsError> {
        self.check_prefix()?;
        for family in Family::ALL {
            let (client, echo) = (self.client.of(family), self.echo.of(family));
            let pod = self.pod.of(family);
            for address in [Some(client), Some(echo), pod].into_iter().flatten() {
                if !routable(address) {
                    return Err(SettingsError::NotUnicast { address });
                }
            }
            if client == echo {
                return Err(SettingsError::Twice { address: client });
            }
            if let Some(address) = pod.filter(|pod| [client, echo].contains(pod)) {
                return Err(SettingsError::Twice { address });
            }
        }
        Ok(())
    }

    fn check_prefix(&self) -> Result<(), SettingsError> {
        let prefix = self.prefix.clone();
        if prefix.is_empty() || prefix.len() > NAME_LEN - SUFFIX_LEN {
            return Err(SettingsError::PrefixLength { prefix });
        }
        // What the kernel allows is more (all but '/', ':' and blanks), and a nuisance in shells.
        let sound = |sign: char| sign.is_ascii_alphanumeric() || "._-".contains(sign);
        if !prefix.chars().all(sound) || !prefix.starts_with(|c: char| c.is_ascii_alphanumeric()) {
            return Err(SettingsError::PrefixSigns { prefix });
        }
        Ok(())
    }
}

/// Whether the kernel routes it as an ordinary host's address (else a martian).
fn routable(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            let first = v4.octets()[0];
            first != 0 && first < 224 && !v4.is_loopback() && !v4.is_link_local()
        }
        IpAddr::V6(v6) => {
            !v6.is_unspecified()
                && !v6.is_loopback()
                && !v6.is_multicast()
                && !v6.is_unicast_link_local()
                && v6.to_ipv4_mapped().is_none()
        }
    }
}

/// Settings that make no sense.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SettingsError {
    /// Too long or empty.
    #[error(
        "the sentinel's device prefix {prefix:?} must have 1 to {} characters: interface names hold {NAME_LEN}",
        NAME_LEN - SUFFIX_LEN
    )]
    PrefixLength {
        /// As given.
        prefix: String,
    },
    /// Signs that interface names should not have.
    #[error(
        "the sentinel's device prefix {prefix:?} may contain letters, digits, '.', '_' and '-' and begins with a letter or digit"
    )]
    PrefixSigns {
        /// As given.
        prefix: String,
    },
    /// No address that a host could have.
    #[error(
        "the sentinel's address {address} is not an address that a host can have; choose a unicast address"
    )]
    NotUnicast {
        /// As given.
        address: IpAddr,
    },
    /// One address for two purposes.
    #[error(
        "the sentinel's address {address} is given twice; client, echo and pod source must differ"
    )]
    Twice {
        /// As given.
        address: IpAddr,
    },
    /// Two pod sources of one family.
    #[error("the sentinel takes one pod source address of each family; {address} is the second")]
    TwoPodSources {
        /// The second.
        address: IpAddr,
    },
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn with_prefix(prefix: &str) -> Settings {
        Settings {
            prefix: prefix.to_owned(),
            ..Settings::default()
        }
    }

    #[rstest]
    #[case("pathproof", true)]
    #[case("p", true)]
    #[case("twelve-signs", true)]
    #[case("thirteen-sign", false)]
    #[case("", false)]
    #[case("a/b", false)]
    #[case("a b", false)]
    #[case("a%d", false)]
    #[case("-a", false)]
    #[case("ümlaut", false)]
    fn prefixes(#[case] prefix: &str, #[case] sound: bool) {
        let settings = with_prefix(prefix);
        assert_eq!(settings.check().is_ok(), sound, "{prefix:?}");
        if sound {
            for role in Role::ALL {
                assert!(settings.name(role).len() <= NAME_LEN);
            }
        }
    }

    #[rstest]
    #[case("0.1.2.3")]
    #[case("127.0.0.1")]
    #[case("169.254.1.1")]
    #[case("224.0.0.5")]
    #[case("255.255.255.255")]
    #[case("::")]
    #[case("::1")]
    #[case("fe80::1")]
    #[case("ff02::1")]
    #[case("::ffff:198.18.0.1")]
    fn martians_are_refused(#[case] address: IpAddr) {
        let mut settings = Settings::default();
        settings.client = settings.client.with(address);
        let refused = Err(SettingsError::NotUnicast { address });
        assert_eq!(settings.check(), refused);
    }

    #[test]
    fn addresses_differ() {
        let mut settings = Settings::default();
        assert_eq!(settings.check(), Ok(()));
        settings.echo.v6 = settings.client.v6;
        assert!(matches!(settings.check(), Err(SettingsError::Twice { .. })));
        let mut settings = Settings::default();
        settings.pod.v4 = Some(settings.echo.v4);
        assert!(matches!(settings.check(), Err(SettingsError::Twice { .. })));
        let two: [IpAddr; 2] = [[10, 244, 0, 254].into(), [10, 244, 0, 253].into()];
        assert!(PodSources::from_list(&two).is_err());
    }

    #[test]
    fn hardware_addresses_are_local_unicast_and_differ() {
        let mut all: Vec<_> = Role::ALL.iter().map(|role| role.mac().0).collect();
        all.extend(Role::NEAR.iter().map(|role| role.behind().0));
        for mac in &all {
            assert_eq!(mac[0] & 0b11, 0b10, "locally administered, unicast");
        }
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 6);
        assert_eq!(Role::ClientNear.mac().to_string(), "02:70:61:74:68:c0");
    }

    #[test]
    fn defaults_lie_in_the_benchmark_ranges() {
        let settings = Settings::default();
        for family in Family::ALL {
            for address in [settings.client.of(family), settings.echo.of(family)] {
                assert!(benchmark_range(family).contains(&address));
            }
        }
    }
}
