//! Addresses of the cluster in the sentinel's ranges, and the program that routes Services.

use std::net::IpAddr;

use ipnet::IpNet;
use pathproof_plan::expect::addresses::benchmark_range;
use pathproof_shared::bind_address::{HEALTHZ_PORT, bind_address};
use pathproof_wire::service::Family;
use serde_json::Value;

use super::read::{Cluster, name, note, text};
use super::{Line, line, marks, merged};

/// Users of addresses: the list, the place of the addresses in its objects, and a noun.
const USERS: [(&str, &str, &str); 5] = [
    ("nodes", "/spec/podCIDRs", "a podCIDR"),
    ("nodes", "/status/addresses", "an address of a Node"),
    ("servicecidrs", "/spec/cidrs", "a ServiceCIDR"),
    ("services", "/spec/clusterIPs", "a cluster IP"),
    ("endpointslices", "/endpoints", "an endpoint"),
];

pub(super) fn addresses(cluster: &Cluster) -> Vec<Line> {
    let ranges = Family::ALL.map(benchmark_range);
    let (mut compared, mut found) = (0_usize, Vec::new());
    for (list, at, what) in USERS {
        for object in cluster.list(list) {
            let mut used = Vec::new();
            if note(object, "endpointslice.kubernetes.io/managed-by") != "pathproof" {
                networks(object.pointer(at).unwrap_or(&Value::Null), &mut used);
            }
            compared += used.len();
            let meets = |used: &IpNet| {
                let mut ranges = ranges.iter();
                ranges.any(|range| range.contains(used) || used.contains(range))
            };
            for used in used.into_iter().filter(meets) {
                let name = format!("{} ({used})", name(object));
                found.push((name, line("range used", what)));
            }
        }
    }
    match compared {
        0 => Vec::new(),
        _ if found.is_empty() => vec![line("range free", &compared.to_string())],
        _ => merged(found.into_iter()),
    }
}

/// Collects the addresses and networks among all texts in a value.
fn networks(value: &Value, into: &mut Vec<IpNet>) {
    match value {
        Value::String(text) => {
            let network = text.parse::<IpNet>().ok();
            into.extend(network.or_else(|| Some(text.parse::<IpAddr>().ok()?.into())));
        }
        Value::Array(all) => all.iter().for_each(|one| networks(one, into)),
        Value::Object(all) => all.values().for_each(|one| networks(one, into)),
        _ => {}
    }
}

pub(super) fn proxy(cluster: &Cluster) -> Vec<Line> {
    if !cluster.has("daemonsets") {
        return Vec::new();
    }
    let runs = |name: &str| cluster.runs(name);
    let kubelets = |mark: &str| {
        let mut nodes = cluster.list("nodes").iter();
        nodes.any(|node| text(node, "/status/nodeInfo/kubeletVersion").contains(mark))
    };
    let kube_proxy = runs("kube-proxy");
    let has_cilium = runs("cilium").is_some();
    let replaces = match cluster.setting("cilium-config", "kube-proxy-replacement") {
        _ if runs("anetd").is_some() => true,
        "" => has_cilium && kube_proxy.is_none() && !kubelets("+k3s") && !kubelets("+rke2"),
        mode => has_cilium && matches!(mode, "true" | "strict"),
    };
    match kube_proxy {
        _ if runs("calico-node").is_some_and(has_ebpf) => vec![line("proxy calico-node", "")],
        Some(_) if replaces => vec![line("two proxies", "")],
        None if replaces => {
            let mut lines = cilium(cluster);
            if kubelets("+k3s") || kubelets("+rke2") {
                lines.push(line("hidden proxy", ""));
            }
            lines
        }
        Some(set) => configured(cluster, set),
        None => {
            let other = marks("proxy ").find(|&mark| runs(mark).is_some() || kubelets(mark));
            vec![line(&format!("proxy {}", other.unwrap_or("unknown")), "")]
        }
    }
}

/// Whether Calico's eBPF dataplane is on.
fn has_ebpf(set: &Value) -> bool {
    let mut pairs = containers(set)
        .filter_map(|one| one["env"].as_array())
        .flatten();
    pairs.any(|pair| {
        text(pair, "/name") == "FELIX_BPFENABLED"
            && text(pair, "/value").eq_ignore_ascii_case("true")
    })
}

/// Lines about kube-proxy, by its configuration or else by its flags.
fn configured(cluster: &Cluster, set: &Value) -> Vec<Line> {
    let maps = ["kube-proxy", "kube-proxy-config"].into_iter();
    let mut files =
        maps.flat_map(|map| ["config.conf", "config"].map(|key| cluster.setting(map, key)));
    let file = files.find(|file| !file.is_empty());
    let words = words(set);
    // An unread file or a script may set options, so without it kube-proxy's defaults may not hold.
    let is_unread = file.is_none() && argument(&words, "--config").is_some();
    let is_whole = cluster.has("configmaps") && !is_unread && !words.contains(&"-c");
    let file: Value = match file.map_or(Ok(Value::Null), serde_saphyr::from_str) {
        Ok(file) => file,
        Err(error) => return vec![line("proxy unreadable", &error.to_string())],
    };
    let option = |field, flag, default| match text(&file, field) {
        "" if is_whole => argument(&words, flag).unwrap_or(default),
        "" => argument(&words, flag).unwrap_or("unknown"),
        value => value,
    };
    let mode = option("/mode", "--proxy-mode", "iptables");
    let flag = "--healthz-bind-address";
    let bind = option("/healthzBindAddress", flag, "0.0.0.0:10256");
    let port = match bind_address(HEALTHZ_PORT)(bind) {
        Ok(Some(at)) if at.is_loopback() => "port loopback",
        Ok(Some(at)) if at.port() != HEALTHZ_PORT => "port other",
        Ok(Some(_)) => "port",
        _ => "port unknown",
    };
    vec![line("kube-proxy", mode), line(port, bind)]
}

fn containers(set: &Value) -> impl Iterator<Item = &Value> {
    let list = set.pointer("/spec/template/spec/containers");
    list.and_then(Value::as_array).into_iter().flatten()
}

/// The words of the containers' commands, also of a command that a shell reads from one text.
fn words(set: &Value) -> Vec<&str> {
    let lists = containers(set).flat_map(|one| [&one["command"], &one["args"]]);
    let texts = lists.filter_map(Value::as_array).flatten();
    let texts = texts.filter_map(Value::as_str);
    texts.flat_map(str::split_whitespace).collect()
}

/// The value of a flag: `--flag=value` or `--flag value`.
fn argument<'a>(words: &[&'a str], flag: &str) -> Option<&'a str> {
    let mut places = words.iter().enumerate();
    places.find_map(|(at, &word)| match word.strip_prefix(flag)? {
        "" => words.get(at + 1).copied(),
        rest => rest.strip_prefix('='),
    })
}

/// Lines about Cilium in place of kube-proxy, and about each setting in `lines.txt` that it has.
fn cilium(cluster: &Cluster) -> Vec<Line> {
    let is_set = |mark: &&str| {
        let (key, value) = mark.split_once('=').unwrap_or_default();
        cluster.has("configmaps") && cluster.setting("cilium-config", key) == value
    };
    let settings = marks("cilium ").filter(is_set);
    let settings = settings.map(|mark| line(&format!("cilium {mark}"), ""));
    [line("cilium", "")].into_iter().chain(settings).collect()
}
