//! Checks whether this node uses the sentinel's addresses for something else. The core checks whether the
//! cluster does.

use std::net::IpAddr;

use ipnet::IpNet;
use pathproof_facts::node_context;
use pathproof_plan::expect::addresses::{OTHERS, RESERVE, benchmark_range};
use pathproof_wire::service::Family;
use rtnetlink::packet_route::neighbour::NeighbourState;
use rtnetlink::packet_route::route::RouteType;

use super::ensure::is_marked;
use super::netlink::{find_link, name_of, neighbours, routes};
use super::{DeviceError, Role};
use crate::config::SentinelConfig;
use crate::netlink::routes::Route;

/// Finds a use of the sentinel's addresses in `families` on this node: an address of the node, a
/// foreign route, a neighbour. Returns a sentence with the remedy.
pub async fn address_conflict(
    config: &SentinelConfig,
    families: &[Family],
) -> Result<Option<String>, DeviceError> {
    let mut ours = Vec::new();
    for role in Role::ALL {
        let link = find_link(&role.name(&config.devices))?;
        ours.extend(link.filter(|link| is_marked(link, role)).map(|l| l.index));
    }
    for &family in families {
        let at = family as usize;
        let fixed = [config.place.client[at], config.place.echo[at]];
        let exactly = |route: &Route| {
            let mut all = fixed.into_iter().chain(config.pod[at]);
            all.find(|address| route.is_exactly(*address))
        };
        let user = |route: &Route| {
            let used = || fixed.into_iter().find(|address| uses(route, *address));
            exactly(route).or_else(used)
        };
        let is_address = |route: &Route| route.kind == RouteType::Local && exactly(route).is_some();
        // Routes by the sentinel's devices are no conflict, except local ones: the agent assigns no address
        // to these devices, but a network manager may.
        let others = |route: &Route| {
            let is_ours = route.device().is_some_and(|index| ours.contains(&index));
            route.kind == RouteType::Local || !is_ours
        };
        let addresses: Vec<_> = fixed.into_iter().chain(config.pod[at]).collect();
        let range = benchmark_range(family);
        let concerns = move |to: IpNet| {
            range.contains(&to) || addresses.iter().any(|address| to.contains(address))
        };
        let mut routes = routes(family, concerns).await?;
        routes.retain(|route| others(route) && user(route).is_some());
        // Local routes first: an address of the node has other routes too, but they are less informative.
        routes.sort_by_key(|route| !is_address(route));
        if let Some((route, address)) = routes.iter().find_map(|r| Some((r, user(r)?))) {
            let device = route.device().map(name_of);
            let device = device.unwrap_or_else(|| "no device".to_owned());
            if is_address(route) {
                return Ok(Some(format!(
                    "the sentinel's address {address} is an address of {device} on this node: {OTHERS}"
                )));
            }
            let (destination, table) = (route.destination, route.table);
            return Ok(Some(format!(
                "the sentinel's address {address} conflicts with a route of this node, \
                 {destination} to {device} (table {table}): {OTHERS}, or remove the route"
            )));
        }
        let Some(pod) = config.pod[at] else {
            continue;
        };
        for known in neighbours(family, None)? {
            // In these states the address was not resolved, so nobody uses it.
            let vain = [
                NeighbourState::None,
                NeighbourState::Incomplete,
                NeighbourState::Failed,
            ];
            let in_use = known.address == pod && !vain.contains(&known.state);
            if in_use && !ours.contains(&known.device) {
                let device = name_of(known.device);
                return Ok(Some(format!(
                    "the sentinel's pod address {pod} is in use by a neighbour on {device}: \
                     {RESERVE}"
                )));
            }
        }
    }
    Ok(None)
}

/// Whether a route uses one of the sentinel's addresses. A route to exactly this address uses it. If the
/// address is in a benchmarking range, every route into that range uses it. Otherwise, a route to its network
/// on a device of this node uses it. A route that only drops packets to a wider range, as bogon filters do,
/// is harmless: the sentinel's route is more specific.
fn uses(route: &Route, address: IpAddr) -> bool {
    if route.is_exactly(address) {
        return true;
    }
    let drops = matches!(
        route.kind,
        RouteType::BlackHole | RouteType::Unreachable | RouteType::Prohibit | RouteType::Throw
    );
    if drops {
        return false;
    }
    let range = benchmark_range(Family::of(&node_context::address(&address)));
    if range.contains(&address) {
        return range.contains(&route.destination);
    }
    let everything = route.destination.prefix_len() == 0;
    let on_link = route.device().is_some() && route.gateway.is_none();
    !everything && on_link && route.destination.contains(&address)
}

#[cfg(test)]
mod tests;
