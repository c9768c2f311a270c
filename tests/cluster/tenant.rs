//! Somebody who may edit one namespace, and what he can do to the node: nothing.

use std::net::IpAddr;
use std::thread;
use std::time::Duration;

use node_tests::cluster::{Mode, create, namespace};
use node_tests::scene::family_of;
use node_tests::usage;
use node_tests::world::{Family, HEALTHZ_PORT};
use rstest::rstest;
use serde_json::{Value, json};

use crate::scene::{PATIENCE, Scene, until};

const SERVICE: &str = "/api/v1/namespaces/pathproof/services/pathproof-sentinel";
const CLAIM: &str = "/api/v1/namespaces/shop/services/claim";
/// Four times what a fault takes to show.
const WHILE: Duration = Duration::from_secs(6);

impl Scene {
    /// A Service of a tenant's with these external IPs, on a port, to a server of his.
    fn claim(&self, external_ips: &[IpAddr], port: u64) {
        self.claim_ports(external_ips, &[port]);
    }

    /// The same on several ports.
    fn claim_ports(&self, external_ips: &[IpAddr], ports: &[u64]) {
        namespace(&self.api, "shop").expect("a namespace");
        let port = |number: &u64| {
            let name = if *number == ports[0] {
                "http".to_owned()
            } else {
                format!("p{number}")
            };
            json!({ "name": name, "port": number, "targetPort": 8080 })
        };
        let ports: Vec<Value> = ports.iter().map(port).collect();
        // The slices serve each of them.
        let served =
            |port: &Value| json!({ "name": port["name"], "port": 8080, "protocol": "TCP" });
        let served: Vec<Value> = ports.iter().map(served).collect();
        let service = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": { "name": "claim", "namespace": "shop" },
            "spec": {
                "ipFamilyPolicy": "PreferDualStack", "externalIPs": external_ips, "ports": ports,
            },
        });
        create(&self.api, service).expect("a Service");
        for family in Family::ALL {
            let kind = match family {
                Family::V4 => "IPv4",
                Family::V6 => "IPv6",
            };
            let slice = json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                "metadata": {
                    "name": format!("claim-{}", kind.to_lowercase()), "namespace": "shop",
                    "labels": { "kubernetes.io/service-name": "claim" },
                },
                "addressType": kind,
                "ports": served,
                "endpoints": [{ "addresses": [self.world.pod("api-1").address(family)] }],
            });
            create(&self.api, slice).expect("a slice");
        }
    }

    /// The sentinel's node port by TCP.
    fn node_port(&self) -> u64 {
        let service = self.api.get(SERVICE).expect("the sentinel");
        let ports = service["spec"]["ports"].as_array().expect("ports");
        let tcp = ports.iter().find(|port| port["protocol"] == "TCP");
        let port = tcp.and_then(|port| port["nodePort"].as_u64());
        port.expect("a node port")
    }

    fn cluster_ips(&self) -> Vec<IpAddr> {
        let service = self.api.get(SERVICE).expect("the sentinel");
        let ips = service["spec"]["clusterIPs"].as_array().expect("IPs");
        let ip = |ip: &Value| ip.as_str().and_then(|ip| ip.parse().ok());
        ips.iter().filter_map(ip).collect()
    }

    /// Whether lanes of a path are claimed by the tenant, in both families.
    fn is_claimed(&self, path: &str) -> bool {
        let report = self.agent().verdict().unwrap_or_default();
        Family::ALL.into_iter().all(|family| {
            let lanes = family_of(&report, family)["lanes"].as_array();
            let claimed = |lane: &Value| {
                lane["path"] == path && lane["transport"] == "tcp" && lane["rival"] == "shop/claim"
            };
            lanes.is_some_and(|lanes| lanes.iter().any(claimed))
        })
    }

    /// The agent's account of claims, once it names so many frontends of an owner.
    fn wait_claims(&self, owner: &str, count: u64) -> Value {
        let mut last = Value::Null;
        let seen = until(PATIENCE, || {
            last = self.agent().verdict().ok()?["claims"].clone();
            (last[owner] == count).then_some(())
        });
        assert!(seen.is_some(), "never {count} of {owner}: {last:#}");
        last
    }

    /// Waits for the one Event about claims.
    fn wait_contested_event(&self, said: &str) {
        let events = "/apis/events.k8s.io/v1/namespaces/default/events";
        let mut last = Value::Null;
        let seen = until(PATIENCE, || {
            last = self.api.get(events).ok()?;
            let contested = |of: &&Value| of["reason"] == "FrontendsContested";
            let told: Vec<&Value> = last["items"].as_array()?.iter().filter(contested).collect();
            assert!(told.len() < 2, "{told:#?}");
            let [event] = told[..] else { return None };
            let note = event["note"].as_str().unwrap_or_default();
            assert!(
                event["type"] == "Warning" && note.contains(said),
                "{event:#}"
            );
            Some(())
        });
        assert!(seen.is_some(), "no Event: {last:#}");
    }
}

/// What is claimed: of the node's addresses and the sentinel's.
#[derive(Clone, Copy, Debug)]
enum Claim {
    NodePort,
    ClusterIp,
    /// Where the sentinel's own endpoint is.
    Echo,
}

#[rstest]
#[case::node_port(Mode::Nftables, Claim::NodePort, Some("node_port"))]
#[case::node_port_in_iptables_mode(Mode::Iptables, Claim::NodePort, Some("node_port"))]
#[case::cluster_ip(Mode::Nftables, Claim::ClusterIp, Some("off_cluster"))]
#[case::the_sentinels_endpoint(Mode::Nftables, Claim::Echo, None)]
fn a_tenant_who_claims_what_is_probed_takes_no_node_out(
    #[case] mode: Mode,
    #[case] claim: Claim,
    #[case] claimed: Option<&str>,
) {
    let name = "a_tenant_who_claims_what_is_probed_takes_no_node_out";
    let Some(mut scene) = Scene::proven(name, mode, &[]) else {
        return;
    };
    let watch = scene.watch_healthy();
    let (addresses, port) = match claim {
        Claim::NodePort => {
            let addresses = Family::ALL.map(|family| scene.world.node_address(family));
            (addresses.to_vec(), scene.node_port())
        }
        Claim::ClusterIp => (scene.cluster_ips(), 80),
        Claim::Echo => {
            let echo = ["198.18.0.2", "2001:2::2"].map(|ip| ip.parse().expect("an address"));
            (echo.to_vec(), 80)
        }
    };
    scene.claim(&addresses, port);
    // kube-proxy serves it.
    if mode == Mode::Nftables && !matches!(claim, Claim::ClusterIp) {
        let element = format!("{} . tcp . {port} ", addresses[0]);
        let served = || {
            scene
                .proxy()
                .rules()
                .is_ok_and(|rules| rules.contains(&element))
        };
        let seen = until(PATIENCE, || served().then_some(()));
        assert!(seen.is_some(), "never served: {element}");
    }
    if let Some(path) = claimed {
        let seen = until(PATIENCE, || scene.is_claimed(path).then_some(()));
        let report = scene.agent().verdict().expect("a verdict");
        assert!(seen.is_some(), "never claimed: {report:#}");
    }
    thread::sleep(WHILE);
    let report = scene.agent().verdict().expect("a verdict");
    assert_eq!(report["verdict"]["state"], "proven", "{report:#}");
    let sound = |codes: node_tests::watch::Codes| codes.healthz != 503;
    let changes = watch.changes();
    assert!(
        changes.iter().all(|change| sound(change.codes)),
        "false 503: {changes:?}"
    );

    // The other lanes go on judging. Node ports that are refused alone are no fault for certain.
    if mode == Mode::Nftables && !matches!(claim, Claim::ClusterIp) {
        for family in ["ip", "ip6"] {
            let script = format!("delete table {family} kube-proxy\n");
            scene.world.node.nft(&script).expect("no table");
        }
        scene.wait_for("broken", 503, PATIENCE);
        scene.proxy = None;
        scene.start_proxy();
        scene.wait_for("proven", 200, PATIENCE);
    }
    scene.api.delete(CLAIM).expect("delete a Service");
    scene.wait_proven();
}

/// A million frontends out of one object. kube-proxy sleeps meanwhile: it would build them.
#[test]
fn a_product_of_ports_and_addresses_is_named_and_takes_no_memory() {
    let name = "a_product_of_ports_and_addresses_is_named_and_takes_no_memory";
    let Some(scene) = Scene::proven(name, Mode::Nftables, &[]) else {
        return;
    };
    let pid = scene.agent().pid();
    let before = usage::memory(pid).expect("memory").peak_kib;
    scene.proxy().freeze();
    namespace(&scene.api, "shop").expect("a namespace");
    let ports: Vec<Value> = (1..=1_000)
        .map(|port| json!({ "name": format!("p{port}"), "port": port }))
        .collect();
    let ips = (0..1_000).map(|ip: u32| std::net::Ipv4Addr::from(0xC633_6400 + ip));
    let ips: Vec<std::net::Ipv4Addr> = ips.collect();
    let service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": { "name": "claim", "namespace": "shop" },
        "spec": { "externalIPs": ips, "ports": ports },
    });
    create(&scene.api, service).expect("a Service");
    let named = until(PATIENCE, || {
        let report = scene.agent().verdict().ok()?;
        let problems = report["cluster"]["problems"].as_array()?.clone();
        let excess = "Service shop/claim has 1001000 frontends";
        let told = |problem: &Value| {
            problem
                .as_str()
                .is_some_and(|text| text.starts_with(excess))
        };
        problems.iter().any(told).then_some(())
    });
    let report = scene.agent().verdict().expect("a verdict");
    assert!(named.is_some(), "never named: {:#}", report["cluster"]);
    assert_eq!(report["verdict"]["state"], "proven", "{report:#}");
    let after = usage::memory(pid).expect("memory").peak_kib;
    println!("resident at most: {before} KiB before, {after} KiB after");
    assert!(after < before + 16 * 1024, "{before} KiB, {after} KiB");
    scene.api.delete(CLAIM).expect("delete a Service");
    scene.proxy().thaw();
}

/// An external IP that is another Service's cluster IP, under traffic: whichever of them kube-proxy
/// serves, no verdict changes by it, and both owners are named.
#[rstest]
#[case::nftables(Mode::Nftables)]
#[case::iptables(Mode::Iptables)]
fn a_tenant_who_claims_anothers_cluster_ip_touches_no_verdict(#[case] mode: Mode) {
    let name = "a_tenant_who_claims_anothers_cluster_ip_touches_no_verdict";
    let Some(mut scene) = Scene::proven(name, mode, &[]) else {
        return;
    };
    scene.traffic();
    thread::sleep(WHILE);
    let watch = scene.watch_healthy();
    let web = scene.manifests.service("web");
    let ips = Family::ALL.map(|family| web.cluster_ip(family));
    scene.claim(&ips, 80);
    let claims = scene.wait_claims("services", 2);
    for claim in claims["first"].as_array().expect("claims") {
        assert_eq!(
            claim["services"],
            json!(["demo/web", "shop/claim"]),
            "{claims:#}"
        );
    }
    // His server is gone: what reaches it is lost or refused.
    scene.servers.remove("api-1");
    thread::sleep(WHILE);
    let report = scene.agent().verdict().expect("a verdict");
    let services = report["verdict"]["services"].to_string();
    assert!(!services.contains("demo/web"), "{report:#}");
    let changes = watch.changes();
    assert!(
        changes.iter().all(|change| change.codes.healthz != 503),
        "false 503: {changes:?}"
    );
    scene.wait_contested_event("demo/web and shop/claim claim");
    scene.serve("api-1");
    scene.api.delete(CLAIM).expect("delete a Service");
    scene.wait_claims("services", 0);
    scene.wait_proven();
}

/// The ports at which load balancers ask this agent, at this node's addresses.
#[test]
fn a_tenant_who_claims_the_health_port_is_named() {
    let name = "a_tenant_who_claims_the_health_port_is_named";
    let Some(scene) = Scene::proven(name, Mode::Nftables, &[]) else {
        return;
    };
    let addresses = Family::ALL.map(|family| scene.world.node_address(family));
    scene.claim(&addresses, HEALTHZ_PORT.into());
    let claims = scene.wait_claims("node", 2);
    assert_eq!(
        claims["first"][0]["services"],
        json!(["shop/claim"]),
        "{claims:#}"
    );
    scene.wait_contested_event("which is this agent's own port");
    let report = scene.agent().verdict().expect("a verdict");
    assert_eq!(report["verdict"]["state"], "proven", "{report:#}");
}

/// Cluster IPs and node ports are claimed, both families: nothing is proven or accused, but a table
/// that is gone is a fault all the same.
#[rstest]
#[case::nftables(Mode::Nftables)]
#[case::iptables(Mode::Iptables)]
fn a_node_of_which_everything_is_claimed_is_not_blind(#[case] mode: Mode) {
    let name = "a_node_of_which_everything_is_claimed_is_not_blind";
    let Some(mut scene) = Scene::proven(name, mode, &[]) else {
        return;
    };
    let mut addresses = scene.cluster_ips();
    addresses.extend(Family::ALL.map(|family| scene.world.node_address(family)));
    let watch = scene.watch_healthy();
    scene.claim_ports(&addresses, &[80, scene.node_port()]);
    for path in ["off_cluster", "node_port"] {
        let seen = until(PATIENCE, || scene.is_claimed(path).then_some(()));
        assert!(seen.is_some(), "never claimed: {path}");
    }
    thread::sleep(WHILE);
    let changes = watch.changes();
    assert!(
        changes.iter().all(|change| change.codes.healthz != 503),
        "false 503: {changes:?}"
    );
    match mode {
        Mode::Nftables => {
            for family in ["ip", "ip6"] {
                let script = format!("delete table {family} kube-proxy\n");
                scene.world.node.nft(&script).expect("no table");
            }
        }
        _ => scene
            .proxy()
            .iptables("-t nat -F KUBE-SERVICES")
            .expect("a flush"),
    }
    scene.wait_for("broken", 503, PATIENCE);
    scene.proxy = None;
    scene.start_proxy();
    let over = until(PATIENCE, || {
        let report = scene.agent().verdict().ok()?;
        (report["answers"]["healthz"]["status"] == 200).then_some(())
    });
    assert!(over.is_some(), "never 200 again");
    scene.api.delete(CLAIM).expect("delete a Service");
    scene.wait_proven();
}
