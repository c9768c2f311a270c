//! Creates, adopts, repairs and removes the devices.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use netlink_packet_route::link::LinkAttribute::{Address, Controller, IfAlias, IfName, Mtu};
use pathproof_wire::service::Family;

use super::netlink::{self, Link, MAIN, Route, failed, link, neighbour_of, routes, unless};
use super::{ALIAS, DeviceError, Role, SentinelDevices};
use crate::config::SentinelConfig;

/// MTU of the far ends: one less than the IPv6 minimum, so that the kernel gives them no IPv6. This is
/// the only way by netlink: `disable_ipv6` is a file, and /proc/sys is read-only in a container.
const FAR_MTU: u32 = 1279;
const IPV6_MIN_MTU: u32 = 1280;
/// MTU of a near end from which somebody removed IPv6 by setting a smaller one.
const NEAR_MTU: u32 = 1500;
/// Maximum number of checks until a device is ready, and the interval between them.
const LOOKS: u32 = 50;
const BETWEEN: Duration = Duration::from_millis(10);

/// Creates the devices, or adopts and repairs existing ones. Idempotent.
///
/// # Errors
/// A missing capability, a foreign device or route in the way, or a refusal of the kernel. Devices that
/// were already created stay, for [`remove`] or the next attempt.
pub async fn ensure(
    config: &SentinelConfig,
    families: &[Family],
) -> Result<SentinelDevices, DeviceError> {
    // Check both pairs before changing anything.
    let mut missing = Vec::with_capacity(Role::NEAR.len());
    for near in Role::NEAR {
        if !is_there(config, near)? {
            missing.push(near);
        }
    }
    for near in missing {
        create(config, near)?;
    }
    for near in Role::NEAR {
        // The far end first: then the near end's link is ready at once.
        for role in [near.peer(), near] {
            let link = existing(config, role)?;
            configure(role, &link)?;
        }
    }
    let mut families = families.to_vec();
    let mut near_ends = Vec::with_capacity(Role::NEAR.len());
    for near in Role::NEAR {
        let link = ready(config, near).await?;
        if !link.has_v6 && families.contains(&Family::V6) {
            tracing::info!(
                "IPv6 is disabled on {} (net.ipv6.conf.default.disable_ipv6, or a kernel without \
                 IPv6): the sentinel probes only IPv4",
                link.name
            );
            families.retain(|family| *family == Family::V4);
        }
        near_ends.push((near, link));
    }
    for (near, link) in near_ends {
        for family in Family::ALL {
            let mut wanted = near.addresses(config, family);
            wanted.retain(|_| families.contains(&family));
            connect(near, &link, family, &wanted).await?;
        }
    }
    let mut indexes = [0; Role::ALL.len()];
    for role in Role::ALL {
        indexes[role as usize] = existing(config, role)?.index;
    }
    Ok(SentinelDevices { indexes, families })
}

/// Removes the sentinel's devices with their routes and neighbours; returns the number of devices.
/// Foreign devices with the same names stay. `prefix`: prefix of the names.
///
/// # Errors
/// A missing capability, or a refusal of the kernel.
pub fn remove(prefix: &str) -> Result<usize, DeviceError> {
    let mut removed = 0;
    for role in Role::ALL {
        // Removing one end removed the other.
        let Some(end) = link(&role.name(prefix))?.filter(|link| is_marked(link, role)) else {
            continue;
        };
        let peer = link(&role.peer().name(prefix))?;
        let done = unless(libc::ENODEV, netlink::remove_link(end.index));
        if done.map_err(failed(format!("remove {}", end.name)))? {
            removed += 1 + usize::from(peer.is_some_and(|peer| end.peer == Some(peer.index)));
        }
    }
    Ok(removed)
}

/// Whether a device with one of the sentinel's names is pathproof's: a veth with the expected hardware
/// address or alias.
pub(super) fn is_marked(link: &Link, role: Role) -> bool {
    link.veth && (link.mac == role.mac() || link.alias.as_deref() == Some(ALIAS))
}

/// Whether the pair of a near end exists and is pathproof's. A foreign device in its place is an error.
fn is_there(config: &SentinelConfig, near: Role) -> Result<bool, DeviceError> {
    let far = near.peer();
    let ends = (
        link(&near.name(&config.devices))?,
        link(&far.name(&config.devices))?,
    );
    let (link, peer, role) = match ends {
        (None, None) => return Ok(false),
        (Some(link), Some(peer)) => {
            let joined = link.peer == Some(peer.index) && peer.peer == Some(link.index);
            let marked = is_marked(&link, near) || is_marked(&peer, far);
            if link.veth && peer.veth && joined && marked {
                return Ok(true);
            }
            // Report the end that is more certainly foreign.
            if is_marked(&link, near) && !joined {
                (peer, Some(link), far)
            } else {
                (link, Some(peer), near)
            }
        }
        (Some(link), None) => (link, None, near),
        (None, Some(link)) => (link, None, far),
    };
    Err(foreign(config, &link, peer.as_ref(), role))
}

fn foreign(config: &SentinelConfig, link: &Link, peer: Option<&Link>, role: Role) -> DeviceError {
    let wanted = role.peer().name(&config.devices);
    let name = &link.name;
    let why = if !link.veth {
        "is not a veth".to_owned()
    } else if peer.is_none_or(|peer| link.peer != Some(peer.index)) {
        format!("its other end is not {wanted} in this namespace")
    } else {
        "has neither the sentinel's hardware address nor its alias".to_owned()
    };
    let remedy = if is_marked(link, role) {
        "it is a damaged interface of the sentinel: remove it with `pathproof cleanup`".to_owned()
    } else {
        format!("remove it (`ip link del {name}`) or choose another device prefix")
    };
    let sentence = format!(
        "interface {name} exists already and {why}; the agent does not change it: {remedy}"
    );
    DeviceError::Foreign(sentence)
}

fn create(config: &SentinelConfig, near: Role) -> Result<(), DeviceError> {
    let far = near.peer();
    let end = |role: Role| {
        let name = IfName(role.name(&config.devices));
        vec![name, Address(role.mac().to_vec())]
    };
    let mut far_end = end(far);
    far_end.push(Mtu(FAR_MTU));
    let created = unless(libc::EEXIST, netlink::add_pair(end(near), far_end));
    let name = near.name(&config.devices);
    if !created.map_err(failed(format!("create the veth pair {name}")))? {
        // Another agent was faster: check the pair again.
        is_there(config, near)?;
    }
    Ok(())
}

fn existing(config: &SentinelConfig, role: Role) -> Result<Link, DeviceError> {
    let name = role.name(&config.devices);
    link(&name)?.ok_or_else(|| DeviceError::Refused {
        operation: format!("set up {name}"),
        source: io::Error::from_raw_os_error(libc::ENODEV),
    })
}

/// Sets only what differs, because the kernel forgets neighbours when a hardware address is set
/// again. Finally sets the device up.
fn configure(role: Role, link: &Link) -> Result<(), DeviceError> {
    let mut changes = Vec::new();
    if link.mac != role.mac() {
        changes.push(Address(role.mac().to_vec()));
    }
    if link.alias.as_deref() != Some(ALIAS) {
        changes.push(IfAlias(ALIAS.to_owned()));
    }
    if link.controller.is_some() {
        changes.push(Controller(0));
    }
    if role.is_near() && link.mtu < IPV6_MIN_MTU {
        changes.push(Mtu(NEAR_MTU));
    }
    if !role.is_near() && link.mtu != FAR_MTU {
        changes.push(Mtu(FAR_MTU));
    }
    let spare = match role.is_near() {
        true => link.makes_addresses.then(netlink::no_addresses),
        false => link.forwards_v4.then(netlink::forwarding_off),
    };
    if let Some(attribute) = spare {
        let done = netlink::set_link(link.index, vec![attribute]);
        let what = format!("turn off unneeded features of {}", link.name);
        not_needed(done.map_err(failed(what)))?;
    }
    // Not in one message: the kernel would set it up first, and create an address.
    let done = netlink::set_link(link.index, changes);
    let done = done.and_then(|()| netlink::set_link_up(link.index));
    done.map_err(failed(format!("set up {}", link.name)))
}

/// Logs a refusal of an optional setting, unless it shows that a capability is missing.
fn not_needed(done: Result<(), DeviceError>) -> Result<(), DeviceError> {
    match done {
        Err(error) if !error.is_permission() => {
            tracing::info!(%error, "the kernel refused a setting of the sentinel's interfaces");
            Ok(())
        }
        done => done,
    }
}

/// Waits until a near end's link is ready, which the kernel reports a little later, and then removes
/// its multicast route.
async fn ready(config: &SentinelConfig, near: Role) -> Result<Link, DeviceError> {
    let mut link = existing(config, near)?;
    for _ in 0..LOOKS {
        if link.carrier && (link.v6_ready || !link.has_v6) {
            break;
        }
        tokio::time::sleep(BETWEEN).await;
        link = existing(config, near)?;
    }
    if link.has_v6 {
        not_needed(netlink::drop_multicast_route(&link))?;
    }
    Ok(link)
}

/// Neighbours and routes of a family: adds missing ones, and removes those of earlier settings.
async fn connect(
    near: Role,
    link: &Link,
    family: Family,
    wanted: &[IpAddr],
) -> Result<(), DeviceError> {
    for message in netlink::neighbours(family, Some(link.index))? {
        let Some((address, _, true)) = neighbour_of(&message) else {
            continue;
        };
        if !wanted.contains(&address) {
            let what = format!("remove neighbour {address} of {}", link.name);
            netlink::remove_neighbour(message).map_err(failed(what))?;
        }
    }
    let by_us = |route: &Route| route.device == Some(link.index);
    let addresses = wanted.to_vec();
    let mut routes = routes(family, move |to| addresses.contains(&to.addr())).await?;
    routes.retain(|route| {
        let taken = wanted.contains(&route.destination.addr()) && route.table == MAIN;
        taken || route.ours && by_us(route)
    });
    for route in routes.iter().filter(|route| route.ours && by_us(route)) {
        let address = route.destination.addr();
        if !wanted.contains(&address) {
            netlink::remove_route(link, address)?;
        }
    }
    for &address in wanted {
        let put = netlink::put_neighbour(link.index, address, near.behind());
        put.map_err(failed(format!("add neighbour {address} to {}", link.name)))?;
        let mut exact = routes.iter().filter(|route| route.is_exactly(address));
        if !exact.clone().any(by_us) && !netlink::add_route(link, address)? {
            let by = match exact.find_map(|route| route.device) {
                Some(index) => netlink::name_or_index(index),
                None => "another destination".to_owned(),
            };
            return Err(DeviceError::Foreign(format!(
                "{address} is already routed to {by}: remove that route, or choose other sentinel \
                 addresses"
            )));
        }
    }
    Ok(())
}
