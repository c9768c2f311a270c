//! The sentinel in the document behind `/verdict`: whether it is probed, through what, and where
//! its probes go. What its probes found is in `verdict.families[].lanes`.

use std::net::{IpAddr, SocketAddr};

use agent_common::service::Family;
use serde::{Deserialize, Serialize};

use crate::cluster::ObjectName;
use crate::names;
use crate::node::Condition;

/// The sentinel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SentinelReport {
    /// Whether it is probed.
    pub state: SentinelState,
    /// The same for a person, with the reason where it is not.
    pub sentence: String,
    /// Its Service, `namespace/name`; nothing where it is turned off.
    pub service: Option<String>,
    /// Its interfaces; nothing where it is turned off.
    pub devices: Option<SentinelDevices>,
    /// Addresses that are probed, by family.
    pub families: Vec<SentinelAddresses>,
}

impl SentinelReport {
    /// Whether it is probed, and why not.
    pub fn of(service: &ObjectName, condition: &Condition<'_>, synced: bool) -> Self {
        let says = |what: &str| format!("Service {service} {what}");
        let (state, sentence) = match condition {
            Condition::Altered(how) => (SentinelState::Altered, (*how).to_owned()),
            Condition::Absent if synced => (SentinelState::Absent, says("is not in the cluster")),
            Condition::Absent => (
                SentinelState::Absent,
                says("is not known yet: the cluster view is not complete"),
            ),
            Condition::Off(why) => (SentinelState::Off, (*why).to_owned()),
            Condition::Settling => {
                let sentence = "its interfaces are being created".to_owned();
                (SentinelState::Probing, sentence)
            }
            Condition::Probing => (SentinelState::Probing, says("is probed")),
        };
        Self {
            state,
            sentence,
            service: Some(service.to_string()),
            ..Self::default()
        }
    }

    /// Without probes, by `--sentinel`.
    pub fn disabled() -> Self {
        Self {
            sentence: "turned off by --sentinel".to_owned(),
            ..Self::default()
        }
    }
}

/// Whether the sentinel is probed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SentinelState {
    /// It is probed.
    Probing,
    /// It is there and cannot be probed from this node.
    Off,
    /// Its Service is not in the cluster.
    Absent,
    /// Its Service or slices are not as they were installed.
    Altered,
    /// It was turned off.
    #[default]
    Disabled,
}

impl SentinelState {
    /// Name as `/verdict` shows it.
    pub fn name(self) -> &'static str {
        match self {
            SentinelState::Probing => "probing",
            SentinelState::Off => "off",
            SentinelState::Absent => "absent",
            SentinelState::Altered => "altered",
            SentinelState::Disabled => "disabled",
        }
    }
}

/// Names of the sentinel's four interfaces, in the order in which a probe meets them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SentinelDevices {
    /// Interface to which probes are written, and at which their answers end.
    pub client_far: String,
    /// Interface by which they enter the node.
    pub client_near: String,
    /// Interface by which they leave it, translated, and by which the answers enter.
    pub server_near: String,
    /// Interface of the echo.
    pub server_far: String,
}

/// Addresses that are probed in a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SentinelAddresses {
    #[serde(with = "names::FamilyName")]
    pub family: Family,
    /// Source of probes from outside the cluster, of node ports and cluster IPs.
    pub client: IpAddr,
    /// Source of pods' probes, where one is reserved.
    pub pod_client: Option<IpAddr>,
    /// Cluster IP and port that are dialled by TCP.
    pub cluster_ip: SocketAddr,
    /// The same by UDP.
    pub cluster_ip_udp: Option<SocketAddr>,
    /// Address and node port that are dialled by TCP.
    pub node_port: Option<SocketAddr>,
    /// The same by UDP.
    pub node_port_udp: Option<SocketAddr>,
    /// The endpoint, where the echo answers.
    pub endpoint: SocketAddr,
    /// Probes from outside the node do not take the way of real connections, and are rare.
    #[serde(default)]
    pub outside_rests: bool,
}
