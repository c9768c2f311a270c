//! Attacks by a tenant who may edit one namespace: connections of the tenant's pods, policies, and the size
//! of objects. `tenant` has the claims of addresses.
//!
//! In spite of policies and of objects of any size, the agent must still judge everything else.

use std::net::IpAddr;
use std::ops::Range;

use aya::maps::{Array, Map, MapData};
use node_tests::cluster::{create, namespace};
use node_tests::manifests::{ports, service, slice};
use node_tests::prelude::*;
use node_tests::traffic::Flood;
use node_tests::usage;
use node_tests::world::NODE_NAME;
use pathproof_wire::abi::{ABI_VERSION, MAX_PENDING, map};
use pathproof_wire::evidence::UdpPorts;

use crate::scene::{PATIENCE, PORT, Scene};

const TENANT: &str = "tenant";
const SERVICES: &str = "/api/v1/namespaces/tenant/services";
/// Memory limit of the agent's container in deploy/base, in KiB.
const MEMORY: u64 = 128 * 1024;
/// Time in which a fault shows once failed probes count, plus a second.
const SHOWS: Duration = Duration::from_secs(3);

/// Addresses of pods that do not exist, on another node.
fn nobody(number: u8) -> Vec<String> {
    (100..100 + number)
        .map(|last| format!("10.244.1.{last}"))
        .collect()
}

impl Scene {
    /// Creates a Service with these ports. Returns its cluster IP.
    fn service(&self, namespace: &str, name: &str, ports: &[Value]) -> IpAddr {
        let object = service(namespace, name, json!({ "ports": ports }));
        create(&self.api, object).expect("a Service");
        let path = format!("/api/v1/namespaces/{namespace}/services/{name}");
        let service = self.api.get(&path).expect("a Service");
        let ip = service["spec"]["clusterIP"].as_str();
        let ip = ip.and_then(|ip| ip.parse().ok());
        ip.expect("a cluster IP")
    }

    fn endpoints(&self, namespace: &str, name: &str, addresses: &[String], numbers: Range<u16>) {
        let endpoint = |address: &String| json!({ "addresses": [address] });
        let endpoints: Vec<Value> = addresses.iter().map(endpoint).collect();
        let ports = ports(numbers, "TCP", Some(PORT));
        let slice = slice(namespace, name, Family::V4, &ports, &endpoints);
        create(&self.api, slice).expect("a slice");
    }

    /// Creates a Service with one port and these pods as endpoints. Returns its frontend.
    fn small(&self, namespace: &str, name: &str, pods: &[&str]) -> SocketAddr {
        let ip = self.service(namespace, name, &ports(80..81, "TCP", None));
        self.endpoints(namespace, name, &self.addresses(pods), 80..81);
        SocketAddr::new(ip, 80)
    }

    fn addresses(&self, pods: &[&str]) -> Vec<String> {
        let address = |pod: &&str| self.world.pod(pod).v4.to_string();
        pods.iter().map(address).collect()
    }

    fn pod_plan(&self, pod: &str, target: SocketAddr, rate: f64) -> Plan {
        Plan::from_pod(&self.world, self.world.pod(pod), target).rate(rate)
    }

    fn web(&self) -> SocketAddr {
        SocketAddr::new(self.manifests.service("web").cluster_ip(Family::V4), 80)
    }

    /// Asserts that the agent judges a new Service of another namespace. The frozen proxy has no rule for
    /// this Service, so its connections leave untranslated, which the agent must report.
    fn another_is_judged(&mut self, name: &str) {
        let target = self.small("demo", name, &["web-1"]);
        let plan = self.pod_plan("client-1", target, 5.0);
        let client = plan.start().expect("a client");
        let service = format!("demo/{name}");
        self.wait("the other namespace's Service is judged", |report| {
            blames(report, &service)
        });
        client.finish();
    }
}

fn losses(report: &Value) -> Vec<String> {
    let losses = report["verdict"]["coverage"]["losses"].as_array();
    let name = |loss: &Value| loss["loss"].to_string();
    losses.map_or_else(Vec::new, |all| all.iter().map(name).collect())
}

/// Runs all attacks by pods in one cluster. The location of a panic shows which part failed.
#[test]
fn a_tenants_pods_take_no_node_out() {
    let options = ["--flap-dwell", "0"];
    let mut scene = needs!(Scene::proven(Mode::Nftables, &options));
    namespace(&scene.api, TENANT).expect("a namespace");
    let before = mark_ports_of_udp_services(&scene);
    // This part is first, because no other pod may have dialled before.
    a_policy_of_the_only_tenant_breaks_no_node(&mut scene);
    endpoints_outside_are_no_missing_routes(&mut scene);
    a_flood_to_a_service_without_endpoints_fills_no_map(&mut scene);
    a_pod_that_keeps_its_port_makes_no_node_stale(&mut scene);
    udp_services_that_went_leave_no_port_marked(&scene, before);
}

/// On a quiet node two pods use two Services of the tenant. This works until the tenant's policy drops the
/// pods' packets.
fn a_policy_of_the_only_tenant_breaks_no_node(scene: &mut Scene) {
    let targets = [
        scene.small(TENANT, "one", &["web-1", "web-2"]),
        scene.small(TENANT, "two", &["api-1", "web-2"]),
    ];
    for pod in ["client-1", "client-2"] {
        for target in targets {
            let client = scene.pod_plan(pod, target, 5.0).start();
            scene.clients.push(client.expect("a client"));
        }
    }
    let served = until(PATIENCE, || {
        let all = |client: &node_tests::traffic::Client| client.tally().ok > 3;
        scene.clients.iter().all(all).then_some(())
    });
    assert!(served.is_some(), "the tenant's Services never worked");
    let watch = scene.watch_healthy();
    let device = |pod: &str| scene.world.pod(pod).device.clone();
    let policy = format!(
        "table inet netpolicy {{ chain it {{ type filter hook forward priority -5;\n\
         iifname {{ {}, {} }} drop\n}}\n}}\n",
        device("client-1"),
        device("client-2")
    );
    scene.world.node.nft(&policy).expect("a policy");
    scene.wait("degraded", |report| {
        assert_never_503(&watch);
        report["verdict"]["state"] == "degraded"
    });
    thread::sleep(settled() + SHOWS);
    assert_never_503(&watch);
    let report = scene.report();
    assert_eq!(report["verdict"]["state"], "degraded", "{report:#}");

    // Beside the policy, a fault of the node must still be found.
    let table = "delete table ip kube-proxy\ndelete table ip6 kube-proxy\n";
    scene.world.node.nft(table).expect("no tables");
    scene.wait_for("broken", 503, PATIENCE);
    let over = "delete table inet netpolicy\n";
    scene.world.node.nft(over).expect("no policy");
    scene.proxy = None;
    scene.start_proxy();
    scene.wait_proven();
    scene.clients.clear();
}

/// Services of two namespaces list addresses outside as endpoints of this node. Connections to them leave by
/// the uplink and stay unanswered, as if routes of pods were missing.
fn endpoints_outside_are_no_missing_routes(scene: &mut Scene) {
    let watch = scene.watch_healthy();
    let other = "tenant-prod";
    namespace(&scene.api, other).expect("a namespace");
    for (pod, namespace, address) in [
        ("client-1", TENANT, "203.0.113.66"),
        ("client-2", other, "203.0.113.67"),
    ] {
        let ip = scene.service(namespace, "outside", &ports(80..81, "TCP", None));
        let endpoint = json!({ "addresses": [address], "nodeName": NODE_NAME });
        let ports = ports(80..81, "TCP", Some(PORT));
        let slice = slice(namespace, "outside", Family::V4, &ports, &[endpoint]);
        create(&scene.api, slice).expect("a slice");
        let client = scene.pod_plan(pod, SocketAddr::new(ip, 80), 5.0).start();
        scene.clients.push(client.expect("a client"));
    }
    scene.wait("both connections leave by the uplink", |report| {
        assert_never_503(&watch);
        let leads_away = |namespace: &str| {
            let mut sightings = report["sightings"].as_array().into_iter().flatten();
            let service = format!("{namespace}/outside");
            sightings.any(|seen| {
                seen["failure"] == "misrouted"
                    && seen["service"]
                        .as_str()
                        .is_some_and(|name| name.starts_with(&service))
            })
        };
        leads_away(TENANT) && leads_away(other)
    });
    thread::sleep(settled() + SHOWS);
    assert_never_503(&watch);
    scene.clients.clear();
    for namespace in [TENANT, other] {
        let path = format!("/api/v1/namespaces/{namespace}/services/outside");
        scene.api.delete(&path).expect("delete a Service");
    }
    scene.wait_proven();
}

/// Three pods send SYNs to a Service without endpoints, which the proxy rejects. In half a minute they send
/// more than the map of pending connections can hold.
fn a_flood_to_a_service_without_endpoints_fills_no_map(scene: &mut Scene) {
    let empty = SocketAddr::new(
        scene.service(TENANT, "empty", &ports(80..81, "TCP", None)),
        80,
    );
    let watch = scene.watch_healthy();
    let honest = scene.pod_plan("client-1", scene.web(), 5.0);
    scene.clients.push(honest.start().expect("a client"));
    let floods = ["client-2", "spare", "api-1"].map(|pod| {
        let pod = scene.world.pod(pod);
        Flood::of_pod(pod, empty, 1_500).expect("a flood")
    });
    thread::sleep(Duration::from_secs(10));
    let sent: u64 = floods.iter().map(Flood::sent).sum();
    drop(floods);
    assert!(
        sent > MAX_PENDING.into(),
        "too few SYNs show nothing: {sent}"
    );
    assert_never_503(&watch);
    let report = scene.report();
    let coverage = &report["verdict"]["coverage"];
    let full = losses(&report).iter().any(|loss| loss.contains("pending"));
    assert!(!full, "{coverage:#}");
    assert_eq!(coverage["lost_suspended"], false, "{coverage:#}");
    assert_eq!(coverage["misrouted_suspended"], false, "{coverage:#}");
    let proof = || {
        family_of(&scene.agent().verdict().ok()?, Family::V4)["paths"]
            .to_string()
            .into()
    };
    let before: Option<String> = proof();
    thread::sleep(Duration::from_secs(1));
    assert_ne!(before, proof(), "no connection is followed any more");
    assert_never_503(&watch);
    scene.clients.clear();
}

/// A pod dials a silent endpoint, always from the same source port. After the endpoint is removed, the pod's
/// SYNs keep the old conntrack entry alive and still go to this endpoint. This must not make the node stale.
/// Meanwhile another pod connects to a working Service of another namespace.
fn a_pod_that_keeps_its_port_makes_no_node_stale(scene: &mut Scene) {
    let silent = "table inet silent { chain it { type filter hook prerouting priority -300;\n\
                  tcp dport 8080 drop\n}\n}\n";
    scene.world.pod("spare").ns.nft(silent).expect("silence");
    let kept = scene.small(TENANT, "kept", &["spare"]);
    let mut stubborn = scene.pod_plan("client-2", kept, 1.0);
    stubborn.ports = stubborn.ports.start..stubborn.ports.start + 1;
    let stubborn = stubborn.patience(Duration::from_millis(700));
    let honest = scene.pod_plan("client-1", scene.web(), 5.0);
    scene.clients.push(honest.start().expect("a client"));
    scene.clients.push(stubborn.start().expect("a client"));
    let failed = until(PATIENCE, || {
        (scene.clients[1].tally().timeouts > 1).then_some(())
    });
    assert!(failed.is_some(), "{:?}", scene.clients[1].tally());
    let watch = scene.watch_healthy();
    scene.endpoints(TENANT, "kept", &scene.addresses(&["web-1"]), 80..81);
    // Wait longer than 15 s: then connections to a removed endpoint are a sign of a stale proxy.
    thread::sleep(Duration::from_secs(20));
    assert_never_503(&watch);
    let report = scene.wait("stale connections", |report| {
        let services = report["verdict"]["services"].as_array();
        let services = services.map_or(&[][..], Vec::as_slice);
        services
            .iter()
            .any(|service| service["service"].to_string().contains("tenant/kept"))
    });
    assert_ne!(report["verdict"]["state"], "stale", "{report:#}");
    assert_never_503(&watch);
    let tally = scene.clients[1].tally();
    assert_eq!(tally.ok, 0, "the old entry was not followed: {tally:?}");
}

/// Number of ports that the agent has marked as ports of UDP Services.
fn marked(scene: &Scene) -> u32 {
    let maps = scene.world.pin_dir().join(format!("v{ABI_VERSION}/maps"));
    let data = MapData::from_pin(maps.join(map::UDP_PORTS)).expect("a pinned map");
    let ports: Array<_, UdpPorts> = Map::Array(data).try_into().expect("the map of ports");
    let words = ports.get(&0, 0).expect("the ports").words;
    words.into_iter().map(u64::count_ones).sum()
}

/// Creates and deletes UDP Services, each time with new ports. Every datagram to a marked port costs a
/// lookup, so ports must not stay marked. Returns the number of marked ports before.
fn mark_ports_of_udp_services(scene: &Scene) -> u32 {
    let before = marked(scene);
    for round in 0..3 {
        let name = format!("udp-{round}");
        let first = 2_000 + 500 * round;
        scene.service(TENANT, &name, &ports(first..first + 500, "UDP", None));
        // Count from the start: the ports of earlier rounds may be unmarked by now.
        let wanted = before + 500;
        let seen = until(PATIENCE, || (marked(scene) >= wanted).then_some(()));
        assert!(seen.is_some(), "{} of {wanted} are marked", marked(scene));
        let service = format!("{SERVICES}/{name}");
        scene.api.delete(&service).expect("delete a Service");
    }
    before
}

fn udp_services_that_went_leave_no_port_marked(scene: &Scene, before: u32) {
    let gone = until(Duration::from_secs(180), || {
        (marked(scene) == before).then_some(())
    });
    assert!(gone.is_some(), "{} of {before} are left", marked(scene));
}

/// One object that results in a million frontends. kube-proxy is frozen, because it would build them too.
#[test]
fn a_product_of_ports_and_addresses_is_named_and_takes_no_memory() {
    let scene = needs!(Scene::proven(Mode::Nftables, &[]));
    namespace(&scene.api, TENANT).expect("a namespace");
    scene.proxy().freeze();
    let watch = scene.watch_healthy();
    let pid = scene.agent().pid();
    let before = usage::memory(pid).expect("memory").peak_kib;
    let ips = (0..1_000).map(|ip: u32| std::net::Ipv4Addr::from(0xC633_6400 + ip));
    let ips: Vec<std::net::Ipv4Addr> = ips.collect();
    let spec = json!({ "externalIPs": ips, "ports": ports(1..1_001, "TCP", None) });
    create(&scene.api, service(TENANT, "product", spec)).expect("a Service");
    let report = scene.wait("the product named", |report| {
        let problems = report["cluster"]["problems"].as_array();
        let excess = "Service tenant/product has 1001000 frontends";
        problems.is_some_and(|problems| {
            let mut told = problems.iter().filter_map(Value::as_str);
            told.any(|text| text.starts_with(excess))
        })
    });
    assert_never_503(&watch);
    assert_eq!(report["verdict"]["state"], "proven", "{report:#}");
    let after = usage::memory(pid).expect("memory").peak_kib;
    println!("resident at most: {before} KiB before, {after} KiB after");
    assert!(after < before + 16 * 1024, "{before} KiB, {after} KiB");
    let product = format!("{SERVICES}/product");
    scene.api.delete(&product).expect("delete a Service");
    scene.proxy().thaw();
}

/// Many ports times many pods, within the limits of each Service. kube-proxy is frozen, because it would
/// build the rules for them too.
#[test]
fn products_of_many_services_leave_room_for_others() {
    let mut scene = needs!(Scene::proven(Mode::Nftables, &[]));
    namespace(&scene.api, TENANT).expect("a namespace");
    scene.proxy().freeze();
    let watch = scene.watch_healthy();
    let pid = scene.agent().pid();
    let many = ports(1..1_001, "TCP", None);
    for number in 0..5 {
        let name = format!("pods-{number}");
        scene.service(TENANT, &name, &many);
        scene.endpoints(TENANT, &name, &nobody(60), 1..1_001);
    }
    scene.another_is_judged("after-pods");
    assert_never_503(&watch);
    let report = scene.report();
    let coverage = &report["verdict"]["coverage"];
    assert_eq!(coverage["misrouted_suspended"], false, "{coverage:#}");

    for number in 0..33 {
        scene.service(TENANT, &format!("ports-{number}"), &many);
    }
    scene.another_is_judged("after-ports");
    assert_never_503(&watch);
    let report = scene.report();
    let coverage = &report["verdict"]["coverage"];
    assert_eq!(coverage["misrouted_suspended"], false, "{coverage:#}");
    let problems = report["cluster"]["problems"].to_string();
    let share = "exceeds its namespace's share of the BPF maps";
    assert!(problems.contains(share), "never named: {problems}");
    assert_eq!(report["expectations"]["missing"], 0, "{report:#}");
    let peak = usage::memory(pid).expect("memory").peak_kib;
    println!("resident at most: {peak} KiB");
    assert!(peak < MEMORY, "{peak} KiB");
    scene.proxy().thaw();
}
