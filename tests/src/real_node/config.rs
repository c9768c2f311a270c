//! Configuration of kubelet, containerd and the pod network on the node.

use std::path::Path;

use anyhow::{Context, Result};

use super::site::Site;
use super::tools;

/// Name of the pod sandbox's image, which is never pulled.
pub(super) const PAUSE: &str = "registry.k8s.io/pause:3.10";

pub(super) fn containerd(folder: &Path) -> Result<String> {
    let (plugin, runc) = (tools::find("ptp")?, tools::find("runc")?);
    let plugins = plugin.parent().context("a program is in a folder")?;
    Ok(include_str!("containerd.toml")
        .replace("FOLDER", &folder.display().to_string())
        .replace("CNI", &plugins.display().to_string())
        .replace("RUNC", &runc.display().to_string())
        .replace("PAUSE", PAUSE))
}

/// A CNI network with a veth and a host route for each pod, in both families, and host ports. Pods of the test
/// world have addresses below the first of these.
pub(super) fn network(site: &Site) -> String {
    let ((v4, v6), (first4, first6)) = (site.pod_cidrs, site.free_pods);
    include_str!("network.json")
        .replace("SUBNET4", v4)
        .replace("SUBNET6", v6)
        .replace("FIRST4", first4)
        .replace("FIRST6", first6)
}

pub(super) fn kubelet(folder: &Path, cgroups: u8) -> String {
    include_str!("kubelet.yaml")
        .replace("ONLY_V2", &(cgroups == 2).to_string())
        .replace("FOLDER", &folder.display().to_string())
}
