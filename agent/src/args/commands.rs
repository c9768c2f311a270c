//! Options of the commands beside `run`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args as ClapArgs, ValueEnum};

use super::{
    CLUSTER, ClusterArgs, EXIT_CODES, Hardening, LOG, LogFormat, Output, SENTINEL, SentinelArgs,
};
use crate::telemetry::DEFAULT_FILTER;
use agent_core::drain;

const CHECK: &str = "Check";

/// Options of `pathproof status`.
#[derive(Debug, Clone, PartialEq, ClapArgs)]
pub struct StatusArgs {
    /// The agent's admin port
    #[arg(
        long,
        env = "PATHPROOF_ADMIN_ADDRESS",
        value_name = "HOST:PORT",
        default_value = "127.0.0.1:19256"
    )]
    pub admin_address: String,

    /// Draw again each second until interrupted
    #[arg(long, short)]
    pub watch: bool,

    /// For people, or the agent's report as JSON
    #[arg(long, short, value_name = "FORMAT", value_enum, default_value_t = Output::Text)]
    pub output: Output,
}

/// Options of `pathproof why`.
#[derive(Debug, Clone, PartialEq, ClapArgs)]
pub struct WhyArgs {
    /// The agent's admin port
    #[arg(
        long,
        env = "PATHPROOF_ADMIN_ADDRESS",
        value_name = "HOST:PORT",
        default_value = "127.0.0.1:19256"
    )]
    pub admin_address: String,

    /// A past moment, such as 2026-11-23T04:05:06Z: explained from the recording that it is in
    #[arg(long, value_name = "TIME")]
    pub at: Option<String>,

    /// Recording for --at [default: the first below the state folder that reaches that time]
    #[arg(long, value_name = "FILE", requires = "at")]
    pub recording: Option<PathBuf>,

    /// State folder of the agent, for --at
    #[arg(
        long,
        env = "PATHPROOF_STATE_DIR",
        value_name = "FOLDER",
        default_value = "/run/pathproof"
    )]
    pub state_dir: PathBuf,

    /// For people, or the chain of evidence as JSON
    #[arg(long, short, value_name = "FORMAT", value_enum, default_value_t = Output::Text)]
    pub output: Output,
}

/// Options of `pathproof record`.
#[derive(Debug, Clone, PartialEq, ClapArgs)]
pub struct RecordArgs {
    /// The agent's admin port
    #[arg(
        long,
        env = "PATHPROOF_ADMIN_ADDRESS",
        value_name = "HOST:PORT",
        default_value = "127.0.0.1:19256"
    )]
    pub admin_address: String,

    /// File to write
    #[arg(
        long,
        short,
        value_name = "FILE",
        default_value = "recording.pathproof"
    )]
    pub output: PathBuf,

    /// Replace addresses, the same one by the same one: the recording still comes to the same verdicts
    #[arg(long)]
    pub redact: bool,
}

/// Options of `pathproof replay`.
#[derive(Debug, Clone, PartialEq, ClapArgs)]
pub struct ReplayArgs {
    /// Recording to play
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// For people, or the timeline as JSON
    #[arg(long, short, value_name = "FORMAT", value_enum, default_value_t = Output::Text)]
    pub output: Output,
}

/// Options of `pathproof check`.
#[derive(Debug, Clone, PartialEq, ClapArgs)]
#[command(after_help = EXIT_CODES)]
pub struct CheckArgs {
    /// Where the cluster view comes from.
    #[command(flatten)]
    pub cluster: ClusterArgs,

    /// What the sentinel is.
    #[command(flatten)]
    pub sentinel: SentinelArgs,

    /// Speak node-problem-detector's plugin protocol: ask the agent once, print one line of at most
    /// 80 bytes, exit with 0 for no problem, 1 for a problem, 2 for unknown
    ///
    /// Nothing is probed: without an agent it is unknown. A node that leaves is no problem.
    #[arg(long, conflicts_with_all = ["output", "seconds"], help_heading = CHECK)]
    pub npd: bool,

    /// How long the paths are probed where no agent runs, in seconds
    #[arg(
        long,
        value_name = "N",
        default_value_t = 4,
        value_parser = clap::value_parser!(u64).range(2..=600),
        help_heading = CHECK
    )]
    pub seconds: u64,

    /// Admin port of the agent that may run on this node
    #[arg(
        long,
        env = "PATHPROOF_ADMIN_ADDRESS",
        value_name = "HOST:PORT",
        default_value = "127.0.0.1:19256",
        help_heading = CHECK
    )]
    pub admin_address: String,

    /// For people, or JSON
    #[arg(
        long,
        short,
        value_name = "FORMAT",
        value_enum,
        default_value_t = Output::Text,
        help_heading = CHECK
    )]
    pub output: Output,
}

/// Options of `pathproof rotate`.
#[derive(Debug, Clone, PartialEq, ClapArgs)]
pub struct RotateArgs {
    /// Kubeconfig of the API server; its current context counts
    ///
    /// Without it and --server the ServiceAccount of this pod is used.
    #[arg(long, env = "PATHPROOF_KUBECONFIG", value_name = "FILE", help_heading = CLUSTER)]
    pub kubeconfig: Option<PathBuf>,

    /// URL of the API server; wins over that of --kubeconfig
    #[arg(long, env = "PATHPROOF_SERVER", value_name = "URL", help_heading = CLUSTER)]
    pub server: Option<String>,

    /// The sentinel's Service
    #[arg(
        long,
        env = "PATHPROOF_SENTINEL_SERVICE",
        value_name = "NAMESPACE/NAME",
        default_value = "pathproof/pathproof-sentinel",
        help_heading = SENTINEL
    )]
    pub sentinel_service: String,

    /// The endpoint of the sentinel's slices: an IPv4 and an IPv6 address, as the agents have them
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

    /// From one generation to the next, in seconds
    ///
    /// More in a cluster of over 3,000 nodes, so that all nodes together are sent at most 200 watch
    /// events a second: a second more for every 50 nodes.
    #[arg(
        long,
        env = "PATHPROOF_INTERVAL",
        value_name = "N",
        default_value_t = 60,
        value_parser = clap::value_parser!(u64).range(10..=3600),
        help_heading = SENTINEL
    )]
    pub interval: u64,

    /// Name of the Lease by which one rotator of several leads, in the Service's namespace
    #[arg(
        long,
        env = "PATHPROOF_LEASE_NAME",
        value_name = "NAME",
        default_value = "pathproof-rotator",
        help_heading = SENTINEL
    )]
    pub lease_name: String,

    /// Whether the process gives up what it does not need: capabilities, system calls, files
    ///
    /// What the kernel does not know is left out, and told by `pathproof status`. Turn it off only to
    /// find out whether it stands in the way of something, and tell the maintainers.
    #[arg(
        long,
        env = "PATHPROOF_HARDENING",
        value_name = "MODE",
        value_enum,
        default_value_t = Hardening::On,
        help_heading = SENTINEL
    )]
    pub hardening: Hardening,

    /// Format of the log
    #[arg(
        long,
        env = "PATHPROOF_LOG_FORMAT",
        value_name = "FORMAT",
        value_enum,
        default_value_t = LogFormat::Text,
        help_heading = LOG
    )]
    pub log_format: LogFormat,

    /// What is logged: a level (error, warn, info, debug, trace) or directives of tracing
    #[arg(
        long,
        env = "PATHPROOF_LOG_FILTER",
        value_name = "FILTER",
        default_value = DEFAULT_FILTER,
        help_heading = LOG
    )]
    pub log_filter: String,
}

/// Options of `pathproof drain`.
#[derive(Debug, Clone, PartialEq, ClapArgs)]
#[command(after_help = EXIT_CODES)]
pub struct DrainArgs {
    /// Wait until no new connection came for the quiet time
    #[arg(long)]
    pub wait: bool,

    /// How long no new connection must have come: 1s to 10m
    #[arg(
        long,
        env = "PATHPROOF_DRAIN_QUIET",
        value_name = "DURATION",
        default_value = "10s",
        value_parser = drain::quiet_time
    )]
    pub quiet: Duration,

    /// How long to wait at most
    ///
    /// Keep it, and the time that the workload itself takes to end, below the grace period of the
    /// pod or unit that the hook belongs to.
    #[arg(
        long,
        env = "PATHPROOF_DRAIN_TIMEOUT",
        value_name = "DURATION",
        default_value = "5m",
        value_parser = drain::timeout
    )]
    pub timeout: Duration,

    /// The agent's admin port
    #[arg(
        long,
        env = "PATHPROOF_ADMIN_ADDRESS",
        value_name = "HOST:PORT",
        default_value = "127.0.0.1:19256"
    )]
    pub admin_address: String,

    /// For people, or the last answer of /drainz as JSON
    #[arg(long, short, value_name = "FORMAT", value_enum, default_value_t = Output::Text)]
    pub output: Output,
}

/// Words of `pathproof kube-proxy`, which are read by `dropin`, as kube-proxy reads them.
#[derive(Debug, Clone, PartialEq, ClapArgs)]
pub struct KubeProxyArgs {
    /// kube-proxy's flags
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "FLAG"
    )]
    pub words: Vec<String>,
}

/// Options of `pathproof version`.
#[derive(Debug, Clone, PartialEq, ClapArgs)]
pub struct VersionArgs {
    /// For people, or JSON
    #[arg(long, short, value_name = "FORMAT", value_enum, default_value_t = Output::Text)]
    pub output: Output,
}

/// Options of `pathproof cleanup`.
#[derive(Debug, Clone, PartialEq, ClapArgs)]
pub struct CleanupArgs {
    /// The agent's --pin-dir
    #[arg(
        long,
        env = "PATHPROOF_PIN_DIR",
        value_name = "DIR",
        default_value = "/sys/fs/bpf/pathproof"
    )]
    pub pin_dir: String,

    /// The agent's --state-dir
    #[arg(
        long,
        env = "PATHPROOF_STATE_DIR",
        value_name = "DIR",
        default_value = "/run/pathproof"
    )]
    pub state_dir: String,

    /// The agent's --sentinel-devices
    #[arg(
        long,
        env = "PATHPROOF_SENTINEL_DEVICES",
        value_name = "PREFIX",
        default_value = "pathproof"
    )]
    pub sentinel_devices: String,
}

/// Options of `pathproof docs`.
#[derive(Debug, Clone, PartialEq, ClapArgs)]
pub struct DocsArgs {
    /// The page.
    #[arg(value_enum)]
    pub page: DocsPage,
}

/// Generated pages of the reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DocsPage {
    /// docs/metrics.md.
    Metrics,
    /// docs/configuration.md.
    Configuration,
}
