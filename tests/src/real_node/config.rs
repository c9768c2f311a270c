//! How kubelet, containerd and the pod network are configured on the node.

use std::path::Path;

use serde_json::json;

use super::Tools;
use super::cgroups::Version;
use crate::world::layout::{NODE_POD_CIDRS, pod_range_start};

/// What the pod sandbox is called; nothing fetches it.
pub(super) const PAUSE: &str = "registry.k8s.io/pause:3.10";
/// containerd's socket on the node.
pub(super) const SOCKET: &str = "/run/containerd/containerd.sock";

/// containerd's configuration.
pub(super) fn containerd(tools: &Tools, folder: &Path) -> String {
    let folder = folder.display();
    let (cni, runc) = (tools.cni.display(), tools.runc.display());
    format!(
        r#"version = 3
root = "{folder}/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.nri.v1.nri", "io.containerd.snapshotter.v1.blockfile",
  "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.erofs", "io.containerd.snapshotter.v1.zfs"]
[grpc]
address = "{SOCKET}"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = "{PAUSE}"
[plugins.'io.containerd.cri.v1.runtime']
# Without CAP_SYS_RESOURCE, which tests need not have, the sandbox's -998 is refused.
restrict_oom_score_adj = true
[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ["{cni}"]
conf_dir = "{folder}/cni"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
BinaryName = "{runc}"
SystemdCgroup = false
"#
    )
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
pub(super) fn kubelet(folder: &Path, version: Version) -> String {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        // kubelet 1.35 and newer refuse v1 otherwise.
        "failCgroupV1": version == Version::Two,
        "cgroupDriver": "cgroupfs",
        "cgroupsPerQOS": true,
        "cgroupRoot": "/",
        "enforceNodeAllocatable": ["pods"],
        "containerRuntimeEndpoint": format!("unix://{SOCKET}"),
        // The API server asks it for logs and the like without a certificate.
        "authentication": {
            "anonymous": { "enabled": true },
            "webhook": { "enabled": false },
        },
        "authorization": { "mode": "AlwaysAllow" },
        "failSwapOn": false,
        // A full disk of the machine's is none of the node's.
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {
            "memory.available": "50Mi",
            "nodefs.available": "1%",
            "nodefs.inodesFree": "1%",
            "imagefs.available": "1%",
        },
        "resolvConf": folder.join("resolv.conf"),
        "volumePluginDir": "/var/lib/kubelet/plugins-of-volumes",
        "maxPods": 50,
        "oomScoreAdj": 0,
    })
    .to_string()
}
