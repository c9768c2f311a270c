//! The programs of a node, where `cargo xtask setup-cluster --all` put them.

use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::built::{self, versions};
use crate::cluster::Servers;
use crate::world;

/// What every Linux distribution has.
const SYSTEM: [&str; 6] = ["bash", "ldd", "mount", "nft", "nsenter", "unshare"];

/// Control plane and kube-proxy, and the folders of what else a node runs.
#[derive(Clone, Debug)]
pub struct Tools {
    pub servers: Servers,
    /// Of kubelet, kubectl, controllers and scheduler.
    pub kubernetes: PathBuf,
    pub helm: PathBuf,
    /// Of containerd, its shim and ctr.
    pub containerd: PathBuf,
    /// Of the CNI plugins.
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
        let kubernetes = built::kubernetes();
        let helm = built::folder("helm", versions::HELM);
        let containerd = built::folder("containerd", versions::CONTAINERD);
        let cni = built::folder("cni", versions::CNI);
        for (folder, name) in [
            (&kubernetes, "kubelet"),
            (&kubernetes, "kube-controller-manager"),
            (&kubernetes, "kube-scheduler"),
            (&kubernetes, "kubectl"),
            (&helm, "helm"),
            (&containerd, "containerd"),
            (&cni, "ptp"),
        ] {
            built::program(folder, name).with_context(|| missing(name))?;
        }
        Ok(Self {
            servers: Servers::find()?,
            // A variable may name it by a relative path.
            kubernetes: kubernetes.canonicalize()?,
            helm,
            containerd,
            cni,
            runc: built::unpacked("runc").with_context(|| missing("runc"))?,
        })
    }
}
