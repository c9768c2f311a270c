//! Where the cluster view comes from, opened: the main loop takes updates and does not know which.

use tokio::sync::mpsc::Receiver;

use super::AppError;
use crate::cluster::api::client::client;
use crate::cluster::api::{ApiAccess, ApiServer, Scope};
use crate::cluster::{Update, watch};
use crate::config::{Config, Source};
use crate::publish::Client;

/// Updates of the view, and the client that they come by, where they come from an API server.
pub(super) type Followed = (Receiver<Update>, Option<Client>);

/// Opens the source and follows it.
///
/// # Errors
/// It cannot be opened. An API server that is away is no error: it is tried again.
pub(super) async fn follow(config: &Config) -> Result<Followed, AppError> {
    match &config.source {
        Source::Folder(path) => Ok((watch::follow(path, &config.node_name)?, None)),
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
            let updates = ApiServer::new(client.clone(), &config.node_name, scope).follow();
            Ok((updates, Some(client)))
        }
    }
}
