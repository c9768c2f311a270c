//! A quick look at whether the devices are still what [`ensure`](super::ensure()) made, taken when
//! probes fail: a few questions about our own devices, no list of everything.
//!
//! What only matters without our programs (the far ends' own settings) is no damage: writing
//! `ip_forward` changes it on every device, and a probe does not feel it.

use std::fmt;
use std::net::IpAddr;

use agent_common::service::Family;
use rtnetlink::packet_route::route::RouteType;

use super::ensure::MAIN;
use super::netlink::{Link, Lookup, Netlink, errno, io_error, neighbour_of};
use super::pair::is_marked;
use super::{DeviceError, HardwareAddress, Role, SentinelDevices, Settings};

/// Something that keeps probes from passing and is no fault of the datapath. Displays as a
/// sentence with its remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Damage {
    /// A device is gone.
    Missing {
        /// Its name.
        device: String,
    },
    /// Another device bears the name.
    Replaced {
        /// Its name.
        device: String,
    },
    /// The two ends of a pair are no longer that.
    Unpaired {
        /// One of them.
        device: String,
        /// What the other end should be.
        peer: String,
    },
    /// Somebody took it down.
    Down {
        /// Its name.
        device: String,
    },
    /// The other end is down.
    NoCarrier {
        /// Its name.
        device: String,
    },
    /// It was made part of a bridge, bond or VRF.
    Enslaved {
        /// Its name.
        device: String,
        /// To what.
        controller: String,
    },
    /// Its hardware address was changed, which breaks static neighbours.
    HardwareAddress {
        /// Its name.
        device: String,
        /// What it should be.
        wanted: HardwareAddress,
    },
    /// It has no IPv6 any more.
    Ipv6Off {
        /// Its name.
        device: String,
    },
    /// A static neighbour is gone.
    NeighbourMissing {
        /// Where.
        device: String,
        /// Whose.
        address: IpAddr,
    },
    /// A static neighbour has another hardware address, or is not permanent.
    NeighbourChanged {
        /// Where.
        device: String,
        /// Whose.
        address: IpAddr,
    },
    /// Our route is gone.
    RouteMissing {
        /// Where it should lead.
        device: String,
        /// To whom.
        address: IpAddr,
    },
    /// A route or policy rule of others comes before ours.
    RouteOverridden {
        /// Where it should lead.
        device: String,
        /// To whom.
        address: IpAddr,
        /// Where it leads instead.
        instead: String,
    },
    /// It could not be looked at.
    Unreadable {
        /// Why not.
        why: String,
    },
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const REPAIRED: &str = "the agent puts it right; tell whatever program did it to leave the sentinel's devices alone";
        match self {
            Damage::Missing { device } => {
                write!(f, "the sentinel's device {device} is gone: {REPAIRED}")
            }
            Damage::Replaced { device } => write!(
                f,
                "another device bears the name of the sentinel's device {device}: rename it, or choose another device prefix"
            ),
            Damage::Unpaired { device, peer } => write!(
                f,
                "the other end of the sentinel's device {device} is not {peer} any more: `pathproof cleanup` removes what is left"
            ),
            Damage::Down { device } => {
                write!(f, "the sentinel's device {device} is down: {REPAIRED}")
            }
            Damage::NoCarrier { device } => write!(
                f,
                "the sentinel's device {device} has no carrier, its other end is down: {REPAIRED}"
            ),
            Damage::Enslaved { device, controller } => write!(
                f,
                "the sentinel's device {device} was made part of {controller}: {REPAIRED}"
            ),
            Damage::HardwareAddress { device, wanted } => write!(
                f,
                "the hardware address of the sentinel's device {device} is not {wanted} any more: {REPAIRED}"
            ),
            Damage::Ipv6Off { device } => write!(
                f,
                "the sentinel's device {device} has no IPv6 any more: set net.ipv6.conf.{device}.disable_ipv6 to 0, or restart the agent to go without"
            ),
            Damage::NeighbourMissing { device, address } => write!(
                f,
                "the neighbour {address} of the sentinel's device {device} is gone: {REPAIRED}"
            ),
            Damage::NeighbourChanged { device, address } => write!(
                f,
                "the neighbour {address} of the sentinel's device {device} was changed: {REPAIRED}"
            ),
            Damage::RouteMissing { device, address } => write!(
                f,
                "the route to {address} by the sentinel's device {device} is gone: {REPAIRED}"
            ),
            Damage::RouteOverridden {
                device,
                address,
                instead,
            } => write!(
                f,
                "{address} is routed to {instead} and not by the sentinel's device {device}: remove the route or policy rule that does it (`ip rule`, `ip route get {address}`)"
            ),
            Damage::Unreadable { why } => {
                write!(f, "the sentinel's devices could not be looked at: {why}")
            }
        }
    }
}

/// Looks at every device, neighbour and route of ours; nothing found means that they are sound.
/// [`ensure`](super::ensure()) repairs what can be repaired.
pub async fn verify(devices: &SentinelDevices, settings: &Settings) -> Vec<Damage> {
    let mut found = Vec::new();
    if let Err(error) = look(devices, settings, &mut found).await {
        found.push(Damage::Unreadable {
            why: error.to_string(),
        });
    }
    found
}

async fn look(
    devices: &SentinelDevices,
    settings: &Settings,
    found: &mut Vec<Damage>,
) -> Result<(), DeviceError> {
    let netlink = Netlink::open()?;
    let mut routed = Vec::new();
    for role in Role::ALL {
        let link = netlink.link(&settings.name(role)).await?;
        let before = found.len();
        look_at_link(&netlink, devices, settings, role, link.as_ref(), found).await;
        // A device that is gone or down has neither neighbours nor routes: said once.
        let usable = link.is_some_and(|link| link.up) && !gone(&found[before..]);
        if usable && role.is_near() {
            routed.push(role);
        }
    }
    for near in routed {
        for &family in &devices.families {
            look_at_neighbours(&netlink, devices, settings, near, family, found).await?;
            look_at_routes(&netlink, devices, settings, near, family, found).await;
        }
    }
    Ok(())
}

fn gone(found: &[Damage]) -> bool {
    let gone = |one: &Damage| matches!(one, Damage::Missing { .. } | Damage::Replaced { .. });
    found.iter().any(gone)
}

async fn look_at_link(
    netlink: &Netlink,
    devices: &SentinelDevices,
    settings: &Settings,
    role: Role,
    link: Option<&Link>,
    found: &mut Vec<Damage>,
) {
    let device = settings.name(role);
    let Some(link) = link else {
        return found.push(Damage::Missing { device });
    };
    if link.index != devices.end(role).index || !is_marked(link, role) {
        return found.push(Damage::Replaced { device });
    }
    let peer = role.peer();
    if link.peer != Some(devices.end(peer).index) {
        found.push(Damage::Unpaired {
            device: device.clone(),
            peer: settings.name(peer),
        });
    }
    if link.mac != role.mac().0 {
        found.push(Damage::HardwareAddress {
            device: device.clone(),
            wanted: role.mac(),
        });
    }
    if let Some(index) = link.controller {
        found.push(Damage::Enslaved {
            device: device.clone(),
            controller: netlink.name_of(index).await,
        });
    }
    if !link.up {
        return found.push(Damage::Down { device });
    }
    if role.is_near() && devices.has(Family::V6) && !link.has_v6() {
        found.push(Damage::Ipv6Off {
            device: device.clone(),
        });
    }
    if !link.carrier {
        found.push(Damage::NoCarrier { device });
    }
}

async fn look_at_neighbours(
    netlink: &Netlink,
    devices: &SentinelDevices,
    settings: &Settings,
    near: Role,
    family: Family,
    found: &mut Vec<Damage>,
) -> Result<(), DeviceError> {
    let index = devices.end(near).index;
    let there = netlink.neighbours(family, Some(index)).await?;
    for address in settings.behind(near, family) {
        let device = settings.name(near);
        let entry = (there.iter().filter_map(neighbour_of)).find(|entry| entry.0 == address);
        match entry {
            None => found.push(Damage::NeighbourMissing { device, address }),
            Some((_, mac, permanent)) if mac != near.behind().0 || !permanent => {
                found.push(Damage::NeighbourChanged { device, address });
            }
            Some(_) => {}
        }
    }
    Ok(())
}

async fn look_at_routes(
    netlink: &Netlink,
    devices: &SentinelDevices,
    settings: &Settings,
    near: Role,
    family: Family,
    found: &mut Vec<Damage>,
) {
    let device = settings.name(near);
    let index = devices.end(near).index;
    // Who sends to the addresses behind this device: those behind the other one.
    let other = match near {
        Role::ServerNear => Role::ClientNear,
        _ => Role::ServerNear,
    };
    for address in settings.behind(near, family) {
        let answer = netlink.lookup(address, None).await;
        if let Some(damage) = judge(netlink, &device, index, address, answer, true).await {
            found.push(damage);
            continue;
        }
        for source in settings.behind(other, family) {
            let from = Some((devices.end(other).index, source));
            let answer = netlink.lookup(address, from).await;
            let damage = judge(netlink, &device, index, address, answer, false).await;
            found.extend(damage);
        }
    }
}

/// What a lookup says. `own` is the node's own way, which must be ours; for a packet that comes in
/// the kernel also refuses what it would not forward, which is not for us to judge.
async fn judge(
    netlink: &Netlink,
    device: &str,
    index: u32,
    address: IpAddr,
    answer: Result<Lookup, rtnetlink::Error>,
    own: bool,
) -> Option<Damage> {
    let device = device.to_owned();
    let overridden = |instead| {
        Some(Damage::RouteOverridden {
            device: device.clone(),
            address,
            instead,
        })
    };
    let lookup = match answer {
        Ok(lookup) => lookup,
        Err(error) => {
            return match errno(&error) {
                Some(libc::EACCES) => overridden("nowhere (prohibited)".to_owned()),
                _ if !own => None,
                Some(libc::ENETUNREACH | libc::EHOSTUNREACH) => {
                    Some(Damage::RouteMissing { device, address })
                }
                Some(libc::EINVAL) => overridden("nowhere (dropped)".to_owned()),
                _ => Some(Damage::Unreadable {
                    why: format!("route to {address}: {}", io_error(error)),
                }),
            };
        }
    };
    let unicast = lookup.kind == RouteType::Unicast;
    if unicast && lookup.device == Some(index) && !lookup.gateway {
        return None;
    }
    let exact = lookup.prefix == if address.is_ipv4() { 32 } else { 128 };
    if own && unicast && lookup.table == MAIN && !exact {
        // What a packet without our route takes.
        return Some(Damage::RouteMissing { device, address });
    }
    let instead = match lookup.device {
        Some(index) => netlink.name_of(index).await,
        None => format!("{:?}", lookup.kind).to_lowercase(),
    };
    if lookup.kind == RouteType::Local {
        return overridden(format!("this node itself (an address of {instead})"));
    }
    overridden(format!("{instead} (table {})", lookup.table))
}
