//! The interfaces, followed live by netlink, and those of them by which default routes leave.
//!
//! A notification of an interface or a default route leads to a fresh look at everything after a short
//! pause: notifications can be lost (a full socket), a full list cannot, and a burst of 250 new pods
//! costs a few looks. Other routes lead to none: a router's change many times a second.

use std::collections::BTreeSet;
use std::time::Duration;

use agent_common::packet::Link;
use agent_common::service::Family;
use futures_util::{StreamExt, TryStreamExt};
use rtnetlink::packet_core::NetlinkPayload;
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::link::{
    InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkLayerType, LinkMessage, LinkXdp, XdpAttached,
};
use rtnetlink::packet_route::route::{RouteAttribute, RouteMessage, RouteType};
use rtnetlink::{Handle, MulticastGroup, new_multicast_connection};
use thiserror::Error;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::Instant;

use crate::netlink::routes;

/// Delay from a notification to the listing: a new device brings several notifications.
const PAUSE: Duration = Duration::from_millis(30);
/// Interfaces are listed at least this often, in case a notification was lost,
const AT_LEAST: Duration = Duration::from_secs(30);
/// or after this many times the duration of the last look, so that it takes 1 % of a processor at most.
const RARELY: u32 = 100;

/// An interface that Service traffic can cross.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Interface index.
    pub index: u32,
    /// Name.
    pub name: String,
    /// Header before its packets' network header.
    pub link: Link,
    /// A default route leaves by it.
    pub uplink: bool,
    /// A veth or netkit pair whose other end lies in another network namespace.
    pub leads_elsewhere: bool,
}

/// The interfaces, loopback left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interfaces {
    /// Those that can be watched, in the order of their indexes.
    pub devices: Vec<Device>,
    /// Number of those with IP behind headers that are not followed: PPP, InfiniBand and the like.
    pub unfollowed: usize,
    /// Number of netkit pairs: their packets may go past every hook of the observer's.
    pub netkit: u32,
    /// Indexes of those with an XDP program.
    pub accelerated: BTreeSet<u32>,
}

/// Netlink could not be asked.
#[derive(Debug, Error)]
#[error("cannot {operation} by netlink: {source}")]
pub struct DevicesError {
    operation: &'static str,
    source: Box<dyn std::error::Error + Send + Sync>,
}

/// Converts a refusal into an error.
fn failed<E: Into<Box<dyn std::error::Error + Send + Sync>>>(
    operation: &'static str,
) -> impl FnOnce(E) -> DevicesError {
    move |source| DevicesError {
        operation,
        source: source.into(),
    }
}

/// Lists the interfaces once and follows them from then on; the receiver holds the latest list. The
/// task ends when the receiver is gone.
pub async fn follow() -> Result<watch::Receiver<Interfaces>, DevicesError> {
    let groups = [
        MulticastGroup::Link,
        MulticastGroup::Ipv4Route,
        MulticastGroup::Ipv6Route,
    ];
    let (connection, handle, mut messages) =
        new_multicast_connection(&groups).map_err(failed("follow interfaces"))?;
    tokio::spawn(connection);
    let (sender, receiver) = watch::channel(list(&handle).await?);
    tokio::spawn(async move {
        let mut at_least = AT_LEAST;
        loop {
            let news = async {
                while let Some((message, _)) = messages.next().await {
                    if matters(&message.payload) {
                        return;
                    }
                }
            };
            // If one came or the time is up: look.
            let _ = tokio::time::timeout(at_least, news).await;
            tokio::time::sleep(PAUSE).await;
            while let Ok(Some(_)) = tokio::time::timeout(Duration::ZERO, messages.next()).await {}
            let began = Instant::now();
            let listed = list(&handle).await;
            at_least = AT_LEAST.max(began.elapsed() * RARELY);
            match listed {
                Ok(interfaces) => {
                    sender.send_if_modified(|held| {
                        let changed = *held != interfaces;
                        *held = interfaces;
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

/// Whether a notification may change the [`Interfaces`].
fn matters(payload: &NetlinkPayload<RouteNetlinkMessage>) -> bool {
    match payload {
        NetlinkPayload::InnerMessage(
            RouteNetlinkMessage::NewRoute(route) | RouteNetlinkMessage::DelRoute(route),
        ) => route.header.destination_prefix_length == 0,
        _ => true,
    }
}

async fn list(handle: &Handle) -> Result<Interfaces, DevicesError> {
    let uplinks = spawn_blocking(uplinks).await;
    let uplinks = uplinks.map_err(failed("list routes"))??;
    let mut interfaces = Interfaces::default();
    let mut messages = handle.link().get().execute();
    while let Some(message) = messages
        .try_next()
        .await
        .map_err(failed("list interfaces"))?
    {
        interfaces.add(&message, &uplinks);
    }
    interfaces.devices.sort_by_key(|device| device.index);
    Ok(interfaces)
}

impl Interfaces {
    fn add(&mut self, message: &LinkMessage, uplinks: &BTreeSet<u32>) {
        let header = &message.header;
        if header.flags.contains(LinkFlags::Loopback) {
            return;
        }
        let Some(link) = link_of(header.link_layer_type) else {
            // Down, it carries nothing.
            let up = header.flags.contains(LinkFlags::Up);
            self.unfollowed += usize::from(up && carries_ip(header.link_layer_type));
            return;
        };
        let (mut name, mut elsewhere, mut pair) = (None, false, false);
        for attribute in &message.attributes {
            match attribute {
                LinkAttribute::IfName(found) => name = Some(found.clone()),
                LinkAttribute::LinkNetNsId(_) => elsewhere = true,
                LinkAttribute::LinkInfo(infos) => {
                    self.netkit += u32::from(infos.contains(&NETKIT));
                    pair = infos.contains(&NETKIT) || infos.contains(&VETH);
                }
                LinkAttribute::Xdp(xdp) if has_xdp(xdp) => {
                    self.accelerated.insert(header.index);
                }
                _ => {}
            }
        }
        self.devices.extend(name.map(|name| Device {
            index: header.index,
            name,
            link,
            uplink: uplinks.contains(&header.index),
            leads_elsewhere: elsewhere && pair,
        }));
    }
}

const NETKIT: LinkInfo = LinkInfo::Kind(InfoKind::Netkit);
const VETH: LinkInfo = LinkInfo::Kind(InfoKind::Veth);

fn has_xdp(xdp: &[LinkXdp]) -> bool {
    xdp.iter()
        .any(|fact| matches!(fact, LinkXdp::Attached(how) if *how != XdpAttached::None))
}

/// Header before the network header; nothing where that is not followed.
fn link_of(kind: LinkLayerType) -> Option<Link> {
    match kind {
        LinkLayerType::Ether => Some(Link::Ethernet),
        // Devices whose packets begin with the IP header.
        LinkLayerType::None
        | LinkLayerType::Rawip
        | LinkLayerType::Tunnel
        | LinkLayerType::Tunnel6
        | LinkLayerType::Sit
        | LinkLayerType::Ipgre
        | LinkLayerType::Ip6gre => Some(Link::None),
        _ => None,
    }
}

/// Whether a kind that is not followed may carry Service traffic. Monitors, buses, radios below
/// another device and the void do not.
fn carries_ip(kind: LinkLayerType) -> bool {
    !matches!(
        kind,
        LinkLayerType::Netlink
            | LinkLayerType::Vsockmon
            | LinkLayerType::Can
            | LinkLayerType::Mctp
            | LinkLayerType::Pimreg
            | LinkLayerType::Ieee80211
            | LinkLayerType::Ieee80211Prism
            | LinkLayerType::Ieee80211Radiotap
            | LinkLayerType::Ieee802154
            | LinkLayerType::Ieee802154Monitor
            | LinkLayerType::Void
    )
}

/// Indexes of the devices by which default routes leave, in whichever table.
fn uplinks() -> Result<BTreeSet<u32>, DevicesError> {
    let mut uplinks = BTreeSet::new();
    for family in Family::ALL {
        let defaults = routes::list(family, |destination, _| destination.prefix_len() == 0);
        for route in defaults.map_err(failed("list routes"))? {
            collect(&route, &mut uplinks);
        }
    }
    Ok(uplinks)
}

fn collect(route: &RouteMessage, uplinks: &mut BTreeSet<u32>) {
    if route.header.kind != RouteType::Unicast {
        return;
    }
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::Oif(index) => drop(uplinks.insert(*index)),
            RouteAttribute::MultiPath(hops) => {
                uplinks.extend(hops.iter().map(|hop| hop.interface_index));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::ethernet(LinkLayerType::Ether, LinkFlags::Up, Some(Link::Ethernet), 0)]
    #[case::down(LinkLayerType::Ether, LinkFlags::empty(), Some(Link::Ethernet), 0)]
    #[case::wireguard(LinkLayerType::None, LinkFlags::Up, Some(Link::None), 0)]
    #[case::ipip(LinkLayerType::Tunnel, LinkFlags::Up, Some(Link::None), 0)]
    #[case::ppp(LinkLayerType::Ppp, LinkFlags::Up, None, 1)]
    #[case::ppp_down(LinkLayerType::Ppp, LinkFlags::empty(), None, 0)]
    #[case::infiniband(LinkLayerType::Infiniband, LinkFlags::Up, None, 1)]
    #[case::monitor(LinkLayerType::Netlink, LinkFlags::Up, None, 0)]
    #[case::bus(LinkLayerType::Can, LinkFlags::Up, None, 0)]
    #[case::loopback(LinkLayerType::Loopback, LinkFlags::Up | LinkFlags::Loopback, None, 0)]
    fn kinds(
        #[case] kind: LinkLayerType,
        #[case] flags: LinkFlags,
        #[case] link: Option<Link>,
        #[case] unfollowed: usize,
    ) {
        let mut message = LinkMessage::default();
        message.header.link_layer_type = kind;
        message.header.flags = flags;
        message.header.index = 7;
        message.attributes = vec![LinkAttribute::IfName("one".to_owned())];
        let mut interfaces = Interfaces::default();
        interfaces.add(&message, &BTreeSet::from([7]));
        let expected = link.map(|link| Device {
            index: 7,
            name: "one".to_owned(),
            link,
            uplink: true,
            leads_elsewhere: false,
        });
        assert_eq!(interfaces.devices, Vec::from_iter(expected));
        assert_eq!(interfaces.unfollowed, unfollowed);
    }

    /// A router's routes change many times a second.
    #[test]
    fn only_default_routes_and_interfaces_matter() {
        let to = |prefix| {
            let mut route = RouteMessage::default();
            route.header.destination_prefix_length = prefix;
            route
        };
        for (message, expected) in [
            (RouteNetlinkMessage::NewRoute(to(24)), false),
            (RouteNetlinkMessage::DelRoute(to(32)), false),
            (RouteNetlinkMessage::NewRoute(to(0)), true),
            (RouteNetlinkMessage::DelRoute(to(0)), true),
            (RouteNetlinkMessage::NewLink(LinkMessage::default()), true),
            (RouteNetlinkMessage::DelLink(LinkMessage::default()), true),
        ] {
            let name = format!("{message:?}");
            let payload = NetlinkPayload::InnerMessage(message);
            assert_eq!(matters(&payload), expected, "{name}");
        }
    }

    #[rstest]
    #[case::pod(InfoKind::Veth, true, true)]
    #[case::pod_by_netkit(InfoKind::Netkit, true, true)]
    #[case::both_ends_here(InfoKind::Veth, false, false)]
    #[case::uplink_of_a_node_in_a_container(InfoKind::MacVlan, true, false)]
    fn pairs(#[case] kind: InfoKind, #[case] elsewhere: bool, #[case] expected: bool) {
        let mut message = LinkMessage::default();
        message.header.link_layer_type = LinkLayerType::Ether;
        message.attributes = vec![
            LinkAttribute::IfName("one".to_owned()),
            LinkAttribute::LinkInfo(vec![LinkInfo::Kind(kind)]),
        ];
        let other = elsewhere.then_some(LinkAttribute::LinkNetNsId(0));
        message.attributes.extend(other);
        let mut interfaces = Interfaces::default();
        interfaces.add(&message, &BTreeSet::new());
        assert_eq!(interfaces.devices[0].leads_elsewhere, expected);
    }
}
