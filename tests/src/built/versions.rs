//! Versions of the programs that the tests run, named after the tags of their sources. xtask includes this
//! file and builds them. The modules in xtask/go are the only other place that names versions.

/// Kubernetes: control plane, kubelet, kube-proxy, kubectl.
pub const KUBERNETES: &str = "v1.36.3";
/// containerd.
pub const CONTAINERD: &str = "v2.4.2";
/// The CNI plugins.
pub const CNI: &str = "v1.9.1";
/// flannel: the newest release whose modules are all available.
pub const FLANNEL: &str = "v0.27.4";
/// Helm.
pub const HELM: &str = "v3.22.0";

/// A release of a program that is built in several releases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Release {
    /// Folder of the release in xtask/go and in target/tools.
    pub folder: &'static str,
    pub version: &'static str,
}

const fn release(folder: &'static str, version: &'static str) -> Release {
    Release { folder, version }
}

/// Cilium.
pub const CILIUM: Release = release("cilium", "v1.20.2");
/// The last minor release that cannot use TCX.
pub const CILIUM_1_15: Release = release("cilium-1.15", "v1.15.19");

/// The Helm that applies on the server.
pub const HELM_4: Release = release("helm-4", "v4.3.1");

/// The first release with /livez.
pub const KUBE_PROXY_1_28: Release = release("kube-proxy-1.28", "v1.28.15");
/// The last release of Kubernetes that RKE 1 installs.
pub const KUBE_PROXY_1_32: Release = release("kube-proxy-1.32", "v1.32.13");
/// The newest release.
pub const KUBE_PROXY_1_37: Release = release("kube-proxy-1.37", "v1.37.2");
