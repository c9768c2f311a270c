//! Health checks of the load balancers of Services (docs/load-balancers.md).

use serde_json::Value;

use super::read::{Cluster, name, note, text};
use super::{Line, line, marks, merged};

const AWS: &str = "service.beta.kubernetes.io/aws-load-balancer-";
/// Its mere presence, with any value, moves the check to a node port of the Service.
const OVERRIDE: &str = "service.beta.kubernetes.io/do-loadbalancer-override-health-check";
/// EKS Auto Mode. Its targets are pods unless an annotation is `instance`.
const AUTO_MODE: &str = "eks.amazonaws.com";
/// Programs that run as DaemonSets.
const PROGRAMS: [&str; 5] = ["speaker", "metallb", "kube-vip", "keepalived", "svclb-"];
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

/// The cloud in a Node's providerID, or a program that runs as a DaemonSet. Only a providerID's scheme counts:
/// people choose the names that follow.
fn provider(cluster: &Cluster) -> Option<&'static str> {
    let mut nodes = cluster.list("nodes").iter();
    let cloud = nodes.find_map(|node| {
        let (scheme, _) = text(node, "/spec/providerID").split_once("://")?;
        marks("balancer ").find(|&mark| mark == scheme)
    });
    let mut sets = cluster.list("daemonsets").iter();
    cloud.or_else(|| {
        sets.find_map(|set| {
            let name = text(set, "/metadata/name");
            PROGRAMS.into_iter().find(|&program| name.contains(program))
        })
    })
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
    let by = match aws("nlb-target-type") {
        "instance" if by == AUTO_MODE => "aws",
        _ => by,
    };
    let is_overridden = || {
        let set = service["metadata"]["annotations"].get(OVERRIDE);
        by == "digitalocean" && set.is_some()
    };
    let is_local = is_local(service);
    let mut rows = ANNOTATED.into_iter();
    let annotated = rows.find_map(|row| row.strip_prefix(by)?.trim_start().split_once(' '));
    match annotated {
        _ if aws("nlb-target-type") == "ip" || aws("type") == "nlb-ip" => line("pods", by),
        _ if is_overridden() => other(service, by, OVERRIDE),
        Some((prefix, path)) => annotations(service, by, prefix, path),
        None if is_local && matches!(by, "gce" | "digitalocean") => line("health port", by),
        None => line(&format!("balancer {by}"), by),
    }
}

fn is_local(service: &Value) -> bool {
    text(service, "/spec/externalTrafficPolicy") == "Local"
}

/// The port that gives the verdict. With policy Local, 10256 would keep nodes without an endpoint in use.
fn wanted(service: &Value) -> String {
    match is_local(service) {
        true => service["spec"]["healthCheckNodePort"].to_string(),
        false => "10256".to_owned(),
    }
}

fn other(service: &Value, by: &str, set: &str) -> Line {
    let port = wanted(service);
    let shown = format!("http {port} /healthz: {by} ({set})");
    line("other check", &shown)
}

/// The check that a Service's annotations set. On Azure each port has its own. With policy Local they change
/// parts of a check of the healthCheckNodePort, except on Hetzner, which knows no such check.
fn annotations(service: &Value, by: &str, prefix: &str, path: &str) -> Line {
    let (is_local, wanted) = (is_local(service), wanted(service));
    let defaults = match is_local && by != "hcloud" {
        true => ["http", wanted.as_str(), "/healthz"],
        false => [""; 3],
    };
    let ports = service.pointer("/spec/ports").and_then(Value::as_array);
    for port in ports.into_iter().flatten() {
        let prefix = prefix.replace("{}", &port["port"].to_string());
        let value = |name: &str, at: usize| match note(service, &format!("{prefix}{name}")) {
            "" => defaults[at],
            set => set,
        };
        let [protocol, number, path] = [value("protocol", 0), value("port", 1), value(path, 2)];
        let is_http = protocol.eq_ignore_ascii_case("http");
        match number {
            _ if is_http && number == wanted && path == "/healthz" => {}
            "" => return line(&format!("balancer {by}"), by),
            "traffic-port" if !is_local => return line(&format!("balancer {by}"), by),
            _ => return other(service, by, &[protocol, number, path].join(" ")),
        }
    }
    match is_local {
        true => line("health port", by),
        false => line("checked", by),
    }
}
