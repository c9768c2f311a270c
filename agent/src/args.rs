//! The command line. Options of `run` are defined in `config`.
//!
//! docs/configuration.md is written from these definitions by [`reference()`].

use clap::{CommandFactory as _, Parser, Subcommand};

use crate::config::{RotateConfig, RunArgs};

mod commands;

pub use commands::{
    AdminPort, CheckArgs, CleanupArgs, DocsArgs, DocsPage, DrainArgs, EchoArgs, FleetArgs,
    FleetCommand, KubeProxyArgs, KubectlOptions, NodeArgs, Output, Plugin, RecordArgs, ReplayArgs,
    StatusArgs, VersionArgs, WhyArgs,
};

const ABOUT: &str = "Proves on real packets that a Kubernetes node routes Service traffic";

const LONG_ABOUT: &str = "\
Proves on real packets that a Kubernetes node routes Service traffic, and answers /healthz and \
/livez from what it saw.

It never changes, drops or delays a packet, and it never speaks for a backend: a node that \
forwards correctly to a broken application is a sound node.";

const EXIT_CODES: &str = "\
Exit codes: 0 done, 1 failed, 64 the configuration is wrong, 70 a defect in pathproof, \
77 permissions are missing. Of check: 0 the datapath is sound, 1 it is broken, 3 it cannot be told (2 with --npd). \
Of drain: 0 nothing comes any more, 1 it is not quiet, 3 it cannot be told.";

/// The whole command line.
#[derive(Debug, Clone, PartialEq, Parser)]
#[command(
    name = "pathproof",
    version,
    about = ABOUT,
    long_about = LONG_ABOUT,
    after_help = EXIT_CODES,
    max_term_width = 100,
    subcommand_required = true,
    arg_required_else_help = true,
    disable_help_subcommand = true
)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Clone, PartialEq, Subcommand)]
pub enum Command {
    /// Run the agent: watch packets, answer /healthz and /livez
    #[command(after_help = EXIT_CODES)]
    Run(Box<RunArgs>),
    /// Show a running agent's verdict, and why
    Status(StatusArgs),
    /// Tell how a running agent's verdict came about, and where to look next
    Why(WhyArgs),
    /// Take the events of the last minutes from a running agent, for a bug report
    Record(RecordArgs),
    /// Play a recording again: the timeline of its verdicts, and whether they are the same
    Replay(ReplayArgs),
    /// Prove the datapath once, now, without an agent
    ///
    /// Makes the sentinel's interfaces, probes every path for a few seconds, says which of them
    /// pass and why others do not, and leaves nothing behind. Where an agent runs, its interfaces
    /// and its probes are used instead.
    Check(Box<CheckArgs>),
    /// Tell whether new connections still come from outside to a node that leaves
    ///
    /// For termination hooks, in place of a sleep: asks the agent's /drainz. With --wait the node
    /// counts as leaving from the start of the command on, where its Node object did not say so
    /// before; without, its Node object must.
    Drain(DrainArgs),
    /// Move the sentinel's endpoint from one generation to the next, once for the whole cluster
    ///
    /// Runs as a Deployment; one of its pods leads, by a Lease. The only one that writes the
    /// sentinel's slices: it makes them where they are missing and mends what somebody edited. Every
    /// agent tells by them how far its node's rules lag behind the API.
    Rotate(Box<RotateConfig>),
    /// Answer and dial as a pod on every node, so that what pods meet is seen on an idle node too
    ///
    /// Runs as a DaemonSet with a Service of its own, off the host's network and without privileges. The
    /// agent knows its connections by the Service's slices; the two never speak.
    Echo(EchoArgs),
    /// Show every node of a cluster: verdict, why, since when; also as `kubectl pathproof`
    ///
    /// Runs kubectl, which must be in PATH. The list is that of the Nodes' conditions, the sick
    /// first, then those in doubt, those that leave, and the rest.
    Fleet(Box<FleetArgs>),
    /// Remove what an agent leaves behind: programs, pinned maps, state, the sentinel's interfaces
    Cleanup(CleanupArgs),
    /// Stand in for kube-proxy, by its flags, where something else routes Services (RKE 1)
    ///
    /// The same as calling the binary by the name kube-proxy. `--help` lists the flags.
    #[command(name = "kube-proxy", disable_help_flag = true)]
    KubeProxy(KubeProxyArgs),
    /// Show the version of this binary
    Version(VersionArgs),
    /// Print a page of the reference
    #[command(hide = true)]
    Docs(DocsArgs),
}

const HEAD: &str = "\
<!-- Written by `cargo xtask gen-docs` from agent/src/config/options.rs. Do not edit. -->
# Configuration

Every option of `pathproof run` can also be set by the variable beside it; the command line wins.
A list is separated by commas, on the command line and in a variable; on the command line an option
that is repeatable may also be given several times.

An unsound setting ends the agent at once with exit code 64 and a sentence that names the setting
and the remedy; missing permissions end it with 77.

## The node's name

The first of these that is not empty: `--node-name`, `PATHPROOF_NODE_NAME`, `NODE_NAME` (as a
DaemonSet sets it from `spec.nodeName`), the host's name in lower case.
";

/// docs/configuration.md: the help of every command.
pub fn reference() -> String {
    let mut root = Args::command()
        .term_width(100)
        .mut_subcommands(|command| command.mut_args(|arg| arg.hide_env_values(true)));
    root.build();
    let mut page = HEAD.to_owned();
    for command in root.get_subcommands_mut().filter(|one| !one.is_hide_set()) {
        page.push_str(&section(command));
        let inner = command.get_subcommands_mut();
        for inner in inner.filter(|one| one.get_name() != "help") {
            page.push_str(&section(inner));
        }
    }
    page
}

fn section(command: &mut clap::Command) -> String {
    let help = command.render_long_help().to_string();
    let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
    let name = command.get_bin_name().unwrap_or_default();
    format!("\n## {name}\n\n```text\n{}\n```\n", lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_in_docs_is_current() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/configuration.md");
        let checked_in = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            checked_in == reference(),
            "docs/configuration.md is not what args.rs says: run `cargo xtask gen-docs`"
        );
    }

    #[test]
    fn every_option_of_run_has_its_variable() {
        let root = Args::command();
        let run = root.find_subcommand("run").unwrap();
        for arg in run.get_arguments() {
            let long = arg.get_long().unwrap();
            let expected = format!("PATHPROOF_{}", long.to_uppercase().replace('-', "_"));
            assert_eq!(
                arg.get_env().unwrap().to_string_lossy(),
                expected,
                "--{long}"
            );
        }
    }

    #[test]
    fn the_definitions_are_sound() {
        Args::command().debug_assert();
    }
}
