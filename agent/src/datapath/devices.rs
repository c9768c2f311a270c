//! Which interfaces there are, followed live by netlink, and by which of them default routes
//! leave.
//!
//! Every notification leads to a fresh look at everything after a short pause: notifications can be
//! lost (a full socket), a full list cannot, and a burst of 250 new pods costs a few looks.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use agent_common::packet::Link;
use futures_util::{StreamExt, TryStreamExt};
use rtnetlink::packet_route::link::{LinkAttribute, LinkFlags, LinkLayerType, LinkMessage};
use rtnetlink::packet_route::route::{RouteAttribute, RouteMessage, RouteType};
use rtnetlink::{Handle, MulticastGroup, RouteMessageBuilder, new_multicast_connection};
use thiserror::Error;
use tokio::sync::watch;

/// How long after a notification the look is taken: a new device brings several.
const PAUSE: Duration = Duration::from_millis(30);
/// A look is taken at least this often, in case a notification was lost.
const AT_LEAST: Duration = Duration::from_secs(30);

/// An interface that Service traffic can cross.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Interface index.
    pub index: u32,
    /// Name.
    pub name: String,
    /// What stands before its packets' network header.
    pub link: Link,
    /// A default route leaves by it.
    pub uplink: bool,
}

/// Netlink could not be asked.
#[derive(Debug, Error)]
pub enum DevicesError {
    /// No socket.
    #[error("cannot open a netlink socket: {source}")]
    Open {
        /// Why not.
        source: std::io::Error,
    },
    /// A question was refused.
    #[error("cannot list {what} by netlink: {source}")]
    List {
        /// What was asked for.
        what: &'static str,
        /// Why not.
        source: rtnetlink::Error,
    },
}

/// Lists the interfaces once and follows them from then on; the receiver holds the latest list,
/// loopback left out. The task ends when the receiver is gone.
pub async fn follow() -> Result<watch::Receiver<Vec<Device>>, DevicesError> {
    let groups = [
        MulticastGroup::Link,
        MulticastGroup::Ipv4Route,
        MulticastGroup::Ipv6Route,
    ];
    let (connection, handle, mut messages) =
        new_multicast_connection(&groups).map_err(|source| DevicesError::Open { source })?;
    tokio::spawn(connection);
    let (sender, receiver) = watch::channel(list(&handle).await?);
    tokio::spawn(async move {
        loop {
            // Whether one came or the time is up: look.
            let _ = tokio::time::timeout(AT_LEAST, messages.next()).await;
            tokio::time::sleep(PAUSE).await;
            while let Ok(Some(_)) = tokio::time::timeout(Duration::ZERO, messages.next()).await {}
            match list(&handle).await {
                Ok(devices) => {
                    sender.send_if_modified(|held| {
                        let changed = *held != devices;
                        *held = devices;
                        changed
                    });
                }
                Err(error) => tracing::warn!(%error, "the interfaces could not be listed"),
            }
            if sender.is_closed() {
                return;
            }
        }
    });
    Ok(receiver)
}

async fn list(handle: &Handle) -> Result<Vec<Device>, DevicesError> {
    let uplinks = uplinks(handle).await?;
    let mut devices: Vec<_> = handle
        .link()
        .get()
        .execute()
        .try_filter_map(|message| {
            let device = device_of(&message, &uplinks);
            async move { Ok(device) }
        })
        .try_collect()
        .await
        .map_err(|source| DevicesError::List {
            what: "interfaces",
            source,
        })?;
    devices.sort_by_key(|device| device.index);
    Ok(devices)
}

fn device_of(message: &LinkMessage, uplinks: &BTreeSet<u32>) -> Option<Device> {
    if message.header.flags.contains(LinkFlags::Loopback) {
        return None;
    }
    let name = message
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            LinkAttribute::IfName(name) => Some(name.clone()),
            _ => None,
        })?;
    let link = match message.header.link_layer_type {
        LinkLayerType::Ether => Link::Ethernet,
        // Devices whose packets begin with the IP header.
        LinkLayerType::None
        | LinkLayerType::Rawip
        | LinkLayerType::Tunnel
        | LinkLayerType::Tunnel6
        | LinkLayerType::Sit
        | LinkLayerType::Ipgre
        | LinkLayerType::Ip6gre => Link::None,
        // InfiniBand, PPP and the like: headers that are not followed.
        _ => return None,
    };
    let index = message.header.index;
    Some(Device {
        index,
        name,
        link,
        uplink: uplinks.contains(&index),
    })
}

/// Indexes of the devices by which default routes leave, in whichever table.
async fn uplinks(handle: &Handle) -> Result<BTreeSet<u32>, DevicesError> {
    let v4 = RouteMessageBuilder::<Ipv4Addr>::new().build();
    let v6 = RouteMessageBuilder::<Ipv6Addr>::new().build();
    let mut uplinks = BTreeSet::new();
    for question in [v4, v6] {
        let mut routes = handle.route().get(question).execute();
        while let Some(route) = routes.next().await {
            match route {
                Ok(route) => collect_default(&route, &mut uplinks),
                // A kernel without IPv6 has no such table: no uplinks of that family.
                Err(rtnetlink::Error::NetlinkError(_)) => break,
                Err(source) => {
                    return Err(DevicesError::List {
                        what: "routes",
                        source,
                    });
                }
            }
        }
    }
    Ok(uplinks)
}

fn collect_default(route: &RouteMessage, uplinks: &mut BTreeSet<u32>) {
    if route.header.destination_prefix_length != 0 || route.header.kind != RouteType::Unicast {
        return;
    }
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::Oif(index) => {
                uplinks.insert(*index);
            }
            RouteAttribute::MultiPath(hops) => {
                uplinks.extend(hops.iter().map(|hop| hop.interface_index));
            }
            _ => {}
        }
    }
}
