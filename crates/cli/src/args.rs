//! Options of the commands. Options of `fleet` that kubectl also has use kubectl's names.

use std::path::PathBuf;
use std::time::Duration;

use clap::{
    Arg, ArgAction, ArgMatches, Args as ClapArgs, Command, Error, FromArgMatches, Parser,
    Subcommand, ValueEnum,
};
use pathproof_facts::time::Wall;
use pathproof_judge::drain;
use pathproof_shared::values::{dns_name, time};

const DRAIN_CODES: &str = "\
Exit codes: 0 no new connection arrives any more, 1 connections still arrive (with --wait: after the \
timeout), 3 unknown, 64 wrong configuration, 70 a defect in pathproof.";

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    Text,
    Json,
}

#[derive(Debug, Clone, PartialEq, ClapArgs)]
pub struct AdminPort {
    /// Address of the agent's admin port
    #[arg(
        id = "admin-address",
        long,
        env = "PATHPROOF_ADMIN_ADDRESS",
        value_name = "HOST:PORT",
        default_value = "127.0.0.1:19256"
    )]
    pub address: String,
}

#[derive(Debug, Clone, PartialEq, ClapArgs)]
pub struct StateFolder {
    /// State folder of the agent, which has its recordings
    #[arg(
        id = "state-dir",
        long,
        env = "PATHPROOF_STATE_DIR",
        value_name = "FOLDER",
        default_value = "/run/pathproof"
    )]
    pub path: PathBuf,
}

#[derive(Debug, Clone, PartialEq, ClapArgs)]
pub struct StatusArgs {
    #[command(flatten)]
    pub admin: AdminPort,

    /// Refresh every second until interrupted
    #[arg(long, short)]
    pub watch: bool,

    /// Output format: text, or the agent's report as JSON
    #[arg(long, short, value_name = "FORMAT", default_value = "text")]
    pub output: Output,
}

#[derive(Debug, Clone, PartialEq, ClapArgs)]
pub struct WhyArgs {
    #[command(flatten)]
    pub admin: AdminPort,

    /// Explain a past moment, such as 2026-11-23T04:05:06Z, from a recording
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub at: Option<Wall>,

    /// Recording for --at [default: the first one in the state folder that reaches that time]
    #[arg(long, value_name = "FILE", requires = "at")]
    pub recording: Option<PathBuf>,

    #[command(flatten)]
    pub state: StateFolder,

    /// Output format: text, or the chain of evidence as JSON
    #[arg(long, short, value_name = "FORMAT", default_value = "text")]
    pub output: Output,
}

#[derive(Debug, Clone, PartialEq, ClapArgs)]
pub struct RecordArgs {
    #[command(flatten)]
    pub admin: AdminPort,

    /// Recording to save from the state folder, by its name in the journal, in place of the last minutes
    #[arg(long, value_name = "NAME")]
    pub kept: Option<String>,

    #[command(flatten)]
    pub state: StateFolder,

    /// File to write, or - for standard output
    #[arg(
        long,
        short,
        value_name = "FILE",
        default_value = "recording.pathproof"
    )]
    pub output: PathBuf,

    /// Replace every address consistently with another one: a replay still reaches the same verdicts
    #[arg(long)]
    pub redact: bool,
}

#[derive(Debug, Clone, PartialEq, ClapArgs)]
pub struct ReplayArgs {
    /// Recording to replay
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
}

#[derive(Debug, Clone, PartialEq, ClapArgs)]
pub struct ReportArgs {
    /// Journals to read instead of the agent's: output of `report --output json`, or
    /// state.episodes.json of a --journal-dir (repeatable)
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub from: Vec<PathBuf>,

    #[command(flatten)]
    pub admin: AdminPort,
    #[command(flatten)]
    pub page: PageArgs,

    /// Output format: text, or the journals as JSON, which --from reads
    #[arg(long, short, value_name = "FORMAT", default_value = "text")]
    pub output: Output,
}

#[derive(Debug, Clone, PartialEq, Eq, ClapArgs)]
pub struct PageArgs {
    /// Also write the page as one HTML file with a timeline
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,

    /// Your verdicts, one a line: NODE TIME right|wrong|unknown NOTE
    ///
    /// TIME is any time of an episode, such as 2026-11-23T04:05:06Z. Lines that begin with # are
    /// ignored.
    #[arg(long, value_name = "FILE")]
    pub verdicts: Option<PathBuf>,
}

#[derive(Debug, Clone, PartialEq, ClapArgs)]
#[command(after_help = DRAIN_CODES)]
pub struct DrainArgs {
    /// Wait until no new connection has arrived for the quiet time
    #[arg(long)]
    pub wait: bool,

    /// Quiet time: required period without a new connection, 1s to 10m
    #[arg(
        long,
        env = "PATHPROOF_DRAIN_QUIET",
        value_name = "DURATION",
        default_value = "10s",
        value_parser = drain::quiet_time
    )]
    pub quiet: Duration,

    /// Maximum time to wait
    ///
    /// This time plus the workload's own shutdown time must be shorter than the grace period of the
    /// pod or systemd unit.
    #[arg(
        long,
        env = "PATHPROOF_DRAIN_TIMEOUT",
        value_name = "DURATION",
        default_value = "5m",
        value_parser = drain::timeout
    )]
    pub timeout: Duration,

    #[command(flatten)]
    pub admin: AdminPort,
}

const FLEET_CODES: &str = "Exit codes: 0 listed, whatever the verdicts; 1 failed, 64 wrong option. \
                           why and status: the exit code of the command in the pod. report and bundle: 1 \
                           if something could not be read.";

const KUBECTL: &str = "Options passed to kubectl";
const LIST: &str = "List";

/// kubectl's options for reaching the API server, one a line: name, value, help.
const KUBECTL_OPTIONS: &str = "\
kubeconfig FILE Kubeconfig file
context NAME Context of the kubeconfig
cluster NAME Cluster of the kubeconfig
user NAME User of the kubeconfig
server URL URL of the API server
tls-server-name NAME Name in the API server's certificate
certificate-authority FILE Certificate of the certificate authority of the API server
insecure-skip-tls-verify BOOL Accept any certificate of the API server
client-certificate FILE Client certificate
client-key FILE Key of the client certificate
token TOKEN Bearer token
as NAME User to impersonate
as-group NAME Group to impersonate (repeatable)
as-uid UID UID to impersonate
request-timeout DURATION Time limit of one request to the API server; 0 is none";

fn kubectl_options() -> impl Iterator<Item = [&'static str; 3]> {
    KUBECTL_OPTIONS.lines().filter_map(|line| {
        let (name, rest) = line.split_once(' ')?;
        let (value, help) = rest.split_once(' ')?;
        Some([name, value, help])
    })
}

/// The command line if the binary is called as a kubectl plugin.
#[derive(Debug, Clone, PartialEq, Parser)]
#[command(
    name = "kubectl pathproof",
    bin_name = "kubectl pathproof",
    version,
    about = "List the nodes of a cluster: whether each routes Service traffic, and why not",
    after_help = FLEET_CODES,
    max_term_width = 100,
    disable_help_subcommand = true
)]
pub struct Plugin {
    #[command(flatten)]
    pub fleet: FleetArgs,
}

#[derive(Debug, Clone, PartialEq, ClapArgs)]
#[command(after_help = FLEET_CODES)]
pub struct FleetArgs {
    #[command(subcommand)]
    pub command: Option<FleetCommand>,

    /// Namespace of pathproof's installation
    #[arg(
        long,
        short = 'n',
        env = "PATHPROOF_NAMESPACE",
        value_name = "NAMESPACE",
        default_value = "pathproof",
        global = true
    )]
    pub namespace: String,

    /// Output format
    #[arg(
        long,
        short,
        value_name = "FORMAT",
        default_value = "text",
        global = true
    )]
    pub output: Output,

    #[command(flatten)]
    pub kubectl: KubectlOptions,

    /// Nodes to list, by label, such as `node-role.kubernetes.io/worker=`
    #[arg(long, short = 'l', value_name = "SELECTOR", help_heading = LIST)]
    pub selector: Option<String>,

    /// Show only nodes that are not ready, uncertain or being removed
    #[arg(long, help_heading = LIST)]
    pub unhealthy: bool,
}

#[derive(Debug, Clone, PartialEq, Subcommand)]
pub enum FleetCommand {
    /// Run `pathproof why` in the agent's pod on a node: explain its verdict
    Why(NodeArgs),
    /// Run `pathproof status` in the agent's pod on a node: show its verdict
    Status(NodeArgs),
    /// Run `pathproof report` in every agent's pod: show every 503 of the cluster on one page
    Report(PageArgs),
    /// Collect what agents know into one file for a bug report
    ///
    /// The file has, for each pod of an agent, its verdict and explanation, its journal, its recordings and
    /// logs, the Node's conditions, and the versions of node and cluster. Addresses are replaced by others and
    /// tokens are removed; names of nodes, namespaces and Services stay, with addresses that are part of a
    /// name. Its `index.txt` says what could not be read.
    Bundle(BundleArgs),
}

#[derive(Debug, Clone, PartialEq, Eq, ClapArgs)]
pub struct BundleArgs {
    /// Name of the node
    #[arg(value_name = "NODE", value_parser = dns_name, required_unless_present = "all")]
    pub node: Option<String>,

    /// All nodes
    #[arg(long, conflicts_with = "node")]
    pub all: bool,

    /// File to write
    #[arg(long, value_name = "FILE", default_value = "pathproof-bundle.tar.gz")]
    pub file: PathBuf,

    /// Replace FILE if it exists
    #[arg(long)]
    pub force: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, ClapArgs)]
pub struct NodeArgs {
    /// Name of the node
    // The name becomes part of a field selector, where a comma would begin another one.
    #[arg(value_name = "NODE", value_parser = dns_name)]
    pub node: String,

    /// Options of the command in the pod, such as `-- --admin-address 127.0.0.1:9999`
    #[arg(value_name = "OPTION", last = true)]
    pub options: Vec<String>,
}

const PREFLIGHT_CODES: &str = "Exit codes: 0 nothing is refused, 1 something is refused or the command \
                               failed, 3 something is unknown, 64 wrong option.";

#[derive(Debug, Clone, PartialEq, Eq, ClapArgs)]
#[command(after_help = PREFLIGHT_CODES)]
pub struct PreflightArgs {
    /// Namespace for pathproof
    #[arg(long, short, value_name = "NAMESPACE", default_value = "pathproof")]
    pub namespace: String,

    /// Kubeconfig file, passed to kubectl
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<String>,

    /// Context of the kubeconfig, passed to kubectl
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,

    /// Read recorded lists from a folder instead; a missing file's command is shown
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["kubeconfig", "context"])]
    pub from_files: Option<PathBuf>,

    /// Output format
    #[arg(long, short, value_name = "FORMAT", default_value = "text")]
    pub output: Output,
}

/// Words passed to kubectl, each as `--NAME=VALUE`, so that no value is taken for an option.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KubectlOptions(pub Vec<String>);

impl ClapArgs for KubectlOptions {
    fn augment_args(command: Command) -> Command {
        command.args(kubectl_options().map(|[name, value, help]| {
            let arg = Arg::new(name)
                .long(name)
                .short((name == "server").then_some('s'))
                .value_name(value)
                .action(ArgAction::Append)
                .help(help)
                .help_heading(KUBECTL)
                .global(true);
            match value {
                "BOOL" => arg
                    .num_args(0..=1)
                    .require_equals(true)
                    .default_missing_value("true"),
                _ => arg,
            }
        }))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for KubectlOptions {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let words = kubectl_options().flat_map(|[name, ..]| {
            let values = matches.get_many::<String>(name).into_iter().flatten();
            values.map(move |value| format!("--{name}={value}"))
        });
        Ok(Self(words.collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// A command line of nothing but these options.
#[cfg(test)]
#[derive(Debug, Parser)]
pub(crate) struct Line<T: ClapArgs> {
    #[command(flatten)]
    pub(crate) args: T,
}
