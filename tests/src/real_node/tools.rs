//! The programs of a node, where `cargo xtask setup-cluster --all` put them.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::built::{self, versions};
use crate::cluster::Servers;
use crate::world;

/// What every Linux distribution has.
const SYSTEM: [&str; 6] = ["bash", "ldd", "mount", "nft", "nsenter", "unshare"];

/// Programs, and the folders of those that find one another there.
#[derive(Clone, Debug)]
pub struct Tools {
    /// Control plane and kube-proxy.
    pub servers: Servers,
    pub kubelet: PathBuf,
    /// kube-controller-manager.
    pub controllers: PathBuf,
    /// kube-scheduler.
    pub scheduler: PathBuf,
    pub kubectl: PathBuf,
    pub helm: PathBuf,
    /// The folder of containerd, its shim and ctr.
    pub containerd: PathBuf,
    /// The folder of the CNI plugins.
    pub cni: PathBuf,
    pub runc: PathBuf,
}

impl Tools {
    /// The programs; the error names the first that is missing.
    pub fn find() -> Result<Self> {
        for name in SYSTEM {
            world::tool(name).context(name)?;
        }
        let missing = |name: &str| format!("{name} (run `cargo xtask setup-cluster --all`)");
        let find = |folder: &Path, name| {
            let found = built::program(folder, name);
            found.with_context(|| missing(name))
        };
        let kubernetes = built::kubernetes();
        let containerd = built::folder("containerd", versions::CONTAINERD);
        let cni = built::folder("cni", versions::CNI);
        Ok(Self {
            servers: Servers::find()?,
            kubelet: find(&kubernetes, "kubelet")?,
            controllers: find(&kubernetes, "kube-controller-manager")?,
            scheduler: find(&kubernetes, "kube-scheduler")?,
            kubectl: find(&kubernetes, "kubectl")?,
            helm: find(&built::folder("helm", versions::HELM), "helm")?,
            containerd: find(&containerd, "containerd").map(|_| containerd)?,
            cni: find(&cni, "ptp").map(|_| cni)?,
            runc: built::unpacked("runc").with_context(|| missing("runc"))?,
        })
    }
}
