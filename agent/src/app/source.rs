//! Where the cluster view comes from, opened: the main loop takes updates and does not know which.

use tokio::sync::mpsc::Receiver;

use super::{AppError, Delivered};
use crate::cluster::api::client::client;
use crate::cluster::api::{ApiAccess, ApiServer, Scope};
use crate::cluster::watch::Folder;
use crate::config::{Config, Source};

/// Opens the source and follows it.
///
/// # Errors
/// It cannot be opened. An API server that is away is no error: it is tried again.
pub(super) async fn follow(config: &Config) -> Result<Receiver<Delivered>, AppError> {
    match &config.source {
        Source::Folder(path) => Ok(Folder::open(path, &config.node_name)?.follow()),
        Source::Api {
            kubeconfig,
            server,
            only,
        } => {
            let access = ApiAccess {
                kubeconfig: kubeconfig.clone(),
                server: server.clone(),
                state_dir: config.state_dir.clone(),
            };
            let scope = only.clone().map_or(Scope::Full, Scope::Sentinel);
            let client = client(&access).await?;
            Ok(ApiServer::new(client, &config.node_name, scope).follow())
        }
    }
}
