//! Options of `pathproof fleet`, which is `kubectl pathproof` where the binary is installed by that
//! name. Options that kubectl has too bear kubectl's names.

use clap::{Arg, ArgAction, ArgMatches, Args as ClapArgs, Command, FromArgMatches, Parser};
use clap::{Error, Subcommand};

use super::Output;

const FLEET_CODES: &str = "\
Exit codes: 0 listed, whatever the verdicts; 1 failed, 64 an option is wrong. Of why and status: \
that of kubectl exec, which is the command's own.";

const KUBECTL: &str = "Passed on to kubectl";
const LIST: &str = "List";

/// kubectl's options for reaching the API server: name, value, help.
const KUBECTL_OPTIONS: [(&str, &str, &str); 15] = [
    ("kubeconfig", "FILE", "Kubeconfig file"),
    ("context", "NAME", "Context of the kubeconfig"),
    ("cluster", "NAME", "Cluster of the kubeconfig"),
    ("user", "NAME", "User of the kubeconfig"),
    ("server", "URL", "URL of the API server"),
    (
        "tls-server-name",
        "NAME",
        "Name in the API server's certificate",
    ),
    (
        "certificate-authority",
        "FILE",
        "Certificate of the authority that signed the API server's",
    ),
    (
        "insecure-skip-tls-verify",
        "BOOL",
        "Accept any certificate of the API server",
    ),
    ("client-certificate", "FILE", "Client certificate"),
    ("client-key", "FILE", "Key of the client certificate"),
    ("token", "TOKEN", "Bearer token"),
    ("as", "NAME", "User to impersonate"),
    ("as-group", "NAME", "Group to impersonate (repeatable)"),
    ("as-uid", "UID", "UID to impersonate"),
    (
        "request-timeout",
        "DURATION",
        "Time limit of one request to the API server; 0 is none",
    ),
];

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

    /// Namespace that pathproof is installed in
    #[arg(
        long,
        short = 'n',
        env = "PATHPROOF_NAMESPACE",
        value_name = "NAMESPACE",
        default_value = "pathproof",
        global = true
    )]
    pub namespace: String,

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

    /// What kubectl is given.
    #[command(flatten)]
    pub kubectl: KubectlOptions,

    /// Nodes to list, by label, such as `node-role.kubernetes.io/worker=`
    #[arg(long, short = 'l', value_name = "SELECTOR", help_heading = LIST)]
    pub selector: Option<String>,

    /// Leave nodes out that are proven and stay
    #[arg(long, help_heading = LIST)]
    pub sick: bool,
}

/// One node.
#[derive(Debug, Clone, PartialEq, Subcommand)]
pub enum FleetCommand {
    /// Run `pathproof why` in the pod of a node's agent: how its verdict came about
    Why(NodeArgs),
    /// Run `pathproof status` in the pod of a node's agent: its verdict and what it rests on
    Status(NodeArgs),
}

/// Which node.
#[derive(Debug, Clone, PartialEq, Eq, ClapArgs)]
pub struct NodeArgs {
    /// Name of the node
    #[arg(value_name = "NODE", value_parser = node_name)]
    pub node: String,

    /// Options of the agent's command, such as `-- --admin-address 127.0.0.1:9999`
    #[arg(value_name = "OPTION", last = true)]
    pub options: Vec<String>,
}

/// Words that are passed on to kubectl, each `--NAME=VALUE`, so that no value is taken for an option.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KubectlOptions(pub Vec<String>);

impl ClapArgs for KubectlOptions {
    fn augment_args(command: Command) -> Command {
        command.args(KUBECTL_OPTIONS.map(|(name, value, help)| {
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
        let words = |(name, ..): &(&str, &str, &str)| -> Vec<String> {
            let values = matches.get_many::<String>(name).into_iter().flatten();
            values.map(|value| format!("--{name}={value}")).collect()
        };
        Ok(Self(KUBECTL_OPTIONS.iter().flat_map(words).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// The name becomes part of a field selector, where a comma would begin another one.
fn node_name(text: &str) -> Result<String, &'static str> {
    let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c);
    match text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.chars().all(is_part) {
        true => Ok(text.to_owned()),
        false => Err("a Node's name has lower-case letters, digits, '-' and '.'"),
    }
}
