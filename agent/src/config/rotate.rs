//! The options of `pathproof rotate`.

use std::net::IpAddr;
use std::time::Duration;

use agent_common::service::FAMILIES;
use clap::Args as ClapArgs;
use clap::ValueEnum;
use clap::builder::TypedValueParser as _;

use super::options::{ApiArgs, ProcessArgs, SENTINEL, as_option};
use super::values::{dns_name, minutes, object_name, pair, percent};
use agent_core::cluster::ObjectName;

const WITHDRAWAL: &str = "Withdrawal";

/// Way of withdrawing nodes that fail.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Withdraw {
    /// Not at all
    #[default]
    Off,
    /// By a label of the Node
    Label,
}

/// Options of `pathproof rotate`.
#[derive(Debug, Clone, PartialEq, Eq, ClapArgs)]
#[command(mut_args = as_option)]
pub struct RotateConfig {
    #[command(flatten)]
    pub api: ApiArgs,

    /// The sentinel's Service
    #[arg(
        long = "sentinel-service",
        value_name = "NAMESPACE/NAME",
        default_value = "pathproof/pathproof-sentinel",
        value_parser = object_name,
        help_heading = SENTINEL
    )]
    pub service: ObjectName,

    /// The endpoint of the sentinel's slices: an IPv4 and an IPv6 address, as the agents have them
    #[arg(
        long = "sentinel-endpoint-address",
        value_name = "IPv4,IPv6",
        default_value = "198.18.0.2,2001:2::2",
        value_parser = pair,
        help_heading = SENTINEL
    )]
    pub echo: [IpAddr; FAMILIES],

    /// From one generation to the next, in seconds
    ///
    /// More in a cluster of over 3,000 nodes, so that all nodes together are sent at most 200 watch
    /// events a second: a second more for every 50 nodes.
    #[arg(
        long,
        value_name = "N",
        default_value = "60",
        value_parser = clap::value_parser!(u64).range(10..=3600).map(Duration::from_secs),
        help_heading = SENTINEL
    )]
    pub interval: Duration,

    /// Name of the Lease by which one rotator of several leads, in the Service's namespace
    #[arg(
        long = "lease-name",
        value_name = "NAME",
        default_value = "pathproof-rotator",
        value_parser = dns_name,
        help_heading = SENTINEL
    )]
    pub lease: String,

    /// Whether nodes that fail are withdrawn from load balancers that ask nothing, such as MetalLB
    ///
    /// label: the leader sets node.kubernetes.io/exclude-from-external-load-balancers=pathproof on
    /// them, and takes it off once they work. It takes a right to patch Nodes (deploy/components/withdraw,
    /// the chart's rotator.withdraw). A label that somebody else set is left alone.
    #[arg(long, value_name = "WAY", default_value = "off", help_heading = WITHDRAWAL)]
    pub withdraw: Withdraw,

    /// Minimum time for which a node fails before it is withdrawn
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "1m",
        value_parser = minutes(60),
        help_heading = WITHDRAWAL
    )]
    pub withdraw_after: Duration,

    /// Maximum share of nodes, in percent, that are withdrawn together; one in any case
    #[arg(
        long,
        value_name = "PERCENT",
        default_value = "20",
        value_parser = percent(),
        help_heading = WITHDRAWAL
    )]
    pub withdraw_share: u32,

    #[command(flatten)]
    pub process: ProcessArgs,

    /// The host's name, or the pod's.
    #[arg(skip)]
    pub host: String,
}
