use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::args::Output;
use crate::page::{assert_colours, assert_page};

mod input;
mod services;

/// The lists of a file in crates/cli/testdata/preflight, by name.
type Set = BTreeMap<String, Value>;

fn set(name: &str) -> Set {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/preflight");
    let text = fs::read_to_string(format!("{folder}/{name}.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn args(folder: &Path) -> PreflightArgs {
    PreflightArgs {
        namespace: "pathproof".to_owned(),
        kubeconfig: None,
        context: None,
        from_files: Some(folder.to_owned()),
        output: Output::Text,
    }
}

/// Reads the lists from files, as for `--from-files`.
fn read(set: &Set) -> Cluster {
    let folder = tempfile::tempdir().unwrap();
    for (list, objects) in set {
        let file = folder.path().join(format!("{list}.json"));
        fs::write(file, objects.to_string()).unwrap();
    }
    read::cluster(&args(folder.path())).unwrap()
}

/// Lines about a cluster of kubeadm with these items in place of others.
fn with(items: Value) -> Vec<Line> {
    let mut set = set("kubeadm-nftables");
    for (list, items) in items.as_object().unwrap() {
        set.insert(list.clone(), json!({ "items": items }));
    }
    lines(read(&set))
}

/// The line of a check with these words in its sentence.
#[track_caller]
fn find<'a>(lines: &'a [Line], check: &str, words: &str) -> &'a Line {
    let mut found = lines.iter();
    let found = found.find(|line| line.check == check && line.sentence.contains(words));
    found.unwrap_or_else(|| panic!("{check}: {words}: {lines:#?}"))
}

/// Compares pages with crates/cli/testdata/preflight. PATHPROOF_BLESS rewrites them, to be reviewed.
#[rstest]
#[case("eks", Exit::Success)]
#[case("gke", Exit::Success)]
#[case("aks", Exit::Failure)]
#[case("k3s", Exit::Success)]
#[case("rke2", Exit::Success)]
#[case("openshift", Exit::Failure)]
#[case("kubeadm-iptables", Exit::Success)]
#[case("kubeadm-nftables", Exit::Success)]
#[case("kubeadm-ipvs", Exit::Failure)]
#[case("cilium-replacement", Exit::Success)]
#[case("cilium-mixed", Exit::Success)]
#[case("talos", Exit::Success)]
fn pages(#[case] name: &str, #[case] exit: Exit) {
    let lines = lines(read(&set(name)));
    assert_eq!(worst(&lines).3, exit, "{lines:#?}");
    let plain = page(&lines, false);
    assert_page("preflight", name, &plain);
    assert_colours(&page(&lines, true), &plain);
}

#[rstest]
#[case(
    "kernelVersion",
    "5.4.0-216-generic",
    "kernel",
    "refused",
    "which need 5.12"
)]
#[case("kernelVersion", "5.12.0", "kernel", "refused", "below the floor")]
#[case(
    "kernelVersion",
    "5.14.0-570.el9.x86_64",
    "kernel",
    "refused",
    "below the floor"
)]
#[case("kernelVersion", "6.0.19", "kernel", "refused", "below the floor")]
#[case("kernelVersion", "6.1.0-41-amd64", "kernel", "ok", "clsact")]
#[case("kernelVersion", "6.5.13", "kernel", "ok", "clsact")]
#[case("kernelVersion", "6.6.0", "kernel", "ok", "Linux 6.6.0")]
#[case("kernelVersion", "10.0-rc1", "kernel", "ok", "Linux 10.0-rc1")]
#[case("kernelVersion", "", "version", "unknown", "kernel \"\"")]
#[case(
    "containerRuntimeVersion",
    "containerd://1.4.13",
    "runtime",
    "refused",
    "CAP_BPF"
)]
#[case(
    "containerRuntimeVersion",
    "containerd://1.6.8",
    "runtime",
    "warning",
    "seccomp"
)]
#[case(
    "containerRuntimeVersion",
    "containerd://1.6.10",
    "runtime",
    "ok",
    "1.6.10"
)]
#[case(
    "containerRuntimeVersion",
    "cri-o://1.20.7",
    "runtime",
    "refused",
    "CAP_BPF"
)]
#[case(
    "containerRuntimeVersion",
    "cri-o://1.30.6",
    "runtime",
    "warning",
    "seccomp"
)]
#[case("containerRuntimeVersion", "cri-o://1.31.0", "runtime", "ok", "1.31.0")]
#[case(
    "containerRuntimeVersion",
    "docker://20.10.24",
    "runtime",
    "warning",
    "seccomp"
)]
#[case(
    "containerRuntimeVersion",
    "docker://23.0.1",
    "runtime",
    "ok",
    "23.0.1"
)]
#[case(
    "containerRuntimeVersion",
    "mcr://23.0.1",
    "runtime",
    "unknown",
    "mcr://23.0.1"
)]
#[case(
    "containerRuntimeVersion",
    "containerd://x",
    "version",
    "unknown",
    "containerd \"x\""
)]
#[case("architecture", "s390x", "architecture", "refused", "s390x")]
#[case("architecture", "arm64", "architecture", "warning", "emulated")]
#[case("osImage", "Talos (v1.11.3)", "image", "warning", "Talos (v1.11.3)")]
#[case("osImage", "Fedora CoreOS 42", "image", "ok", "Fedora CoreOS 42")]
#[case(
    "osImage",
    "Red Hat Enterprise Linux CoreOS 10.0",
    "image",
    "refused",
    "OpenShift"
)]
#[case(
    "osImage",
    "Red Hat Enterprise Linux 10.0",
    "image",
    "ok",
    "Linux 10.0"
)]
#[case("operatingSystem", "windows", "nodes", "unknown", "no Linux node")]
fn what_a_node_has(
    #[case] field: &str,
    #[case] value: &str,
    #[case] check: &str,
    #[case] verdict: &str,
    #[case] words: &str,
) {
    let mut set = set("kubeadm-nftables");
    let list = set.get_mut("nodes").unwrap();
    list["items"][0]["status"]["nodeInfo"][field] = value.into();
    let lines = lines(read(&set));
    assert_eq!(find(&lines, check, words).verdict, verdict);
}

#[rstest]
#[case("gk3-prod-pool-1-x7k2", "", "refused", "Autopilot")]
#[case("gke-prod-pool-1-x7k2", "", "ok", "trixie")]
#[case("kind-worker", "kind://docker/kind/kind-worker", "warning", "bpffs")]
fn a_platform_by_its_nodes(
    #[case] name: &str,
    #[case] provider: &str,
    #[case] verdict: &str,
    #[case] words: &str,
) {
    let mut set = set("kubeadm-nftables");
    let node = &mut set.get_mut("nodes").unwrap()["items"][0];
    node["metadata"]["name"] = name.into();
    node["spec"]["providerID"] = provider.into();
    let lines = lines(read(&set));
    assert_eq!(find(&lines, "image", words).verdict, verdict);
}

#[rstest]
#[case("v1.24.17", "kubernetes", "refused")]
#[case("v1.25.0", "kubernetes", "warning")]
#[case("v1.30.14-eks-1", "kubernetes", "warning")]
#[case("v1.31.0-rc.1", "kubernetes", "ok")]
#[case("", "version", "unknown")]
fn versions_of_kubernetes(#[case] version: &str, #[case] check: &str, #[case] verdict: &str) {
    let mut set = set("kubeadm-nftables");
    let server = json!({ "serverVersion": { "gitVersion": version } });
    set.insert("version".to_owned(), server);
    let lines = lines(read(&set));
    assert_eq!(find(&lines, check, version).verdict, verdict);
}

#[rstest]
#[case("privileged", "ok")]
#[case("baseline", "refused")]
#[case("", "warning")]
fn levels_of_the_namespace(#[case] level: &str, #[case] verdict: &str) {
    let labels = json!({ "pod-security.kubernetes.io/enforce": level });
    let namespace = json!({ "metadata": { "name": "pathproof", "labels": labels } });
    let lines = with(json!({ "namespaces": [namespace] }));
    assert_eq!(find(&lines, "namespace", "pathproof").verdict, verdict);
}

#[rstest]
#[case("annotations", "meta.helm.sh/release-name", "pp")]
#[case("labels", "helm.toolkit.fluxcd.io/name", "pp")]
#[case("labels", "argocd.argoproj.io/instance", "pp")]
#[case("annotations", "owner", "unknown")]
fn the_owner_of_an_installation(#[case] kind: &str, #[case] key: &str, #[case] owner: &str) {
    let mut agent = json!({ "metadata": { "name": "a", "namespace": "net", "annotations": {},
        "labels": {
            "app.kubernetes.io/name": "pathproof", "app.kubernetes.io/component": "agent",
        },
    }});
    agent["metadata"][kind][key] = owner.into();
    let found = with(json!({ "daemonsets": [agent.clone()] }));
    let words = format!("net/a, {key}: {owner}");
    assert_eq!(find(&found, "installation", &words).verdict, "warning");
    agent["metadata"]["labels"]["app.kubernetes.io/component"] = "echo".into();
    let twin = with(json!({ "daemonsets": [agent] }));
    assert_eq!(find(&twin, "installation", "no agent").verdict, "ok");
}

#[rstest]
#[case("198.18.0.2", true)]
#[case("198.19.255.0/24", true)]
#[case("198.0.0.0/8", true)]
#[case("2001:2::/64", true)]
#[case("198.20.0.0/16", false)]
#[case("198.17.255.255", false)]
#[case("2001:2:1::/48", false)]
fn addresses_in_the_sentinels_ranges(#[case] used: &str, #[case] meets: bool) {
    let own = json!({ "endpointslice.kubernetes.io/managed-by": "pathproof" });
    let endpoints = json!([{ "addresses": [used] }]);
    let users = [
        (
            "nodes",
            json!({ "metadata": {}, "spec": { "podCIDRs": [used] } }),
            true,
        ),
        (
            "nodes",
            json!({ "status": { "addresses": [{ "address": used }] } }),
            true,
        ),
        ("servicecidrs", json!({ "spec": { "cidrs": [used] } }), true),
        (
            "services",
            json!({ "spec": { "clusterIPs": ["None", used] } }),
            true,
        ),
        ("endpointslices", json!({ "endpoints": endpoints }), true),
        (
            "endpointslices",
            json!({ "metadata": { "labels": own }, "endpoints": endpoints }),
            false,
        ),
    ];
    for (list, object, counts) in users {
        let mut cluster = Cluster::default();
        cluster.lists.insert(list, vec![object]);
        let lines = network::addresses(&cluster);
        let verdicts: Vec<&str> = lines.iter().map(|line| line.verdict).collect();
        let expected = match (counts, meets) {
            (false, _) => Vec::new(),
            (true, true) => vec!["refused"],
            (true, false) => vec!["ok"],
        };
        assert_eq!(verdicts, expected, "{lines:?}");
    }
}

#[rstest]
#[case("mode: ipvs", "proxy", "ok", "mode ipvs")]
#[case("mode: ''", "proxy", "ok", "mode iptables")]
#[case("healthzBindAddress: 0.0.0.0", "port 10256", "ok", "0.0.0.0")]
#[case("healthzBindAddress: '[::]:10256'", "port 10256", "ok", "[::]:10256")]
#[case("healthzBindAddress: ':10256'", "port 10256", "ok", ":10256")]
#[case("healthzBindAddress: 127.0.0.1", "port 10256", "warning", "only")]
#[case("healthzBindAddress: '[::1]:10256'", "port 10256", "warning", "only")]
#[case(
    "healthzBindAddress: 0.0.0.0:10257",
    "port 10256",
    "warning",
    "not at 10256"
)]
#[case("healthzBindAddress: node", "port 10256", "unknown", "(node)")]
#[case("mode: [", "proxy", "unknown", "not YAML")]
fn the_configuration_of_kube_proxy(
    #[case] config: &str,
    #[case] check: &str,
    #[case] verdict: &str,
    #[case] words: &str,
) {
    let map = json!({ "metadata": { "name": "kube-proxy" }, "data": { "config.conf": config } });
    let lines = with(json!({ "configmaps": [map] }));
    assert_eq!(find(&lines, check, words).verdict, verdict);
}

#[rstest]
#[case(&["ovnkube-node"], "", "warning", "OVN-Kubernetes")]
#[case(&["antrea-agent"], "", "warning", "Antrea")]
#[case(&["kube-router"], "", "warning", "kube-router")]
#[case(&["calico-node"], "", "warning", "eBPF")]
#[case(&["calico-node", "kube-proxy"], "", "ok", "kube-proxy routes")]
#[case(&["cilium"], "", "ok", "profile cilium")]
#[case(&["cilium", "kube-proxy"], "", "ok", "kube-proxy routes")]
#[case(&["cilium", "kube-proxy"], "strict", "warning", "two proxies")]
#[case(&["cilium"], "false", "unknown", "no known proxy")]
#[case(&["anetd"], "", "ok", "profile cilium")]
#[case(&[], "", "unknown", "no known proxy")]
fn who_routes_services(
    #[case] sets: &[&str],
    #[case] replacement: &str,
    #[case] verdict: &str,
    #[case] words: &str,
) {
    let data = json!({ "kube-proxy-replacement": replacement });
    let map = json!({ "metadata": { "name": "cilium-config" }, "data": data });
    let sets = sets
        .iter()
        .map(|name| json!({ "metadata": { "name": name } }));
    let sets: Vec<Value> = sets.collect();
    let lines = with(json!({ "daemonsets": sets, "configmaps": [map] }));
    assert_eq!(find(&lines, "proxy", words).verdict, verdict);
}

#[rstest]
#[case("datapath-mode", "netkit", "proxy", "refused", "netkit")]
#[case(
    "enable-health-check-nodeport",
    "false",
    "health ports",
    "warning",
    "no health check"
)]
#[case(
    "kube-proxy-replacement-healthz-bind-address",
    "",
    "port 10256",
    "warning",
    "is off"
)]
fn settings_of_cilium(
    #[case] key: &str,
    #[case] value: &str,
    #[case] check: &str,
    #[case] verdict: &str,
    #[case] words: &str,
) {
    let sound = json!({ "datapath-mode": "veth", "enable-health-check-nodeport": "true",
        "kube-proxy-replacement-healthz-bind-address": "0.0.0.0:10256" });
    let of = |data: &Value| {
        let map = json!({ "metadata": { "name": "cilium-config" }, "data": data });
        let set = json!({ "metadata": { "name": "cilium" } });
        with(json!({ "daemonsets": [set], "configmaps": [map] }))
    };
    let twin = of(&sound);
    assert!(!twin.iter().any(|line| line.sentence.contains(words)));
    let mut fault = sound;
    fault[key] = value.into();
    assert_eq!(find(&of(&fault), check, words).verdict, verdict);
}

#[rstest]
#[case(&["kube-proxy", "--proxy-mode", "ipvs"], "mode ipvs", "ok")]
#[case(&["kube-proxy", "--config-sync-period=15m"], "mode iptables", "ok")]
#[case(&["kube-proxy", "--config", "/etc/other.yaml"], "mode unknown", "unknown")]
#[case(&["kube-proxy", "--config=/etc/other.yaml"], "mode unknown", "unknown")]
#[case(&["sh", "-c", "exec kube-proxy --proxy-mode=ipvs"], "mode ipvs", "unknown")]
#[case(&["kube-proxy", "--healthz-bind-address", "127.0.0.1"], "mode iptables", "warning")]
fn the_flags_of_kube_proxy(#[case] command: &[&str], #[case] words: &str, #[case] port: &str) {
    let template = json!({ "spec": { "containers": [{ "command": command }] } });
    let set = json!({ "metadata": { "name": "kube-proxy" }, "spec": { "template": template } });
    let lines = with(json!({ "daemonsets": [set], "configmaps": [] }));
    assert_eq!(find(&lines, "proxy", words).verdict, "ok");
    assert_eq!(find(&lines, "port 10256", "").verdict, port);
}

#[rstest]
#[case("true", "warning", "eBPF")]
#[case("false", "ok", "kube-proxy routes")]
fn the_dataplane_of_calico(#[case] value: &str, #[case] verdict: &str, #[case] words: &str) {
    let env = json!([{ "name": "FELIX_BPFENABLED", "value": value }]);
    let template = json!({ "spec": { "containers": [{ "env": env }] } });
    let calico = json!({ "metadata": { "name": "calico-node" }, "spec": { "template": template } });
    let proxy = json!({ "metadata": { "name": "kube-proxy" } });
    let lines = with(json!({ "daemonsets": [calico, proxy] }));
    assert_eq!(find(&lines, "proxy", words).verdict, verdict);
}

/// A node's kernel and kubelet beside Cilium's replacement, with a filter priority.
#[rstest]
#[case("6.5.13", "v1.33.5", "1", true, false)]
#[case("6.5.13", "v1.33.5", "2", false, false)]
#[case("6.6.0", "v1.33.5", "", false, false)]
#[case("6.6.0", "v1.33.5+k3s1", "", false, true)]
#[case("6.6.0", "v1.33.5+rke2r1", "", false, true)]
fn a_node_beside_cilium(
    #[case] kernel: &str,
    #[case] kubelet: &str,
    #[case] priority: &str,
    #[case] overwrites: bool,
    #[case] hides: bool,
) {
    let info = json!({ "kernelVersion": kernel, "kubeletVersion": kubelet });
    let node = json!({ "metadata": { "name": "a" }, "status": { "nodeInfo": info } });
    let data = json!({ "kube-proxy-replacement": "true", "bpf-filter-priority": priority });
    let map = json!({ "metadata": { "name": "cilium-config" }, "data": data });
    let set = json!({ "metadata": { "name": "cilium" } });
    let lines = with(json!({ "nodes": [node], "daemonsets": [set], "configmaps": [map] }));
    for (words, expected) in [
        ("overwrites the agent's filter", overwrites),
        ("without a DaemonSet", hides),
    ] {
        let found = lines.iter().find(|line| line.sentence.contains(words));
        let verdict = found.map(|line| line.verdict);
        assert_eq!(verdict, expected.then_some("warning"), "{words}");
    }
}
