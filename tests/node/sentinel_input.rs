//! Conditions that disable the sentinel or change its work. The agent reports each and keeps running.

use node_tests::manifests::{ports, service, slice, yaml};
use node_tests::prelude::*;
use node_tests::process::Process;
use node_tests::traffic::Manner;
use node_tests::world::layout::{NODE, NODE_POD_CIDRS, WORKER, WORKER_POD_CIDRS, pick, range};

use crate::commands::{assert_says, pathproof, told};

fn scene() -> Scene {
    let scene = Scene::bare(Backend::Nftables);
    scene.add_sentinel(&Sentinel::default());
    scene
}

/// nftables rules of a router that itself answers for the sentinel's addresses. They apply `verdict` to the
/// two ports that the agent tries at every start: refuse by ICMP, or drop.
fn router(verdict: &str) -> String {
    format!(
        "add table inet router\ndelete table inet router\ntable inet router {{ chain first {{
            type filter hook prerouting priority -150;
            ip daddr 198.18.0.0/15 tcp dport {{ 9, 10250 }} {verdict};
        }}; }}"
    )
}

/// Asserts that the agent judges by real traffic, and logs why the sentinel is off.
fn is_off(scene: &mut Scene, words: &str) {
    scene.pod_traffic();
    scene.wait("pods' traffic proven", are_pods_proven);
    eventually("the reason is told", || scene.agent().log().contains(words));
    assert_eq!(scene.asked("/healthz"), 200);
}

/// Makes the network VPC-native: the Node has no podCIDRs, both nodes have only their default routes, and the
/// router knows where pods are. Gives the sentinel's address to web-3, a pod of the other node.
fn make_vpc_native(scene: &mut Scene) {
    scene.manifests.remove_pod_cidrs().expect("no podCIDRs");
    let (world, pod) = (&scene.world, scene.world.pod("web-3"));
    let mut routes = format!("route add 198.18.0.2 via {}\n", WORKER.0);
    for family in Family::ALL {
        let [here, there] = [NODE_POD_CIDRS, WORKER_POD_CIDRS].map(|pods| range(pods, family));
        let [node, worker] = [NODE, WORKER].map(|address| pick(address, family));
        routes += &format!("route add {here} via {node}\nroute add {there} via {worker}\n");
        for (ns, pods) in [(&world.node, there), (&world.worker, here)] {
            ns.ip(&format!("route del {pods}")).expect("no route");
        }
    }
    world
        .outside
        .ip_batch(&routes)
        .expect("the network's routes");
    let to_pod = format!("route add 198.18.0.2 via {}", pod.v4);
    world.worker.ip(&to_pod).expect("a route to the pod");
    pod.ns
        .ip("addr add 198.18.0.2/32 dev eth0")
        .expect("theirs");
}

/// Starts a program that logs every change of the node's routes.
fn watch_routes(scene: &Scene) -> Process {
    let mut command = scene.world.node.command("ip");
    command.args(["monitor", "route"]);
    Process::start(command, "routes", scene.world.dir()).expect("ip monitor")
}

/// Adds and deletes a route until it is logged. All earlier changes of routes are then logged too.
fn wait_logged(routes: &Process, scene: &Scene, to: &str) {
    eventually("the route is logged", || {
        for verb in ["add", "del"] {
            let words = format!("route {verb} {to} dev eth0");
            scene.world.node.ip(&words).expect("a route");
        }
        routes.log().contains(to)
    });
}

/// If another program has an address, route or device that the sentinel needs, the sentinel stays off.
#[test]
fn what_is_in_use_is_left_alone() {
    let mut scene = scene();
    for (add, del, words) in [
        (
            "addr add 198.18.0.2/32 dev eth0",
            "addr del 198.18.0.2/32 dev eth0",
            "198.18.0.2",
        ),
        (
            "addr add 2001:2::1/128 dev eth0",
            "addr del 2001:2::1/128 dev eth0",
            "2001:2::1",
        ),
        (
            "route add 198.18.0.0/16 via 192.0.2.1",
            "route del 198.18.0.0/16",
            "198.18.0.0/16",
        ),
        (
            "link add pathproof-c0 type veth peer name someones",
            "link del pathproof-c0",
            "pathproof-c0",
        ),
    ] {
        scene.world.node.ip(add).expect("theirs");
        scene.start(&[]);
        is_off(&mut scene, words);
        let made = scene.world.node.ifindex("pathproof-s0").is_ok();
        assert!(!made, "{add}: the agent makes no device beside it");
        scene.clients.clear();
        scene.take_agent().terminate().expect("an end in order");
        scene.world.node.ip(del).expect("no more of theirs");
    }
}

/// The configured client address is in a range of the cluster.
#[test]
fn an_address_of_the_cluster_is_left_alone() {
    let mut scene = scene();
    scene.start(&["--sentinel-client-address", "10.244.0.200,2001:2::1"]);
    is_off(&mut scene, "10.244.0.200");
}

/// A pod of another node, in a network without podCIDRs, has the sentinel's address. It is reached by the
/// default route, so nothing on this node shows the conflict. This node and its pods never lose it.
#[test]
fn an_address_that_answers_behind_the_default_route_is_left_alone() {
    let mut scene = scene();
    make_vpc_native(&mut scene);
    let theirs = SocketAddr::from(([198, 18, 0, 2], PORT));
    let plans = [
        scene.pod_plan("client-1", theirs),
        Plan::from_node(&scene.world, theirs),
    ];
    let plans = plans.map(|plan| plan.patience(PATIENCE));
    let reached = |skip| {
        plans
            .each_ref()
            .map(|plan| plan.once(skip).expect("an answer").server)
    };
    assert_eq!(reached(0), ["web-3"; 2], "before the agent starts");
    let routes = watch_routes(&scene);
    wait_logged(&routes, &scene, "192.88.99.1");
    scene.start(&[]);
    is_off(&mut scene, "198.18.0.2 is in use");
    let status = told(pathproof(&scene.world, &["status"]), 0);
    let reason = "off: the sentinel's address 198.18.0.2 is in use";
    assert_says(&status, &[reason]);
    assert_eq!(reached(1), ["web-3"; 2], "beside the agent");
    let made = scene.world.node.ifindex("pathproof-s0").is_ok();
    assert!(!made, "the agent makes no device");
    wait_logged(&routes, &scene, "192.88.99.2");
    let log = routes.log();
    for ours in ["198.18.", "2001:2:", "pathproof-"] {
        assert!(!log.contains(ours), "the sentinel had a route:\n{log}");
    }
}

/// Anybody who may write a slice can claim the sentinel's address, so a claim counts only if the claimed
/// endpoint answers. The claimed port is not among those that the agent tries at every start.
#[test]
fn a_claim_to_an_address_counts_if_it_is_answered() {
    let mut scene = scene();
    let outside = scene.world.outside.clone();
    let refused = router("reject with icmp port-unreachable");
    outside.nft(&refused).expect("a router that refuses");
    scene.start(&[]);
    scene.wait_probed();
    let claim = |scene: &Scene, port| {
        let ports = ports([port], "TCP", None);
        let spec = json!({ "clusterIP": "10.96.9.9", "ports": ports });
        let endpoints = [json!({ "addresses": ["198.18.0.2"], "conditions": { "ready": true } })];
        let slice = slice("shop", "claim", Family::V4, &ports, &endpoints);
        let text = yaml(&[service("shop", "claim", spec), slice]).expect("YAML");
        scene
            .manifests
            .write_file("claim.yaml", &text)
            .expect("a file");
    };
    claim(&scene, 8081);
    throughout(Duration::from_secs(6), || {
        assert!(
            scene.world.node.ifindex("pathproof-s0").is_ok(),
            "{}",
            scene.agent().log()
        );
    });
    outside.nft(&router("drop")).expect("a router that drops");
    outside.ip("addr add 198.18.0.2/32 dev lo").expect("theirs");
    let _server = Server::start_as(&outside, "theirs", 8080, Manner::Answers).expect("a server");
    claim(&scene, 8080);
    is_off(&mut scene, "198.18.0.2 is in use: TCP port 8080");
    eventually("the devices are gone", || {
        scene.world.node.ifindex("pathproof-s0").is_err()
    });
}

#[test]
fn without_node_ports_the_rest_is_probed() {
    let mut scene = Scene::bare(Backend::Nftables);
    scene.add_sentinel(&Sentinel {
        node_port: None,
        ..Sentinel::default()
    });
    scene.start(&[]);
    let report = scene.wait("cluster IPs probed", |report| {
        let passes = |path: &&str| lanes_are(report, path, "tcp", "passing");
        ["off_cluster", "host"].iter().all(passes)
    });
    assert_eq!(report["verdict"]["state"], "proven");
    let lane = lane_of(&report, Family::V4, "node_port", "tcp");
    assert!(lane.is_null() || lane["state"] == "off", "{lane}");
}

/// A node port that never worked, because it is not served (as with nodePortAddresses), is no fault.
#[test]
fn a_node_port_that_never_worked_is_no_fault() {
    let mut scene = Scene::bare(Backend::Nftables);
    // Install the rules of a Service without a node port. Then give the agent one with a node port.
    scene.add_sentinel(&Sentinel {
        node_port: None,
        ..Sentinel::default()
    });
    scene
        .manifests
        .put_sentinel(&Sentinel::default())
        .expect("the sentinel");
    scene.start(&[]);
    let report = scene.wait("node ports never worked", |report| {
        lanes_are(report, "node_port", "tcp", "never_worked")
            && lanes_are(report, "off_cluster", "tcp", "passing")
    });
    assert_eq!(report["verdict"]["state"], "proven", "{report:#}");
    assert_eq!(scene.asked("/healthz"), 200);
}

#[test]
fn a_node_without_ipv6_is_probed_by_ipv4() {
    let mut scene = scene();
    let off = [
        ("net/ipv6/conf/all/disable_ipv6", "1"),
        ("net/ipv6/conf/default/disable_ipv6", "1"),
    ];
    scene.world.node.sysctls(&off).expect("sysctl");
    scene.start(&[]);
    scene.wait("IPv4 proven by probes", |report| {
        family_of(report, Family::V4)["state"] == "proven"
    });
    let watch = scene.watch();
    std::thread::sleep(std::time::Duration::from_secs(3));
    node_tests::scene::assert_never_503(&watch);
}

/// The pod lane may get an address of this node's podCIDR that IPAM does not assign. Then its probes are
/// treated like a pod's traffic.
#[test]
fn a_reserved_pod_address_is_a_path_of_its_own() {
    let mut scene = scene();
    scene.start(&["--sentinel-pod-address", "10.244.0.250,fd00:10:244::fa"]);
    scene.wait("pods' path probed", |report| {
        lanes_are(report, "pod", "tcp", "passing")
    });
    // The next filter drops only the addresses of the off-cluster probes, so the pod lane still passes.
    settle();
    scene.nft(
        "table inet filtered { chain bogons { type filter hook forward priority -10; \
             ip saddr 198.18.0.1 drop; \
             ip6 saddr 2001:2::1 drop; }\n}\n",
    );
    scene.wait("our range is filtered", |report| {
        in_both(report, |family| family["state"] == "degraded")
            && lanes_are(report, "pod", "tcp", "passing")
    });
    assert_eq!(scene.asked("/healthz"), 200);
}

#[test]
fn off_is_off() {
    let mut scene = scene();
    scene.start(&["--sentinel", "off"]);
    scene.pod_traffic();
    scene.wait("proven", |report| report["verdict"]["state"] == "proven");
    assert!(scene.world.node.ifindex("pathproof-c0").is_err());
}

/// On a broken node without traffic, a restarted agent answers 503 from its first answer on.
#[test]
fn a_broken_idle_node_stays_503_over_a_restart() {
    let mut scene = Scene::idle(Backend::Nftables, &[]);
    scene.rules.flush_services().expect("flush");
    let watch = scene.watch();
    wait_answers(&watch, 503);
    scene.take_agent().kill().expect("kill");
    drop(watch);
    scene.spawn(&[]);
    let first = until(PATIENCE, || scene.agent().healthz().ok()).expect("an answer");
    assert_eq!(first, 503, "the first answer of the next agent");
    let watch = scene.watch();
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert!(
        watch
            .changes()
            .iter()
            .all(|change| change.codes.healthz != 200),
        "{:?}",
        watch.changes()
    );
    scene.rules.install().expect("mend");
    wait_answers(&watch, 200);
}
