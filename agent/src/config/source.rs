//! Where the cluster view comes from, out of what was said.

use std::fmt;
use std::path::PathBuf;

use super::ConfigError;
use crate::args::{ClusterArgs, View};
use agent_core::cluster::ObjectName;

/// Where the cluster view comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A folder of Kubernetes YAML.
    Folder(PathBuf),
    /// An API server.
    Api {
        /// How it is reached; the ServiceAccount of this pod, where both are missing.
        kubeconfig: Option<PathBuf>,
        /// URL, which wins over the kubeconfig's.
        server: Option<String>,
        /// The sentinel's Service, where nothing else is watched.
        only: Option<ObjectName>,
    },
}

impl Source {
    /// Whether it tells of Services beside the sentinel's.
    pub fn has_services(&self) -> bool {
        !matches!(self, Source::Api { only: Some(_), .. })
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Folder(path) => write!(f, "folder {}", path.display()),
            Source::Api {
                kubeconfig, server, ..
            } => match (server, kubeconfig) {
                (Some(url), _) => write!(f, "API server {url}"),
                (None, Some(path)) => write!(f, "API server of {}", path.display()),
                (None, None) => f.write_str("API server of this cluster"),
            },
        }
    }
}

/// Of the options, and whether this is a pod. `sentinel` is its Service, unless it is off.
pub(super) fn resolve(
    args: &ClusterArgs,
    in_cluster: bool,
    sentinel: Option<&ObjectName>,
) -> Result<Source, ConfigError> {
    let named = [
        ("--kubeconfig", args.kubeconfig.is_some()),
        ("--server", args.server.is_some()),
    ];
    if let Some(folder) = &args.manifests {
        return match named.into_iter().find(|(_, is_there)| *is_there) {
            Some((option, _)) => Err(ConfigError::TwoClusterViews { option }),
            None => Ok(Source::Folder(folder.clone())),
        };
    }
    if !in_cluster && !named.iter().any(|(_, is_there)| *is_there) {
        return Err(ConfigError::NoClusterView);
    }
    if let Some(url) = &args.server {
        check(url)?;
    }
    let only = match args.view {
        View::Full => None,
        View::Sentinel => Some(sentinel.ok_or(ConfigError::ViewOfNothing)?.clone()),
    };
    Ok(Source::Api {
        kubeconfig: args.kubeconfig.clone(),
        server: args.server.clone(),
        only,
    })
}

fn check(url: &str) -> Result<(), ConfigError> {
    let parsed = url.parse::<hyper::Uri>().ok();
    let is_sound = parsed.is_some_and(|uri| {
        matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some()
    });
    is_sound.then_some(()).ok_or_else(|| ConfigError::Server {
        value: url.to_owned(),
    })
}
