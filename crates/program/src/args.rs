//! The command line. The options of `run` and `rotate` are defined in the agent's `config`.
//!
//! `cargo xtask gen-docs` writes docs/configuration.md from these definitions.

use clap::{Args as ClapArgs, Parser, Subcommand};
use pathproof::config::{
    ClusterArgs, KeptArgs, RotateConfig, RunArgs, SentinelConfig, as_option, device_prefix,
};
use pathproof::echo::EchoArgs;
use pathproof_cli::args::{
    AdminPort, DrainArgs, FleetArgs, Output, PreflightArgs, RecordArgs, ReplayArgs, ReportArgs,
    StatusArgs, WhyArgs,
};
use pathproof_shared::docs::address;

pub mod variables;

const ABOUT: &str = "Proves on real packets that a Kubernetes node routes Service traffic";

const LONG_ABOUT: &str = "\
Proves on real packets that a Kubernetes node routes Service traffic, and answers /healthz and \
/livez accordingly.

It never changes, drops or delays a packet of another program. It does not judge applications: a node that forwards \
correctly to a broken application is healthy.";

const EXIT_CODES: &str = "\
Exit codes: 0 done, 1 failed, 64 wrong configuration, 70 a defect in pathproof, 77 missing \
permissions. check, drain and preflight have more.";

const CHECK_CODES: &str = "\
Exit codes: 0 the node is proven and every TCP path passes, 1 it is broken or stale, 3 anything \
else, 64 wrong configuration, 70 a defect in pathproof, 77 missing permissions.";

#[derive(Debug, Clone, PartialEq, Parser)]
#[command(
    name = "pathproof",
    version,
    about = ABOUT,
    long_about = LONG_ABOUT,
    after_help = exit_codes(),
    max_term_width = 100,
    subcommand_required = true,
    arg_required_else_help = true,
    disable_help_subcommand = true
)]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Clone, PartialEq, Subcommand)]
pub enum Command {
    /// Run the agent: observe packets, answer /healthz and /livez
    #[command(after_help = exit_codes())]
    Run(Box<RunArgs>),
    /// Show the verdict of a running agent
    Status(StatusArgs),
    /// Explain the verdict of a running agent, and list what to check next
    ///
    /// Set PATHPROOF_DOCS_URL to the URL of a copy of docs/operations.md, here or when building, and links
    /// lead there.
    Why(WhyArgs),
    /// Save the events of the last minutes from a running agent, for a bug report
    Record(RecordArgs),
    /// Replay a recording: show its verdicts over time, and whether this version reaches the same
    /// ones
    Replay(ReplayArgs),
    /// Show every 503 of the last weeks, served or held back by audit mode, to decide whether to
    /// enforce
    ///
    /// Reads the journal of the agent, which has the last 31 days. `pathproof fleet report` reads
    /// those of all agents of a cluster.
    Report(ReportArgs),
    /// Test the datapath once, with or without a running agent
    ///
    /// Creates the sentinel's interfaces, probes every path for a few seconds, reports which paths
    /// pass and why the others fail, and removes the interfaces. If an agent runs on the node, its
    /// probes are reported instead.
    Check(Box<CheckArgs>),
    /// Report whether new connections from outside still arrive at a node that is being removed
    ///
    /// For termination hooks, in place of a sleep: reads the agent's /drainz. With --wait, the quiet time
    /// counts from the start of the command, or from the removal in the Node object if that is earlier.
    /// Without --wait, the Node object must show the removal.
    Drain(DrainArgs),
    /// Change the port of the sentinel's endpoint every 15 s, once for the whole cluster
    ///
    /// Runs as a Deployment with leader election by a Lease. The leader creates the sentinel's
    /// EndpointSlices and repairs them if they were edited. From each change of the port, every
    /// agent measures how far its node's rules lag behind the API.
    Rotate(Box<RotateConfig>),
    /// Run the pod probe: open connections from a pod on every node, so that the path of pods is
    /// tested on idle nodes too
    ///
    /// Runs as an unprivileged DaemonSet on the pod network with its own Service. The agent
    /// observes these connections; agent and pod probe do not communicate.
    Echo(EchoArgs),
    /// List the nodes of a cluster with verdict, cause and duration; also as `kubectl pathproof`
    ///
    /// Runs kubectl, which must be in PATH. Reads the Nodes' conditions and lists nodes that are not ready
    /// first, then uncertain nodes, nodes that are being removed, and healthy nodes. Nodes that do not run
    /// Linux have no agent, and are listed last.
    Fleet(Box<FleetArgs>),
    /// Check a cluster before anything is installed: nodes, proxy, addresses, load balancers, rights
    ///
    /// Runs kubectl, which must be in PATH, and changes nothing.
    Preflight(PreflightArgs),
    /// Remove what an agent leaves behind: BPF programs, pinned maps, state, the sentinel's
    /// interfaces
    Cleanup(CleanupArgs),
    /// Run in place of kube-proxy, with its flags, where another program routes Services (RKE 1)
    ///
    /// The same as calling the binary by the name kube-proxy. `--help` lists the flags.
    #[command(name = "kube-proxy", disable_help_flag = true)]
    KubeProxy(KubeProxyArgs),
    /// Show the version of this binary
    Version,
}

#[derive(Debug, Clone, PartialEq, ClapArgs)]
#[command(after_help = CHECK_CODES)]
pub struct CheckArgs {
    #[command(flatten)]
    pub cluster: ClusterArgs,
    #[command(flatten)]
    pub sentinel: SentinelConfig,
    #[command(flatten, next_help_heading = "Check")]
    pub admin: AdminPort,

    /// Duration of the probes if no agent runs, in seconds
    #[arg(
        long,
        value_name = "N",
        default_value_t = 4,
        value_parser = clap::value_parser!(u64).range(2..=600)
    )]
    pub seconds: u64,

    /// Output format
    #[arg(long, short, value_name = "FORMAT", default_value = "text")]
    pub output: Output,
}

/// Words of `pathproof kube-proxy`, which are read by `kube_proxy_compat`, as kube-proxy reads them.
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

/// Options of `pathproof cleanup`, as the agent has them.
#[derive(Debug, Clone, PartialEq, ClapArgs)]
#[command(mut_args = as_option)]
pub struct CleanupArgs {
    #[command(flatten)]
    pub kept: KeptArgs,

    /// Value of the agent's --sentinel-devices
    #[arg(
        long,
        value_name = "PREFIX",
        default_value = "pathproof",
        value_parser = device_prefix
    )]
    pub sentinel_devices: String,
}

fn exit_codes() -> String {
    let page = address("docs/concepts.md");
    format!("{EXIT_CODES} {page} explains words such as sentinel, rotator and verdict.")
}

#[cfg(test)]
mod tests;
