//! Open connections from outside while the node is leaving, from the kernel's connection table.
//! This costs nothing per packet, and includes connections from before the node began to leave.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use pathproof_facts::node_context::{NodeContext, address};
use pathproof_facts::time::{HumanDuration, Mono};
use pathproof_facts::view::ClusterView;
use pathproof_wire::service::Address;
use serde::{Deserialize, Serialize};

use super::{MAX_QUIET, ProbeRanges};

/// Interval of counts while the node leaves.
pub(super) const PAUSE: Duration = Duration::from_secs(1);
/// Maximum age of a usable count.
const OLD: Duration = Duration::from_secs(5);

/// A translated connection of the table, in its original direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    pub client: Address,
    pub dialled: Address,
    /// Time without a packet.
    pub idle: Duration,
}

/// Numbers of open connections by seconds without a packet. Times above the maximum idle time are
/// one entry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenConnections(BTreeMap<u64, u64>);

impl OpenConnections {
    pub fn add(&mut self, silent: Duration) {
        let seconds = silent.as_secs().min(MAX_QUIET.as_secs() + 1);
        *self.0.entry(seconds).or_default() += 1;
    }

    /// Numbers of connections with and without a packet within `idle`.
    pub fn split(&self, idle: Duration) -> (u64, u64) {
        let (mut active, mut silent) = (0, 0);
        for (seconds, count) in &self.0 {
            match Duration::from_secs(*seconds) > idle {
                true => silent += count,
                false => active += count,
            }
        }
        (active, silent)
    }
}

/// Selects the flows from outside to a Service.
#[derive(Clone, Debug, Default)]
pub struct Outsiders {
    /// Addresses where clients outside dial Services: the node's, external IPs, load balancer IPs.
    entrances: BTreeSet<Address>,
    node: NodeContext,
    ignored: ProbeRanges,
}

impl Outsiders {
    /// The selection for the current view.
    pub fn of(view: &ClusterView, ignored: ProbeRanges) -> Self {
        let node = NodeContext::of(view.node());
        let services = view
            .states()
            .filter_map(|(_, state)| state.service.as_ref());
        let ips = services.flat_map(|service| {
            service
                .external_ips
                .iter()
                .chain(&service.load_balancer_ips)
        });
        let entrances = ips.map(address).chain(node.addresses.iter().copied());
        Self {
            entrances: entrances.collect(),
            node,
            ignored,
        }
    }

    pub fn count(&self, flow: &Flow, counted: &mut OpenConnections) {
        let is_own = self.node.addresses.contains(&flow.client)
            || pathproof_wire::steer::is_loopback(&flow.client)
            || (self.node.pod_ranges.iter()).any(|range| range.contains(&flow.client));
        if is_own || !self.entrances.contains(&flow.dialled) || self.ignored.contains(&flow.client)
        {
            return;
        }
        counted.add(flow.idle);
    }
}

/// The last count of open connections, or why there is none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OpenView {
    /// The last count and its start.
    pub last: Option<(OpenConnections, Mono)>,
    /// Why open connections could not be counted.
    pub uncounted: Option<String>,
}

impl OpenView {
    pub(super) fn take(&mut self, counted: Result<OpenConnections, String>, begun: Mono) {
        match counted {
            Ok(counted) => (self.last, self.uncounted) = (Some((counted, begun)), None),
            Err(why) => (self.last, self.uncounted) = (None, Some(why)),
        }
    }

    pub(super) fn known(&self, leaves: bool, now: Mono) -> Result<&OpenConnections, String> {
        if !leaves {
            return Err(
                "they are counted only while the Node object shows that the node is being removed"
                    .into(),
            );
        }
        match (&self.last, &self.uncounted) {
            (_, Some(why)) => Err(why.clone()),
            (Some((counted, at)), None) if now.since(*at) <= OLD => Ok(counted),
            (Some((_, at)), None) => Err(format!(
                "the last count is {} old",
                HumanDuration(now.since(*at))
            )),
            (None, None) => Err("the agent has not counted them yet".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::sync::Arc;

    use pathproof_facts::cluster::{Change, NodeFacts, ObjectName, ServiceFacts};
    use rstest::rstest;

    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn outsiders() -> Outsiders {
        let node = NodeFacts {
            addresses: vec![ip("192.0.2.10"), ip("2001:db8::10")],
            pod_cidrs: vec!["10.244.0.0/24".parse().unwrap()],
            ..NodeFacts::default()
        };
        let service = ServiceFacts {
            name: ObjectName::new("shop", "web"),
            cluster_ips: vec![ip("10.96.0.7")],
            external_ips: vec![ip("198.51.100.1")],
            load_balancer_ips: vec![ip("198.51.100.2")],
            ..ServiceFacts::default()
        };
        let mut view = ClusterView::new();
        view.apply(vec![
            Change::Node(Arc::new(node)),
            Change::Service(Arc::new(service)),
        ]);
        Outsiders::of(&view, ProbeRanges::new(["130.211.0.0/22".parse().unwrap()]))
    }

    #[rstest]
    #[case::node_port("203.0.113.7", "192.0.2.10", true)]
    #[case::node_port_v6("2001:db8:7::7", "2001:db8::10", true)]
    #[case::external_ip("203.0.113.7", "198.51.100.1", true)]
    #[case::load_balancer("10.244.1.7", "198.51.100.2", true)]
    #[case::cluster_ip("203.0.113.7", "10.96.0.7", false)]
    #[case::elsewhere("203.0.113.7", "192.0.2.11", false)]
    #[case::a_pod_of_this_node("10.244.0.7", "192.0.2.10", false)]
    #[case::the_node("192.0.2.10", "198.51.100.1", false)]
    #[case::loopback("127.0.0.1", "192.0.2.10", false)]
    #[case::a_probe("130.211.0.9", "192.0.2.10", false)]
    fn flows_from_outside_count(#[case] client: &str, #[case] dialled: &str, #[case] counts: bool) {
        let mut counted = OpenConnections::default();
        for idle in [0, 10, 11, 3_600] {
            let flow = Flow {
                client: address(&ip(client)),
                dialled: address(&ip(dialled)),
                idle: Duration::from_secs(idle),
            };
            outsiders().count(&flow, &mut counted);
        }
        let split = |idle| counted.split(Duration::from_secs(idle));
        let expected = if counts {
            [(2, 2), (3, 1), (3, 1)]
        } else {
            [(0, 0); 3]
        };
        assert_eq!([split(10), split(11), split(600)], expected);
    }
}
