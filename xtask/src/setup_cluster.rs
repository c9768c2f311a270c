//! `cargo xtask setup-cluster`: what the tests with real Kubernetes run, once for a clone.
//!
//! Servers and tools are built from the Go modules in xtask/go, which pin every version; others come
//! out of Debian's packages. All lie in target/tools: no service is installed or started.

use std::path::PathBuf;

use anyhow::{Result, ensure};

use crate::debian::Program;
use crate::go::Module;
use crate::{host, run};

/// Versions that the tests expect.
#[path = "../../tests/src/built/versions.rs"]
#[expect(
    unreachable_pub,
    reason = "the tests' library, whose file it is, shows them"
)]
mod versions;

pub(crate) use versions::KUBERNETES;

/// A variable of Kubernetes: the version that its programs report.
const GIT_VERSION: &str = "k8s.io/component-base/version.gitVersion";

/// API server and kube-proxy: the cluster tests need no more, beside etcd.
const SERVERS: Module = Module {
    name: "kubernetes",
    path: "k8s.io/kubernetes",
    version: versions::KUBERNETES,
    // Charts and clients ask for the version.
    variables: &[
        (GIT_VERSION, versions::KUBERNETES),
        ("k8s.io/component-base/version.gitMajor", "1"),
        ("k8s.io/component-base/version.gitMinor", "36"),
    ],
    programs: &["cmd/kube-apiserver", "cmd/kube-proxy"],
    needs_c: false,
    takes: "5 min",
    compiles: 2000,
};

/// kubectl, which knows kustomize as well.
const KUBECTL: Module = Module {
    programs: &["cmd/kubectl"],
    needs_c: false,
    takes: "1 min",
    compiles: 900,
    ..SERVERS
};

/// kube-proxies of other releases.
const PROXIES: [Module; 3] = [
    Module {
        variables: &[(GIT_VERSION, versions::KUBE_PROXY_1_28.version)],
        ..proxy(versions::KUBE_PROXY_1_28)
    },
    Module {
        variables: &[(GIT_VERSION, versions::KUBE_PROXY_1_32.version)],
        ..proxy(versions::KUBE_PROXY_1_32)
    },
    Module {
        variables: &[(GIT_VERSION, versions::KUBE_PROXY_1_37.version)],
        ..proxy(versions::KUBE_PROXY_1_37)
    },
];

const fn proxy(release: versions::Release) -> Module {
    Module {
        name: release.folder,
        version: release.version,
        programs: &["cmd/kube-proxy"],
        takes: "2 min",
        compiles: 1000,
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
    needs_c: false,
    takes: "4 min",
    compiles: 1500,
    ..SERVERS
};

/// The container runtime.
const CONTAINERD: Module = Module {
    name: "containerd",
    path: "github.com/containerd/containerd/v2",
    version: versions::CONTAINERD,
    variables: &[(
        "github.com/containerd/containerd/v2/version.Version",
        versions::CONTAINERD,
    )],
    programs: &["cmd/containerd", "cmd/containerd-shim-runc-v2", "cmd/ctr"],
    needs_c: false,
    takes: "2 min",
    compiles: 1000,
};

/// Pod networks.
const CNI: Module = Module {
    name: "cni",
    path: "github.com/containernetworking/plugins",
    version: versions::CNI,
    variables: &[],
    programs: &[
        "plugins/ipam/host-local",
        "plugins/main/loopback",
        "plugins/main/ptp",
        "plugins/meta/bandwidth",
        "plugins/meta/portmap",
    ],
    needs_c: false,
    takes: "10 s",
    compiles: 100,
};

/// The overlay of one of the cluster tests.
const FLANNEL: Module = Module {
    name: "flannel",
    path: "github.com/flannel-io/flannel",
    version: versions::FLANNEL,
    variables: &[],
    programs: &["."],
    // For a back end that no test uses.
    needs_c: true,
    takes: "1 min",
    compiles: 900,
};

/// A variable of Cilium: the version that it reports.
const CILIUM_VERSION: &str = "github.com/cilium/cilium/pkg/version.ciliumVersion";

/// Cilium's agent.
const CILIUM: Module = Module {
    name: versions::CILIUM.folder,
    path: "github.com/cilium/cilium",
    version: versions::CILIUM.version,
    variables: &[(CILIUM_VERSION, versions::CILIUM.version)],
    programs: &["daemon"],
    needs_c: false,
    takes: "6 min",
    compiles: 2000,
};

/// The agent of an older release.
const CILIUM_1_15: Module = Module {
    name: versions::CILIUM_1_15.folder,
    version: versions::CILIUM_1_15.version,
    variables: &[(CILIUM_VERSION, versions::CILIUM_1_15.version)],
    ..CILIUM
};

/// Files that it runs with: the sources of its eBPF programs, which it compiles itself, and the kinds of
/// objects that its operator would bring.
const CILIUM_FILES: [(&str, &str); 3] = [
    ("bpf", "bpf"),
    ("pkg/k8s/apis/cilium.io/client/crds/v2", "crds/v2"),
    (
        "pkg/k8s/apis/cilium.io/client/crds/v2alpha1",
        "crds/v2alpha1",
    ),
];

/// Compiles Cilium's programs.
const CLANG: (&str, &str) = ("clang-22", "clang-22");
/// Says to Cilium 1.15 what the kernel can do.
const BPFTOOL: (&str, &str) = ("bpftool", "bpftool");

/// Installs charts.
const HELM: Module = Module {
    name: "helm",
    path: "helm.sh/helm/v3",
    version: versions::HELM,
    variables: &[
        ("helm.sh/helm/v3/internal/version.version", versions::HELM),
        // The release that charts are rendered for where no cluster is asked.
        ("helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor", "1"),
        ("helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor", "36"),
    ],
    programs: &["cmd/helm"],
    needs_c: false,
    takes: "1 min",
    compiles: 1100,
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

#[cfg(test)]
pub(crate) fn modules() -> impl Iterator<Item = Module> {
    [
        SERVERS,
        KUBECTL,
        NODE,
        CONTAINERD,
        CNI,
        FLANNEL,
        CILIUM,
        CILIUM_1_15,
        HELM,
    ]
    .into_iter()
    .chain(PROXIES)
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
    let folder = ready()?;
    let mut places = vec![folder];
    if args.all {
        let ChartTools { helm, kubectl } = chart_tools()?;
        let Node {
            containerd,
            cni,
            runc,
        } = node()?;
        let Prometheus {
            prometheus,
            promtool,
        } = prometheus()?;
        places.extend([helm, kubectl, containerd, cni, runc, prometheus, promtool]);
        places.push(flannel()?);
    }
    if args.cilium {
        places.extend([cilium()?, old_cilium()?]);
    }
    if args.proxies {
        places.extend(proxies()?);
    }
    for place in places {
        println!("ready: {}", place.display());
    }
    println!("use them with: cargo xtask test");
    Ok(())
}

/// The tools of CI's tests, in the order of their use. Without namespaces no server runs.
pub(crate) fn for_ci() -> Result<()> {
    let in_world = host::no_world().is_none();
    let mut got = vec![prometheus().map(drop)];
    if in_world {
        got.push(cni_plugins().map(drop));
    }
    got.push(chart_tools().map(drop));
    if in_world {
        got.extend([ready().map(drop), flannel().map(drop), cilium().map(drop)]);
    }
    let failed = got.into_iter().filter_map(Result::err);
    let failed: Vec<String> = failed.map(|error| format!("{error:#}")).collect();
    ensure!(failed.is_empty(), "{}", failed.join("; "));
    Ok(())
}

/// The folder of the servers of the cluster tests, which are built first where one is missing.
pub(crate) fn ready() -> Result<PathBuf> {
    let folder = SERVERS.ready()?;
    ETCD.ready(&folder)?;
    Ok(folder)
}

/// Everything that a real node runs, and what installs on it; gives the folder of [`ready`].
pub(crate) fn real_node() -> Result<PathBuf> {
    let folder = ready()?;
    chart_tools()?;
    node()?;
    Ok(folder)
}

/// Programs that render the chart and the overlays.
pub(crate) struct ChartTools {
    pub(crate) helm: PathBuf,
    pub(crate) kubectl: PathBuf,
}

/// helm and kubectl.
pub(crate) fn chart_tools() -> Result<ChartTools> {
    Ok(ChartTools {
        helm: HELM.ready()?.join("helm"),
        kubectl: KUBECTL.ready()?.join("kubectl"),
    })
}

/// Programs of a real cluster's node, beside [`ready`] and [`chart_tools`].
pub(crate) struct Node {
    /// The folder of containerd, its shim and ctr.
    pub(crate) containerd: PathBuf,
    /// The folder of the CNI plugins.
    pub(crate) cni: PathBuf,
    pub(crate) runc: PathBuf,
}

/// kubelet and its like go to the folder of [`ready`].
pub(crate) fn node() -> Result<Node> {
    NODE.ready()?;
    Ok(Node {
        containerd: CONTAINERD.ready()?,
        cni: cni_plugins()?,
        runc: RUNC.ready(&debian())?,
    })
}

/// Prometheus, and its tool for rules.
pub(crate) struct Prometheus {
    pub(crate) prometheus: PathBuf,
    pub(crate) promtool: PathBuf,
}

/// Prometheus and promtool.
pub(crate) fn prometheus() -> Result<Prometheus> {
    Ok(Prometheus {
        prometheus: PROMETHEUS.ready(&debian())?,
        promtool: PROMTOOL.ready(&debian())?,
    })
}

/// The CNI plugins, for the worlds that they make.
pub(crate) fn cni_plugins() -> Result<PathBuf> {
    CNI.ready()
}

/// flannel's daemon, for the cluster test of it.
pub(crate) fn flannel() -> Result<PathBuf> {
    FLANNEL.ready()
}

/// The folders of the kube-proxies of other releases.
pub(crate) fn proxies() -> Result<Vec<PathBuf>> {
    PROXIES.iter().map(Module::ready).collect()
}

/// Cilium's agent with its files, and the compiler that it asks for.
pub(crate) fn cilium() -> Result<PathBuf> {
    cilium_of(&CILIUM, &[CLANG])
}

/// The same of the older release, which no landing waits for.
pub(crate) fn old_cilium() -> Result<PathBuf> {
    cilium_of(&CILIUM_1_15, &[CLANG, BPFTOOL])
}

fn cilium_of(release: &Module, programs: &[(&str, &str)]) -> Result<PathBuf> {
    host::install_programs("Cilium's agent", programs)?;
    let folder = release.ready()?;
    release.bring(&CILIUM_FILES)?;
    Ok(folder)
}

fn debian() -> PathBuf {
    run::root().join("target/tools/debian")
}
