//! The sentinel in the document behind `/verdict`: whether it is probed, through which interfaces, and
//! where its probes go. Results of probes are in `verdict.families[].lanes`.

use std::net::{IpAddr, SocketAddr};

use pathproof_facts::cluster::ObjectName;
use pathproof_facts::named;
use pathproof_node::Condition;
use pathproof_wire::service::Family;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SentinelReport {
    pub state: SentinelCondition,
    /// The state as a sentence, with the reason if the sentinel is not probed.
    pub sentence: String,
    /// The sentinel's Service, `namespace/name`; `None` if the sentinel is turned off.
    pub service: Option<String>,
    /// The sentinel's interfaces; `None` if the sentinel is turned off.
    pub devices: Option<SentinelDevices>,
    /// Addresses of the probes, by family.
    pub families: Vec<SentinelAddresses>,
}

impl SentinelReport {
    /// The sentinel's state with its reason.
    pub fn of(service: &ObjectName, condition: &Condition<'_>, synced: bool) -> Self {
        let says = |what: &str| format!("Service {service} {what}");
        let (state, sentence) = match condition {
            Condition::Altered(how) => (SentinelCondition::Altered, (*how).to_owned()),
            Condition::Absent if synced => {
                (SentinelCondition::Absent, says("is not in the cluster"))
            }
            Condition::Absent => (
                SentinelCondition::Absent,
                says("is not known yet: the cluster view is not complete"),
            ),
            Condition::Off(why) => (SentinelCondition::Off, (*why).to_owned()),
            Condition::Settling => {
                let sentence = "its interfaces are being created".to_owned();
                (SentinelCondition::Probing, sentence)
            }
            Condition::Probing => (SentinelCondition::Probing, says("is probed")),
        };
        Self {
            state,
            sentence,
            service: Some(service.to_string()),
            ..Self::default()
        }
    }

    /// The report of a sentinel that `--sentinel` turned off.
    pub fn disabled() -> Self {
        Self {
            sentence: "turned off by --sentinel".to_owned(),
            ..Self::default()
        }
    }
}

named! {
    #[derive(Default)]
    pub enum SentinelCondition {
        /// The agent sends probes.
        Probing = "probing",
        /// The sentinel exists, but this node cannot probe it.
        Off = "off",
        /// The sentinel's Service is not in the cluster.
        Absent = "absent",
        /// The sentinel's Service or slices differ from the installed ones.
        Altered = "altered",
        /// `--sentinel` turned it off.
        #[default]
        Disabled = "disabled",
    }
}

/// Names of the sentinel's four interfaces, in the order in which a probe passes them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SentinelDevices {
    /// Interface where the agent sends probes and receives their answers.
    pub client_far: String,
    /// Interface by which probes enter the node.
    pub client_near: String,
    /// Interface by which translated probes leave the node and answers enter it.
    pub server_near: String,
    /// Interface of the echo.
    pub server_far: String,
}

/// Addresses of the probes of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SentinelAddresses {
    pub family: Family,
    /// Source of the probes from outside the cluster, to node ports and cluster IPs.
    pub client: IpAddr,
    /// Source of the pod path's probes, if one is reserved.
    pub pod_client: Option<IpAddr>,
    /// Cluster IP and port for TCP probes.
    pub cluster_ip: SocketAddr,
    /// Cluster IP and port for UDP probes.
    pub cluster_ip_udp: Option<SocketAddr>,
    /// Node address and node port for TCP probes.
    pub node_port: Option<SocketAddr>,
    /// Node address and node port for UDP probes.
    pub node_port_udp: Option<SocketAddr>,
    /// The sentinel's endpoint, where the echo answers.
    pub endpoint: SocketAddr,
    /// Whether probes from outside the node are rare, because they do not take the path of real
    /// connections.
    pub outside_rests: bool,
}
