//! The configuration: options that `args` has parsed, checked against each other and completed with
//! facts about the machine. It is logged at start, and holds no secrets.
//!
//! [`Config::resolve`] is pure; only [`Config::check`] reads the file system. No port is bound and
//! no kernel object touched before both have passed.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use pathproof_facts::cluster::ObjectName;
use pathproof_facts::switches::Enforcement;
use pathproof_judge::eligibility::TerminatingMarks;
use pathproof_shared::bind_address::BindAddress;
use pathproof_shared::values::dns_name;
use pathproof_wire::service::FAMILIES;
use thiserror::Error;
pub(crate) use values::{OrNone, PortRange};

mod choices;
mod options;
mod rotate;
mod terminating;
pub(crate) mod values;

pub use choices::{PortTakeover, Switch, View};
pub use options::{
    AdminArgs, ApiArgs, ClusterArgs, HealthzArgs, KeptArgs, ObserverArgs, ProcessArgs, PublishArgs,
    RunArgs, SentinelConfig, SentinelPlace, as_option,
};
pub use rotate::{RotateConfig, Withdraw};
pub use terminating::TerminatingArgs;
pub use values::device_prefix;

#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    pub source: Source,
    /// `metadata.name` of this node.
    pub node_name: Arc<str>,
    /// Marks that make the node ineligible. Presets are resolved to their keys.
    pub terminating: TerminatingMarks,
    /// /healthz and /livez.
    pub healthz: HealthzArgs,
    /// /metrics, /verdict, /drainz, /agent/*.
    pub admin: AdminArgs,
    /// Settings for observing interfaces; loopback is never observed.
    pub observer: ObserverArgs,
    /// Folders for state that outlives the agent.
    pub kept: KeptArgs,
    /// The sentinel, unless it is off.
    pub sentinel: Option<SentinelConfig>,
    pub publish: PublishConfig,
    /// Whether the agent runs in kube-proxy's place. If so, /healthz answers loopback clients by the state of
    /// the main loop instead of the verdict, and requests are also counted under kube-proxy's names.
    pub drop_in: bool,
    pub process: ProcessArgs,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    Folder(PathBuf),
    Api {
        /// Access to the API server; by default the pod's ServiceAccount.
        api: ApiArgs,
        /// The sentinel's Service, if nothing else is watched.
        only: Option<ObjectName>,
    },
}

impl Source {
    /// Whether the view has Services other than the sentinel's.
    pub fn has_services(&self) -> bool {
        !matches!(self, Source::Api { only: Some(_), .. })
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Folder(path) => write!(f, "folder {}", path.display()),
            Source::Api { api, .. } => match (&api.server, &api.kubeconfig) {
                (Some(url), _) => write!(f, "API server {url}"),
                (None, Some(path)) => write!(f, "API server of {}", path.display()),
                (None, None) => f.write_str("API server of this cluster"),
            },
        }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PublishConfig {
    pub condition: bool,
    pub events: bool,
}

/// Facts about the machine, in addition to the command line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Surroundings {
    pub node_name: Option<String>,
    pub hostname: Option<String>,
    /// Whether this is a pod whose environment names the API server.
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

/// Settings that are invalid together, or on this machine. The text has the setting, its value and the
/// remedy.
#[derive(Debug, Error)]
pub enum ConfigError {
    #[error(
        "no source of Services is configured: give --kubeconfig FILE or --server URL, run in a pod \
         with a ServiceAccount, or give --manifests DIR, a folder of Kubernetes YAML with the \
         Node, Services and EndpointSlices"
    )]
    NoClusterView,
    #[error(
        "--view: \"sentinel\" watches only the sentinel, but --sentinel is off: give --view=full"
    )]
    ViewOfNothing,
    #[error("this node's name is not known: give --node-name, or set NODE_NAME from spec.nodeName")]
    NoNodeName,
    #[error(
        "{0} is not a pathproof setting: correct its name (`pathproof run --help` lists all), or \
         unset it"
    )]
    Variable(String),
    #[error("--node-name: {value:?} is not a valid Node name: {remedy}")]
    NodeName { value: String, remedy: &'static str },
    #[error(
        "{option}: {address} is also given as another sentinel address: client, endpoint and pod \
         addresses must differ"
    )]
    SentinelAddress {
        option: &'static str,
        address: IpAddr,
    },
    #[error("{option}: {path} cannot be read; create it, or let the agent's user read it", path = path.display())]
    Unreadable {
        option: &'static str,
        path: PathBuf,
        source: std::io::Error,
    },
    #[error(
        "{option}: needs an API server, but --manifests is given: omit {option}, or give \
         --kubeconfig or --server instead of --manifests"
    )]
    NowhereToPublish { option: &'static str },
}

impl Config {
    /// Completes and checks the options of `pathproof run`.
    pub fn resolve(args: &RunArgs, around: &Surroundings) -> Result<Self, ConfigError> {
        let sentinel = (args.sentinel == Switch::On).then_some(&args.sentinel_settings);
        let config = Self::of(&args.cluster, sentinel, around)?;
        Ok(Self {
            publish: publish(&args.publish, &config.source)?,
            healthz: args.healthz.clone(),
            admin: args.admin.clone(),
            observer: args.observer.clone(),
            kept: args.kept.clone(),
            process: args.process.clone(),
            ..config
        })
    }

    /// Configuration without listeners, pinned kernel objects and saved state, such as that of `pathproof
    /// check`.
    pub fn of(
        cluster: &ClusterArgs,
        sentinel: Option<&SentinelConfig>,
        around: &Surroundings,
    ) -> Result<Self, ConfigError> {
        let node_name = node_name(cluster, around)?;
        if let Some(sentinel) = sentinel {
            different(sentinel)?;
        }
        Ok(Self {
            source: source(cluster, around, sentinel)?,
            node_name,
            terminating: cluster.terminating.marks(),
            healthz: HealthzArgs::default(),
            admin: AdminArgs::default(),
            observer: ObserverArgs::default(),
            kept: KeptArgs::default(),
            sentinel: sentinel.cloned(),
            publish: PublishConfig::default(),
            drop_in: false,
            process: ProcessArgs::default(),
        })
    }

    /// Checks that required folders and files exist and can be read.
    pub fn check(&self) -> Result<(), ConfigError> {
        let (option, path, read) = match &self.source {
            Source::Folder(folder) => ("--manifests", folder, std::fs::read_dir(folder).map(drop)),
            Source::Api { api, .. } => match &api.kubeconfig {
                Some(path) => ("--kubeconfig", path, std::fs::File::open(path).map(drop)),
                None => return Ok(()),
            },
        };
        read.map_err(|source| ConfigError::Unreadable {
            option,
            path: path.clone(),
            source,
        })
    }

    /// Logs the settings that decide what the agent answers, once, at start.
    pub fn log(&self) {
        let listens = |address: &OrNone<BindAddress>| match address {
            Some(address) => address.to_string(),
            None => "none".to_owned(),
        };
        let sentinel = self.sentinel.as_ref();
        tracing::info!(
            node = %self.node_name,
            cluster_view = %self.source,
            healthz = listens(&self.healthz.address),
            admin = listens(&self.admin.address),
            audit_only = self.healthz.enforcement == Enforcement::Audit,
            enforce_nodes = %serde_json::json!(self.healthz.enforce_nodes),
            unknown_is_503 = self.healthz.unknown_policy == pathproof_judge::answer::UnknownPolicy::Closed,
            families = %serde_json::json!(self.healthz.families),
            fleet_brake = %self.healthz.fleet_brake,
            flap_dwell = ?self.healthz.flap_dwell,
            sentinel = sentinel.map(|sentinel| sentinel.place.service.to_string()),
            "configuration"
        );
    }
}

fn node_name(args: &ClusterArgs, around: &Surroundings) -> Result<Arc<str>, ConfigError> {
    let named = [&args.node_name, &around.node_name].into_iter().flatten();
    // An empty value counts as unset: a manifest may set NODE_NAME to an empty value.
    if let Some(name) = named.map(|name| name.trim()).find(|name| !name.is_empty()) {
        let name = dns_name(name).map_err(|remedy| ConfigError::NodeName {
            value: name.to_owned(),
            remedy,
        })?;
        return Ok(name.into());
    }
    // kubelet and kube-proxy derive the name from the host name in the same way.
    let host = around.hostname.as_deref().unwrap_or_default();
    let host = dns_name(&host.trim().to_ascii_lowercase());
    Ok(host.map_err(|_| ConfigError::NoNodeName)?.into())
}

fn source(
    args: &ClusterArgs,
    around: &Surroundings,
    sentinel: Option<&SentinelConfig>,
) -> Result<Source, ConfigError> {
    if let Some(folder) = &args.manifests {
        return Ok(Source::Folder(folder.clone()));
    }
    if !around.in_cluster && args.api == ApiArgs::default() {
        return Err(ConfigError::NoClusterView);
    }
    let only = match args.view {
        View::Full => None,
        View::Sentinel => {
            let sentinel = sentinel.ok_or(ConfigError::ViewOfNothing)?;
            Some(sentinel.place.service.clone())
        }
    };
    Ok(Source::Api {
        api: args.api.clone(),
        only,
    })
}

/// Rejects an address that is used twice.
fn different(sentinel: &SentinelConfig) -> Result<(), ConfigError> {
    let settings = [
        ("--sentinel-client-address", sentinel.place.client.map(Some)),
        ("--sentinel-endpoint-address", sentinel.place.echo.map(Some)),
        ("--sentinel-pod-address", sentinel.pod),
    ];
    let mut seen = Vec::with_capacity(settings.len() * FAMILIES);
    for (option, addresses) in settings {
        for address in addresses.into_iter().flatten() {
            if seen.contains(&address) {
                return Err(ConfigError::SentinelAddress { option, address });
            }
            seen.push(address);
        }
    }
    Ok(())
}

/// Whether to publish the condition and Events. Both are on by default with an API server, and cannot be on
/// without one.
fn publish(args: &PublishArgs, source: &Source) -> Result<PublishConfig, ConfigError> {
    let has_api = matches!(source, Source::Api { .. });
    let wanted = |option, given| match given {
        Some(Switch::On) if !has_api => Err(ConfigError::NowhereToPublish { option }),
        given => Ok(given.map_or(has_api, |given| given == Switch::On)),
    };
    Ok(PublishConfig {
        condition: wanted("--publish-condition", args.publish_condition)?,
        events: wanted("--publish-events", args.publish_events)?,
    })
}

#[cfg(test)]
mod tests;
