//! Clients for people, who have kubeconfigs as kubectl reads them: several files in KUBECONFIG,
//! contexts, credential plugins, somebody else to act as.

use std::path::PathBuf;

use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};

use super::client::{ClientError, direct, parse};

/// What kubectl has options for.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Desk {
    /// A kubeconfig; without it those that KUBECONFIG names, else ~/.kube/config.
    pub kubeconfig: Option<PathBuf>,
    /// A context of it.
    pub context: Option<String>,
    /// A cluster of it, instead of the context's.
    pub cluster: Option<String>,
    /// A user of it, instead of the context's.
    pub user: Option<String>,
    /// URL of the API server, instead of the cluster's.
    pub server: Option<String>,
    /// Somebody to act as.
    pub act_as: Option<String>,
    /// In these groups.
    pub act_as_groups: Vec<String>,
}

impl Desk {
    fn options(&self) -> KubeConfigOptions {
        KubeConfigOptions {
            context: self.context.clone(),
            cluster: self.cluster.clone(),
            user: self.user.clone(),
        }
    }

    fn names_a_part(&self) -> bool {
        self.context.is_some() || self.cluster.is_some() || self.user.is_some()
    }
}

/// A client for that desk. Nothing is asked of the server yet. Must be called within a tokio
/// runtime.
///
/// # Errors
/// What is wrong with the kubeconfig; a server that is away is no error here.
pub async fn desk_client(desk: &Desk) -> Result<Client, ClientError> {
    let mut config = config(desk).await?;
    if let Some(url) = &desk.server {
        config.cluster_url = parse(url)?;
    }
    if desk.act_as.is_some() {
        config.auth_info.impersonate.clone_from(&desk.act_as);
        config.auth_info.impersonate_groups = Some(desk.act_as_groups.clone());
    }
    direct(config)
}

async fn config(desk: &Desk) -> Result<Config, ClientError> {
    let fail = |source| match &desk.kubeconfig {
        Some(path) => ClientError::Kubeconfig {
            path: path.clone(),
            source: Box::new(source),
        },
        None => ClientError::NoKubeconfig {
            source: Box::new(source),
        },
    };
    let read = match &desk.kubeconfig {
        Some(path) => Kubeconfig::read_from(path),
        None => Kubeconfig::read(),
    };
    let read = match read {
        Ok(read) => read,
        Err(error) if desk.kubeconfig.is_none() && is_missing(&error) => {
            // A pod has a ServiceAccount instead; and a server that was named may want nobody.
            if let Ok(config) = Config::incluster_env()
                && !desk.names_a_part()
            {
                return Ok(config);
            }
            return match &desk.server {
                Some(url) if !desk.names_a_part() => Ok(Config::new(parse(url)?)),
                _ => Err(fail(error)),
            };
        }
        Err(error) => return Err(fail(error)),
    };
    Config::from_custom_kubeconfig(read, &desk.options())
        .await
        .map_err(fail)
}

/// There is no file, which is not the same as a file that is wrong.
fn is_missing(error: &KubeconfigError) -> bool {
    match error {
        KubeconfigError::FindPath => true,
        KubeconfigError::ReadConfig(error, _) => error.kind() == std::io::ErrorKind::NotFound,
        _ => false,
    }
}
