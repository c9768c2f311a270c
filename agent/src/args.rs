//! The command line exactly as it was said: words, no meaning. `config` turns them into values.
//!
//! Every option of `run` can also be set by an environment variable; the command line wins. The
//! reference in docs/configuration.md is written from these definitions by [`reference()`].

use std::path::PathBuf;

use clap::{ArgAction, Args as ClapArgs, Parser, Subcommand};

use crate::telemetry::DEFAULT_FILTER;

mod choices;
mod commands;
mod fleet;
mod reference;
mod sentinel;

pub use choices::{
    Attach, Enforcement, Hardening, LogFormat, Output, PortTakeover, Publish, Sentinel,
    UnknownPolicy, View,
};
pub use commands::{
    CheckArgs, CleanupArgs, DocsArgs, DocsPage, DrainArgs, KubeProxyArgs, RecordArgs, ReplayArgs,
    RotateArgs, StatusArgs, VersionArgs, WhyArgs,
};
pub use fleet::{FleetArgs, FleetCommand, KubectlOptions, NodeArgs, Plugin};
pub use reference::reference;
pub use sentinel::SentinelArgs;

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
    Rotate(RotateArgs),
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

/// Options of `pathproof run`.
#[derive(Debug, Clone, PartialEq, ClapArgs)]
#[command(after_help = EXIT_CODES)]
pub struct RunArgs {
    /// Where the cluster view comes from.
    #[command(flatten)]
    pub cluster: ClusterArgs,

    /// Where /healthz and /livez are served: IP:PORT, IP, or :PORT; "none" serves neither
    ///
    /// Without a port it is 10256. 0.0.0.0, `[::]` and an empty host all mean every address of both
    /// families.
    #[arg(
        long,
        env = "PATHPROOF_HEALTHZ_BIND_ADDRESS",
        value_name = "ADDRESS",
        default_value = "0.0.0.0:10256",
        help_heading = ANSWERS
    )]
    pub healthz_bind_address: String,

    /// How connections to the healthz port come to the agent
    ///
    /// kube-proxy holds that port on most nodes, and need not give it up: those from outside are
    /// steered, the node's own stay kube-proxy's. Where the kernel or the privileges do not allow
    /// it, the port is bound.
    #[arg(
        long,
        env = "PATHPROOF_PORT_TAKEOVER",
        value_name = "WAY",
        value_enum,
        default_value_t = PortTakeover::Steer,
        help_heading = ANSWERS
    )]
    pub port_takeover: PortTakeover,

    /// How long SIGTERM waits for a successor, where nobody else would answer; 0 does not wait
    ///
    /// The last verdict is served meanwhile. It ends as soon as another agent has taken over.
    #[arg(
        long,
        env = "PATHPROOF_SHUTDOWN_GRACE",
        value_name = "DURATION",
        default_value = "5s",
        help_heading = ANSWERS
    )]
    pub shutdown_grace: String,

    /// Sources that may ask /healthz and /livez: CIDR or IP (repeatable); default everyone
    ///
    /// Others are disconnected before anything is read. Remember the load balancer's probe ranges
    /// and this node's own addresses (kubelet probes).
    #[arg(
        long = "healthz-allow-cidr",
        env = "PATHPROOF_HEALTHZ_ALLOW_CIDR",
        value_name = "CIDR",
        value_delimiter = ',',
        action = ArgAction::Append,
        help_heading = ANSWERS
    )]
    pub healthz_allow_cidrs: Vec<String>,

    /// What is answered while there is no evidence either way
    #[arg(
        long,
        env = "PATHPROOF_UNKNOWN_POLICY",
        value_name = "POLICY",
        value_enum,
        default_value_t = UnknownPolicy::Open,
        help_heading = ANSWERS
    )]
    pub unknown_policy: UnknownPolicy,

    /// Whether a broken datapath turns the answers to 503
    #[arg(
        long,
        env = "PATHPROOF_ENFORCEMENT",
        value_name = "MODE",
        value_enum,
        default_value_t = Enforcement::Enforce,
        help_heading = ANSWERS
    )]
    pub enforcement: Enforcement,

    /// How long a flapping datapath stays 503 after it works again, at first; 0 is off
    ///
    /// Doubles with each flap, up to 5m. A first recovery is believed after one second.
    #[arg(
        long,
        env = "PATHPROOF_FLAP_DWELL",
        value_name = "DURATION",
        default_value = "10s",
        help_heading = ANSWERS
    )]
    pub flap_dwell: String,

    /// Where /metrics, /verdict, /recording, /drainz and /agent/* are served: IP:PORT, IP, or :PORT;
    /// "none" serves none of them
    ///
    /// The default answers on this machine only. For Prometheus give the node's address, and say
    /// who may ask with --admin-allow-cidr.
    #[arg(
        long,
        env = "PATHPROOF_ADMIN_BIND_ADDRESS",
        value_name = "ADDRESS",
        default_value = "127.0.0.1:19256",
        help_heading = ADMIN
    )]
    pub admin_bind_address: String,

    /// Sources that may ask the admin port: CIDR or IP (repeatable); default everyone
    #[arg(
        long = "admin-allow-cidr",
        env = "PATHPROOF_ADMIN_ALLOW_CIDR",
        value_name = "CIDR",
        value_delimiter = ',',
        action = ArgAction::Append,
        help_heading = ADMIN
    )]
    pub admin_allow_cidrs: Vec<String>,

    /// Sources that load balancers probe from, as /drainz leaves them out: CIDR or IP (repeatable)
    ///
    /// A new connection of theirs does not say that clients still come. Needed where a probe dials
    /// a Service (a TCP check of a node port): it cannot be told from a client by its SYN.
    #[arg(
        long = "drain-ignore-cidr",
        env = "PATHPROOF_DRAIN_IGNORE_CIDR",
        value_name = "CIDR",
        value_delimiter = ',',
        action = ArgAction::Append,
        help_heading = ADMIN
    )]
    pub drain_ignore_cidrs: Vec<String>,

    /// Interfaces to watch: a pattern with * and ? (repeatable); default all but loopback
    #[arg(
        long = "interface-include",
        env = "PATHPROOF_INTERFACE_INCLUDE",
        value_name = "PATTERN",
        value_delimiter = ',',
        action = ArgAction::Append,
        help_heading = OBSERVER
    )]
    pub interface_includes: Vec<String>,

    /// Interfaces not to watch, even if included: a pattern with * and ? (repeatable)
    #[arg(
        long = "interface-exclude",
        env = "PATHPROOF_INTERFACE_EXCLUDE",
        value_name = "PATTERN",
        value_delimiter = ',',
        action = ArgAction::Append,
        help_heading = OBSERVER
    )]
    pub interface_excludes: Vec<String>,

    /// How programs are attached to interfaces
    #[arg(
        long,
        env = "PATHPROOF_ATTACH",
        value_name = "MODE",
        value_enum,
        default_value_t = Attach::Auto,
        help_heading = OBSERVER
    )]
    pub attach: Attach,

    /// Whether the datapath is probed by packets of pathproof's own
    ///
    /// Needs the sentinel's Service in the cluster. Off, or where its devices cannot be had, an
    /// idle node's verdict is Unknown.
    #[arg(
        long,
        env = "PATHPROOF_SENTINEL",
        value_name = "MODE",
        value_enum,
        default_value_t = Sentinel::On,
        help_heading = SENTINEL
    )]
    pub sentinel: Sentinel,

    /// What the sentinel is.
    #[command(flatten)]
    pub sentinel_settings: SentinelArgs,

    /// Whether the Node's condition ServiceDatapathReady is kept; on where the view comes from an API
    /// server
    ///
    /// Takes the right to patch nodes/status. A heartbeat every 5m, changes within seconds.
    #[arg(
        long,
        env = "PATHPROOF_PUBLISH_CONDITION",
        value_name = "MODE",
        value_enum,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "on",
        help_heading = PUBLISHING
    )]
    pub publish_condition: Option<Publish>,

    /// Whether Events about the Node announce transitions; on where the view comes from an API
    /// server
    ///
    /// Takes the right to create and patch events.events.k8s.io in the namespace default.
    #[arg(
        long,
        env = "PATHPROOF_PUBLISH_EVENTS",
        value_name = "MODE",
        value_enum,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "on",
        help_heading = PUBLISHING
    )]
    pub publish_events: Option<Publish>,

    /// Where links and maps are pinned, so that a restart leaves no gap; "none" pins nothing
    #[arg(
        long,
        env = "PATHPROOF_PIN_DIR",
        value_name = "DIR",
        default_value = "/sys/fs/bpf/pathproof",
        help_heading = OBSERVER
    )]
    pub pin_dir: String,

    /// Where the last verdict and the last Node outlive a restart; "none" keeps nothing
    #[arg(
        long,
        env = "PATHPROOF_STATE_DIR",
        value_name = "DIR",
        default_value = "/run/pathproof",
        help_heading = OBSERVER
    )]
    pub state_dir: String,

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
        help_heading = OBSERVER
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
    ///
    /// For example: info,pathproof::datapath=debug
    #[arg(
        long,
        env = "PATHPROOF_LOG_FILTER",
        value_name = "FILTER",
        default_value = DEFAULT_FILTER,
        help_heading = LOG
    )]
    pub log_filter: String,
}

/// Options that say where the cluster view comes from, and which node this is.
#[derive(Debug, Clone, PartialEq, ClapArgs)]
pub struct ClusterArgs {
    /// Folder of Kubernetes YAML (Node, Service, EndpointSlice) to take the cluster view from
    ///
    /// Any number of files and documents; other kinds are ignored and counted. The folder is
    /// followed live. A broken file is reported and the last good view stays.
    #[arg(long, env = "PATHPROOF_MANIFESTS", value_name = "DIR", help_heading = CLUSTER)]
    pub manifests: Option<PathBuf>,

    /// Kubeconfig of the API server to take the cluster view from; its current context counts
    ///
    /// Without it, --server and --manifests, the ServiceAccount of this pod is used: the API server
    /// is then connected to past the Service network, once its addresses were learned.
    #[arg(long, env = "PATHPROOF_KUBECONFIG", value_name = "FILE", help_heading = CLUSTER)]
    pub kubeconfig: Option<PathBuf>,

    /// URL of the API server to take the cluster view from; wins over that of --kubeconfig
    ///
    /// Asked with the ServiceAccount of this pod, where one is mounted and the URL is https. Give
    /// an address that needs no Service: the ClusterIP works only while the datapath does.
    #[arg(long, env = "PATHPROOF_SERVER", value_name = "URL", help_heading = CLUSTER)]
    pub server: Option<String>,

    /// How much of the cluster is watched at an API server
    #[arg(
        long,
        env = "PATHPROOF_VIEW",
        value_name = "VIEW",
        value_enum,
        default_value_t = View::Full,
        help_heading = CLUSTER
    )]
    pub view: View,

    /// Name of this node's Node object
    ///
    /// Else NODE_NAME from the environment, else the host's name in lower case.
    #[arg(long, env = "PATHPROOF_NODE_NAME", value_name = "NAME", help_heading = CLUSTER)]
    pub node_name: Option<String>,

    /// A taint that says the node is being removed: a key, or a preset (repeatable)
    ///
    /// Presets: cluster-autoscaler (always on, as in kube-proxy), karpenter, spot, shutdown. The
    /// effect of a taint is ignored.
    #[arg(
        long = "terminating-taint",
        env = "PATHPROOF_TERMINATING_TAINT",
        value_name = "KEY|PRESET",
        value_delimiter = ',',
        action = ArgAction::Append,
        help_heading = CLUSTER
    )]
    pub terminating_taints: Vec<String>,
}

const CLUSTER: &str = "Cluster view";
const ANSWERS: &str = "Answers";
const ADMIN: &str = "Admin port";
const OBSERVER: &str = "Observer";
const SENTINEL: &str = "Sentinel";
const PUBLISHING: &str = "Publishing";
const LOG: &str = "Log";
