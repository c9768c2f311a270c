//! Creates, adopts, repairs and removes the devices.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use libc::{RTM_DELLINK, RTM_DELNEIGH, RTM_DELROUTE, RTM_NEWLINK, RTM_NEWNEIGH, RTM_SETLINK};
use pathproof_wire::service::Family;
use rtnetlink::packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use rtnetlink::packet_route::link::{InfoData, InfoKind, InfoVeth};
use rtnetlink::packet_route::neighbour::NeighbourAttribute;
use rtnetlink::{LinkUnspec, LinkVeth};

use super::netlink::{
    MAIN, add_route, drop_multicast_route, failed, find_link, name_of, neighbour, neighbours,
    no_addresses, own_route, routes,
};
use super::{ALIAS, DeviceError, ROUTE_PROTOCOL, Role, SentinelDevices};
use crate::config::SentinelConfig;
use crate::netlink::link::Link;
use crate::netlink::routes::Route;
use crate::netlink::{request, unless};

/// MTU of the far ends: one less than the IPv6 minimum, so that the kernel gives them no IPv6. Netlink has no
/// other way to disable IPv6: `disable_ipv6` is a file, and /proc/sys is read-only in a container.
const FAR_MTU: u32 = 1279;
const IPV6_MIN_MTU: u32 = 1280;
/// MTU to restore on a near end whose MTU was set below the IPv6 minimum, which removed IPv6 from it.
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
            configure(role, &existing(config, role)?)?;
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
pub async fn remove(prefix: &str) -> Result<usize, DeviceError> {
    let mut removed = 0;
    for role in Role::ALL {
        // If this end is missing, it may have been removed together with its peer.
        let Some(link) = find_link(&role.name(prefix))? else {
            continue;
        };
        if !is_marked(&link, role) {
            continue;
        }
        let peer = find_link(&role.peer().name(prefix))?;
        let message = LinkUnspec::new_with_index(link.index).build();
        let done = unless(libc::ENODEV, request(RTM_DELLINK, 0, &message));
        let done = done.map_err(failed(format!("remove {}", link.name)))?;
        if done.is_some() {
            removed += 1 + usize::from(peer.is_some_and(|peer| link.peer == Some(peer.index)));
        }
    }
    Ok(removed)
}

/// Whether a device with one of the sentinel's names is pathproof's: a veth with the expected hardware
/// address or alias.
pub(super) fn is_marked(link: &Link, role: Role) -> bool {
    is_veth(link) && (link.mac == role.mac() || link.alias.as_deref() == Some(ALIAS))
}

fn is_veth(link: &Link) -> bool {
    link.kind == Some(InfoKind::Veth)
}

/// Whether the pair of a near end exists and is pathproof's. A foreign device in its place is an error.
fn is_there(config: &SentinelConfig, near: Role) -> Result<bool, DeviceError> {
    let far = near.peer();
    let ends = (
        find_link(&near.name(&config.devices))?,
        find_link(&far.name(&config.devices))?,
    );
    let (link, peer, role) = match ends {
        (None, None) => return Ok(false),
        (Some(link), Some(peer)) => {
            let joined = link.peer == Some(peer.index) && peer.peer == Some(link.index);
            let marked = is_marked(&link, near) || is_marked(&peer, far);
            if is_veth(&link) && is_veth(&peer) && joined && marked {
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
    let why = if !is_veth(link) {
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
    let (name, far) = (near.name(&config.devices), near.peer());
    let far_name = far.name(&config.devices);
    let peer = LinkUnspec::new_with_name(&far_name)
        .address(far.mac().to_vec())
        .mtu(FAR_MTU)
        .build();
    let pair = LinkVeth::new(&name, &far_name)
        .set_info_data(InfoData::Veth(InfoVeth::Peer(peer)))
        .address(near.mac().to_vec())
        .build();
    let done = unless(
        libc::EEXIST,
        request(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, &pair),
    );
    match done.map_err(failed(format!("create the veth pair {name}")))? {
        Some(_) => Ok(()),
        // Another agent was faster: check the pair again.
        None => is_there(config, near).map(drop),
    }
}

fn existing(config: &SentinelConfig, role: Role) -> Result<Link, DeviceError> {
    let name = role.name(&config.devices);
    find_link(&name)?.ok_or_else(|| DeviceError::Refused {
        operation: format!("set up {name}"),
        source: io::Error::from_raw_os_error(libc::ENODEV),
    })
}

/// Sets attributes that differ, then sets the device up. Setting an equal hardware address would make the
/// kernel forget neighbours.
fn configure(role: Role, link: &Link) -> Result<(), DeviceError> {
    let mut change = LinkUnspec::new_with_index(link.index);
    if link.mac != role.mac() {
        change = change.address(role.mac().to_vec());
    }
    if link.alias.as_deref() != Some(ALIAS) {
        change = change.alias(ALIAS);
    }
    if link.controller.is_some() {
        change = change.nocontroller();
    }
    if role.is_near() && link.mtu < IPV6_MIN_MTU {
        change = change.mtu(NEAR_MTU);
    }
    if !role.is_near() && link.mtu != FAR_MTU {
        change = change.mtu(FAR_MTU);
    }
    if role.is_near() && link.makes_addresses {
        let message = LinkUnspec::new_with_index(link.index).append_extra_attribute(no_addresses());
        let done = request(RTM_SETLINK, 0, &message.build()).map(drop);
        let what = format!("keep {} without addresses", link.name);
        not_needed(done.map_err(failed(what)))?;
    }
    // Sent after that message, not together with it: in a joint message the kernel would set the device up
    // first, and create an address.
    let up = LinkUnspec::new_with_index(link.index).up();
    for message in [change.build(), up.build()] {
        let done = request(RTM_SETLINK, 0, &message);
        done.map_err(failed(format!("set up {}", link.name)))?;
    }
    Ok(())
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

/// Waits a moment for the kernel to report a near end's link as ready, and then removes its multicast route.
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
        not_needed(drop_multicast_route(&link))?;
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
    for known in neighbours(family, Some(link.index))? {
        let address = known.address;
        if known.is_permanent() && !wanted.contains(&address) {
            let done = request(RTM_DELNEIGH, 0, &neighbour(link.index, address));
            let what = format!("remove neighbour {address} of {}", link.name);
            done.map_err(failed(what))?;
        }
    }
    let by_us = |route: &Route| route.device() == Some(link.index);
    let ours = |route: &Route| route.protocol == ROUTE_PROTOCOL && by_us(route);
    let addresses = wanted.to_vec();
    let mut routes = routes(family, move |to| addresses.contains(&to.addr())).await?;
    routes.retain(|route| {
        let taken = wanted.contains(&route.destination.addr()) && route.table == MAIN;
        taken || ours(route)
    });
    for route in routes.iter().filter(|route| ours(route)) {
        let address = route.destination.addr();
        if !wanted.contains(&address) {
            let what = format!("remove route {address} of {}", link.name);
            let route = own_route(address, link.index);
            let done = request(RTM_DELROUTE, 0, &route);
            done.map_err(failed(what))?;
        }
    }
    for &address in wanted {
        let mut put = neighbour(link.index, address);
        let mac = NeighbourAttribute::LinkLayerAddress(near.behind().to_vec());
        put.attributes.push(mac);
        let done = request(RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_REPLACE, &put);
        done.map_err(failed(format!("add neighbour {address} to {}", link.name)))?;
        let mut exact = routes.iter().filter(|route| route.is_exactly(address));
        if !exact.clone().any(by_us) && !add_route(link, address)? {
            let by = exact.find_map(|route| route.device()).map(name_of);
            let by = by.unwrap_or_else(|| "another destination".to_owned());
            return Err(DeviceError::Foreign(format!(
                "{address} is already routed to {by}: remove that route, or choose other sentinel \
                 addresses"
            )));
        }
    }
    Ok(())
}
