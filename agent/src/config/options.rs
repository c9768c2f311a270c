//! Options of `pathproof run` and `rotate`, each parsed into a valid value. An error names the
//! option, the value and the remedy.
//!
//! Every option can also be set by an environment variable; the command line wins.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Arg, ArgAction, Args as ClapArgs};
use ipnet::IpNet;
use pathproof_facts::cluster::ObjectName;
use pathproof_facts::owners::Declared;
use pathproof_facts::switches::{Enforcement, NodeSelector};
use pathproof_judge::answer::UnknownPolicy;
use pathproof_judge::verdict::CountedFamilies;
use pathproof_shared::bind_address::{BindAddress, HEALTHZ_PORT, bind_address};
use pathproof_wire::service::FAMILIES;

use super::choices::{PortTakeover, Switch, View};
use super::terminating::TerminatingArgs;
use super::values::{
    OrNone, Pattern, PortRange, addresses, device_prefix, directory, log_filter, minutes,
    object_name, pair, pattern, percent, port_range, range, selector, url, word,
};
use crate::datapath::attach::Mode;
use crate::lifecycle::{DEFAULT_FILTER, LogFormat};
use crate::metrics::ServiceMetrics;

pub(super) const SENTINEL: &str = "Sentinel";

/// Settings of every option: an environment variable (PATHPROOF_ and its name), and commas in lists.
pub fn as_option(mut arg: Arg) -> Arg {
    if matches!(arg.get_action(), ArgAction::Append) {
        arg = arg.value_delimiter(',');
    }
    let name = arg.get_long().unwrap_or_default().to_uppercase();
    arg.env(format!("PATHPROOF_{}", name.replace('-', "_")))
}

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

    /// Probe the datapath with pathproof's own packets
    ///
    /// Needs the sentinel's Service in the cluster. With off, or if the sentinel's interfaces
    /// cannot be created, the agent judges only real traffic, and the verdict of an idle node is
    /// Unknown.
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
    /// Folder of Kubernetes YAML (Node, Service, EndpointSlice) that replaces the API server
    ///
    /// Any number of files and documents; other kinds are ignored and counted. A broken file is
    /// reported, and its last good content stays in use.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["kubeconfig", "server"])]
    pub manifests: Option<PathBuf>,

    #[command(flatten)]
    pub api: ApiArgs,

    /// Objects to watch at the API server
    #[arg(long, value_name = "VIEW", default_value = "full")]
    pub view: View,

    /// Name of this node's Node object
    ///
    /// As `kubectl get nodes` shows it, which may differ from the host's name. Default: the variable
    /// NODE_NAME, then the host's name in lower case.
    #[arg(long, value_name = "NAME")]
    pub node_name: Option<String>,

    #[command(flatten)]
    pub terminating: TerminatingArgs,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, ClapArgs)]
#[command(next_help_heading = "Cluster view")]
pub struct ApiArgs {
    /// Kubeconfig of the API server; its current context is used
    ///
    /// Without --kubeconfig and --server, pathproof uses its pod's ServiceAccount, and connects to the API
    /// server's endpoints directly once it knows them.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// URL of the API server; overrides the one in --kubeconfig
    ///
    /// Authenticates with the pod's ServiceAccount, if one is mounted and the URL is https. Give an
    /// address that needs no Service.
    #[arg(long, value_name = "URL", value_parser = url)]
    pub server: Option<String>,
}

/// Options of /healthz and /livez. The default serves neither.
#[derive(Debug, Clone, Default, PartialEq, ClapArgs)]
#[command(next_help_heading = "Answers")]
pub struct HealthzArgs {
    /// Listen address of /healthz and /livez: IP:PORT, IP, or :PORT; "none" serves neither
    ///
    /// The default port is 10256. 0.0.0.0, `[::]` and an empty host mean all addresses, IPv4 and
    /// IPv6.
    #[arg(
        id = "healthz-bind-address",
        long,
        value_name = "ADDRESS",
        default_value = "0.0.0.0:10256",
        value_parser = bind_address(HEALTHZ_PORT)
    )]
    pub address: OrNone<BindAddress>,

    /// How the agent receives connections to the healthz port
    ///
    /// On most nodes kube-proxy listens on that port and keeps it: steer redirects only connections
    /// from outside the node to the agent, and kube-proxy still answers connections from the node
    /// itself. If the kernel or the privileges do not allow steer, the agent uses bind.
    #[arg(long, value_name = "WAY", default_value = "steer")]
    pub port_takeover: PortTakeover,

    /// Range of health check node ports that the agent answers (healthCheckNodePort of Services
    /// with externalTrafficPolicy Local): FIRST-LAST; "none" leaves them to kube-proxy or Cilium
    ///
    /// Needs --port-takeover=steer. Any client may connect, as with kube-proxy:
    /// --healthz-allow-cidr applies only to /healthz and /livez.
    #[arg(long, value_name = "RANGE", default_value = "30000-32767", value_parser = port_range)]
    pub health_check_node_ports: OrNone<PortRange>,

    /// Accept requests that begin with a PROXY protocol header
    ///
    /// Applies to the healthz port and to health check node ports, for versions 1 and 2. Requests
    /// without a header are answered too; the header's content is ignored.
    #[arg(long, value_name = "MODE", default_value = "off")]
    pub health_check_proxy_protocol: Switch,

    /// End connections from outside that were opened before the agent answered
    ///
    /// A health check that reuses its connection would keep the previous process's answers. The kernel
    /// ends such connections within 30 s; with off they are only counted. Needs --port-takeover=steer.
    #[arg(long, value_name = "MODE", default_value = "on")]
    pub end_kept_connections: Switch,

    /// Maximum wait after SIGTERM for the next agent, if no other process would answer; 0 does not
    /// wait
    ///
    /// The agent answers with its last verdict meanwhile, and ends as soon as another agent has
    /// taken over. Set a pod's terminationGracePeriodSeconds at least 15 s longer than this.
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = minutes(10))]
    pub shutdown_grace: Duration,

    /// Sources that may use /healthz and /livez: CIDR or IP (repeatable); default all
    ///
    /// Connections from other sources are closed before the request is read. Include the load
    /// balancer's probe ranges and this node's own addresses (kubelet probes).
    #[arg(long, value_name = "CIDR", value_parser = range)]
    pub healthz_allow_cidr: Vec<Option<IpNet>>,

    /// Answer while the verdict is Unknown: open or closed
    ///
    /// open: 200, so that a fault of pathproof takes no node out of service. closed: 503, so that
    /// only proven nodes are in service.
    #[arg(long, value_name = "POLICY", default_value = "open", value_parser = word::<UnknownPolicy>)]
    pub unknown_policy: UnknownPolicy,

    /// Effect of a broken datapath on the answers: audit or enforce
    ///
    /// audit: /healthz and /livez answer 200, and metrics show what enforce would answer. enforce: they answer
    /// 503.
    #[arg(long, value_name = "MODE", default_value = "audit", value_parser = word::<Enforcement>)]
    pub enforcement: Enforcement,

    /// Labels of the Nodes that enforce, such as pool=canary; all others audit
    ///
    /// KEY, !KEY, KEY=VALUE and KEY!=VALUE, joined by commas: all must hold. A node audits until its
    /// Node matches. Needs --enforcement=enforce.
    #[arg(long, value_name = "SELECTOR", value_parser = selector)]
    pub enforce_nodes: Option<NodeSelector>,

    /// IP families whose failure makes the node answer 503: used, any or all
    ///
    /// used: families that pods or clients outside have used within the last hour; all families if none was
    /// used. any: 503 only if every family of the node fails. all: 503 if any family fails.
    #[arg(long, value_name = "WHICH", default_value = "used", value_parser = word::<CountedFamilies>)]
    pub families: CountedFamilies,

    /// Time for which a flapping node keeps answering 503 after it works again; 0 is off
    ///
    /// Doubles with each further flap, up to 5m. The first recovery takes effect after one second.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = minutes(5))]
    pub flap_dwell: Duration,

    /// Maximum share, in percent, of the cluster's nodes, and of a zone's or pool's (`pathproof rotate
    /// --brake-by`), that may answer 503 together; 0 turns the fleet brake off
    ///
    /// It is also off if no rotator ever published a count.
    #[arg(long, value_name = "PERCENT", default_value = "20", value_parser = percent)]
    pub fleet_brake: u32,

    /// The same for nodes that leave by marks other than deletion, kubelet-shutdown and the taints of the
    /// presets cluster-autoscaler, spot and shutdown; 0 sets no limit
    #[arg(long, value_name = "PERCENT", default_value = "20", value_parser = percent)]
    pub leaving_brake: u32,
}

/// Options of the admin port. The default serves nothing.
#[derive(Debug, Clone, Default, PartialEq, ClapArgs)]
#[command(next_help_heading = "Admin port")]
pub struct AdminArgs {
    /// Listen address of /metrics, /verdict, /episodes, /recording, /drainz and /agent/*: IP:PORT,
    /// IP, or :PORT; "none" serves none of them
    ///
    /// The default is reachable only on the node. For Prometheus give 0.0.0.0, since the node's
    /// own probes use 127.0.0.1, and limit the clients with --admin-allow-cidr. Only the node itself
    /// may read /verdict, /episodes and /recording.
    #[arg(
        id = "admin-bind-address",
        long,
        value_name = "ADDRESS",
        default_value = "127.0.0.1:19256",
        value_parser = bind_address(19256)
    )]
    pub address: OrNone<BindAddress>,

    /// Sources that may use the admin port: CIDR or IP (repeatable); default all
    #[arg(long, value_name = "CIDR", value_parser = range)]
    pub admin_allow_cidr: Vec<Option<IpNet>>,

    /// Services that get their own series in /metrics
    ///
    /// The totals over all Services are always present.
    #[arg(long, value_name = "WHICH", default_value = "trouble")]
    pub service_metrics: ServiceMetrics,

    /// Sources of load balancer probes, which /drainz ignores: CIDR or IP (repeatable)
    ///
    /// Needed if a load balancer probes a Service itself (a TCP check of a node port): without this
    /// option such a probe counts as a client's connection.
    #[arg(long, value_name = "CIDR", value_parser = range)]
    pub drain_ignore_cidr: Vec<Option<IpNet>>,
}

/// Options of the observer. The default watches every interface, and pins and keeps nothing.
#[derive(Debug, Clone, Default, PartialEq, ClapArgs)]
#[command(next_help_heading = "Observer")]
pub struct ObserverArgs {
    /// Interfaces to observe: a pattern with * and ? (repeatable); default all but loopback
    #[arg(long, value_name = "PATTERN", value_parser = pattern)]
    pub interface_include: Vec<Option<Pattern>>,

    /// Interfaces not to observe: a pattern with * and ? (repeatable); overrides
    /// --interface-include
    #[arg(long, value_name = "PATTERN", value_parser = pattern)]
    pub interface_exclude: Vec<Option<Pattern>>,

    /// How eBPF programs are attached to interfaces
    #[arg(long, value_name = "MODE", default_value = "auto")]
    pub attach: Mode,
}

impl ObserverArgs {
    /// Whether to observe an interface of this name; exclusions win. Loopback is excluded
    /// elsewhere, by its flag, because a name does not prove what a device is.
    pub fn watches(&self, name: &str) -> bool {
        let mut include = self.interface_include.iter().flatten().peekable();
        let is_included = include.peek().is_none() || include.any(|one| one.matches(name));
        let mut exclude = self.interface_exclude.iter().flatten();
        is_included && !exclude.any(|one| one.matches(name))
    }
}

/// Options that say what outlives the agent. The default keeps nothing.
#[derive(Debug, Clone, Default, PartialEq, ClapArgs)]
pub struct KeptArgs {
    /// BPF file system folder for pinned links and maps, so that a restart leaves no gap in
    /// observation; "none" pins nothing
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/sys/fs/bpf/pathproof",
        value_parser = directory
    )]
    pub pin_dir: OrNone<PathBuf>,

    /// Folder that keeps the last verdict and Node object across restarts; "none" keeps nothing
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/run/pathproof",
        value_parser = directory
    )]
    pub state_dir: OrNone<PathBuf>,

    /// Folder that keeps the journal for `pathproof report`, and may be on a disk: a reboot empties
    /// /run; "none" keeps nothing [default: the value of --state-dir]
    #[arg(long, value_name = "DIR", value_parser = directory)]
    pub journal_dir: Option<OrNone<PathBuf>>,
}

impl KeptArgs {
    pub fn journal_folder(&self) -> Option<&Path> {
        let folder = self.journal_dir.as_ref().unwrap_or(&self.state_dir);
        folder.as_deref()
    }
}

/// Options that have to be the same for all agents and the rotator.
#[derive(Debug, Clone, PartialEq, Eq, ClapArgs)]
#[command(next_help_heading = SENTINEL)]
pub struct SentinelPlace {
    /// Service of the sentinel
    #[arg(
        long = "sentinel-service",
        value_name = "NAMESPACE/NAME",
        default_value = "pathproof/pathproof-sentinel",
        value_parser = object_name
    )]
    pub service: ObjectName,

    /// Source addresses of off-cluster and node port probes: one IPv4 and one IPv6 address
    ///
    /// Every node routes them to the sentinel's own interface; nothing else may use them. If a Node uses
    /// one of these or of the endpoint addresses, the sentinel stays off.
    #[arg(
        long = "sentinel-client-address",
        value_name = "IPv4,IPv6",
        default_value = "198.18.0.1,2001:2::1",
        value_parser = pair
    )]
    pub client: [IpAddr; FAMILIES],

    /// Endpoint addresses in the sentinel's EndpointSlices: one IPv4 and one IPv6 address, the same
    /// on every node
    #[arg(
        long = "sentinel-endpoint-address",
        value_name = "IPv4,IPv6",
        default_value = "198.18.0.2,2001:2::2",
        value_parser = pair
    )]
    pub echo: [IpAddr; FAMILIES],
}

#[derive(Debug, Clone, PartialEq, Eq, ClapArgs)]
#[command(next_help_heading = SENTINEL, mut_args = as_option)]
pub struct SentinelConfig {
    #[command(flatten)]
    pub place: SentinelPlace,

    /// Prefix of the names of the sentinel's four interfaces
    #[arg(
        long = "sentinel-devices",
        value_name = "PREFIX",
        default_value = "pathproof",
        value_parser = device_prefix
    )]
    pub devices: String,

    /// Source addresses for probes on the path of pods: at most one of each family, from this node's
    /// podCIDRs
    ///
    /// Give only addresses that the CNI's IPAM never assigns: the agent routes them to the
    /// sentinel, which would cut off a pod with such an address.
    #[arg(
        long = "sentinel-pod-address",
        value_name = "IPv4,IPv6",
        default_value = "",
        hide_default_value = true,
        value_parser = addresses
    )]
    pub pod: [Option<IpAddr>; FAMILIES],

    /// Program that translates Service traffic on this node: kube-proxy or cilium
    ///
    /// A node whose rules are missing since boot is Unknown without this option. With it, probes that fail
    /// with an unambiguous cause make the node Broken two minutes after boot, or after a later change of the
    /// sentinel or the proxy. No effect if the agent finds another program.
    #[arg(long, value_name = "NAME", value_parser = word::<Declared>)]
    pub datapath: Option<Declared>,
}

#[derive(Debug, Clone, PartialEq, ClapArgs)]
#[command(next_help_heading = "Publishing")]
pub struct PublishArgs {
    /// Publish the Node condition ServiceDatapathReady; default on, off with --manifests
    ///
    /// Needs the right to patch nodes/status. Writes a heartbeat every 5m, and changes within
    /// seconds.
    #[arg(
        long,
        value_name = "MODE",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "on"
    )]
    pub publish_condition: Option<Switch>,

    /// Publish changes of the verdict as Events about the Node; default on, off with --manifests
    ///
    /// Needs the right to create and patch events.events.k8s.io in the namespace default.
    #[arg(
        long,
        value_name = "MODE",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "on"
    )]
    pub publish_events: Option<Switch>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, ClapArgs)]
#[command(next_help_heading = "Process")]
pub struct ProcessArgs {
    /// Drop capabilities, system calls and file access that are not needed after start-up
    ///
    /// Restrictions that the kernel does not support are skipped and reported. Turn this off only to find out
    /// whether it causes a fault, and report that.
    #[arg(long, value_name = "MODE", default_value = "on")]
    pub hardening: Switch,

    /// Format of the log
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub log_format: LogFormat,

    /// Log filter: a level (error, warn, info, debug, trace) or directives of the tracing crate
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
