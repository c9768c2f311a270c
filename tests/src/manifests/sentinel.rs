//! The sentinel's Service and its slices, as an installation has them: no selector, one endpoint a
//! family for the whole cluster, on no node.

use std::fmt::Write as _;
use std::net::IpAddr;

use crate::world::Family;
use crate::world::layout;

/// The sentinel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sentinel {
    /// Port of the endpoints: the generation.
    pub generation: u16,
    /// Node port of both protocols.
    pub node_port: Option<u16>,
    /// Endpoint of each family.
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
    /// Its place in the address plan.
    const INDEX: u8 = 240;

    /// Port of the cluster IPs, for both protocols.
    pub const PORT: u16 = 80;

    /// Cluster IP of a family.
    pub fn cluster_ip(family: Family) -> IpAddr {
        layout::pick(layout::cluster_ip(Self::INDEX), family)
    }

    pub(super) fn yaml(&self) -> String {
        let (v4, v6) = layout::cluster_ip(Self::INDEX);
        let kind = match self.node_port {
            Some(_) => "NodePort",
            None => "ClusterIP",
        };
        let mut text = format!(
            "apiVersion: v1\nkind: Service\nmetadata:\n  name: pathproof-sentinel\n  \
             namespace: pathproof\nspec:\n  type: {kind}\n  clusterIP: {v4}\n  clusterIPs:\n  \
             - {v4}\n  - {v6}\n  ipFamilies:\n  - IPv4\n  - IPv6\n  \
             ipFamilyPolicy: PreferDualStack\n  ports:\n"
        );
        for protocol in ["TCP", "UDP"] {
            let (name, port) = (protocol.to_lowercase(), Self::PORT);
            let _ = write!(
                text,
                "  - name: {name}\n    port: {port}\n    protocol: {protocol}\n    \
                 targetPort: {}\n",
                self.generation
            );
            if let Some(node_port) = self.node_port {
                let _ = writeln!(text, "    nodePort: {node_port}");
            }
        }
        for (endpoint, kind) in self.endpoints.iter().zip(["IPv4", "IPv6"]) {
            let _ = write!(
                text,
                "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  \
                 name: pathproof-sentinel-{}\n  namespace: pathproof\n  labels:\n    \
                 kubernetes.io/service-name: pathproof-sentinel\n    \
                 endpointslice.kubernetes.io/managed-by: pathproof\naddressType: {kind}\nports:\n\
                 - name: tcp\n  port: {port}\n  protocol: TCP\n\
                 - name: udp\n  port: {port}\n  protocol: UDP\n\
                 endpoints:\n- addresses:\n  - \"{endpoint}\"\n  conditions:\n    ready: true\n",
                kind.to_lowercase(),
                port = self.generation,
            );
        }
        text
    }
}
