//! The sentinel's settings.

use std::fmt;
use std::net::IpAddr;

use agent_common::service::{FAMILIES, Family};

use super::{ConfigError, parse};
use crate::args::SentinelArgs;
use agent_core::cluster::ObjectName;
use agent_core::expect::node::address;
use agent_core::expect::sentinel::SentinelRule;

/// The sentinel as it was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SentinelConfig {
    /// Its Service.
    pub service: ObjectName,
    /// What the names of its interfaces begin with.
    pub devices: String,
    /// Where off-cluster probes come from, by [`Family`].
    pub client: [IpAddr; FAMILIES],
    /// Endpoint of its slices, by [`Family`].
    pub echo: [IpAddr; FAMILIES],
    /// Where pods' probes come from, where an address is reserved, by [`Family`].
    pub pod: [Option<IpAddr>; FAMILIES],
}

impl SentinelConfig {
    /// What the node has to know of it.
    pub(crate) fn rule(&self) -> SentinelRule {
        SentinelRule {
            service: self.service.clone(),
            echo: self.echo,
        }
    }
}

impl fmt::Display for SentinelConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {}-*", self.service, self.devices)
    }
}

/// Room for the four suffixes (`-c0`) in an interface name of 15 bytes (IFNAMSIZ).
const PREFIX_LEN: usize = 12;

const CLIENT: &str = "--sentinel-client-address";
const ECHO: &str = "--sentinel-endpoint-address";
const POD: &str = "--sentinel-pod-address";

pub(super) fn resolve(args: &SentinelArgs) -> Result<SentinelConfig, ConfigError> {
    let client = pair(CLIENT, &args.sentinel_client_addresses)?;
    let echo = pair(ECHO, &args.sentinel_endpoint_addresses)?;
    let pod = by_family(POD, &args.sentinel_pod_addresses)?;
    different(&[
        (CLIENT, client.map(Some)),
        (ECHO, echo.map(Some)),
        (POD, pod),
    ])?;
    Ok(SentinelConfig {
        service: service(&args.sentinel_service)?,
        devices: prefix(&args.sentinel_devices)?,
        client,
        echo,
        pod,
    })
}

/// No address may have two parts to play.
fn different(settings: &[(&'static str, [Option<IpAddr>; FAMILIES])]) -> Result<(), ConfigError> {
    let mut seen = Vec::new();
    for (option, addresses) in settings {
        for address in addresses.iter().flatten() {
            if seen.contains(address) {
                return Err(ConfigError::SentinelAddress {
                    option,
                    value: address.to_string(),
                    reason: "has another part already: client, endpoint and pod must differ",
                });
            }
            seen.push(*address);
        }
    }
    Ok(())
}

/// The endpoint of the sentinel's slices.
pub(super) fn echo(values: &[String]) -> Result<[IpAddr; FAMILIES], ConfigError> {
    pair(ECHO, values)
}

pub(super) fn service(value: &str) -> Result<ObjectName, ConfigError> {
    let parts = value.trim().split_once('/');
    let sound = |part: &str| parse::node_name(part).is_ok();
    match parts {
        Some((namespace, name)) if sound(namespace) && sound(name) => {
            Ok(ObjectName::new(namespace, name))
        }
        _ => Err(ConfigError::ObjectName {
            option: "--sentinel-service",
            value: value.to_owned(),
        }),
    }
}

/// What the names of the sentinel's interfaces begin with.
///
/// # Errors
/// No name of an interface could begin so.
pub fn prefix(value: &str) -> Result<String, ConfigError> {
    let sound = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    let text = value.trim();
    // A name that begins with '-' is an option to every tool that is given it.
    let fits = (1..=PREFIX_LEN).contains(&text.len()) && !text.starts_with('-');
    if fits && text.bytes().all(sound) {
        return Ok(text.to_owned());
    }
    Err(ConfigError::DevicePrefix {
        value: value.to_owned(),
    })
}

/// One address of each family.
fn pair(option: &'static str, values: &[String]) -> Result<[IpAddr; FAMILIES], ConfigError> {
    match by_family(option, values)? {
        [Some(v4), Some(v6)] => Ok([v4, v6]),
        _ => Err(ConfigError::SentinelAddress {
            option,
            value: values.join(","),
            reason: "give one IPv4 and one IPv6 address",
        }),
    }
}

fn by_family(
    option: &'static str,
    values: &[String],
) -> Result<[Option<IpAddr>; FAMILIES], ConfigError> {
    let mut found = [None; FAMILIES];
    for text in parse::entries(values) {
        let fail = |reason| ConfigError::SentinelAddress {
            option,
            value: text.to_owned(),
            reason,
        };
        let ip: IpAddr = text.parse().map_err(|_| fail("is no IP address"))?;
        if is_martian(ip) {
            return Err(fail(
                "packets for it are not forwarded: give a unicast address",
            ));
        }
        let place = &mut found[Family::of(&address(&ip)) as usize];
        if place.replace(ip).is_some() {
            return Err(fail("is the second of its family: give one of each"));
        }
    }
    Ok(found)
}

/// Whether the kernel does not route it as an ordinary host's address.
fn is_martian(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => {
            let first = v4.octets()[0];
            first == 0 || first >= 224 || v4.is_loopback() || v4.is_link_local()
        }
        IpAddr::V6(v6) => {
            v6.is_unspecified()
                || v6.is_loopback()
                || v6.is_multicast()
                || v6.is_unicast_link_local()
                || v6.to_ipv4_mapped().is_some()
        }
    }
}
