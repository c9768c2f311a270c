//! The options of `pathproof rotate`.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use clap::builder::TypedValueParser as _;
use clap::{Args as ClapArgs, ValueEnum};
use pathproof_shared::bind_address::{BindAddress, bind_address};
use pathproof_shared::values::dns_name;

use super::options::{ApiArgs, ProcessArgs, SENTINEL, SentinelPlace, as_option};
use super::values::{OrNone, label, minutes, percent};

const WITHDRAWAL: &str = "Withdrawal";
/// The well-known label of zones, and those of node pools: GKE, EKS, AKS, DOKS, Karpenter.
pub(super) const DOMAINS: [&str; 6] = [
    "topology.kubernetes.io/zone",
    "cloud.google.com/gke-nodepool",
    "eks.amazonaws.com/nodegroup",
    "kubernetes.azure.com/agentpool",
    "doks.digitalocean.com/node-pool",
    "karpenter.sh/nodepool",
];

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Withdraw {
    /// Never
    #[default]
    Off,
    /// Set a label on the Node
    Label,
}

#[derive(Debug, Clone, PartialEq, Eq, ClapArgs)]
#[command(mut_args = as_option)]
pub struct RotateConfig {
    #[command(flatten)]
    pub api: ApiArgs,

    #[command(flatten)]
    pub sentinel: SentinelPlace,

    /// Minimum time between two changes of the sentinel's port, in seconds
    ///
    /// At least nodes / 50 seconds: 20 s for 1,000 nodes. Each change makes every kube-proxy sync.
    /// Increase the time if syncs take seconds; stale rules are then found later.
    #[arg(
        long,
        value_name = "N",
        default_value = "15",
        value_parser = clap::value_parser!(u64).range(10..=3600).map(Duration::from_secs),
        help_heading = SENTINEL
    )]
    pub interval: Duration,

    /// Name of the Lease for leader election between rotators, in the Service's namespace
    #[arg(
        long = "lease-name",
        value_name = "NAME",
        default_value = "pathproof-rotator",
        value_parser = dns_name,
        help_heading = SENTINEL
    )]
    pub lease: String,

    /// Label of Nodes whose values, such as node pools, have their own limit in the fleet brake
    /// (repeatable); "none" limits the cluster only
    ///
    /// Four labels that Nodes have are counted, in alphabetical order.
    #[arg(
        long,
        value_name = "LABEL",
        default_values = DOMAINS,
        value_parser = label,
        help_heading = SENTINEL
    )]
    pub brake_by: Vec<OrNone<Arc<str>>>,

    /// How failing nodes are withdrawn from load balancers without health checks, such as MetalLB
    ///
    /// label: the leader sets node.kubernetes.io/exclude-from-external-load-balancers=pathproof on
    /// failing nodes and removes it once they work. It needs the right to patch Nodes
    /// (deploy/components/withdraw, or rotator.withdraw in the chart). Labels with another value
    /// are not changed.
    #[arg(long, value_name = "WAY", default_value = "off", help_heading = WITHDRAWAL)]
    pub withdraw: Withdraw,

    /// Minimum time that a node has failed before it is withdrawn
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "1m",
        value_parser = minutes(60),
        help_heading = WITHDRAWAL
    )]
    pub withdraw_after: Duration,

    /// Maximum share of nodes, in percent, that are withdrawn together; one node is always allowed
    #[arg(
        long,
        value_name = "PERCENT",
        default_value = "20",
        value_parser = percent,
        help_heading = WITHDRAWAL
    )]
    pub withdraw_share: u32,

    /// Listen address of /metrics and /livez: IP:PORT, IP, or :PORT; "none" serves neither
    #[arg(
        long,
        value_name = "ADDRESS",
        default_value = "none",
        value_parser = bind_address(19256),
        help_heading = "Metrics"
    )]
    pub metrics_bind_address: OrNone<BindAddress>,

    #[command(flatten)]
    pub process: ProcessArgs,

    /// Name of the host or pod.
    #[arg(skip)]
    pub host: String,
}

impl RotateConfig {
    /// Labels whose values are failure domains.
    pub fn domains(&self) -> Vec<Arc<str>> {
        self.brake_by.iter().flatten().cloned().collect()
    }

    /// The addresses that every node routes to the sentinel. Pod addresses are not among them, because each
    /// has to be in the podCIDRs of its Node.
    pub fn addresses(&self) -> Vec<IpAddr> {
        [self.sentinel.echo, self.sentinel.client].concat()
    }
}
