//! Removal and restoration of the node's routes to pods.

use anyhow::Result;

use super::World;
use super::layout::{self, Family, UPLINK};

impl World {
    /// Removes every route of the node to pods of both nodes, and returns them as `ip` prints them.
    /// Packets to pods then take the default route through the uplink.
    pub fn cut_pod_routes(&self) -> Result<Vec<String>> {
        let shown = self.node.ip("route show")? + &self.node.ip("-6 route show")?;
        let routes: Vec<String> = to_pods(&shown).map(str::to_owned).collect();
        self.node.ip_batch(&batch("del", &routes))?;
        Ok(routes)
    }

    /// Like [`World::cut_pod_routes`], for pods of this node (`local`) or of the other one, in one family.
    pub fn cut_some_pod_routes(&self, local: bool, family: Family) -> Result<Vec<String>> {
        let shown = self.node.ip(match family {
            Family::V4 => "route show",
            Family::V6 => "-6 route show",
        })?;
        let is_meant = |route: &&str| is_local(route) == local;
        let routes: Vec<String> = to_pods(&shown)
            .filter(is_meant)
            .map(str::to_owned)
            .collect();
        self.node.ip_batch(&batch("del", &routes))?;
        Ok(routes)
    }

    /// Restores these routes, except those of devices that are gone because the pod has ended meanwhile.
    pub fn mend_pod_routes(&self, cut: &[String]) -> Result<()> {
        let has_device = |name| self.node.ifindex(name).is_ok();
        let routes = cut.iter();
        let routes = routes.filter(|route| device(route).is_some_and(has_device));
        self.node.ip_batch(&batch("replace", routes))
    }
}

fn batch<'a>(verb: &str, routes: impl IntoIterator<Item = &'a String>) -> String {
    let lines = routes.into_iter();
    lines
        .map(|route| format!("route {verb} {route}\n"))
        .collect()
}

fn to_pods(shown: &str) -> impl Iterator<Item = &str> {
    shown.lines().map(str::trim_end).filter(|route| {
        let to = route.split([' ', '/']).next().unwrap_or_default();
        to.parse().is_ok_and(layout::is_pod)
    })
}

/// Whether a route to pods leads to pods of this node.
fn is_local(route: &str) -> bool {
    device(route) != Some(UPLINK)
}

fn device(route: &str) -> Option<&str> {
    let mut words = route.split(' ');
    words.find(|word| *word == "dev")?;
    words.next()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Output of iproute2 6.15 in a world.
    const SHOWN: &str = "\
default via 192.0.2.1 dev eth0 
10.244.0.11 dev veth-web-1 scope link 
10.244.0.128/25 dev cni0 proto kernel scope link src 10.244.0.129 
10.244.1.0/24 via 192.0.2.20 dev eth0 
192.0.2.0/24 dev eth0 proto kernel scope link src 192.0.2.10 
198.18.0.0/30 dev pathproof-c0 proto kernel scope link src 198.18.0.1 
2001:db8:0:1::/64 dev eth0 proto kernel metric 256 pref medium
fd00:10:244::b dev veth-web-1 metric 1024 pref medium
fd00:10:244:0:1::/80 dev cni0 proto kernel metric 256 pref medium
fe80::/64 dev eth0 proto kernel metric 256 pref medium
default via 2001:db8:0:1::1 dev eth0 metric 1024 pref medium
";

    #[test]
    fn only_routes_to_pods_are_cut() {
        let routes: Vec<&str> = to_pods(SHOWN).collect();
        assert_eq!(
            routes,
            [
                "10.244.0.11 dev veth-web-1 scope link",
                "10.244.0.128/25 dev cni0 proto kernel scope link src 10.244.0.129",
                "10.244.1.0/24 via 192.0.2.20 dev eth0",
                "fd00:10:244::b dev veth-web-1 metric 1024 pref medium",
                "fd00:10:244:0:1::/80 dev cni0 proto kernel metric 256 pref medium",
            ]
        );
        let devices: Vec<&str> = routes.iter().filter_map(|route| device(route)).collect();
        assert_eq!(
            devices,
            ["veth-web-1", "cni0", "eth0", "veth-web-1", "cni0"]
        );
        let local: Vec<bool> = routes.iter().map(|route| is_local(route)).collect();
        assert_eq!(local, [true, true, false, true, true]);
    }
}
