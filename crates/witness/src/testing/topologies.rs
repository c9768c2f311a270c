//! Topologies as measured with real agents.

use pathproof_facts::owners::{Owner, OwnersRead};
use pathproof_wire::service::FAMILIES;

use crate::topology::*;

/// Programs by name; `?` is a program whose name cannot be read.
pub fn links(names: &[&str]) -> ForeignPrograms {
    let name = |name: &&str| (*name != "?").then(|| (*name).to_owned());
    ForeignPrograms {
        links: names.iter().map(name).collect(),
        filters: Vec::new(),
    }
}

pub fn device(name: &str, role: Role, ingress: &[&str], egress: &[&str]) -> DeviceFacts {
    DeviceFacts {
        name: name.to_owned(),
        role,
        xdp: false,
        hooks: Some([links(ingress), links(egress)]),
    }
}

pub fn owners(owners: &[Owner]) -> OwnersRead {
    [Some(owners.iter().copied().collect()); FAMILIES]
}

/// A node with Cilium: programs at the uplink's egress and at `connect`, and other owners.
pub fn node(egress: &[&str], connect: Option<&[&str]>, others: &[Owner]) -> TopologyFacts {
    let all: Vec<Owner> = others.iter().copied().chain([Owner::Cilium]).collect();
    TopologyFacts {
        devices: vec![
            device("eth0", Role::Uplink, &["cil_from_netdev"], egress),
            device(
                "cilium_host",
                Role::Cilium,
                &["cil_to_host"],
                &["cil_from_host"],
            ),
            device("pathproof-a", Role::Sentinel, &[], &[]),
            device("pathproof-b", Role::Sentinel, &[], &[]),
        ],
        netkit: 0,
        connect: [connect.map(links), connect.map(links)],
        bound: [
            connect.map(|_| ForeignPrograms::default()),
            connect.map(|_| ForeignPrograms::default()),
        ],
        owners: owners(&all),
    }
}

impl DatapathTopology {
    /// The topology of these facts without a previous one.
    pub fn of(facts: &TopologyFacts) -> Self {
        Self::after(Tristate::Unknown, facts)
    }
}

pub const PROXY: &[Owner] = &[Owner::KubeProxyNftables];

/// Cilium in place of kube-proxy; it does not manage the sentinel's interfaces.
pub fn replacing() -> DatapathTopology {
    DatapathTopology::of(&node(&["cil_to_netdev"], Some(&["cil_sock4_lb"]), &[]))
}

/// The same while the sentinel's interfaces are missing; `managed` was their previous state.
pub fn replacing_with(managed: Tristate) -> DatapathTopology {
    let mut facts = node(&["cil_to_netdev"], Some(&["cil_sock4_lb"]), &[]);
    facts.devices.truncate(2);
    DatapathTopology::after(managed, &facts)
}

/// Cilium for pods, kube-proxy for the rest.
pub fn mixed() -> DatapathTopology {
    DatapathTopology::of(&node(&[], Some(&[]), PROXY))
}
