//! Health checks of load balancers, by Service.

use super::*;

/// A Service's provider, policy, class and annotations.
#[rstest]
#[case("gce", "Cluster", "", &[], "ok", ":10256/healthz")]
#[case("digitalocean", "Local", "", &[], "ok", "healthCheckNodePort")]
#[case("aws", "Cluster", "", &[], "warning", "TCP")]
#[case("aws", "Local", "", &[], "ok", "healthCheckNodePort")]
#[case("aws", "Local", "", &CHECK[..1], "ok", "healthCheckNodePort")]
#[case(
    "aws",
    "Local",
    "",
    CHECK,
    "warning",
    "not http 32000 /healthz: aws (http 10256 /healthz)"
)]
#[case("aws", "Local", "", TRAFFIC, "warning", "(tcp traffic-port /healthz)")]
#[case("aws", "Cluster", "", TRAFFIC, "warning", "TCP")]
#[case("hcloud", "Local", "", &[], "warning", "TCP")]
#[case("digitalocean", "Local", "", OVERRIDE, "warning", "not http 32000")]
#[case("digitalocean", "Cluster", "", OVERRIDE, "warning", "not http 10256")]
#[case("gce", "Cluster", "", OVERRIDE, "ok", ":10256/healthz")]
#[case("k3s://gce-web-1", "Cluster", "", &[], "unknown", "not known")]
#[case("azure:///mc_gce_prod", "Cluster", "", &[], "warning", "(azure)")]
#[case(
    "aws",
    "Cluster",
    "eks.amazonaws.com/nlb",
    CHECK,
    "warning",
    "unless its target type"
)]
#[case("aws", "Cluster", "eks.amazonaws.com/nlb", INSTANCE, "warning", "TCP")]
#[case("aws", "Cluster", "", &[("aws-load-balancer-type", "nlb-ip")], "warning", "to pods")]
#[case("aws", "Cluster", "", CHECK, "ok", ":10256/healthz")]
#[case("aws", "Cluster", "", &CHECK[..2], "warning", "(http 10256 )")]
#[case("aws", "Cluster", "example.com/other", &[], "unknown", "example.com/other")]
#[case("", "Cluster", "service.k8s.aws/nlb", &[], "warning", "TCP")]
#[case("", "Local", "metallb", &[], "warning", "MetalLB")]
#[case("openstack", "Local", "", &[], "warning", "create-monitor")]
#[case("vsphere", "Cluster", "", &[], "unknown", "not known")]
fn what_a_load_balancer_requests(
    #[case] provider: &str,
    #[case] policy: &str,
    #[case] class: &str,
    #[case] notes: &[(&str, &str)],
    #[case] verdict: &str,
    #[case] words: &str,
) {
    let notes = notes.iter();
    let notes = notes.map(|(key, value)| (format!("service.beta.kubernetes.io/{key}"), *value));
    let notes: BTreeMap<String, &str> = notes.collect();
    let service = json!({
        "metadata": { "name": "web", "namespace": "shop", "annotations": notes },
        "spec": { "type": "LoadBalancer", "ports": [{ "port": 80 }],
            "externalTrafficPolicy": policy, "loadBalancerClass": class,
            "healthCheckNodePort": 32000 },
    });
    let node = json!({ "spec": { "providerID": format!("{provider}:///1") } });
    let lines = with(json!({ "nodes": [node], "services": [service] }));
    let line = find(&lines, "load balancer", words);
    assert_eq!(
        (line.verdict, &*line.objects),
        (verdict, &["shop/web".to_owned()][..])
    );
}

const CHECK: &[(&str, &str)] = &[
    ("aws-load-balancer-healthcheck-protocol", "http"),
    ("aws-load-balancer-healthcheck-port", "10256"),
    ("aws-load-balancer-healthcheck-path", "/healthz"),
];
const TRAFFIC: &[(&str, &str)] = &[
    ("aws-load-balancer-healthcheck-protocol", "tcp"),
    ("aws-load-balancer-healthcheck-port", "traffic-port"),
];
const OVERRIDE: &[(&str, &str)] = &[("do-loadbalancer-override-health-check", "")];
const INSTANCE: &[(&str, &str)] = &[("aws-load-balancer-nlb-target-type", "instance")];

/// A DaemonSet's name identifies a program, but no cloud.
#[rstest]
#[case("metallb-speaker", "warning", "MetalLB")]
#[case("keepalived-vip", "warning", "except at 127.10.2.56")]
#[case("aws-node", "unknown", "not known")]
fn a_program_that_serves_load_balancers(
    #[case] name: &str,
    #[case] verdict: &str,
    #[case] words: &str,
) {
    let service = json!({ "metadata": { "name": "web" }, "spec": { "type": "LoadBalancer" } });
    let set = json!({ "metadata": { "name": name } });
    let lines = with(json!({ "daemonsets": [set], "services": [service] }));
    assert_eq!(find(&lines, "load balancer", words).verdict, verdict);
}
