//! Checks of the API server, the namespace, an existing installation, and each node.

use pathproof_shared::versions::is_older;
use serde_json::Value;

use super::read::{Cluster, name, note, text};
use super::{Line, graded, line, marks, merged};

/// Labels and annotations by which tools mark what they own. Flux' Helm controller sets Helm's too.
const OWNERS: [&str; 5] = [
    "helm.toolkit.fluxcd.io/name",
    "kustomize.toolkit.fluxcd.io/name",
    "argocd.argoproj.io/instance",
    "argocd.argoproj.io/tracking-id",
    "meta.helm.sh/release-name",
];

pub(super) fn installation(cluster: &Cluster) -> Vec<Line> {
    let version = cluster.list("version").first();
    let version = version.map(|version| text(version, "/serverVersion/gitVersion"));
    let version = version.map(|version| graded("kubernetes", version));
    let all = [version, namespace(cluster), installed(cluster)];
    all.into_iter().flatten().collect()
}

fn namespace(cluster: &Cluster) -> Option<Line> {
    let found = cluster.find("namespaces", &cluster.target);
    let level = found.map(|found| note(found, "pod-security.kubernetes.io/enforce"));
    let key = match level {
        None => "namespace absent",
        Some("privileged") => "namespace",
        Some("") => "namespace unlabelled",
        Some(_) => "namespace forbids",
    };
    let is_read = cluster.has("namespaces");
    is_read.then(|| line(key, &cluster.target))
}

fn installed(cluster: &Cluster) -> Option<Line> {
    let is_agent = |set: &&Value| {
        note(set, "app.kubernetes.io/name") == "pathproof"
            && note(set, "app.kubernetes.io/component") == "agent"
    };
    let Some(agent) = cluster.list("daemonsets").iter().find(is_agent) else {
        return cluster.has("daemonsets").then(|| line("not installed", ""));
    };
    let mut owners = OWNERS.into_iter().map(|key| (key, note(agent, key)));
    let owner = owners.find(|(_, name)| !name.is_empty());
    let (key, owner) = owner.unwrap_or(("owner", "unknown"));
    let shown = format!("{}, {key}: {owner}", name(agent));
    Some(line("installed", &shown))
}

pub(super) fn nodes(cluster: &Cluster) -> Vec<Line> {
    let nodes = cluster.list("nodes").iter();
    let (with, without): (Vec<_>, Vec<_>) = nodes.partition(|node| gets_agent(node));
    let checks: [fn(&Value) -> Line; 4] = [kernel, image, runtime, architecture];
    let of_all = |check: fn(&Value) -> Line| {
        let lines = with.iter().map(move |node| (name(node), check(node)));
        merged(lines)
    };
    let mut lines: Vec<Line> = checks.into_iter().flat_map(of_all).collect();
    lines.extend(overwritten(cluster, &with));
    if with.is_empty() && cluster.has("nodes") {
        lines.push(line("no node", ""));
    }
    let without = without.into_iter();
    let without = without.map(|node| (name(node), line("no agent", "")));
    lines.extend(merged(without));
    lines
}

/// Nodes where Cilium's filter takes the place of the agent's.
fn overwritten(cluster: &Cluster, with: &[&Value]) -> Vec<Line> {
    let mut names = ["cilium", "anetd"].into_iter();
    let has_cilium = names.any(|name| cluster.runs(name).is_some());
    let is_set = cluster.setting("cilium-config", "bpf-filter-priority") == "2";
    if !has_cilium || !cluster.has("configmaps") || is_set {
        return Vec::new();
    }
    let has_clsact = |node: &&&Value| is_older(text(node, "/status/nodeInfo/kernelVersion"), "6.6");
    let nodes = with.iter().filter(has_clsact);
    merged(nodes.map(|node| (name(node), line("filter overwritten", ""))))
}

/// Whether the manifests let an agent run there.
fn gets_agent(node: &Value) -> bool {
    text(node, "/status/nodeInfo/operatingSystem") != "windows"
        && note(node, "eks.amazonaws.com/compute-type") != "fargate"
        && note(node, "type") != "virtual-kubelet"
}

fn kernel(node: &Value) -> Line {
    graded("kernel", text(node, "/status/nodeInfo/kernelVersion"))
}

/// The first mark in `lines.txt` that fits decides: a platform's images may have any name.
fn image(node: &Value) -> Line {
    let image = text(node, "/status/nodeInfo/osImage");
    let kubelet = text(node, "/status/nodeInfo/kubeletVersion");
    let all = [&*name(node), image, kubelet, text(node, "/spec/providerID")].join(" ");
    match marks("image ").find(|&mark| all.contains(mark)) {
        Some(mark) => line(&format!("image {mark}"), image),
        None => line("image", image),
    }
}

fn runtime(node: &Value) -> Line {
    let shown = text(node, "/status/nodeInfo/containerRuntimeVersion");
    match shown.split_once("://") {
        Some((kind @ ("containerd" | "cri-o" | "docker"), version)) => graded(kind, version),
        _ => line("runtime unknown", shown),
    }
}

fn architecture(node: &Value) -> Line {
    let shown = text(node, "/status/nodeInfo/architecture");
    let known = marks("architecture ").find(|&known| known == shown);
    line(&format!("architecture {}", known.unwrap_or("other")), shown)
}
