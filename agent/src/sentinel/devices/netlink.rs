//! Requests about the sentinel's devices, neighbours and routes. This module decides nothing.

use std::io;
use std::net::{IpAddr, Ipv6Addr};

use ipnet::IpNet;
use libc::{RTM_DELROUTE, RTM_GETNEIGH, RTM_NEWROUTE};
use netlink_sys::protocols::NETLINK_ROUTE;
use pathproof_wire::service::Family;
use rtnetlink::RouteMessageBuilder;
use rtnetlink::packet_core::{NLM_F_CREATE, NLM_F_EXCL, Parseable as _};
use rtnetlink::packet_route::link::{AfSpecInet6, AfSpecUnspec, In6AddrGenMode, LinkAttribute};
use rtnetlink::packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use rtnetlink::packet_route::route::{
    RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use tokio::task::spawn_blocking;

use super::{DeviceError, ROUTE_PROTOCOL};
use crate::netlink::link::{self, Link};
use crate::netlink::routes::{self, Route};
use crate::netlink::{self, PATIENCE, dump, encoded, request, unless};

/// `RT_TABLE_LOCAL` and `RT_TABLE_MAIN`.
const TABLE_LOCAL: u8 = 255;
pub(super) const MAIN: u32 = 254;

/// Converts an error of the kernel. `operation` is the text that follows "cannot" in the message.
pub(super) fn failed(operation: impl Into<String>) -> impl FnOnce(io::Error) -> DeviceError {
    let operation = operation.into();
    move |source| match source.raw_os_error() {
        Some(libc::EPERM) => DeviceError::Permission { operation },
        _ => DeviceError::Refused { operation, source },
    }
}

pub(super) fn find_link(name: &str) -> Result<Option<Link>, DeviceError> {
    link::named(name).map_err(failed(format!("look up device {name}")))
}

pub(super) struct Neighbour {
    pub(super) address: IpAddr,
    pub(super) mac: Vec<u8>,
    pub(super) device: u32,
    pub(super) state: NeighbourState,
}

impl Neighbour {
    fn parse(body: &[u8]) -> io::Result<Option<Self>> {
        let message = NeighbourMessage::parse(body).map_err(io::Error::other)?;
        let (mut address, mut mac) = (None, Vec::new());
        for attribute in message.attributes {
            match attribute {
                NeighbourAttribute::Destination(NeighbourAddress::Inet(v4)) => {
                    address = Some(v4.into());
                }
                NeighbourAttribute::Destination(NeighbourAddress::Inet6(v6)) => {
                    address = Some(v6.into());
                }
                NeighbourAttribute::LinkLayerAddress(bytes) => mac = bytes,
                _ => {}
            }
        }
        Ok(address.map(|address| Self {
            address,
            mac,
            device: message.header.ifindex,
            state: message.header.state,
        }))
    }

    pub(super) fn is_permanent(&self) -> bool {
        self.state == NeighbourState::Permanent
    }
}

/// Neighbours of a family, at one device or at all.
pub(super) fn neighbours(
    family: Family,
    device: Option<u32>,
) -> Result<Vec<Neighbour>, DeviceError> {
    let mut question = NeighbourMessage::default();
    question.header.family = netlink::number(family).into();
    let device = device.map(NeighbourAttribute::IfIndex);
    question.attributes.extend(device);
    let (question, mut found) = (encoded(&question), Vec::new());
    let listed = dump(PATIENCE, NETLINK_ROUTE, RTM_GETNEIGH, &question, |body| {
        found.extend(Neighbour::parse(body)?);
        Ok(())
    });
    listed.map_err(failed("list neighbours"))?;
    Ok(found)
}

/// A message about a permanent neighbour.
pub(super) fn neighbour(device: u32, address: IpAddr) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = netlink::family(address).0.into();
    message.header.ifindex = device;
    message.header.state = NeighbourState::Permanent;
    message.attributes = vec![NeighbourAttribute::Destination(address.into())];
    message
}

/// The sentinel's host route to `address` by a device.
pub(super) fn own_route(address: IpAddr, device: u32) -> RouteMessage {
    let mut message = routes::host_route(address);
    message.header.table = RouteHeader::RT_TABLE_MAIN;
    message.header.kind = RouteType::Unicast;
    message.header.scope = RouteScope::Link;
    message.header.protocol = RouteProtocol::Other(ROUTE_PROTOCOL);
    message.attributes.push(RouteAttribute::Oif(device));
    message
}

/// Adds a host route; `Ok(false)` if a route to the address exists.
pub(super) fn add_route(link: &Link, address: IpAddr) -> Result<bool, DeviceError> {
    let message = own_route(address, link.index);
    let added = request(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL, &message);
    let added = unless(libc::EEXIST, added);
    let added = added.map_err(failed(format!("add route {address} by {}", link.name)))?;
    Ok(added.is_some())
}

/// Removes the route ff00::/8, which the kernel adds to every device with IPv6: otherwise other
/// programs' multicast could leave by the sentinel's devices.
pub(super) fn drop_multicast_route(link: &Link) -> Result<(), DeviceError> {
    let all = Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0);
    let mut message = RouteMessageBuilder::<Ipv6Addr>::new()
        .destination_prefix(all, 8)
        .output_interface(link.index)
        .kind(RouteType::Multicast)
        .build();
    message.header.table = TABLE_LOCAL;
    message.header.protocol = RouteProtocol::Unspec;
    let done = unless(libc::ESRCH, request(RTM_DELROUTE, 0, &message));
    let what = format!("remove the route ff00::/8 of {}", link.name);
    done.map(drop).map_err(failed(what))
}

/// Name of a device, or its index if the device is gone.
pub(super) fn name_of(index: u32) -> String {
    netlink::name_of(index).unwrap_or_else(|_| format!("device {index}"))
}

/// Routes of every table that `wanted` selects, and the sentinel's routes.
pub(super) async fn routes(
    family: Family,
    wanted: impl Fn(IpNet) -> bool + Send + 'static,
) -> Result<Vec<Route>, DeviceError> {
    let wanted = move |to, protocol| protocol == ROUTE_PROTOCOL || wanted(to);
    let listed = spawn_blocking(move || routes::list(family, wanted)).await;
    let listed = listed.map_err(io::Error::other).flatten();
    listed.map_err(failed("list routes"))
}

/// Prevents the kernel from creating a link-local address.
pub(super) fn no_addresses() -> LinkAttribute {
    let mode = AfSpecInet6::AddrGenMode(In6AddrGenMode::None);
    LinkAttribute::AfSpecUnspec(vec![AfSpecUnspec::Inet6(vec![mode])])
}
