//! An API server for a storm: what the manifests say is brought to it, and the agent reads it there,
//! by a way that can be closed, silent or slow. The node's rules follow the manifests all the while, as
//! those of a kube-proxy do that is connected to another API server.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use super::tenants;
use crate::cluster::{
    Api, ControlPlane, Relay, Servers, account_kubeconfig, base, documents, install, namespace,
    put_file,
};
use crate::manifests::{Manifests, NODE_FILE, SENTINEL_FILE};
use crate::world::World;

/// The server, and the agent's way to it.
pub(super) struct ApiServer {
    pub(super) way: Relay,
    api: Api,
    _control: ControlPlane,
    /// What the agent is started with.
    pub(super) kubeconfig: PathBuf,
    manifests: PathBuf,
}

impl ApiServer {
    /// Starts one that holds what the manifests say, and gives the agent the rights that are shipped.
    pub(super) fn start(world: &World, manifests: &Manifests) -> Result<Self> {
        let Ok(servers) = Servers::find() else {
            bail!("there are no servers; run `cargo xtask setup-cluster`");
        };
        let control = ControlPlane::start(world, &servers)?;
        let api = control.api()?;
        let mut near = ControlPlane::address();
        near.set_port(near.port() + 1);
        let way = Relay::start(&world.worker, near, ControlPlane::address())?;
        install(&api, &manifests.dir().join(NODE_FILE))?;
        namespace(&api, "demo")?;
        namespace(&api, tenants::NAMESPACE)?;
        let kubeconfig = account_kubeconfig(world, &api, near, control.ca(), base::AGENT)?;
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
        for service in manifests.services() {
            server.announce(&Manifests::service_file(&service.name))?;
        }
        Ok(server)
    }

    /// Brings a manifest as it is now.
    pub(super) fn announce(&self, file: &str) -> Result<()> {
        put_file(&self.api, &self.manifests.join(file))
    }

    /// Deletes what a manifest holds, before it is removed.
    pub(super) fn withdraw(&self, file: &str) -> Result<()> {
        let path = self.manifests.join(file);
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        for object in documents(&text)? {
            self.api.delete_object(&object)?;
        }
        Ok(())
    }
}
