//! The command line. The options of `run` are defined in `config`.
//!
//! `cargo xtask gen-docs` writes docs/configuration.md from these definitions.

use clap::{Parser, Subcommand};
use pathproof_shared::docs::address;

use crate::config::{RotateConfig, RunArgs};

mod commands;
pub mod variables;

pub use commands::{
    AdminPort, BundleArgs, CheckArgs, CleanupArgs, DrainArgs, EchoArgs, FleetArgs, FleetCommand,
    KubeProxyArgs, KubectlOptions, NodeArgs, Output, PageArgs, Plugin, PreflightArgs, RecordArgs,
    ReplayArgs, ReportArgs, StatusArgs, WhyArgs,
};

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

const DRAIN_CODES: &str = "\
Exit codes: 0 no new connection arrives any more, 1 connections still arrive (with --wait: after the \
timeout), 3 unknown, 64 wrong configuration, 70 a defect in pathproof.";

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

fn exit_codes() -> String {
    let page = address("docs/concepts.md");
    format!("{EXIT_CODES} {page} explains words such as sentinel, rotator and verdict.")
}

#[cfg(test)]
mod tests;
