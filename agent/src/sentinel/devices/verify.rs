//! A quick check, made when probes fail, of whether the devices are still as
//! [`ensure`](super::ensure()) left them. It takes a few requests about the sentinel's devices.
//!
//! Changed settings of the far ends are no damage: they matter only without pathproof's programs. For
//! example, writing `ip_forward` changes every device, and does not affect probes.

use std::io;
use std::net::IpAddr;

use pathproof_wire::service::Family;
use rtnetlink::packet_route::route::{RouteFlags, RouteType};

use super::ensure::is_marked;
use super::netlink::{MAIN, failed, find_link, name_of, neighbours};
use super::{DeviceError, Role, SentinelDevices, written};
use crate::config::SentinelConfig;
use crate::netlink::link::Link;
use crate::netlink::routes::{self, Route};

const REPAIRED: &str =
    "the agent repairs it; exclude the sentinel's interfaces in the program that changed it";

/// kube-proxy's default mark for packets to masquerade.
const MASQUERADED: u32 = 0x4000;

/// Checks every device, neighbour and route of the sentinel. Each returned sentence, with its remedy,
/// describes damage that stops probes and is no fault of the datapath. An empty result means that they
/// are sound. [`ensure`](super::ensure()) repairs what can be repaired.
///
/// # Errors
/// A request failed, and the other answers show no damage. The kernel may be out of memory, or the agent
/// at its memory limit.
pub async fn verify(
    devices: &SentinelDevices,
    config: &SentinelConfig,
) -> Result<Vec<String>, DeviceError> {
    let mut found = Vec::new();
    match look(devices, config, &mut found) {
        Err(error) if found.is_empty() => Err(error),
        _ => Ok(found),
    }
}

fn look(
    devices: &SentinelDevices,
    config: &SentinelConfig,
    found: &mut Vec<String>,
) -> Result<(), DeviceError> {
    for role in Role::ALL {
        let device = role.name(&config.devices);
        let Some(link) = find_link(&device)? else {
            found.push(format!(
                "the sentinel's interface {device} was removed: {REPAIRED}"
            ));
            continue;
        };
        if link.index != devices.index(role) || !is_marked(&link, role) {
            found.push(format!(
                "another interface has the name of the sentinel's interface {device}: rename it, \
                 or choose another --sentinel-devices"
            ));
            continue;
        }
        let controller = link.controller.map(name_of).unwrap_or_default();
        let peer = role.peer().name(&config.devices);
        found.extend(harms(&link, role, devices, &peer, &controller));
        // A device that is down has neither neighbours nor routes: report only that.
        if link.up && role.is_near() {
            for &family in &devices.families {
                look_behind(devices, config, &link, role, family, found)?;
            }
        }
    }
    Ok(())
}

fn harms(
    link: &Link,
    role: Role,
    devices: &SentinelDevices,
    peer: &str,
    controller: &str,
) -> impl Iterator<Item = String> {
    let device = &link.name;
    let its = format!("the sentinel's interface {device}");
    let v6 = role.is_near() && devices.has(Family::V6);
    [
        (
            link.peer != Some(devices.index(role.peer())),
            format!(
                "the other end of {its} is no longer {peer}: remove the remains with `pathproof \
                 cleanup`"
            ),
        ),
        (
            link.mac != role.mac(),
            format!(
                "the hardware address of {its} is no longer {}: {REPAIRED}",
                written(role.mac())
            ),
        ),
        (
            link.controller.is_some(),
            format!("{its} was added to {controller}: {REPAIRED}"),
        ),
        (!link.up, format!("{its} is down: {REPAIRED}")),
        (
            link.up && v6 && !link.has_v6,
            format!(
                "IPv6 was disabled on {its}: set net.ipv6.conf.{device}.disable_ipv6 to 0, or \
                 restart the agent to probe only IPv4"
            ),
        ),
        (
            link.up && !link.carrier,
            format!("{its} has no carrier, its other end is down: {REPAIRED}"),
        ),
    ]
    .into_iter()
    .filter_map(|(is, sentence)| is.then_some(sentence))
}

/// Checks the neighbours and routes of one family at a near end.
fn look_behind(
    devices: &SentinelDevices,
    config: &SentinelConfig,
    link: &Link,
    near: Role,
    family: Family,
    found: &mut Vec<String>,
) -> Result<(), DeviceError> {
    let there = neighbours(family, Some(link.index))?;
    for address in near.addresses(config, family) {
        let harm = match there.iter().find(|known| known.address == address) {
            None => "is gone",
            Some(known) if known.mac == near.behind() && known.is_permanent() => continue,
            Some(_) => "was changed",
        };
        let device = &link.name;
        found.push(format!(
            "the neighbour {address} of the sentinel's interface {device} {harm}: {REPAIRED}"
        ));
    }
    // Packets to the addresses behind this near end come from the addresses behind the other near end.
    let other = match near {
        Role::ServerNear => Role::ClientNear,
        _ => Role::ServerNear,
    };
    for address in near.addresses(config, family) {
        let answer = look_up(address, None, 0);
        if let Some(damage) = route_damage(link, address, answer, true) {
            found.push(damage);
            continue;
        }
        for source in other.addresses(config, family) {
            let from = Some((source, devices.index(other)));
            // One sound lookup is enough. Policy routing for pods (GKE's netd) may divert unmarked packets,
            // but kube-proxy marks probes.
            let mut damage = None;
            for mark in [MASQUERADED, 0] {
                let answer = look_up(address, from, mark);
                damage = route_damage(link, address, answer, false);
                if damage.is_none() {
                    break;
                }
            }
            found.extend(damage);
        }
    }
    Ok(())
}

/// Looks up the matching entry, in the table that the policy rules select.
fn look_up(to: IpAddr, from: Option<(IpAddr, u32)>, mark: u32) -> io::Result<Route> {
    routes::look_up(
        to,
        from,
        mark,
        RouteFlags::FibMatch | RouteFlags::LookupTable,
    )
}

/// Damage that the result of a route lookup shows. With `own` the lookup was for packets that the node itself
/// sends: these must take the sentinel's route. Otherwise it was for an incoming packet. The kernel also
/// fails that lookup if it would not forward the packet, so such errors are no damage.
fn route_damage(
    link: &Link,
    address: IpAddr,
    answer: io::Result<Route>,
    own: bool,
) -> Option<String> {
    let device = &link.name;
    let gone = format!(
        "the route to {address} by the sentinel's interface {device} was removed: {REPAIRED}"
    );
    let instead = match answer {
        Ok(route) => {
            let unicast = route.kind == RouteType::Unicast;
            if unicast && route.device() == Some(link.index) && route.gateway.is_none() {
                return None;
            }
            if own && unicast && route.table == MAIN && !route.is_exactly(address) {
                // Packets take this less specific route if the sentinel's route is missing.
                return Some(gone);
            }
            let by = route.device().map(name_of);
            let by = by.unwrap_or_else(|| format!("{:?}", route.kind).to_lowercase());
            match route.kind {
                RouteType::Local => format!("this node itself (an address of {by})"),
                _ => format!("{by} (table {})", route.table),
            }
        }
        Err(error) => match error.raw_os_error() {
            Some(libc::EACCES) => "nowhere (prohibited)".to_owned(),
            _ if !own => return None,
            Some(libc::ENETUNREACH | libc::EHOSTUNREACH) => return Some(gone),
            Some(libc::EINVAL) => "nowhere (dropped)".to_owned(),
            _ => return Some(failed(format!("look up the route to {address}"))(error).to_string()),
        },
    };
    Some(format!(
        "{address} is routed to {instead}, not through the sentinel's interface {device}: remove \
         the route or policy rule that does this (`ip rule`, `ip route get {address}`)"
    ))
}
