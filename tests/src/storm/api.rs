//! An API server for a storm: what the manifests say is brought to it, and the agent reads it there,
//! by a way that can be closed, silent or slow. The node's rules follow the manifests all the while, as
//! those of a kube-proxy do that is connected to another API server.

use std::path::PathBuf;

use anyhow::Result;

use super::tenants;
use crate::cluster::{
    Api, ControlPlane, Relay, Servers, base, install, namespace, put_file, read_documents,
};
use crate::manifests::{Manifests, SENTINEL_FILE};
use crate::world::World;

/// The server, and the agent's way to it.
pub(super) struct ApiServer {
    pub(super) way: Relay,
    api: Api,
    _control: ControlPlane,
    /// The kubeconfig that the agent is started with.
    pub(super) kubeconfig: PathBuf,
    manifests: PathBuf,
}

impl ApiServer {
    /// Starts one that holds what the manifests say, and gives the agent the rights that are shipped.
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
        // Its addresses would be others than those that the rules are made of.
        server.withdraw(SENTINEL_FILE)?;
        server.announce(SENTINEL_FILE)?;
        Ok(server)
    }

    /// Brings a manifest as it is now.
    pub(super) fn announce(&self, file: &str) -> Result<()> {
        put_file(&self.api, &self.manifests.join(file))
    }

    /// Deletes what a manifest holds, before it is removed.
    pub(super) fn withdraw(&self, file: &str) -> Result<()> {
        let mut objects = read_documents(&self.manifests.join(file))?.into_iter();
        objects.try_for_each(|object| self.api.delete_object(&object))
    }
}
