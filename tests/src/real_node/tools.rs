//! The programs of a node, as installed by `cargo xtask setup-cluster --all`.

use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::built::{self, versions};
use crate::cluster::Servers;
use crate::world;

/// Programs that every Linux distribution has.
const SYSTEM: [&str; 6] = ["bash", "ldd", "mount", "nft", "nsenter", "unshare"];
/// Programs that `setup-cluster` installs in one version each; `ptp` is a CNI plugin.
const PINNED: [&str; 7] = [
    "kubelet",
    "kube-controller-manager",
    "kube-scheduler",
    "kubectl",
    "helm",
    "containerd",
    "ptp",
];

/// Absolute paths of the folders of Kubernetes, of helm, of containerd with its shim and ctr, and of the CNI
/// plugins.
pub(super) fn folders() -> Vec<PathBuf> {
    let folders = [
        built::kubernetes(),
        built::folder("helm", versions::HELM),
        built::folder("containerd", versions::CONTAINERD),
        built::folder("cni", versions::CNI),
    ];
    let found = folders.iter().map(|folder| folder.canonicalize());
    found.flatten().collect()
}

/// A program from [`folders`], or else from Debian's packages or this machine.
pub(crate) fn find(name: &str) -> Result<PathBuf> {
    let found = match name {
        "prometheus" | "promtool" | "runc" => built::unpacked(name),
        _ => folders().iter().find_map(|one| built::program(one, name)),
    };
    found.with_context(|| format!("{name} (run `cargo xtask setup-cluster --all`)"))
}

/// Checks that every program exists; the error names the first that is missing.
pub fn check() -> Result<()> {
    for name in SYSTEM {
        world::tool(name).context(name)?;
    }
    for name in PINNED.iter().chain(&["runc"]) {
        find(name)?;
    }
    Servers::find().map(drop)
}
