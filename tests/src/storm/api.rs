//! An API server for a storm. It holds the manifests' objects. The agent reads them over a connection that
//! can be closed, silent or slow. The node's rules always follow the manifests, as if kube-proxy were
//! connected to another API server.

use std::path::PathBuf;

use anyhow::Result;

use super::tenants;
use crate::cluster::{
    Api, ControlPlane, Relay, Servers, base, install, namespace, put_file, read_documents,
};
use crate::manifests::{Manifests, SENTINEL_FILE};
use crate::world::World;

/// The server and the agent's connection to it.
pub(super) struct ApiServer {
    pub(super) way: Relay,
    api: Api,
    _control: ControlPlane,
    pub(super) kubeconfig: PathBuf,
    manifests: PathBuf,
}

impl ApiServer {
    /// Starts a server with the manifests' objects, and gives the agent the shipped permissions.
    pub(super) fn start(world: &World, manifests: &Manifests) -> Result<Self> {
        let control = ControlPlane::start(world, &Servers::find()?)?;
        let api = control.api()?;
        let way = control.relay()?;
        namespace(&api, tenants::NAMESPACE)?;
        install(&api, manifests)?;
        let kubeconfig = control.account_kubeconfig(world, way.address(), base::AGENT)?;
        let server = Self {
            way,
            api,
            _control: control,
            kubeconfig,
            manifests: manifests.dir().to_owned(),
        };
        // Replace the installed sentinel: the server would assign it other addresses than those in the rules.
        server.withdraw(SENTINEL_FILE)?;
        server.announce(SENTINEL_FILE)?;
        Ok(server)
    }

    /// Applies the current content of a manifest.
    pub(super) fn announce(&self, file: &str) -> Result<()> {
        put_file(&self.api, &self.manifests.join(file))
    }

    /// Deletes the objects of a manifest from the server, before the file is removed.
    pub(super) fn withdraw(&self, file: &str) -> Result<()> {
        let mut objects = read_documents(&self.manifests.join(file))?.into_iter();
        objects.try_for_each(|object| self.api.delete_object(&object))
    }
}
