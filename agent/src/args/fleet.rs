//! Options of `pathproof fleet`, which is `kubectl pathproof` where the binary is installed by that
//! name: kubectl's own names for what kubectl has too.

use std::path::PathBuf;

use clap::{ArgAction, Args as ClapArgs, Parser, Subcommand, ValueEnum};

use super::Output;

const FLEET_CODES: &str = "\
Exit codes: 0 listed or shown, whatever the verdicts; 1 failed, 64 an option is wrong, 77 rights \
are missing.";

const API: &str = "API server";
const LIST: &str = "List";

/// The command line where the binary is called as kubectl's plugin.
#[derive(Debug, Clone, PartialEq, Parser)]
#[command(
    name = "kubectl pathproof",
    bin_name = "kubectl pathproof",
    version,
    about = "Show every node of a cluster: whether it routes Service traffic, and why not",
    after_help = FLEET_CODES,
    max_term_width = 100,
    disable_help_subcommand = true
)]
pub struct Plugin {
    /// As of `pathproof fleet`.
    #[command(flatten)]
    pub fleet: FleetArgs,
}

/// Options of `pathproof fleet`.
#[derive(Debug, Clone, PartialEq, ClapArgs)]
#[command(after_help = FLEET_CODES)]
pub struct FleetArgs {
    /// One node instead of all.
    #[command(subcommand)]
    pub command: Option<FleetCommand>,

    /// How the API server and the agents are reached.
    #[command(flatten)]
    pub access: FleetAccess,

    /// Nodes to list, by label, such as `node-role.kubernetes.io/worker=`
    #[arg(long, short = 'l', value_name = "SELECTOR", help_heading = LIST)]
    pub selector: Option<String>,

    /// Which agents are asked for lag, coverage and the newest verdict
    #[arg(
        long,
        env = "PATHPROOF_ASK",
        value_name = "WHOM",
        value_enum,
        default_value_t = AskWhom::Auto,
        help_heading = LIST
    )]
    pub ask: AskWhom,

    /// Leave nodes out that are proven and stay
    #[arg(long, help_heading = LIST)]
    pub sick: bool,
}

/// One node.
#[derive(Debug, Clone, PartialEq, Subcommand)]
pub enum FleetCommand {
    /// Tell how a node's verdict came about, and where to look next: `pathproof why` of its agent
    Why(NodeArgs),
    /// Show a node's verdict and what it rests on: `pathproof status` of its agent
    Status(NodeArgs),
}

/// Which node.
#[derive(Debug, Clone, PartialEq, Eq, ClapArgs)]
pub struct NodeArgs {
    /// Name of the node
    #[arg(value_name = "NODE")]
    pub node: String,
}

/// How the API server and the agents are reached.
#[derive(Debug, Clone, PartialEq, ClapArgs)]
pub struct FleetAccess {
    /// Kubeconfig; without it those that KUBECONFIG names, ~/.kube/config, or this pod's ServiceAccount
    #[arg(long, value_name = "FILE", global = true, help_heading = API)]
    pub kubeconfig: Option<PathBuf>,

    /// Context of the kubeconfig, instead of its current one
    #[arg(long, value_name = "NAME", global = true, help_heading = API)]
    pub context: Option<String>,

    /// Cluster of the kubeconfig, instead of the context's
    #[arg(long, value_name = "NAME", global = true, help_heading = API)]
    pub cluster: Option<String>,

    /// User of the kubeconfig, instead of the context's
    #[arg(long, value_name = "NAME", global = true, help_heading = API)]
    pub user: Option<String>,

    /// URL of the API server, instead of the kubeconfig's
    #[arg(long, short = 's', value_name = "URL", global = true, help_heading = API)]
    pub server: Option<String>,

    /// User to act as
    #[arg(long = "as", value_name = "NAME", global = true, help_heading = API)]
    pub act_as: Option<String>,

    /// Group to act as (repeatable)
    #[arg(
        long = "as-group",
        value_name = "NAME",
        action = ArgAction::Append,
        requires = "act_as",
        global = true,
        help_heading = API
    )]
    pub act_as_groups: Vec<String>,

    /// Namespace that pathproof is installed in
    #[arg(
        long,
        short = 'n',
        env = "PATHPROOF_NAMESPACE",
        value_name = "NAMESPACE",
        default_value = "pathproof",
        global = true,
        help_heading = API
    )]
    pub namespace: String,

    /// Port of the agents' --admin-bind-address
    #[arg(
        long,
        env = "PATHPROOF_AGENT_PORT",
        value_name = "PORT",
        default_value_t = 19256,
        value_parser = clap::value_parser!(u16).range(1..),
        global = true,
        help_heading = API
    )]
    pub agent_port: u16,

    /// How long one request may take, to the API server or to an agent: 1 to 600 seconds, or such
    /// as 30s, 2m
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "10s",
        global = true,
        help_heading = API
    )]
    pub request_timeout: String,

    /// For people, or JSON
    #[arg(
        long,
        short,
        value_name = "FORMAT",
        value_enum,
        default_value_t = Output::Text,
        global = true
    )]
    pub output: Output,
}

/// Which agents are asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum AskWhom {
    /// All in a cluster of up to 100 nodes; in a larger one as sick, 100 at most
    Auto,
    /// All, however many
    All,
    /// Those whose condition does not say that the node is proven and stays
    Sick,
    /// None: the conditions of the Nodes alone, and no right but to list them
    None,
}

impl From<AskWhom> for agent_core::fleet::Ask {
    fn from(said: AskWhom) -> Self {
        match said {
            AskWhom::Auto => Self::Auto,
            AskWhom::All => Self::All,
            AskWhom::Sick => Self::Sick,
            AskWhom::None => Self::None,
        }
    }
}
