//! Routes of this node, selected while the kernel lists them, and lookups of one. A router may have a million
//! routes of which a handful matters; rtnetlink would parse each of them and buffer them all.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use ipnet::IpNet;
use libc::RTM_GETROUTE;
use netlink_sys::protocols::NETLINK_ROUTE;
use pathproof_wire::service::Family;
use rtnetlink::packet_core::Parseable as _;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteMetric, RouteType, RouteVia,
};
use tokio::time::Instant;

use crate::netlink;

/// Length of `struct rtmsg`, with which the request and its answers begin.
const HEADER: usize = 12;
/// Timeout for each part of an answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Timeout for the whole answer: the caller does not wait longer, and its next request starts over.
const WHOLE: Duration = Duration::from_secs(20);

/// A route of any table, or the result of a lookup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) destination: IpNet,
    pub(crate) kind: RouteType,
    pub(crate) table: u32,
    /// Number of the program that added it (`rtm_protocol`).
    pub(crate) protocol: u8,
    /// Interfaces of its next hops.
    pub(crate) devices: Vec<u32>,
    /// Gateway, if it has one next hop.
    pub(crate) gateway: Option<IpAddr>,
    /// Whether the route sets an MTU.
    pub(crate) has_mtu: bool,
}

impl Route {
    /// Its interface; `None` if it has several next hops, or none.
    pub(crate) fn device(&self) -> Option<u32> {
        match self.devices[..] {
            [device] => Some(device),
            _ => None,
        }
    }

    pub(crate) fn is_exactly(&self, address: IpAddr) -> bool {
        self.destination == IpNet::from(address)
    }

    pub(crate) fn parse(body: &[u8]) -> io::Result<Self> {
        let message = RouteMessage::parse(body).map_err(io::Error::other)?;
        Self::of(&message).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    fn of(message: &RouteMessage) -> Option<Self> {
        let header = &message.header;
        let mut address: IpAddr = match header.address_family {
            AddressFamily::Inet => Ipv4Addr::UNSPECIFIED.into(),
            AddressFamily::Inet6 => Ipv6Addr::UNSPECIFIED.into(),
            _ => return None,
        };
        let mut route = Self {
            destination: address.into(),
            kind: header.kind,
            table: header.table.into(),
            protocol: header.protocol.into(),
            devices: Vec::new(),
            gateway: None,
            has_mtu: false,
        };
        for attribute in &message.attributes {
            match attribute {
                RouteAttribute::Destination(to) => address = ip(to)?,
                RouteAttribute::Table(number) => route.table = *number,
                RouteAttribute::Oif(index) => route.devices.push(*index),
                RouteAttribute::MultiPath(hops) => {
                    route
                        .devices
                        .extend(hops.iter().map(|hop| hop.interface_index));
                }
                RouteAttribute::Gateway(gateway) => route.gateway = ip(gateway),
                RouteAttribute::Via(RouteVia::Inet6(gateway)) => {
                    route.gateway = Some((*gateway).into());
                }
                RouteAttribute::Metrics(metrics) => {
                    let is_mtu = |metric: &RouteMetric| matches!(metric, RouteMetric::Mtu(_));
                    route.has_mtu = metrics.iter().any(is_mtu);
                }
                _ => {}
            }
        }
        route.destination = IpNet::new(address, header.destination_prefix_length).ok()?;
        Some(route)
    }
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(v4) => Some((*v4).into()),
        RouteAddress::Inet6(v6) => Some((*v6).into()),
        _ => None,
    }
}

/// A message about the route to exactly `address`.
pub(crate) fn host_route(address: IpAddr) -> RouteMessage {
    let mut message = RouteMessage::default();
    let (number, bits) = netlink::family(address);
    message.header.address_family = number.into();
    message.header.destination_prefix_length = bits;
    message.attributes = vec![RouteAttribute::Destination(address.into())];
    message
}

/// Looks up the route to an address, with policy rules applied: of a packet that enters from an address by an
/// interface, or of one that the node itself sends. Mark 0 is no mark. With [`RouteFlags::FibMatch`] the answer
/// is the matching table entry, otherwise the next hop that the kernel selects.
pub(crate) fn look_up(
    to: IpAddr,
    from: Option<(IpAddr, u32)>,
    mark: u32,
    flags: RouteFlags,
) -> io::Result<Route> {
    let mut question = host_route(to);
    question.header.flags = flags;
    if let Some((source, device)) = from {
        question.header.source_prefix_length = question.header.destination_prefix_length;
        let source = RouteAttribute::Source(source.into());
        question
            .attributes
            .extend([source, RouteAttribute::Iif(device)]);
    }
    if mark != 0 {
        question.attributes.push(RouteAttribute::Mark(mark));
    }
    Route::parse(&netlink::request(RTM_GETROUTE, 0, &question)?)
}

/// Lists the routes of all tables that `wanted` selects by destination and protocol (`rtm_protocol`). A
/// million routes take a second, so do not call this on a thread that others wait for.
pub(crate) fn list(family: Family, wanted: impl Fn(IpNet, u8) -> bool) -> io::Result<Vec<Route>> {
    let mut question = [0; HEADER];
    question[0] = netlink::number(family);
    let (mut routes, began) = (Vec::new(), Instant::now());
    netlink::dump(PATIENCE, NETLINK_ROUTE, RTM_GETROUTE, &question, |body| {
        // The family is compared, because a kernel without IPv6 answers a request for it with the routes of
        // all other families.
        let (destination, protocol) = head(body).ok_or_else(netlink::too_short)?;
        if body[0] == question[0] && destination.is_some_and(|to| wanted(to, protocol)) {
            // A route that the library cannot parse must not hide the others.
            match Route::parse(body) {
                Ok(route) => routes.push(route),
                Err(error) => tracing::debug!(%error, "a route could not be read"),
            }
        }
        match began.elapsed() > WHOLE {
            true => Err(io::ErrorKind::TimedOut.into()),
            false => Ok(()),
        }
    })?;
    Ok(routes)
}

/// Indexes of the interfaces of this family's default routes, in any table. It lists all routes: see [`list`].
pub(crate) fn uplinks(family: Family) -> io::Result<BTreeSet<u32>> {
    interfaces(family, |destination, _| destination.prefix_len() == 0)
}

/// Indexes of the interfaces of the unicast routes that `wanted` selects, as in [`list`].
pub(crate) fn interfaces(
    family: Family,
    wanted: impl Fn(IpNet, u8) -> bool,
) -> io::Result<BTreeSet<u32>> {
    let mut routes = list(family, wanted)?;
    routes.retain(|route| route.kind == RouteType::Unicast);
    Ok(routes.into_iter().flat_map(|route| route.devices).collect())
}

/// Destination (if it is an IP network) and protocol of a route.
fn head(body: &[u8]) -> Option<(Option<IpNet>, u8)> {
    let &[family, prefix, _, _, _, protocol, ..] = body.first_chunk::<HEADER>()?;
    let destination = netlink::find(&body[HEADER..], libc::RTA_DST);
    let address: Option<IpAddr> = match (i32::from(family), destination) {
        (libc::AF_INET, None) => Some(Ipv4Addr::UNSPECIFIED.into()),
        (libc::AF_INET6, None) => Some(Ipv6Addr::UNSPECIFIED.into()),
        (libc::AF_INET, Some(bytes)) => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
        (libc::AF_INET6, Some(bytes)) => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
        _ => None,
    };
    let destination = address.and_then(|address| IpNet::new(address, prefix).ok());
    Some((destination, protocol))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::default(libc::AF_INET, 0, &[], Some("0.0.0.0/0"))]
    #[case::v4(libc::AF_INET, 24, &[192, 0, 2, 0], Some("192.0.2.0/24"))]
    #[case::default_v6(libc::AF_INET6, 0, &[], Some("::/0"))]
    #[case::another_family(libc::AF_MPLS, 20, &[0, 1, 0, 0], None)]
    #[case::an_address_of_another_length(libc::AF_INET, 24, &[192, 0], None)]
    #[case::an_impossible_prefix(libc::AF_INET, 33, &[192, 0, 2, 0], None)]
    fn destinations(
        #[case] family: i32,
        #[case] prefix: u8,
        #[case] address: &[u8],
        #[case] expected: Option<&str>,
    ) {
        let mut body = vec![family as u8, prefix, 0, 0, 254, 171, 0, 1, 0, 0, 0, 0];
        if !address.is_empty() {
            body.extend(netlink::attribute(libc::RTA_DST, address));
        }
        let expected = expected.map(|net| net.parse().expect(net));
        assert_eq!(head(&body), Some((expected, 171)));
        assert_eq!(head(&body[..11]), None);
    }
}
