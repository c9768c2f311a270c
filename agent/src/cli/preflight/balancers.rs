//! Health checks of the load balancers of Services (docs/load-balancers.md).

use serde_json::Value;

use super::read::{Cluster, name, note, text};
use super::{Line, line, marks, merged};

const AWS: &str = "service.beta.kubernetes.io/aws-load-balancer-";
/// Providers whose check is set by annotations: their prefix, with the port for `{}`, and the name of the one
/// for the path.
const ANNOTATED: [&str; 3] = [
    "aws service.beta.kubernetes.io/aws-load-balancer-healthcheck- path",
    "azure service.beta.kubernetes.io/port_{}_health-probe_ request-path",
    "hcloud load-balancer.hetzner.cloud/health-check- http-path",
];

pub(super) fn lines(cluster: &Cluster) -> Vec<Line> {
    let usual = provider(cluster);
    let services = cluster.list("services").iter();
    let balanced = services.filter(|service| text(service, "/spec/type") == "LoadBalancer");
    let lines = merged(balanced.map(|service| (name(service), check(service, usual))));
    match lines.is_empty() && cluster.has("services") {
        true => vec![line("no balancer", "")],
        false => lines,
    }
}

/// The cloud in a Node's providerID, or a program that runs as a DaemonSet.
fn provider(cluster: &Cluster) -> Option<&'static str> {
    let nodes = cluster.list("nodes").iter();
    let sets = cluster.list("daemonsets").iter();
    let clouds = nodes.map(|node| text(node, "/spec/providerID"));
    let mut all = clouds.chain(sets.map(|set| text(set, "/metadata/name")));
    all.find_map(known)
}

fn known(name: &str) -> Option<&'static str> {
    marks("balancer ").find(|&mark| name.contains(mark))
}

fn check(service: &Value, usual: Option<&'static str>) -> Line {
    let class = text(service, "/spec/loadBalancerClass");
    let by = if class.is_empty() {
        usual
    } else {
        known(class)
    };
    let Some(by) = by else {
        return line("other balancer", class);
    };
    let aws = |name: &str| note(service, &format!("{AWS}{name}"));
    let is_local = text(service, "/spec/externalTrafficPolicy") == "Local";
    let mut rows = ANNOTATED.into_iter();
    let annotated = rows.find_map(|row| row.strip_prefix(by)?.trim_start().split_once(' '));
    match annotated {
        _ if aws("nlb-target-type") == "ip" || aws("type") == "nlb-ip" => line("pods", by),
        Some(_) if is_local => line("health port", by),
        Some((prefix, path)) => annotations(service, by, prefix, path),
        None if is_local && matches!(by, "gce" | "digitalocean") => line("health port", by),
        None => line(&format!("balancer {by}"), by),
    }
}

/// The check that a Service's annotations set. On Azure each port has its own.
fn annotations(service: &Value, by: &str, prefix: &str, path: &str) -> Line {
    let ports = service.pointer("/spec/ports").and_then(Value::as_array);
    for port in ports.into_iter().flatten() {
        let prefix = prefix.replace("{}", &port["port"].to_string());
        let value = |name: &str| note(service, &format!("{prefix}{name}"));
        match [value("protocol"), value("port"), value(path)] {
            [protocol, "10256", "/healthz"] if protocol.eq_ignore_ascii_case("http") => {}
            [_, "" | "traffic-port", _] => return line(&format!("balancer {by}"), by),
            other => return line("other check", &format!("{by} ({})", other.join(" "))),
        }
    }
    line("checked", by)
}
