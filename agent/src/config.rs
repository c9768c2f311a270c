//! The configuration: what was said on the command line, turned into values that are known to be
//! sound. Printed at start; it holds no secrets.
//!
//! [`Config::resolve`] is pure; [`Config::check`] looks at the file system and nothing else here
//! does. No port is bound and no kernel object touched before both have passed.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::args::{Attach, CheckArgs, ClusterArgs, Hardening, PortTakeover, RunArgs, Sentinel};
use crate::http::allow::AllowList;
use crate::http::bind::BindAddress;
use crate::telemetry::Format;
use agent_core::answer::{Enforcement, UnknownPolicy};
use agent_core::drain::ProbeRanges;
use agent_core::eligibility::TerminatingTaints;

mod error;
mod interfaces;
mod parse;
mod publish;
mod rotate;
mod sentinel;
mod source;
mod taints;

pub use error::ConfigError;
pub use interfaces::{InterfaceRule, Pattern};
pub use publish::PublishConfig;
pub use rotate::RotateConfig;
pub use sentinel::{SentinelConfig, prefix as device_prefix};
pub use source::Source;

/// Port of /healthz and /livez where none is given: kube-proxy's.
pub const HEALTHZ_PORT: u16 = 10256;
/// Port of the admin endpoints where none is given.
pub const ADMIN_PORT: u16 = 19256;
/// The longest time that SIGTERM waits for a successor.
pub const MAX_SHUTDOWN_GRACE: Duration = Duration::from_secs(600);
/// The longest dwell of a flapping datapath.
pub const MAX_FLAP_DWELL: Duration = Duration::from_secs(300);

#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Where the cluster view comes from.
    pub source: Source,
    /// `metadata.name` of this node.
    pub node_name: Arc<str>,
    /// Where the node's name was found.
    pub node_name_from: NodeNameSource,
    /// /healthz and /livez.
    pub healthz: Listen,
    /// How connections to its port come to the agent.
    pub port_takeover: PortTakeover,
    /// How long SIGTERM waits for a successor, where nobody else would answer.
    pub shutdown_grace: Duration,
    /// /metrics, /verdict, /drainz, /agent/*.
    pub admin: Listen,
    /// Sources whose connections do not count for /drainz.
    pub drain_ignore: ProbeRanges,
    /// Which interfaces are watched; loopback never is.
    pub interfaces: InterfaceRule,
    /// Answer while the verdict is Unknown.
    pub unknown_policy: UnknownPolicy,
    /// Whether the verdict has consequences.
    pub enforcement: Enforcement,
    /// Taints that make the node ineligible, presets resolved.
    pub terminating_taints: TerminatingTaints,
    /// First dwell of a flapping datapath; zero is off.
    pub flap_dwell: Duration,
    pub attach: Attach,
    /// The sentinel, unless it is off.
    pub sentinel: Option<SentinelConfig>,
    /// What is written to the API server.
    pub publish: PublishConfig,
    /// Whether the agent stands in for kube-proxy: /healthz tells loopback of the agent alone, and
    /// requests are counted under kube-proxy's names as well.
    pub drop_in: bool,
    /// Whether the process gives up what it does not need.
    pub hardening: bool,
    /// Where links and maps are pinned, if they are.
    pub pin_dir: Option<PathBuf>,
    /// Where state outlives a restart, if it does.
    pub state_dir: Option<PathBuf>,
    pub log_format: Format,
    /// Directives of the log's filter.
    pub log_filter: String,
}

/// One listener.
#[derive(Debug, Clone, PartialEq)]
pub struct Listen {
    /// The address; nothing where nothing is served.
    pub address: Option<BindAddress>,
    pub allow: AllowList,
}

/// Where the node's name was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeNameSource {
    /// --node-name or PATHPROOF_NODE_NAME.
    Option,
    /// NODE_NAME, as DaemonSets set it by the downward API.
    Environment,
    /// The host's name in lower case, as kubelet and kube-proxy take it.
    Hostname,
}

/// What the machine says about itself, beside the command line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Surroundings {
    pub node_name: Option<String>,
    pub hostname: Option<String>,
    /// Whether this is a pod that was told of its API server.
    pub in_cluster: bool,
}

impl Surroundings {
    pub fn read() -> Self {
        Self {
            node_name: std::env::var("NODE_NAME").ok(),
            hostname: std::fs::read_to_string("/proc/sys/kernel/hostname").ok(),
            in_cluster: std::env::var_os("KUBERNETES_SERVICE_HOST")
                .is_some_and(|host| !host.is_empty()),
        }
    }
}

impl Config {
    /// Turns what was said into values.
    ///
    /// # Errors
    /// The first setting that is unsound, with the remedy.
    pub fn resolve(args: &RunArgs, around: &Surroundings) -> Result<Self, ConfigError> {
        let (node_name, node_name_from) = node_name(&args.cluster, around)?;
        let sentinel = match args.sentinel {
            Sentinel::On => Some(sentinel::resolve(&args.sentinel_settings)?),
            Sentinel::Off => None,
        };
        let service = sentinel.as_ref().map(|of| &of.service);
        let source = source::resolve(&args.cluster, around.in_cluster, service)?;
        Ok(Self {
            publish: publish::resolve(args, &source)?,
            drop_in: false,
            source,
            node_name,
            node_name_from,
            healthz: Listen {
                address: parse::bind_address(
                    "--healthz-bind-address",
                    &args.healthz_bind_address,
                    HEALTHZ_PORT,
                )?,
                allow: parse::allow_list("--healthz-allow-cidr", &args.healthz_allow_cidrs)?,
            },
            port_takeover: args.port_takeover,
            shutdown_grace: parse::duration(
                "--shutdown-grace",
                &args.shutdown_grace,
                (MAX_SHUTDOWN_GRACE, "10m"),
            )?,
            admin: Listen {
                address: parse::bind_address(
                    "--admin-bind-address",
                    &args.admin_bind_address,
                    ADMIN_PORT,
                )?,
                allow: parse::allow_list("--admin-allow-cidr", &args.admin_allow_cidrs)?,
            },
            drain_ignore: parse::probe_ranges("--drain-ignore-cidr", &args.drain_ignore_cidrs)?,
            interfaces: InterfaceRule {
                include: parse::patterns("--interface-include", &args.interface_includes)?,
                exclude: parse::patterns("--interface-exclude", &args.interface_excludes)?,
            },
            unknown_policy: args.unknown_policy.into(),
            enforcement: args.enforcement.into(),
            terminating_taints: taints::resolve(&args.cluster.terminating_taints)?,
            flap_dwell: parse::duration("--flap-dwell", &args.flap_dwell, (MAX_FLAP_DWELL, "5m"))?,
            attach: args.attach,
            hardening: args.hardening == Hardening::On,
            sentinel,
            pin_dir: parse::directory("--pin-dir", &args.pin_dir)?,
            state_dir: parse::directory("--state-dir", &args.state_dir)?,
            log_format: args.log_format.into(),
            log_filter: args.log_filter.clone(),
        })
    }

    /// What `pathproof check` runs with: no listener is bound, nothing is pinned or kept.
    ///
    /// # Errors
    /// The first setting that is unsound, with the remedy.
    pub fn for_check(args: &CheckArgs, around: &Surroundings) -> Result<Self, ConfigError> {
        let (node_name, node_name_from) = node_name(&args.cluster, around)?;
        let nowhere = Listen {
            address: None,
            allow: AllowList::default(),
        };
        let sentinel = sentinel::resolve(&args.sentinel)?;
        Ok(Self {
            source: source::resolve(&args.cluster, around.in_cluster, Some(&sentinel.service))?,
            node_name,
            node_name_from,
            healthz: nowhere.clone(),
            port_takeover: PortTakeover::Bind,
            shutdown_grace: Duration::ZERO,
            admin: nowhere,
            drain_ignore: ProbeRanges::default(),
            interfaces: InterfaceRule {
                include: Vec::new(),
                exclude: Vec::new(),
            },
            unknown_policy: UnknownPolicy::Open,
            enforcement: Enforcement::Enforce,
            terminating_taints: taints::resolve(&args.cluster.terminating_taints)?,
            flap_dwell: Duration::ZERO,
            attach: Attach::Auto,
            sentinel: Some(sentinel),
            publish: PublishConfig::default(),
            drop_in: false,
            hardening: false,
            pin_dir: None,
            state_dir: None,
            log_format: Format::Text,
            log_filter: String::new(),
        })
    }

    /// Looks whether the folders and files that must exist do, and can be read.
    ///
    /// # Errors
    /// The one that does not, with the remedy.
    pub fn check(&self) -> Result<(), ConfigError> {
        match &self.source {
            Source::Folder(folder) => readable_directory("--manifests", folder),
            Source::Api {
                kubeconfig: Some(path),
                ..
            } => std::fs::File::open(path)
                .map(drop)
                .map_err(|source| ConfigError::File {
                    option: "--kubeconfig",
                    path: path.clone(),
                    source,
                }),
            Source::Api { .. } => Ok(()),
        }
    }

    /// Writes every value into the log, once, at start.
    pub fn log(&self) {
        let path = |path: &Option<PathBuf>| match path {
            Some(path) => path.display().to_string(),
            None => "none".to_owned(),
        };
        let address = |of: &Listen| match &of.address {
            Some(address) => address.to_string(),
            None => "none".to_owned(),
        };
        tracing::info!(
            node = %self.node_name,
            node_name_from = ?self.node_name_from,
            cluster_view = self.source.to_string(),
            healthz = address(&self.healthz),
            healthz_allow = %self.healthz.allow,
            port_takeover = ?self.port_takeover,
            shutdown_grace = ?self.shutdown_grace,
            admin = address(&self.admin),
            admin_allow = %self.admin.allow,
            drain_ignore = %self.drain_ignore,
            interfaces = self.interfaces.to_string(),
            unknown_policy = ?self.unknown_policy,
            enforcement = ?self.enforcement,
            terminating_taints = self.terminating_taints.keys().collect::<Vec<_>>().join(","),
            flap_dwell = ?self.flap_dwell,
            attach = ?self.attach,
            sentinel = self.sentinel.as_ref().map_or("off".to_owned(), ToString::to_string),
            publish_condition = self.publish.condition,
            publish_events = self.publish.events,
            drop_in = self.drop_in,
            hardening = self.hardening,
            pin_dir = path(&self.pin_dir),
            state_dir = path(&self.state_dir),
            "this is the configuration"
        );
    }
}

fn node_name(
    args: &ClusterArgs,
    around: &Surroundings,
) -> Result<(Arc<str>, NodeNameSource), ConfigError> {
    let candidates = [
        (args.node_name.as_deref(), NodeNameSource::Option),
        (around.node_name.as_deref(), NodeNameSource::Environment),
    ];
    for (name, from) in candidates {
        // An empty variable is a manifest's way of leaving it out.
        if let Some(name) = name.map(str::trim).filter(|name| !name.is_empty()) {
            parse::node_name(name)?;
            return Ok((name.into(), from));
        }
    }
    let host = around
        .hostname
        .as_deref()
        .map(str::trim)
        .unwrap_or_default()
        .to_ascii_lowercase();
    if host.is_empty() || parse::node_name(&host).is_err() {
        return Err(ConfigError::NoNodeName);
    }
    Ok((host.into(), NodeNameSource::Hostname))
}

fn readable_directory(option: &'static str, path: &Path) -> Result<(), ConfigError> {
    let fail = |source: std::io::Error| ConfigError::Directory {
        option,
        path: path.to_owned(),
        remedy: match source.kind() {
            std::io::ErrorKind::NotFound => "create it, or give the folder that holds the YAML",
            std::io::ErrorKind::PermissionDenied => "let the agent's user read it",
            _ => "give a readable folder",
        },
        source,
    };
    std::fs::read_dir(path).map(drop).map_err(fail)
}

#[cfg(test)]
mod tests;
