//! The programs of a node, where `cargo xtask setup-cluster --all` put them.

use std::path::{Path, PathBuf};

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
    /// The programs, or the name of the first that is missing.
    pub fn find() -> Result<Self, &'static str> {
        if let Some(missing) = SYSTEM.into_iter().find(|name| world::tool(name).is_none()) {
            return Err(missing);
        }
        let kubernetes = std::env::var_os("PATHPROOF_CLUSTER_SERVERS").map_or_else(
            || built::folder("kubernetes", versions::KUBERNETES),
            PathBuf::from,
        );
        let kubernetes = |name| in_folder(&kubernetes, name);
        let helm = built::folder("helm", versions::HELM);
        let containerd = built::folder("containerd", versions::CONTAINERD);
        let cni = built::folder("cni", versions::CNI);
        Ok(Self {
            servers: Servers::find()?,
            kubelet: kubernetes("kubelet")?,
            controllers: kubernetes("kube-controller-manager")?,
            scheduler: kubernetes("kube-scheduler")?,
            kubectl: kubernetes("kubectl")?,
            helm: in_folder(&helm, "helm")?,
            containerd: in_folder(&containerd, "containerd").map(|_| containerd)?,
            cni: in_folder(&cni, "ptp").map(|_| cni)?,
            runc: unpacked("runc")?,
        })
    }
}

/// Of Debian's package, or of this machine.
fn unpacked(name: &'static str) -> Result<PathBuf, &'static str> {
    in_folder(&built::folder("debian", ""), name).or_else(|name| world::tool(name).ok_or(name))
}

fn in_folder(folder: &Path, name: &'static str) -> Result<PathBuf, &'static str> {
    // Whoever runs them does so from folders of their own.
    let file = folder.join(name).canonicalize().map_err(|_| name)?;
    if file.is_file() { Ok(file) } else { Err(name) }
}
