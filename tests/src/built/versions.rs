//! Releases of what the tests run, as their sources are tagged. The one place that names them beside
//! the modules in xtask/go: xtask, which builds them, reads this file too.

/// Kubernetes: control plane, kubelet, kube-proxy, kubectl.
pub const KUBERNETES: &str = "v1.36.3";
/// containerd.
pub const CONTAINERD: &str = "v2.4.2";
/// The CNI plugins.
pub const CNI: &str = "v1.9.1";
/// flannel: the newest whose modules can all be had.
pub const FLANNEL: &str = "v0.27.4";
/// Helm.
pub const HELM: &str = "v3.22.0";
/// Cilium.
pub const CILIUM: &str = "v1.20.2";
