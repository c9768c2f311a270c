//! What was said of the sentinel, by `run` and `check`.

use clap::{ArgAction, Args as ClapArgs};

use super::SENTINEL;

/// Options that say what the sentinel is.
#[derive(Debug, Clone, PartialEq, ClapArgs)]
pub struct SentinelArgs {
    /// The sentinel's Service
    #[arg(
        long,
        env = "PATHPROOF_SENTINEL_SERVICE",
        value_name = "NAMESPACE/NAME",
        default_value = "pathproof/pathproof-sentinel",
        help_heading = SENTINEL
    )]
    pub sentinel_service: String,

    /// What the names of the sentinel's four interfaces begin with
    #[arg(
        long,
        env = "PATHPROOF_SENTINEL_DEVICES",
        value_name = "PREFIX",
        default_value = "pathproof",
        help_heading = SENTINEL
    )]
    pub sentinel_devices: String,

    /// Where off-cluster probes come from: an IPv4 and an IPv6 address
    ///
    /// Routed to the sentinel's own interface on every node; nothing else may have them.
    #[arg(
        long = "sentinel-client-address",
        env = "PATHPROOF_SENTINEL_CLIENT_ADDRESS",
        value_name = "IP",
        value_delimiter = ',',
        default_value = "198.18.0.1,2001:2::1",
        action = ArgAction::Append,
        help_heading = SENTINEL
    )]
    pub sentinel_client_addresses: Vec<String>,

    /// The endpoint of the sentinel's slices: an IPv4 and an IPv6 address, the same on every node
    #[arg(
        long = "sentinel-endpoint-address",
        env = "PATHPROOF_SENTINEL_ENDPOINT_ADDRESS",
        value_name = "IP",
        value_delimiter = ',',
        default_value = "198.18.0.2,2001:2::2",
        action = ArgAction::Append,
        help_heading = SENTINEL
    )]
    pub sentinel_endpoint_addresses: Vec<String>,

    /// Where pods' probes come from: addresses of this node's podCIDRs that no pod can get
    ///
    /// One for each family at most. Only where IPAM is told to leave them alone: a route for an
    /// address that a pod gets would cut that pod off. Without it pods are judged by real traffic.
    #[arg(
        long = "sentinel-pod-address",
        env = "PATHPROOF_SENTINEL_POD_ADDRESS",
        value_name = "IP",
        value_delimiter = ',',
        action = ArgAction::Append,
        help_heading = SENTINEL
    )]
    pub sentinel_pod_addresses: Vec<String>,
}
