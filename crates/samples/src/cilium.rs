//! A node where Cilium replaces kube-proxy.

use pathproof_facts::owners::Owner;
use pathproof_facts::trace::ProbePath;
use pathproof_report::Report;
use pathproof_witness::topology::{
    DatapathTopology, DeviceFacts, ForeignPrograms, Role, TopologyFacts, Tristate,
};

use super::{probed, proven};

/// [`proven`] on a node where Cilium replaces kube-proxy.
pub fn beside_cilium() -> Report {
    let device = |name: &str, role, programs: [&str; 2]| DeviceFacts {
        name: name.to_owned(),
        role,
        xdp: name == "eth0",
        hooks: Some(programs.map(|name| {
            ForeignPrograms {
                links: (!name.is_empty())
                    .then(|| Some(name.to_owned()))
                    .into_iter()
                    .collect(),
                filters: Vec::new(),
            }
        })),
    };
    let socket = ForeignPrograms {
        links: vec![Some("cil_sock4_connect".to_owned())],
        filters: Vec::new(),
    };
    let facts = TopologyFacts {
        devices: vec![
            device("eth0", Role::Uplink, ["cil_from_netdev", "cil_to_netdev"]),
            device(
                "cilium_host",
                Role::Cilium,
                ["cil_to_host", "cil_from_host"],
            ),
            device("pathproof-c0", Role::Sentinel, ["", ""]),
            device("pathproof-s0", Role::Sentinel, ["", ""]),
        ],
        netkit: 0,
        connect: [Some(socket.clone()), Some(socket)],
        bound: [None, None],
        owners: [Some([Owner::Cilium].into_iter().collect()); 2],
    };
    let mut report = Report {
        datapath: DatapathTopology::after(Tristate::Unknown, &facts),
        ..proven()
    };
    // Only the host path passes a program of Cilium.
    let lanes = report
        .verdict
        .families
        .iter_mut()
        .flat_map(|family| &mut family.lanes);
    for lane in lanes.filter(|lane| lane.path != ProbePath::Host) {
        *lane = probed::off(lane);
    }
    report
}
