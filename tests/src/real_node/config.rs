//! How kubelet, containerd and the pod network are configured on the node.

use std::path::Path;

use serde_json::json;

use super::Tools;
use crate::world::layout::{NODE_POD_CIDRS, pod_range_start};

/// What the pod sandbox is called; nothing fetches it.
pub(super) const PAUSE: &str = "registry.k8s.io/pause:3.10";

/// containerd's configuration.
pub(super) fn containerd(tools: &Tools, folder: &Path) -> String {
    include_str!("containerd.toml")
        .replace("FOLDER", &folder.display().to_string())
        .replace("CNI", &tools.cni.display().to_string())
        .replace("RUNC", &tools.runc.display().to_string())
        .replace("PAUSE", PAUSE)
}

/// A veth and a host route for each pod, of both families; host ports.
pub(super) fn network() -> String {
    let (v4, v6) = NODE_POD_CIDRS;
    // The world's own pods lie below.
    let (first4, first6) = pod_range_start();
    json!({
        "cniVersion": "1.0.0",
        "name": "pods",
        "plugins": [
            {
                "type": "ptp",
                "mtu": 1500,
                "ipMasq": false,
                "ipam": {
                    "type": "host-local",
                    "dataDir": "/run/cni-ipam",
                    "ranges": [
                        [{ "subnet": v4, "rangeStart": first4 }],
                        [{ "subnet": v6, "rangeStart": first6 }],
                    ],
                    "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }],
                },
            },
            { "type": "portmap", "capabilities": { "portMappings": true } },
        ],
    })
    .to_string()
}

/// kubelet's configuration.
pub(super) fn kubelet(folder: &Path, cgroups: u8) -> String {
    include_str!("kubelet.yaml")
        .replace("ONLY_V2", &(cgroups == 2).to_string())
        .replace("FOLDER", &folder.display().to_string())
}
