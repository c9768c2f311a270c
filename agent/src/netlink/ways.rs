//! Looks up the kernel's paths between a client and the endpoints of this node: the routes in both
//! directions, as for an incoming packet, and the neighbours. It sends and changes nothing.

use std::cell::LazyCell;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::{fs, io};

use pathproof_facts::cause::Cause;
use pathproof_facts::node_context::address;
use pathproof_node::Node;
use pathproof_node::event::Event;
use pathproof_wire::service::Family;
use pathproof_witness::evidence::{
    Client, EndpointRoute, EndpointRoutes, EndpointsAsked, Lookup, Way,
};
use rtnetlink::packet_core::Parseable as _;
use rtnetlink::packet_route::link::InfoKind;
use rtnetlink::packet_route::neighbour::{NeighbourAttribute, NeighbourMessage};
use rtnetlink::packet_route::route::{RouteFlags, RouteType};

use crate::netlink::link::Leads;
use crate::netlink::{family, link, name_of, request, routes};

/// States of a neighbour that count as reachable, and as unreachable.
const ANSWERS: u16 = libc::NUD_REACHABLE | libc::NUD_NOARP | libc::NUD_PERMANENT;
const SILENT: u16 = libc::NUD_INCOMPLETE | libc::NUD_FAILED;

/// Looks up the paths from these clients to the endpoints of this node.
pub(crate) fn look_up(clients: Vec<Client>, node: &Node) -> Event {
    // Finding the endpoints reads the whole cluster view, so do it once for all clients of a family.
    let here = Family::ALL.map(|family| LazyCell::new(move || node.endpoints_here(family)));
    let lookup = |client: Client| {
        let endpoints = &*here[Family::of(&address(&client.address)) as usize];
        let others = endpoints.iter().cycle().skip(1);
        let pairs = endpoints.iter().zip(others);
        // The kernel routes packets that come in by a port of a bridge as if they came in by the bridge.
        let bridge = link::read(client.device)
            .ok()
            .and_then(|link| link.bridge());
        let from = Client {
            device: bridge.unwrap_or(client.device),
            ..client.clone()
        };
        let is_unfiltered = is_unfiltered_bridge(&from);
        let ways = pairs.map(|((to, namespaces), (other, _))| {
            let way = way((&from, is_unfiltered), *to, *other);
            (namespaces.clone(), way)
        });
        let ways: Vec<_> = ways.collect();
        Lookup::of(client, ways)
    };
    Event::Lookups(clients.into_iter().map(lookup).collect())
}

/// Looks up the pods' devices by which the node reaches endpoints, and which known devices are gone.
pub(crate) fn devices(asked: EndpointsAsked, existing: &BTreeSet<u32>) -> Event {
    let is_gone = |index: &u32| !existing.contains(index);
    Event::EndpointRoutes(EndpointRoutes {
        routes: (asked.endpoints.into_iter())
            .filter_map(by_pods_device)
            .collect(),
        left: asked.left,
        gone: asked.devices.into_iter().filter(is_gone).collect(),
    })
}

/// The device by which the node reaches an endpoint, if it leads to pods of this node.
fn by_pods_device(endpoint: IpAddr) -> Option<EndpointRoute> {
    let RouteAnswer::Route(route) = route(endpoint, None) else {
        return None;
    };
    let leads = link::read(route.device).ok()?.leads()?;
    is_near(route, leads).then_some(EndpointRoute {
        endpoint,
        device: name_of(route.device).ok()?,
        index: route.device,
        is_own: leads == Leads::Elsewhere,
    })
}

/// Whether a route leads to pods of this node. Other nodes' pods are behind a tunnel, a network card, or a
/// gateway. With Cilium, all pods are behind one pair of devices, and only routes to other nodes have an MTU.
fn is_near(route: Route, leads: Leads) -> bool {
    match leads {
        Leads::Pair => !route.has_mtu,
        Leads::Elsewhere | Leads::Bridge => route.gateway.is_none(),
    }
}

/// Looks up the route of the client's packet to the endpoint, its next hop, and the route of the answer. The
/// endpoint `other` is the control: if it cannot reach `endpoint` either, the kernel blocks more than this
/// client. With `is_unfiltered` the client is behind a bridge without netfilter.
fn way((client, is_unfiltered): (&Client, bool), endpoint: IpAddr, other: IpAddr) -> Way {
    let (there, is_dropped) = match route(endpoint, Some((client.address, client.device))) {
        RouteAnswer::Route(route) => (route, false),
        RouteAnswer::None => match route(endpoint, None) {
            RouteAnswer::Route(route) => (route, true),
            RouteAnswer::None => return Way::Blocked(Cause::NoRoute),
            RouteAnswer::Unclear => return Way::Unclear,
        },
        RouteAnswer::Unclear => return Way::Unclear,
    };
    // If the node has no route to the client, the operator may have blocked the client on purpose.
    let RouteAnswer::Route(home) = route(client.address, None) else {
        return Way::Unclear;
    };
    if is_dropped && home.device != client.device && filters_strictly(client) {
        return Way::Blocked(Cause::ReversePath);
    }
    if is_dropped {
        return match other != endpoint && is_cut(other, endpoint) {
            true => Way::Blocked(Cause::NoRoute),
            false => Way::Unclear,
        };
    }
    let neighbour = neighbour(there.gateway.unwrap_or(endpoint), there.device);
    if neighbour & SILENT != 0 {
        return Way::Blocked(Cause::NoNeighbour);
    }
    if is_unfiltered && there.device == client.device {
        return Way::Blocked(Cause::BridgeFilter);
    }
    match route(client.address, Some((endpoint, there.device))) {
        RouteAnswer::None => Way::Blocked(Cause::NoRoute),
        RouteAnswer::Route(_) if neighbour & ANSWERS != 0 => Way::Open,
        RouteAnswer::Route(_) | RouteAnswer::Unclear => Way::Unclear,
    }
}

/// Whether the kernel cannot route from one endpoint to another, though the node can reach both.
fn is_cut(from: IpAddr, to: IpAddr) -> bool {
    let RouteAnswer::Route(source) = route(from, None) else {
        return false;
    };
    route(to, Some((from, source.device))) == RouteAnswer::None
}

/// Whether strict reverse path filtering is on for this interface. Linux 6.18 does not report it as
/// the reason of a failed lookup.
fn filters_strictly(client: &Client) -> bool {
    let read = |name: &str| {
        let text = fs::read_to_string(format!("/proc/sys/net/ipv4/conf/{name}/rp_filter"));
        text.ok()?.trim().parse::<u8>().ok()
    };
    // The kernel uses the larger value, of this interface or of `all`.
    let set = || Some(read(&name_of(client.device).ok()?)?.max(read("all")?));
    client.address.is_ipv4() && set() == Some(1)
}

/// Whether the client is behind a bridge that passes packets from port to port without netfilter. If another
/// pod behind it answers, the answer is not translated back. The client refuses it, because it dialled
/// another address.
fn is_unfiltered_bridge(client: &Client) -> bool {
    let (family, tables) = match client.address {
        IpAddr::V4(_) => (0, "iptables"),
        IpAddr::V6(_) => (1, "ip6tables"),
    };
    let is_off =
        |link: link::Link| link.kind == Some(InfoKind::Bridge) && !link.calls_tables[family];
    // Without the module br_netfilter there is no switch for all bridges.
    let all = match fs::read_to_string(format!("/proc/sys/net/bridge/bridge-nf-call-{tables}")) {
        Ok(value) => value.trim() != "0",
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    };
    link::read(client.device).is_ok_and(is_off) && !all
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RouteAnswer {
    Route(Route),
    /// No route, a route of type unreachable, blackhole or prohibit, or a source that the kernel rejects.
    None,
    /// The route leads to the node itself, or the kernel gave another answer.
    Unclear,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Route {
    device: u32,
    gateway: Option<IpAddr>,
    /// Whether the route sets an MTU.
    has_mtu: bool,
}

/// The route of a packet with this source and input interface. `None`: of a packet that the node itself
/// sends.
fn route(to: IpAddr, from: Option<(IpAddr, u32)>) -> RouteAnswer {
    match routes::look_up(to, from, 0, RouteFlags::empty()) {
        Ok(route) => read(&route),
        Err(error) => refused(&error),
    }
}

fn refused(error: &io::Error) -> RouteAnswer {
    match error.raw_os_error() {
        Some(
            libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EACCES | libc::EINVAL | libc::EXDEV,
        ) => RouteAnswer::None,
        _ => RouteAnswer::Unclear,
    }
}

fn read(route: &routes::Route) -> RouteAnswer {
    match (route.kind, route.device()) {
        (RouteType::Unicast, Some(device)) => RouteAnswer::Route(Route {
            device,
            gateway: route.gateway,
            has_mtu: route.has_mtu,
        }),
        (RouteType::BlackHole | RouteType::Unreachable | RouteType::Prohibit, _) => {
            RouteAnswer::None
        }
        _ => RouteAnswer::Unclear,
    }
}

/// State of a neighbour; zero if it is not known.
fn neighbour(address: IpAddr, device: u32) -> u16 {
    let mut question = NeighbourMessage::default();
    question.header.family = family(address).0.into();
    question.header.ifindex = device;
    question.attributes = vec![NeighbourAttribute::Destination(address.into())];
    let asked = request(libc::RTM_GETNEIGH, 0, &question);
    let found = asked
        .ok()
        .and_then(|body| NeighbourMessage::parse(&body[..]).ok());
    found.map_or(0, |found| found.header.state.into())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::netlink::attribute;

    #[rstest]
    #[case::reverse_path_filter(libc::EXDEV, RouteAnswer::None)]
    #[case::unreachable(libc::EHOSTUNREACH, RouteAnswer::None)]
    #[case::blackhole(libc::EINVAL, RouteAnswer::None)]
    #[case::prohibit(libc::EACCES, RouteAnswer::None)]
    #[case::not_permitted(libc::EPERM, RouteAnswer::Unclear)]
    #[case::late(libc::EAGAIN, RouteAnswer::Unclear)]
    fn errors(#[case] code: i32, #[case] expected: RouteAnswer) {
        assert_eq!(refused(&io::Error::from_raw_os_error(code)), expected);
    }

    #[rstest]
    #[case::unicast(1, RouteAnswer::Route(Route { device: 7, gateway: Some(IpAddr::from([192, 0, 2, 1])), has_mtu: false }))]
    #[case::of_the_node_itself(2, RouteAnswer::Unclear)]
    #[case::blackhole(6, RouteAnswer::None)]
    #[case::unreachable(7, RouteAnswer::None)]
    #[case::thrown(9, RouteAnswer::Unclear)]
    fn kinds_of_routes(#[case] kind: u8, #[case] expected: RouteAnswer) {
        let mut body = vec![libc::AF_INET as u8, 32, 0, 0, 254, 0, 0, kind, 0, 0, 0, 0];
        body.extend(attribute(libc::RTA_OIF, &7_u32.to_ne_bytes()));
        body.extend(attribute(libc::RTA_GATEWAY, &[192, 0, 2, 1]));
        let route = routes::Route::parse(&body).expect("a route");
        assert_eq!(read(&route), expected);
    }

    /// `RTAX_MTU` and `RTAX_HOPLIMIT`.
    const MTU: u16 = 2;
    const HOPS: u16 = 10;

    #[rstest]
    #[case::pod(Leads::Elsewhere, false, None, true)]
    #[case::pod_with_an_mtu(Leads::Elsewhere, false, Some(MTU), true)]
    #[case::bridge(Leads::Bridge, false, None, true)]
    #[case::gateway_at_a_bridge(Leads::Bridge, true, None, false)]
    #[case::of_cilium(Leads::Pair, false, None, true)]
    #[case::of_cilium_with_a_gateway(Leads::Pair, true, None, true)]
    #[case::of_cilium_with_another_metric(Leads::Pair, false, Some(HOPS), true)]
    #[case::of_cilium_on_another_node(Leads::Pair, false, Some(MTU), false)]
    fn only_pods_of_this_node_are_near(
        #[case] leads: Leads,
        #[case] by_gateway: bool,
        #[case] metric: Option<u16>,
        #[case] expected: bool,
    ) {
        let mut body = vec![libc::AF_INET as u8, 32, 0, 0, 254, 0, 0, 1, 0, 0, 0, 0];
        if let Some(metric) = metric {
            let metrics = attribute(metric, &1_450_u32.to_ne_bytes());
            body.extend(attribute(libc::RTA_METRICS, &metrics));
        }
        body.extend(attribute(libc::RTA_OIF, &7_u32.to_ne_bytes()));
        if by_gateway {
            body.extend(attribute(libc::RTA_GATEWAY, &[192, 0, 2, 1]));
        }
        let parsed = routes::Route::parse(&body).expect("a route");
        let RouteAnswer::Route(route) = read(&parsed) else {
            panic!("{parsed:?}");
        };
        assert_eq!(is_near(route, leads), expected);
    }
}
