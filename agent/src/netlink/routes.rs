//! Routes of this node, selected while the kernel lists them. A router may have a million routes of
//! which a handful matters; rtnetlink would parse each of them and buffer them all.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use ipnet::IpNet;
use libc::RTM_GETROUTE;
use netlink_sys::protocols::NETLINK_ROUTE;
use pathproof_wire::service::Family;
use rtnetlink::packet_core::Parseable;
use rtnetlink::packet_route::route::{RouteAttribute, RouteMessage, RouteType};
use tokio::time::Instant;

use crate::netlink;

/// Length of `struct rtmsg`, with which the request and its answers begin.
const HEADER: usize = 12;
/// Timeout for each part of an answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Timeout for the whole answer: the caller does not wait longer, and its next request starts over.
const WHOLE: Duration = Duration::from_secs(20);

/// Lists the routes of all tables that `wanted` selects by destination and protocol (`rtm_protocol`). A
/// million routes take a second, so do not call this on a thread that others wait for.
pub(crate) fn list(
    family: Family,
    wanted: impl Fn(IpNet, u8) -> bool,
) -> io::Result<Vec<RouteMessage>> {
    let mut question = [0; HEADER];
    question[0] = netlink::number(family);
    let (mut routes, began) = (Vec::new(), Instant::now());
    netlink::dump(PATIENCE, NETLINK_ROUTE, RTM_GETROUTE, &question, |body| {
        // The family is compared, because a kernel without IPv6 answers a request for it with the routes of
        // all other families.
        let (destination, protocol) = head(body).ok_or_else(netlink::too_short)?;
        if body[0] == question[0] && destination.is_some_and(|to| wanted(to, protocol)) {
            // A route that the library cannot parse must not hide the others.
            match RouteMessage::parse(body) {
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
    let routes = list(family, wanted)?;
    let unicast = routes
        .iter()
        .filter(|route| route.header.kind == RouteType::Unicast);
    let attributes = unicast.flat_map(|route| &route.attributes);
    Ok(attributes.flat_map(interfaces_of).collect())
}

fn interfaces_of(attribute: &RouteAttribute) -> Vec<u32> {
    match attribute {
        RouteAttribute::Oif(index) => vec![*index],
        RouteAttribute::MultiPath(hops) => hops.iter().map(|hop| hop.interface_index).collect(),
        _ => Vec::new(),
    }
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
