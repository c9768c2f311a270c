//! Options of `pathproof run` and `rotate`, read into values that are sound each by itself: a refusal
//! names the option, the value and the remedy.
//!
//! Every one can also be set by an environment variable; the command line wins.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use agent_common::service::FAMILIES;
use clap::{Arg, ArgAction, Args as ClapArgs, ValueEnum};
use ipnet::IpNet;

use super::values::{
    OrNone, Pattern, PortRange, addresses, bind_address, device_prefix, directory, log_filter,
    minutes, object_name, pair, pattern, percent, port_range, range, url, word,
};
use crate::http::bind::BindAddress;
use crate::lifecycle::{DEFAULT_FILTER, LogFormat};
use crate::metrics::ServiceMetrics;
use agent_core::answer::{Enforcement, UnknownPolicy};
use agent_core::cluster::ObjectName;
use agent_core::owners::Declared;

pub(super) const SENTINEL: &str = "Sentinel";

/// Port of /healthz and /livez where none is given: kube-proxy's.
pub const HEALTHZ_PORT: u16 = 10256;

/// What every option has: a variable, PATHPROOF_ and its name; and a list is separated by commas.
pub(crate) fn as_option(mut arg: Arg) -> Arg {
    if matches!(arg.get_action(), ArgAction::Append) {
        arg = arg.value_delimiter(',');
    }
    let name = arg.get_long().unwrap_or_default().to_uppercase();
    arg.env(format!("PATHPROOF_{}", name.replace('-', "_")))
}

/// Whether something is done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    On,
    #[default]
    Off,
}

/// How connections to the healthz port come to the agent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum PortTakeover {
    /// Steer those from outside to a listener aside, and leave the port to its owner
    Steer,
    /// Hold the port
    #[default]
    Bind,
}

/// How much of the cluster is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum View {
    /// This Node, all Services and EndpointSlices: every Service is judged
    Full,
    /// This Node and the sentinel alone: for very large clusters
    Sentinel,
}

/// How programs are attached.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Attach {
    /// TCX, and clsact where the kernel has no TCX
    #[default]
    Auto,
    /// TCX only (kernel 6.6 and newer)
    Tcx,
    /// clsact filters only
    Clsact,
}

/// Options of `pathproof run`.
#[derive(Debug, Clone, PartialEq, ClapArgs)]
#[command(mut_args = as_option)]
pub struct RunArgs {
    #[command(flatten)]
    pub cluster: ClusterArgs,
    #[command(flatten)]
    pub healthz: HealthzArgs,
    #[command(flatten)]
    pub admin: AdminArgs,
    #[command(flatten)]
    pub observer: ObserverArgs,
    #[command(flatten)]
    pub kept: KeptArgs,

    /// Whether the datapath is probed by packets of pathproof's own
    ///
    /// Needs the sentinel's Service in the cluster. Off, or where its devices cannot be had, the
    /// node is judged by real traffic alone, and an idle node's verdict is Unknown.
    #[arg(long, value_name = "MODE", default_value = "on", help_heading = SENTINEL)]
    pub sentinel: Switch,

    #[command(flatten)]
    pub sentinel_settings: SentinelConfig,
    #[command(flatten)]
    pub publish: PublishArgs,
    #[command(flatten)]
    pub process: ProcessArgs,
}

/// Options that say where the cluster view comes from, and which node this is.
#[derive(Debug, Clone, PartialEq, ClapArgs)]
#[command(next_help_heading = "Cluster view", mut_args = as_option)]
pub struct ClusterArgs {
    /// Folder of Kubernetes YAML (Node, Service, EndpointSlice) to take the cluster view from
    ///
    /// Any number of files and documents; other kinds are ignored and counted. The folder is
    /// followed live. A broken file is reported and the last good view stays.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["kubeconfig", "server"])]
    pub manifests: Option<PathBuf>,

    #[command(flatten)]
    pub api: ApiArgs,

    /// How much of the cluster is watched at an API server
    #[arg(long, value_name = "VIEW", default_value = "full")]
    pub view: View,

    /// Name of this node's Node object
    ///
    /// Else NODE_NAME from the environment, else the host's name in lower case.
    #[arg(long, value_name = "NAME")]
    pub node_name: Option<String>,

    /// A taint that says the node is being removed: a key, or a preset (repeatable)
    ///
    /// Presets: cluster-autoscaler (always on, as in kube-proxy), karpenter, spot, shutdown. The
    /// effect of a taint is ignored.
    #[arg(long = "terminating-taint", value_name = "KEY|PRESET")]
    pub terminating_taints: Vec<String>,
}

/// How an API server is reached.
#[derive(Debug, Clone, Default, PartialEq, Eq, ClapArgs)]
#[command(next_help_heading = "Cluster view")]
pub struct ApiArgs {
    /// Kubeconfig of the API server; its current context counts
    ///
    /// Without it and --server, the ServiceAccount of this pod is used: the API server is then
    /// connected to past the Service network, once its addresses were learned.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// URL of the API server; wins over that of --kubeconfig
    ///
    /// Asked with the ServiceAccount of this pod, where one is mounted and the URL is https. Give
    /// an address that needs no Service: the ClusterIP works only while the datapath does.
    #[arg(long, value_name = "URL", value_parser = url)]
    pub server: Option<String>,
}

/// Options of /healthz and /livez. The default serves neither.
#[derive(Debug, Clone, Default, PartialEq, ClapArgs)]
#[command(next_help_heading = "Answers")]
pub struct HealthzArgs {
    /// Where /healthz and /livez are served: IP:PORT, IP, or :PORT; "none" serves neither
    ///
    /// Without a port it is 10256. 0.0.0.0, `[::]` and an empty host all mean every address of both
    /// families.
    #[arg(
        id = "healthz-bind-address",
        long,
        value_name = "ADDRESS",
        default_value = "0.0.0.0:10256",
        value_parser = bind_address(HEALTHZ_PORT)
    )]
    pub address: OrNone<BindAddress>,

    /// How connections to the healthz port come to the agent
    ///
    /// kube-proxy holds that port on most nodes, and need not give it up: those from outside are
    /// steered, the node's own stay kube-proxy's. Where the kernel or the privileges do not allow
    /// it, the port is bound.
    #[arg(long, value_name = "WAY", default_value = "steer")]
    pub port_takeover: PortTakeover,

    /// Range of ports at which load balancers ask about a Service with externalTrafficPolicy Local
    /// (its healthCheckNodePort): FIRST-LAST; "none" leaves all of them to kube-proxy or Cilium
    ///
    /// They are answered where connections are steered, for everyone: --healthz-allow-cidr holds for
    /// /healthz and /livez alone, as kube-proxy's ports are open too. The default is the API server's range of node ports, where nothing but Services has a port.
    #[arg(long, value_name = "RANGE", default_value = "30000-32767", value_parser = port_range)]
    pub health_check_node_ports: OrNone<PortRange>,

    /// Whether load balancers may put a header of the PROXY protocol before their requests
    ///
    /// Both versions, at the healthz port and at health check node ports. Requests without one are
    /// answered as well; the header's content is not used.
    #[arg(long, value_name = "MODE", default_value = "off")]
    pub health_check_proxy_protocol: Switch,

    /// How long SIGTERM waits for a successor, where nobody else would answer; 0 does not wait
    ///
    /// The last verdict is served meanwhile. It ends as soon as another agent has taken over.
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = minutes(10))]
    pub shutdown_grace: Duration,

    /// Sources that may ask /healthz and /livez: CIDR or IP (repeatable); default everyone
    ///
    /// Others are disconnected before anything is read. Remember the load balancer's probe ranges
    /// and this node's own addresses (kubelet probes).
    #[arg(
        id = "healthz-allow-cidr",
        long,
        value_name = "CIDR",
        value_parser = range
    )]
    pub allow: Vec<Option<IpNet>>,

    /// What is answered while there is no evidence either way: open or closed
    ///
    /// open: 200, so that pathproof's own blindness takes no node out of service. closed: 503, so that
    /// only proven nodes are in service.
    #[arg(long, value_name = "POLICY", default_value = "open", value_parser = word::<UnknownPolicy>)]
    pub unknown_policy: UnknownPolicy,

    /// Whether a broken datapath turns the answers to 503: enforce or audit
    ///
    /// audit: the datapath part always answers 200; metrics show what it would have been.
    #[arg(long, value_name = "MODE", default_value = "enforce", value_parser = word::<Enforcement>)]
    pub enforcement: Enforcement,

    /// How long a flapping datapath stays 503 after it works again, at first; 0 is off
    ///
    /// Doubles with each flap, up to 5m. A first recovery is believed after one second.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = minutes(5))]
    pub flap_dwell: Duration,

    /// Maximum share of nodes, in percent, that may answer 503 together; 0 turns the fleet brake off
    ///
    /// A node that fails alone may always. The rotator counts nodes by their conditions, in audit too;
    /// without a rotator nothing is held back, and a node that leaves never is.
    #[arg(long, value_name = "PERCENT", default_value = "20", value_parser = percent())]
    pub fleet_brake: u32,
}

/// Options of the admin port. The default serves nothing.
#[derive(Debug, Clone, Default, PartialEq, ClapArgs)]
#[command(next_help_heading = "Admin port")]
pub struct AdminArgs {
    /// Where /metrics, /verdict, /recording, /drainz and /agent/* are served: IP:PORT, IP, or :PORT;
    /// "none" serves none of them
    ///
    /// The default answers on this machine only. For Prometheus give the node's address, and say
    /// who may ask with --admin-allow-cidr.
    #[arg(
        id = "admin-bind-address",
        long,
        value_name = "ADDRESS",
        default_value = "127.0.0.1:19256",
        value_parser = bind_address(19256)
    )]
    pub address: OrNone<BindAddress>,

    /// Sources that may ask the admin port: CIDR or IP (repeatable); default everyone
    #[arg(
        id = "admin-allow-cidr",
        long,
        value_name = "CIDR",
        value_parser = range
    )]
    pub allow: Vec<Option<IpNet>>,

    /// Services with series of their own in /metrics
    ///
    /// The counts of all Services together are there in any case. docs/metrics.md says how many
    /// series each choice costs.
    #[arg(long, value_name = "WHICH", default_value = "trouble")]
    pub service_metrics: ServiceMetrics,

    /// Sources that load balancers probe from, as /drainz leaves them out: CIDR or IP (repeatable)
    ///
    /// A new connection of theirs does not say that clients still come. Needed where a probe dials
    /// a Service (a TCP check of a node port): it cannot be told from a client by its SYN.
    #[arg(
        long = "drain-ignore-cidr",
        value_name = "CIDR",
        value_parser = range
    )]
    pub drain_ignore: Vec<Option<IpNet>>,
}

/// Options of the observer. The default watches every interface, and pins and keeps nothing.
#[derive(Debug, Clone, Default, PartialEq, ClapArgs)]
#[command(next_help_heading = "Observer")]
pub struct ObserverArgs {
    /// Interfaces to watch: a pattern with * and ? (repeatable); default all but loopback
    #[arg(
        long = "interface-include",
        value_name = "PATTERN",
        value_parser = pattern
    )]
    pub include: Vec<Option<Pattern>>,

    /// Interfaces not to watch, even if included: a pattern with * and ? (repeatable)
    #[arg(
        long = "interface-exclude",
        value_name = "PATTERN",
        value_parser = pattern
    )]
    pub exclude: Vec<Option<Pattern>>,

    /// How programs are attached to interfaces
    #[arg(long, value_name = "MODE", default_value = "auto")]
    pub attach: Attach,
}

impl ObserverArgs {
    /// Whether an interface of this name is to be watched: an exclusion wins. Loopback is left out
    /// elsewhere, by its flag: a name is no proof of what a device is.
    pub fn watches(&self, name: &str) -> bool {
        let mut include = self.include.iter().flatten().peekable();
        let is_included = include.peek().is_none() || include.any(|one| one.matches(name));
        let mut exclude = self.exclude.iter().flatten();
        is_included && !exclude.any(|one| one.matches(name))
    }
}

/// Options that say what outlives the agent. The default keeps nothing.
#[derive(Debug, Clone, Default, PartialEq, ClapArgs)]
pub struct KeptArgs {
    /// Where links and maps are pinned, so that a restart leaves no gap; "none" pins nothing
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/sys/fs/bpf/pathproof",
        value_parser = directory
    )]
    pub pin_dir: OrNone<PathBuf>,

    /// Where the last verdict and the last Node outlive a restart; "none" keeps nothing
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/run/pathproof",
        value_parser = directory
    )]
    pub state_dir: OrNone<PathBuf>,
}

/// What the sentinel is.
#[derive(Debug, Clone, PartialEq, Eq, ClapArgs)]
#[command(next_help_heading = SENTINEL, mut_args = as_option)]
pub struct SentinelConfig {
    /// The sentinel's Service
    #[arg(
        long = "sentinel-service",
        value_name = "NAMESPACE/NAME",
        default_value = "pathproof/pathproof-sentinel",
        value_parser = object_name
    )]
    pub service: ObjectName,

    /// What the names of the sentinel's four interfaces begin with
    #[arg(
        long = "sentinel-devices",
        value_name = "PREFIX",
        default_value = "pathproof",
        value_parser = device_prefix
    )]
    pub devices: String,

    /// Where off-cluster probes come from: an IPv4 and an IPv6 address
    ///
    /// Routed to the sentinel's own interface on every node; nothing else may have them.
    #[arg(
        long = "sentinel-client-address",
        value_name = "IPv4,IPv6",
        default_value = "198.18.0.1,2001:2::1",
        value_parser = pair
    )]
    pub client: [IpAddr; FAMILIES],

    /// The endpoint of the sentinel's slices: an IPv4 and an IPv6 address, the same on every node
    #[arg(
        long = "sentinel-endpoint-address",
        value_name = "IPv4,IPv6",
        default_value = "198.18.0.2,2001:2::2",
        value_parser = pair
    )]
    pub echo: [IpAddr; FAMILIES],

    /// Where pods' probes come from: addresses of this node's podCIDRs that no pod can get
    ///
    /// One for each family at most. Only where IPAM is told to leave them alone: a route for an
    /// address that a pod gets would cut that pod off. Without it pods are judged by real traffic.
    #[arg(
        long = "sentinel-pod-address",
        value_name = "IPv4,IPv6",
        default_value = "",
        hide_default_value = true,
        value_parser = addresses
    )]
    pub pod: [Option<IpAddr>; FAMILIES],

    /// What translates Service traffic on this node: kube-proxy, or cilium in its place
    ///
    /// Where it is said, rules that were never written are a fault: two minutes after boot the node is
    /// broken until the first probe gets through. Something else that is found there ends that. Where
    /// it is not said, such a node is unknown.
    #[arg(long, value_name = "NAME", value_parser = word::<Declared>)]
    pub datapath: Option<Declared>,
}

/// Options that say what is written to the API server.
#[derive(Debug, Clone, PartialEq, ClapArgs)]
#[command(next_help_heading = "Publishing")]
pub struct PublishArgs {
    /// Whether the Node's condition ServiceDatapathReady is kept; on where the view comes from an API
    /// server
    ///
    /// Takes the right to patch nodes/status. A heartbeat every 5m, changes within seconds.
    #[arg(
        long,
        value_name = "MODE",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "on"
    )]
    pub publish_condition: Option<Switch>,

    /// Whether Events about the Node announce transitions; on where the view comes from an API
    /// server
    ///
    /// Takes the right to create and patch events.events.k8s.io in the namespace default.
    #[arg(
        long,
        value_name = "MODE",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "on"
    )]
    pub publish_events: Option<Switch>,
}

/// Options of the process itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, ClapArgs)]
#[command(next_help_heading = "Process")]
pub struct ProcessArgs {
    /// Whether the process gives up what it does not need: capabilities, system calls, files
    ///
    /// What the kernel does not know is left out, and reported by `pathproof status`. Turn it off
    /// only to find out whether it prevents something, and report that to the maintainers.
    #[arg(long, value_name = "MODE", default_value = "on")]
    pub hardening: Switch,

    /// Format of the log
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub log_format: LogFormat,

    /// What is logged: a level (error, warn, info, debug, trace) or directives of tracing
    ///
    /// For example: info,pathproof::datapath=debug
    #[arg(
        long,
        value_name = "FILTER",
        default_value = DEFAULT_FILTER,
        value_parser = log_filter
    )]
    pub log_filter: String,
}
