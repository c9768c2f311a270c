//! The command line exactly as it was said: words, no meaning. `config` turns them into values.
//!
//! Every option of `run` can also be set by an environment variable; the command line wins. The
//! reference in docs/configuration.md is written from these definitions by [`reference()`].

use std::path::PathBuf;

use clap::{ArgAction, Args as ClapArgs, Parser, Subcommand, ValueEnum};

mod commands;
mod reference;

pub use commands::{CheckArgs, CleanupArgs, DocsArgs, DocsPage, StatusArgs, VersionArgs, WhyArgs};
pub use reference::reference;

const ABOUT: &str = "Proves on real packets that a Kubernetes node routes Service traffic";

const LONG_ABOUT: &str = "\
Proves on real packets that a Kubernetes node routes Service traffic, and answers /healthz and \
/livez from what it saw.

It never changes, drops or delays a packet, and it never speaks for a backend: a node that \
forwards correctly to a broken application is a sound node.";

const EXIT_CODES: &str = "\
Exit codes: 0 done, 1 failed, 64 the configuration is wrong, 70 a defect in pathproof, \
77 permissions are missing. Of check: 0 the datapath is sound, 1 it is broken, 3 it cannot be told.";

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
    /// Prove the datapath once, now, without an agent
    ///
    /// Makes the sentinel's interfaces, probes every path for a few seconds, says which of them
    /// pass and why others do not, and leaves nothing behind. Where an agent runs, its interfaces
    /// and its probes are used instead.
    Check(Box<CheckArgs>),
    /// Remove what an agent leaves behind: programs, pinned maps, state, the sentinel's interfaces
    Cleanup(CleanupArgs),
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

    /// Where /healthz and /livez are served: IP:PORT, IP, or :PORT
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

    /// Where /metrics, /verdict and /agent/* are served: IP:PORT, IP, or :PORT
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
        default_value = "info",
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

/// Options that say what the sentinel is.
#[derive(Debug, Clone, PartialEq, ClapArgs)]
pub struct SentinelArgs {
    /// The sentinel's Service
    #[arg(
        long,
        env = "PATHPROOF_SENTINEL_SERVICE",
        value_name = "NAMESPACE/NAME",
        default_value = "pathproof/pathproof-sentinel",
        help_heading = SENTINEL
    )]
    pub sentinel_service: String,

    /// What the names of the sentinel's four interfaces begin with
    #[arg(
        long,
        env = "PATHPROOF_SENTINEL_DEVICES",
        value_name = "PREFIX",
        default_value = "pathproof",
        help_heading = SENTINEL
    )]
    pub sentinel_devices: String,

    /// Where off-cluster probes come from: an IPv4 and an IPv6 address
    ///
    /// Routed to the sentinel's own interface on every node; nothing else may have them.
    #[arg(
        long = "sentinel-client-address",
        env = "PATHPROOF_SENTINEL_CLIENT_ADDRESS",
        value_name = "IP",
        value_delimiter = ',',
        default_value = "198.18.0.1,2001:2::1",
        action = ArgAction::Append,
        help_heading = SENTINEL
    )]
    pub sentinel_client_addresses: Vec<String>,

    /// The endpoint of the sentinel's slices: an IPv4 and an IPv6 address, the same on every node
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

    /// Where pods' probes come from: addresses of this node's podCIDRs that no pod can get
    ///
    /// One for each family at most. Only where IPAM is told to leave them alone: a route for an
    /// address that a pod gets would cut that pod off. Without it pods are judged by real traffic.
    #[arg(
        long = "sentinel-pod-address",
        env = "PATHPROOF_SENTINEL_POD_ADDRESS",
        value_name = "IP",
        value_delimiter = ',',
        action = ArgAction::Append,
        help_heading = SENTINEL
    )]
    pub sentinel_pod_addresses: Vec<String>,
}

const CLUSTER: &str = "Cluster view";
const ANSWERS: &str = "Answers";
const ADMIN: &str = "Admin port";
const OBSERVER: &str = "Observer";
const SENTINEL: &str = "Sentinel";
const LOG: &str = "Log";

/// What is answered while the verdict is Unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum UnknownPolicy {
    /// 200: pathproof's own blindness takes no node out of service
    Open,
    /// 503: only proven nodes are in service
    Closed,
}

/// Whether the verdict has consequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Enforcement {
    /// A broken datapath answers 503
    Enforce,
    /// The datapath part always answers 200; metrics tell what would have been said
    Audit,
}

/// How much of the cluster is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum View {
    /// This Node, all Services and EndpointSlices: every Service is judged
    Full,
    /// This Node and the sentinel alone: for very large clusters
    Sentinel,
}

/// Whether the datapath is probed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Sentinel {
    /// Probe, where the sentinel's Service is there
    On,
    /// Judge by real traffic alone
    Off,
}

/// How programs are attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Attach {
    /// TCX, and clsact where the kernel has no TCX
    Auto,
    /// TCX only (kernel 6.6 and newer)
    Tcx,
    /// clsact filters only
    Clsact,
}

/// Format of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Lines for people
    Text,
    /// One JSON object a line
    Json,
}

/// Format of what a command prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people
    Text,
    /// For programs
    Json,
}

impl From<UnknownPolicy> for crate::domain::answer::UnknownPolicy {
    fn from(said: UnknownPolicy) -> Self {
        match said {
            UnknownPolicy::Open => Self::Open,
            UnknownPolicy::Closed => Self::Closed,
        }
    }
}

impl From<Enforcement> for crate::domain::answer::Enforcement {
    fn from(said: Enforcement) -> Self {
        match said {
            Enforcement::Enforce => Self::Enforce,
            Enforcement::Audit => Self::Audit,
        }
    }
}

impl From<LogFormat> for crate::telemetry::Format {
    fn from(said: LogFormat) -> Self {
        match said {
            LogFormat::Text => Self::Text,
            LogFormat::Json => Self::Json,
        }
    }
}
