//! `cargo xtask setup-cluster`: installs the programs of the tests with real Kubernetes, once for a clone.
//!
//! Servers and tools are built from the Go modules in xtask/go, which pin every version; others
//! come from Debian's packages. All are in target/tools: no service is installed or started.

use std::path::PathBuf;

use anyhow::{Result, ensure};

use crate::debian::Program;
use crate::go::Module;
use crate::{host, tools};

/// Versions that the tests expect.
#[path = "../../tests/src/built/versions.rs"]
#[expect(
    unreachable_pub,
    reason = "the tests' library, whose file it is, shows them"
)]
mod versions;

pub(crate) use versions::KUBERNETES;

/// API server and kube-proxy: with etcd, they are all that the cluster tests need.
const SERVERS: Module = Module {
    name: "kubernetes",
    path: "k8s.io/kubernetes",
    version: versions::KUBERNETES,
    version_variable: "k8s.io/component-base/version.gitVersion",
    // Charts and clients query the version.
    variables: &[
        ("k8s.io/component-base/version.gitMajor", "1"),
        ("k8s.io/component-base/version.gitMinor", "36"),
    ],
    programs: &["cmd/kube-apiserver", "cmd/kube-proxy"],
    takes: "5 min",
    ..Module::EMPTY
};

/// kubectl, which includes kustomize.
const KUBECTL: Module = Module {
    programs: &["cmd/kubectl"],
    takes: "1 min",
    ..SERVERS
};

const PROXIES: [Module; 3] = [
    proxy(versions::KUBE_PROXY_1_28),
    proxy(versions::KUBE_PROXY_1_32),
    proxy(versions::KUBE_PROXY_1_37),
];

const fn proxy(release: versions::Release) -> Module {
    Module {
        name: release.folder,
        version: release.version,
        variables: &[],
        programs: &["cmd/kube-proxy"],
        takes: "2 min",
        ..SERVERS
    }
}

/// The rest of Kubernetes on a node.
const NODE: Module = Module {
    programs: &[
        "cmd/kubelet",
        "cmd/kube-controller-manager",
        "cmd/kube-scheduler",
    ],
    takes: "4 min",
    ..SERVERS
};

const CONTAINERD: Module = Module {
    name: "containerd",
    path: "github.com/containerd/containerd/v2",
    version: versions::CONTAINERD,
    version_variable: "github.com/containerd/containerd/v2/version.Version",
    programs: &["cmd/containerd", "cmd/containerd-shim-runc-v2", "cmd/ctr"],
    takes: "2 min",
    ..Module::EMPTY
};

/// Plugins for pod networks, and for worlds that use them.
pub(crate) const CNI: Module = Module {
    name: "cni",
    path: "github.com/containernetworking/plugins",
    version: versions::CNI,
    programs: &[
        "plugins/ipam/host-local",
        "plugins/main/loopback",
        "plugins/main/ptp",
        "plugins/meta/bandwidth",
        "plugins/meta/portmap",
    ],
    takes: "10 s",
    ..Module::EMPTY
};

/// The overlay network of one of the cluster tests.
pub(crate) const FLANNEL: Module = Module {
    name: "flannel",
    path: "github.com/flannel-io/flannel",
    version: versions::FLANNEL,
    programs: &["."],
    // Its C code is for a back end that no test uses.
    needs_c: true,
    takes: "1 min",
    ..Module::EMPTY
};

const CILIUM: Module = Module {
    name: versions::CILIUM.folder,
    path: "github.com/cilium/cilium",
    version: versions::CILIUM.version,
    version_variable: "github.com/cilium/cilium/pkg/version.ciliumVersion",
    programs: &["daemon"],
    takes: "6 min",
    ..Module::EMPTY
};

const CILIUM_1_15: Module = Module {
    name: versions::CILIUM_1_15.folder,
    version: versions::CILIUM_1_15.version,
    ..CILIUM
};

/// Files that Cilium's agent needs at run time: the sources of its eBPF programs, which it compiles
/// itself, and the CRDs that its operator would install.
const CILIUM_FILES: [(&str, &str); 3] = [
    ("bpf", "bpf"),
    ("pkg/k8s/apis/cilium.io/client/crds/v2", "crds/v2"),
    (
        "pkg/k8s/apis/cilium.io/client/crds/v2alpha1",
        "crds/v2alpha1",
    ),
];

const CLANG: (&str, &str) = ("clang-22", "clang-22");
/// Stores the addresses that Cilium does not masquerade for.
const IPSET: (&str, &str) = ("ipset", "ipset");
/// Reports the kernel's features to Cilium 1.15.
const BPFTOOL: (&str, &str) = ("bpftool", "bpftool");

const HELM: Module = Module {
    name: "helm",
    path: "helm.sh/helm/v3",
    version: versions::HELM,
    version_variable: "helm.sh/helm/v3/internal/version.version",
    variables: &[
        // The release that charts are rendered for without a cluster.
        ("helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor", "1"),
        ("helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor", "36"),
    ],
    programs: &["cmd/helm"],
    takes: "1 min",
    ..Module::EMPTY
};

/// Only for tests of upgrades; charts are rendered by [`HELM`].
const HELM_4: Module = Module {
    name: versions::HELM_4.folder,
    path: "helm.sh/helm/v4",
    version: versions::HELM_4.version,
    version_variable: "helm.sh/helm/v4/internal/version.version",
    variables: &[],
    ..HELM
};

const ETCD: Program = Program {
    package: "etcd-server",
    path: "usr/bin/etcd",
    origin: "3.4 or newer, https://github.com/etcd-io/etcd/releases",
};

const RUNC: Program = Program {
    package: "runc",
    path: "usr/sbin/runc",
    origin: "https://github.com/opencontainers/runc/releases",
};

const PROMETHEUS: Program = Program {
    package: "prometheus",
    path: "usr/bin/prometheus",
    origin: "2.42 or newer, https://prometheus.io/download",
};

const PROMTOOL: Program = Program {
    path: "usr/bin/promtool",
    ..PROMETHEUS
};

/// Unpacked, because installing it starts a server.
const NGINX: Program = Program {
    package: "nginx",
    path: "usr/sbin/nginx",
    origin: "https://nginx.org/en/download.html",
};

/// Provides the checkers that Debian's package manager cannot install, or not without starting them.
pub(crate) fn checkers() -> Result<()> {
    NGINX.ready()?;
    tools::envoy().map(drop)
}

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Also build the programs of a real node (kubelet, containerd), helm, kubectl and Prometheus
    #[arg(long)]
    all: bool,
    /// Also build Cilium's agent in two releases, and the compiler that it needs
    #[arg(long)]
    cilium: bool,
    /// Also build kube-proxies of other releases
    #[arg(long)]
    proxies: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    ready()?;
    if args.all {
        chart_tools()?;
        node()?;
        prometheus()?;
        FLANNEL.ready()?;
    }
    if args.cilium {
        cilium()?;
        old_cilium()?;
    }
    if args.proxies {
        proxies()?;
    }
    println!("ready in target/tools; use them with: cargo xtask test");
    Ok(())
}

/// Builds the tools of CI's first tests. Without namespaces, servers cannot run.
pub(crate) fn for_nodes() -> Result<()> {
    prometheus()?;
    if host::no_world().is_none() {
        CNI.ready()?;
    }
    Ok(())
}

/// Builds the tools of CI's last tests, in the order of their use.
pub(crate) fn for_clusters() -> Result<()> {
    let has_servers = host::no_world().is_none();
    let mut got = Vec::new();
    got.extend(has_servers.then(ready));
    got.push(chart_tools());
    if has_servers {
        got.extend([FLANNEL.ready(), cilium()]);
    }
    let failed = got.into_iter().filter_map(Result::err);
    let failed: Vec<String> = failed.map(|error| format!("{error:#}")).collect();
    ensure!(failed.is_empty(), "{}", failed.join("; "));
    Ok(())
}

/// The folder of the cluster tests' servers; missing ones are built first.
pub(crate) fn ready() -> Result<PathBuf> {
    let folder = SERVERS.ready()?;
    ETCD.ready_in(&folder)?;
    Ok(folder)
}

/// Builds everything for a real node and its installation; returns the folder of [`ready`].
pub(crate) fn real_node() -> Result<PathBuf> {
    let folder = ready()?;
    chart_tools()?;
    node()?;
    Ok(folder)
}

/// Builds helm and kubectl, which render the chart and the overlays; returns the path of helm 3.
pub(crate) fn chart_tools() -> Result<PathBuf> {
    KUBECTL.ready()?;
    HELM_4.ready()?;
    Ok(HELM.ready()?.join("helm"))
}

/// Programs of a real cluster's node, in addition to [`ready`] and [`chart_tools`]. kubelet and the
/// other programs of Kubernetes are in the folder of [`ready`].
pub(crate) struct Node {
    /// The folder of containerd, its shim and ctr.
    pub(crate) containerd: PathBuf,
    /// The folder of the CNI plugins.
    pub(crate) cni: PathBuf,
    pub(crate) runc: PathBuf,
}

pub(crate) fn node() -> Result<Node> {
    NODE.ready()?;
    Ok(Node {
        containerd: CONTAINERD.ready()?,
        cni: CNI.ready()?,
        runc: RUNC.ready()?,
    })
}

pub(crate) fn prometheus() -> Result<()> {
    PROMETHEUS.ready()?;
    PROMTOOL.ready().map(drop)
}

pub(crate) fn proxies() -> Result<()> {
    PROXIES.iter().try_for_each(|proxy| proxy.ready().map(drop))
}

/// Builds Cilium's agent with its files, and the compiler that it requires.
pub(crate) fn cilium() -> Result<PathBuf> {
    cilium_of(&CILIUM, &[CLANG, IPSET])
}

/// The same for the older release, which only `test --cilium` uses.
pub(crate) fn old_cilium() -> Result<PathBuf> {
    cilium_of(&CILIUM_1_15, &[CLANG, IPSET, BPFTOOL])
}

fn cilium_of(release: &Module, programs: &[(&str, &str)]) -> Result<PathBuf> {
    host::install_programs("Cilium's agent", programs)?;
    let folder = release.ready()?;
    release.bring(&CILIUM_FILES)?;
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workflows::ACTIONLINT;

    #[test]
    fn modules_pin_the_releases_that_are_built() {
        let kubernetes = [SERVERS, KUBECTL, NODE];
        let others = [
            CONTAINERD,
            CNI,
            FLANNEL,
            CILIUM,
            CILIUM_1_15,
            HELM,
            HELM_4,
            ACTIONLINT,
        ];
        for module in kubernetes.iter().chain(&others).chain(&PROXIES) {
            let file = module.source().join("go.mod");
            let text = std::fs::read_to_string(&file).unwrap();
            let pin = format!("{} {}", module.path, module.version);
            assert!(text.contains(&pin), "{} has no {pin}", file.display());
            for package in module.programs {
                let tool = format!("{}\n", module.package(package));
                assert!(text.contains(&tool), "{} has no {tool}", file.display());
            }
        }
    }
}
