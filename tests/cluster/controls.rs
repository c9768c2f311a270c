//! Negative controls of `outages`, with a real kube-proxy. Connections or probes fail on a healthy node for a
//! reason of limited scope, while all other users succeed. Each control lasts a minute, without a 503.

use node_tests::cluster::Process;
use node_tests::outage::Users;
use node_tests::prelude::*;

use crate::scene::Scene;
use crate::uses::{NODE_PORTS, SOURCES, outside, rotator};

const WATCHED: Duration = Duration::from_secs(60);
/// Time for kube-proxy to follow a change, and for open connections to end.
const FOLLOWED: Duration = Duration::from_secs(4);
/// Pause between two replacements of endpoints in a graceful rollout.
const ROLLOUT: Duration = Duration::from_secs(10);
/// Minimum share of successful connections of unaffected users, in percent.
const SERVED: f64 = 99.0;
/// Number of the outside client to which a policy denies one Service.
const DENIED: u8 = 1;
/// Numbers of two outside clients: one reuses its source ports, the other scans node ports.
const REUSING: u8 = 2;
const SCANNING: u8 = 0;
/// Node ports that never worked: one that belongs to no Service, and one of a Service without endpoints.
const DEAD_PORTS: [u16; 2] = [30_555, 30_556];
/// Rules that drop the sentinel's addresses, which bogon lists contain.
const BENCHMARKING: [&str; 4] = [
    "ip saddr 198.18.0.0/15 drop",
    "ip daddr 198.18.0.0/15 drop",
    "ip6 saddr 2001:2::/48 drop",
    "ip6 daddr 2001:2::/48 drop",
];

struct Healthy {
    watch: Watch,
    _rotator: Process,
    scene: Scene,
}

impl Healthy {
    fn start(mode: Mode) -> Needed<Self> {
        let scene = Scene::proven(mode, &[])?;
        let rotator = rotator(&scene);
        settle();
        Ok(Self {
            watch: scene.watch_healthy(),
            _rotator: rotator,
            scene,
        })
    }

    /// Repeats `meanwhile` for a minute. Asserts that there is no 503 and that `users` are served.
    fn stays_healthy(&mut self, what: &str, users: &Users, mut meanwhile: impl FnMut(&mut Scene)) {
        let since = Instant::now();
        while since.elapsed() < WATCHED {
            meanwhile(&mut self.scene);
            thread::sleep(Duration::from_millis(500));
            assert_never_503(&self.watch);
        }
        let felt = users.felt(since);
        let mode = self.scene.mode.name();
        eprintln!("MEASURED {mode}, {what}: 200 for {WATCHED:?}; users {felt}");
        assert!(felt.percent() >= SERVED, "{what}: users {felt}");
        wait_answers(&self.watch, 200);
        assert_never_503(&self.watch);
    }
}

fn filter(node: &Namespace, table: &str, rules: &[String]) {
    let rules = rules.join("\n");
    let chain = "type filter hook forward priority -5; policy accept;";
    let script = format!("table inet {table} {{ chain forward {{ {chain}\n{rules}\n}}\n}}\n");
    node.nft(&script).expect("a filter");
}

fn lift(node: &Namespace, table: &str) {
    let script = format!("delete table inet {table}\n");
    node.nft(&script).expect("no filter");
}

/// Four controls at once: a policy against one client of one Service, a client that reuses its source ports
/// towards a removed endpoint, a scanner of dead node ports, and a rollout whose old endpoints still answer.
fn some_fail_in_their_scopes(healthy: &mut Healthy) {
    let scene = &mut healthy.scene;
    let none = Service::new("none", 6, []).node_port(DEAD_PORTS[1]);
    scene.manifests.add(none).expect("a Service");
    scene.put("none");
    scene.world.add_pod("new", Place::Local).expect("a pod");
    scene.serve("new");

    let is_denied = |plan: &Plan| {
        let source = Family::ALL.map(|family| scene.world.outside_client(DENIED, family));
        source.contains(&plan.source) && plan.target.port() == NODE_PORTS[0]
    };
    let (denied, free): (Vec<_>, Vec<_>) =
        outside(scene, 0..SOURCES).into_iter().partition(is_denied);
    let (denied, free) = (Users::start(denied), Users::start(free));
    denied.wait_served();
    free.wait_served();

    let mut policy = Vec::new();
    for (family, word) in Family::ALL.into_iter().zip(["ip", "ip6"]) {
        let from = scene.world.outside_client(DENIED, family);
        for pod in ["web-1", "web-2", "web-3", "new"] {
            let to = scene.world.pod(pod).address(family);
            policy.push(format!("{word} saddr {from} {word} daddr {to} drop"));
        }
    }
    filter(&scene.world.node, "netpolicy", &policy);

    // Make the endpoint hang. A client that keeps dialling it then keeps its conntrack entries alive.
    let hang =
        "table inet hang { chain input { type filter hook input priority 0; policy drop; }\n}\n";
    scene
        .world
        .pod("api-1")
        .ns
        .nft(hang)
        .expect("a pod that hangs");
    let reusing = Family::ALL.map(|family| {
        let port = SocketAddr::new(scene.world.node_address(family), NODE_PORTS[1]);
        let mut plan = Plan::from_outside(&scene.world, REUSING, port).rate(2.0);
        plan.ports = plan.ports.start..plan.ports.start + 2;
        plan
    });
    let reusing = Users::start(reusing);
    thread::sleep(Duration::from_millis(1500));
    scene.replace("api", "api-1", "spare");
    thread::sleep(FOLLOWED);

    let mut scans = Vec::new();
    for family in Family::ALL {
        for port in DEAD_PORTS {
            let port = SocketAddr::new(scene.world.node_address(family), port);
            let plan = Plan::from_outside(&scene.world, SCANNING, port);
            scans.push(plan.patience(Duration::from_millis(100)));
        }
    }
    let (since, mut scanned, mut replaced) = (Instant::now(), 0, Instant::now());
    let mut pods = ("web-1", "new");
    let what = "one client denied, source ports reused, a scanner and a rollout";
    healthy.stays_healthy(what, &free, |scene| {
        for scan in &scans {
            assert!(scan.once(scanned % 2000).is_err(), "a dead port answers");
        }
        scanned += 1;
        if replaced.elapsed() > ROLLOUT {
            scene.replace("web", pods.0, pods.1);
            (pods, replaced) = ((pods.1, pods.0), Instant::now());
        }
    });
    for (who, users) in [("denied", &denied), ("reusing", &reusing)] {
        let felt = users.felt(since);
        assert!(felt.all > 0 && felt.ok == 0, "{who}: {felt}");
    }

    let scene = &mut healthy.scene;
    lift(&scene.world.node, "netpolicy");
    lift(&scene.world.pod("api-1").ns, "hang");
    scene.replace("api", "spare", "api-1");
    thread::sleep(FOLLOWED);
}

/// kube-proxy is frozen, so connections still go to a replaced endpoint, which still answers.
fn frozen_while_old_endpoints_answer(healthy: &mut Healthy) {
    let users = Users::start(outside(&healthy.scene, 0..SOURCES));
    users.wait_served();
    healthy.scene.proxy().freeze();
    healthy.scene.replace("api", "api-1", "spare");
    let what = "kube-proxy frozen, the old endpoint answers";
    healthy.stays_healthy(what, &users, |_| ());
    healthy.scene.proxy().thaw();
    healthy.scene.replace("api", "spare", "api-1");
    thread::sleep(FOLLOWED);
    assert_never_503(&healthy.watch);
}

/// A filter drops the sentinel's addresses while users succeed. Later a policy denies one pod.
fn filtered_probes_then_a_policy(healthy: &mut Healthy) {
    let users = Users::start(outside(&healthy.scene, 0..SOURCES));
    users.wait_served();
    let pod = healthy.scene.world.pod("client-1");
    let dial = |family| {
        Plan::from_pod(
            &healthy.scene.world,
            pod,
            healthy.scene.inside("web", family),
        )
    };
    let pod = Users::start(Family::ALL.map(dial));
    pod.wait_served();
    filter(
        &healthy.scene.world.node,
        "bogons",
        &BENCHMARKING.map(str::to_owned),
    );
    healthy.stays_healthy("a filter on the sentinel's addresses", &users, |_| ());

    let device = healthy.scene.world.pod("client-1").device.clone();
    let (node, since) = (&healthy.scene.world.node, Instant::now());
    filter(node, "netpolicy", &[format!("iifname {device} drop")]);
    healthy.stays_healthy("the filter, and a policy for one pod later", &users, |_| ());
    let felt = pod.felt(since + FOLLOWED);
    assert!(felt.all > 0 && felt.ok == 0, "the denied pod: {felt}");
    lift(&healthy.scene.world.node, "netpolicy");
    lift(&healthy.scene.world.node, "bogons");
}

#[test]
fn failures_with_a_scope_are_never_503() {
    let mut healthy = needs!(Healthy::start(Mode::Nftables));
    some_fail_in_their_scopes(&mut healthy);
}

#[test]
fn filtered_probes_and_a_policy_are_never_503() {
    let mut healthy = needs!(Healthy::start(Mode::Iptables));
    filtered_probes_then_a_policy(&mut healthy);
}

/// `cargo xtask test --uses` runs these.
mod nightly {
    use super::*;

    #[rstest]
    #[case::nftables(Mode::Nftables)]
    #[case::iptables(Mode::Iptables)]
    fn every_control_is_never_503(#[case] mode: Mode) {
        let mut healthy = needs!(Healthy::start(mode));
        some_fail_in_their_scopes(&mut healthy);
        frozen_while_old_endpoints_answer(&mut healthy);
        filtered_probes_then_a_policy(&mut healthy);
    }
}
