//! Makes the devices what they should be, from whatever is there.

use std::net::IpAddr;
use std::time::Duration;

use agent_common::service::Family;
use rtnetlink::packet_route::route::{RouteMessage, RouteProtocol, RouteType};
use rtnetlink::{LinkMessageBuilder, LinkUnspec};

use super::netlink::{self, Link, Netlink, failed, neighbour_of};
use super::node::Route;
use super::pair::{create, existing, own_pair};
use super::{ALIAS, DeviceError, End, ROUTE_PROTOCOL, Role, SentinelDevices, Settings};

/// MTU of the far ends: one less than IPv6 wants, so that the kernel gives them no IPv6 at all. It
/// is the one way to have that by netlink, since `disable_ipv6` is a file and /proc/sys is
/// read-only in a container.
pub(super) const FAR_MTU: u32 = 1279;
/// The least MTU with which a device has IPv6.
const IPV6_MIN_MTU: u32 = 1280;
/// MTU of a near end where somebody took IPv6 from it by setting a smaller one.
const NEAR_MTU: u32 = 1500;
/// How often, and how far apart, a device is looked at until it is ready.
const LOOKS: u32 = 50;
const BETWEEN: Duration = Duration::from_millis(10);

/// Creates the devices, or adopts and repairs what is there. Doing it again changes nothing.
///
/// # Errors
/// No right to, a device or route of others in the way, a refusal of the kernel. What was made
/// until then stays, for [`remove`](super::remove()) or the next attempt.
pub async fn ensure(
    settings: &Settings,
    families: &[Family],
) -> Result<SentinelDevices, DeviceError> {
    settings.check()?;
    let netlink = Netlink::open()?;
    // Both pairs are looked at before anything is changed.
    for near in Role::NEAR {
        own_pair(&netlink, settings, near).await?;
    }
    let mut notes = Vec::new();
    for near in Role::NEAR {
        if own_pair(&netlink, settings, near).await?.is_none() {
            create(&netlink, settings, near).await?;
        }
        // The far end first: the near end's link is ready at once then.
        for role in [near.peer(), near] {
            let link = existing(&netlink, settings, role).await?;
            configure(&netlink, role, &link, &mut notes).await?;
        }
    }
    let families = usable(&netlink, settings, families, &mut notes).await?;
    let mut near_ends = Vec::with_capacity(Role::NEAR.len());
    for near in Role::NEAR {
        near_ends.push((near, ready(&netlink, settings, near, &mut notes).await?));
    }
    for family in Family::ALL {
        let usable = families.contains(&family);
        connect(&netlink, settings, &near_ends, family, usable).await?;
    }
    let [client_near, client_far, server_near, server_far] = ends(&netlink, settings).await?;
    Ok(SentinelDevices {
        client_near,
        client_far,
        server_near,
        server_far,
        families,
        notes,
    })
}

/// Sets what differs, and no more; at last the device is up.
async fn configure(
    netlink: &Netlink,
    role: Role,
    link: &Link,
    notes: &mut Vec<String>,
) -> Result<(), DeviceError> {
    if link.alias.as_deref() != Some(ALIAS) {
        netlink.set(link, "the alias", |l| l.alias(ALIAS)).await?;
    }
    if link.mac != role.mac().0 {
        let mac = role.mac().0.to_vec();
        let set = |l: LinkMessageBuilder<LinkUnspec>| l.address(mac);
        netlink.set(link, "the hardware address", set).await?;
    }
    if link.controller.is_some() {
        netlink
            .set(link, "no controller", |l| l.nocontroller())
            .await?;
    }
    if role.is_near() {
        configure_near(netlink, link, notes).await?;
    } else {
        configure_far(netlink, link, notes).await?;
    }
    if !link.up {
        netlink.set(link, "up", |l| l.up()).await?;
    }
    Ok(())
}

async fn configure_near(
    netlink: &Netlink,
    link: &Link,
    notes: &mut Vec<String>,
) -> Result<(), DeviceError> {
    if link.mtu < IPV6_MIN_MTU {
        netlink.set(link, "the MTU", |l| l.mtu(NEAR_MTU)).await?;
    }
    if link.v6.is_some_and(|v6| v6.makes_addresses) {
        let set = netlink
            .set(link, "no IPv6 addresses", |l| {
                l.append_extra_attribute(netlink::no_addresses())
            })
            .await;
        note(set, notes)?;
    }
    Ok(())
}

async fn configure_far(
    netlink: &Netlink,
    link: &Link,
    notes: &mut Vec<String>,
) -> Result<(), DeviceError> {
    if link.mtu != FAR_MTU {
        netlink.set(link, "the MTU", |l| l.mtu(FAR_MTU)).await?;
    }
    if link.forwards_v4 {
        let set = netlink
            .set(link, "no IPv4 forwarding", |l| {
                l.append_extra_attribute(netlink::forwarding_off())
            })
            .await;
        note(set, notes)?;
    }
    Ok(())
}

/// A refusal of what is not needed is noted; want of the right is not.
fn note(done: Result<(), DeviceError>, notes: &mut Vec<String>) -> Result<(), DeviceError> {
    match done {
        Err(error) if !error.is_permission() => {
            notes.push(error.to_string());
            Ok(())
        }
        done => done,
    }
}

/// Of the families wanted, those that both near ends have.
async fn usable(
    netlink: &Netlink,
    settings: &Settings,
    wanted: &[Family],
    notes: &mut Vec<String>,
) -> Result<Vec<Family>, DeviceError> {
    let mut families = Vec::new();
    for family in Family::ALL {
        if !wanted.contains(&family) {
            continue;
        }
        let without = match family {
            Family::V4 => None,
            Family::V6 => without_v6(netlink, settings).await?,
        };
        match without {
            None => families.push(family),
            Some(why) => notes.push(format!("{why}: the sentinel probes IPv4 alone")),
        }
    }
    Ok(families)
}

async fn without_v6(netlink: &Netlink, settings: &Settings) -> Result<Option<String>, DeviceError> {
    for role in Role::NEAR {
        let link = existing(netlink, settings, role).await?;
        match link.v6 {
            None => return Ok(Some("this kernel has no IPv6".to_owned())),
            Some(v6) if v6.disabled => {
                return Ok(Some(format!(
                    "IPv6 is disabled on {} (net.ipv6.conf.default.disable_ipv6, which it inherits)",
                    link.name
                )));
            }
            Some(_) => {}
        }
    }
    Ok(None)
}

/// Waits until a near end's link is ready, which the kernel makes known a little later, and takes
/// away the multicast route that it was given then.
async fn ready(
    netlink: &Netlink,
    settings: &Settings,
    near: Role,
    notes: &mut Vec<String>,
) -> Result<Link, DeviceError> {
    let mut link = existing(netlink, settings, near).await?;
    let waits = |link: &Link| !link.carrier || link.has_v6() && !link.v6.is_some_and(|v| v.ready);
    for _ in 0..LOOKS {
        if !waits(&link) {
            break;
        }
        tokio::time::sleep(BETWEEN).await;
        link = existing(netlink, settings, near).await?;
    }
    if link.has_v6() {
        match netlink.drop_multicast_route(link.index).await {
            Ok(_) => {}
            Err(error) => {
                let name = &link.name;
                let failed = failed(format!("remove the route ff00::/8 of {name}"), error);
                note(Err(failed), notes)?;
            }
        }
    }
    Ok(link)
}

/// Neighbours and routes of a family: adds what is missing, removes what earlier settings left.
async fn connect(
    netlink: &Netlink,
    settings: &Settings,
    near_ends: &[(Role, Link)],
    family: Family,
    usable: bool,
) -> Result<(), DeviceError> {
    let routes = netlink.routes(family).await?;
    for (near, link) in near_ends {
        let mut wanted = settings.behind(*near, family);
        if !usable {
            wanted.clear();
        }
        clear_neighbours(netlink, link, family, &wanted).await?;
        for &address in &wanted {
            netlink.put_neighbour(link, address, near.behind()).await?;
        }
        connect_routes(netlink, link, &routes, &wanted).await?;
    }
    Ok(())
}

async fn clear_neighbours(
    netlink: &Netlink,
    link: &Link,
    family: Family,
    wanted: &[IpAddr],
) -> Result<(), DeviceError> {
    for message in netlink.neighbours(family, Some(link.index)).await? {
        let Some((address, _, true)) = neighbour_of(&message) else {
            continue;
        };
        if !wanted.contains(&address) {
            let what = format!("remove neighbour {address} of {}", link.name);
            let done = netlink.handle.neighbours().del(message).execute().await;
            done.map_err(|error| failed(what, error))?;
        }
    }
    Ok(())
}

async fn connect_routes(
    netlink: &Netlink,
    link: &Link,
    all: &[RouteMessage],
    wanted: &[IpAddr],
) -> Result<(), DeviceError> {
    let mut there = Vec::new();
    for message in all {
        let Some(route) = Route::of(message) else {
            continue;
        };
        if route.device != Some(link.index) || route.kind != RouteType::Unicast {
            continue;
        }
        let address = route.destination.addr();
        let exact = route.destination.prefix_len() == route.destination.max_prefix_len();
        let sound = exact && !route.gateway && route.table == MAIN && wanted.contains(&address);
        if sound {
            there.push(address);
        } else if message.header.protocol == RouteProtocol::Other(ROUTE_PROTOCOL) {
            let what = format!("remove route {} of {}", route.destination, link.name);
            let done = netlink.handle.route().del(message.clone()).execute().await;
            done.map_err(|error| failed(what, error))?;
        }
    }
    for &address in wanted.iter().filter(|address| !there.contains(address)) {
        if !netlink.add_route(link, address).await? {
            return Err(taken(netlink, all, address).await);
        }
    }
    Ok(())
}

/// `RT_TABLE_MAIN`.
pub(super) const MAIN: u32 = 254;

async fn taken(netlink: &Netlink, all: &[RouteMessage], address: IpAddr) -> DeviceError {
    let holder = all
        .iter()
        .filter_map(Route::of)
        .find(|route| route.table == MAIN && route.is_exactly(address));
    let by = match holder.and_then(|route| route.device) {
        Some(index) => netlink.name_of(index).await,
        None => "another destination".to_owned(),
    };
    DeviceError::RouteTaken { address, by }
}

async fn ends(netlink: &Netlink, settings: &Settings) -> Result<[End; 4], DeviceError> {
    let mut ends = Vec::with_capacity(Role::ALL.len());
    for role in Role::ALL {
        let link = existing(netlink, settings, role).await?;
        ends.push(End {
            index: link.index,
            name: link.name,
            mac: role.mac(),
        });
    }
    ends.try_into().map_err(|_| DeviceError::Refused {
        operation: "list the sentinel's devices".to_owned(),
        source: std::io::Error::from_raw_os_error(libc::ENODEV),
    })
}
