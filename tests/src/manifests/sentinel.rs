//! The sentinel's Service, with the fields that an API server adds to the shipped manifest, and its slices.

use std::net::IpAddr;

use crate::world::{Family, layout};

const SHIPPED: &str = include_str!("../../../deploy/base/sentinel.yaml");
/// The slices, as the rotator creates them.
pub const SLICES: &str = include_str!("sentinel-slices.yaml");

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sentinel {
    /// Port of the endpoints: the generation.
    pub generation: u16,
    /// Node port, the same for both protocols.
    pub node_port: Option<u16>,
    pub endpoints: [IpAddr; 2],
}

impl Default for Sentinel {
    fn default() -> Self {
        Self {
            generation: 20_001,
            node_port: Some(30_999),
            endpoints: [[198, 18, 0, 2].into(), [0x2001, 2, 0, 0, 0, 0, 0, 2].into()],
        }
    }
}

impl Sentinel {
    /// Index of its ClusterIPs in the address plan.
    const INDEX: u8 = 240;

    /// Port of the cluster IPs, for both protocols.
    pub const PORT: u16 = 80;

    pub fn cluster_ip(family: Family) -> IpAddr {
        layout::pick(layout::cluster_ip(Self::INDEX), family)
    }

    pub(super) fn yaml(&self) -> String {
        const POLICY: &str = "  ipFamilyPolicy: PreferDualStack\n";
        let (v4, v6) = layout::cluster_ip(Self::INDEX);
        let addresses =
            format!("  clusterIP: {v4}\n  clusterIPs:\n    - {v4}\n    - {v6}\n{POLICY}");
        let shipped = SHIPPED.replace(POLICY, &addresses);
        let mut text = format!("{shipped}---\n{SLICES}");
        match self.node_port {
            Some(node_port) => {
                let target = "      targetPort: 20001\n";
                text = text.replace(target, &format!("{target}      nodePort: {node_port}\n"));
            }
            None => text = text.replace("type: NodePort", "type: ClusterIP"),
        }
        for (shipped, endpoint) in ["198.18.0.2", "2001:2::2"].iter().zip(self.endpoints) {
            text = text.replace(&format!("\"{shipped}\""), &format!("\"{endpoint}\""));
        }
        text.replace("20001", &self.generation.to_string())
    }
}
