//! Faults of a node, observed by clients of a node port and by load balancers at port 10256.

use std::process::Command;

use node_tests::cluster::flush_services;
use node_tests::outage::{Explanation, Users, Words};
use node_tests::prelude::*;
use node_tests::real_node::PATIENCE;
use node_tests::watch::Change;

use crate::scene::{SOUND, Scene};

const NODE_PORT: u16 = 30080;
/// Time to observe, long enough for several probes and many connections.
const WHILE: Duration = Duration::from_secs(4);
/// Maximum silence after a kill of the agent: kube-proxy answers once the kernel has closed the agent's
/// listeners.
const SILENCE: Duration = Duration::from_millis(1500);
/// Additional time until 503 that a busy machine may need.
const SPARE: Duration = Duration::from_secs(2);
/// Connections per second of each source; 60 for all of them together.
const RATE: f64 = 10.0;

#[test]
fn a_node_that_lost_its_rules_is_503_while_kube_proxy_says_200() {
    let mut scene = needs!(Scene::installed());
    scene.node.serve().expect("a Service with pods");
    let client = scene.client();
    scene.assert_served(&client);
    let prober = scene.node.watch().expect("a prober");
    prober.wait(PATIENCE, |codes| codes == SOUND).expect("200");
    // Wait, because failed probes of a new sentinel do not count for 10 s.
    thread::sleep(Duration::from_secs(10));

    flush_services(&scene.node.world.node).expect("flush");
    let broken = |codes: Codes| codes.healthz == 503 && codes.livez == 503;
    prober.wait(PATIENCE, broken).expect("503");
    let before = client.tally();
    scene.wait_condition("False");
    thread::sleep(WHILE);
    let felt = client.tally() - before;
    assert!(felt.ok == 0 && felt.failed() > 0, "{felt:?}");
    let theirs = scene
        .node
        .proxy()
        .ask_here("/healthz")
        .expect("kube-proxy answers");
    assert_eq!(theirs.status, 200, "{}", theirs.body);

    // kube-proxy restores the rules when it starts.
    scene.node.start_proxy().expect("kube-proxy again");
    prober
        .wait(PATIENCE, |codes| codes == SOUND)
        .expect("200 again");
    scene.wait_condition("True");
    scene.assert_served(&client);
}

#[test]
fn clients_and_10256_survive_the_ends_of_kubelet_and_agent() {
    let mut scene = needs!(Scene::installed());
    scene.node.serve().expect("a Service with pods");
    let client = scene.client();
    scene.assert_served(&client);
    let prober = scene.node.watch().expect("a prober");
    let before = client.tally();

    scene.node.kill_kubelet().expect("kill kubelet");
    thread::sleep(WHILE);
    scene.node.start_kubelet().expect("kubelet again");

    scene.assert_always_200(&prober);
    drop(prober);

    // After a kill of the agent, kube-proxy answers until kubelet has restarted the agent. Connections that
    // the agent had accepted are lost.
    let prober = scene.node.watch().expect("a prober");
    let container = scene.agent_container();
    scene
        .node
        .ctr(&["task", "kill", "--signal", "SIGKILL", &container])
        .expect("kill the agent");
    scene.wait("kubelet starts it again", || {
        let status = &scene.agent()["status"]["containerStatuses"][0];
        status["restartCount"] == 1 && status["ready"] == true
    });
    scene.wait_proven();
    let changes = prober.changes();
    let codes = |change: &Change| [change.codes.healthz, change.codes.livez];
    let bad = changes.iter().any(|one| codes(one).contains(&503));
    assert!(!bad, "false 503: {changes:#?}");
    let ends = changes.iter().skip(1).map(|one| one.at);
    let silent = |(one, end): (&Change, Instant)| codes(one).contains(&0).then(|| end - one.at);
    let silences = changes.iter().zip(ends.chain([Instant::now()]));
    let longest = silences.filter_map(silent).max().unwrap_or_default();
    assert!(longest < scaled(SILENCE), "{longest:?}: {changes:#?}");
    drop(prober);

    let prober = scene.node.watch().expect("a prober");
    // If the agent's pod is deleted, the agent exits after SIGTERM, and the DaemonSet creates another pod.
    let old = scene.agent()["metadata"]["name"].clone();
    let old = old.as_str().expect("a name");
    scene.kubectl(&format!("-n pathproof delete pod {old} --timeout 60s"));
    scene.wait_proven();
    scene.assert_always_200(&prober);
    let felt = client.tally() - before;
    assert!(felt.ok > 0 && felt.failed() == 0, "{felt:?}");
}

/// An ingress node with the shipped chart: one ingress pod behind a node port, only outside clients, and the
/// pod probe. Each of these total outages is a 503, although kube-proxy's health server reports none of them.
#[test]
fn an_ingress_node_is_503_in_each_outage_and_200_after_it() {
    let scene = needs!(Scene::with_chart());
    scene.node.serve_ingress().expect("an ingress pod");
    let users = Users::start(sources(&scene.node.world));
    users.wait_served();
    let outages = Outages {
        prober: scene.node.watch().expect("a prober"),
        scene,
        users,
    };
    outages
        .prober
        .wait(PATIENCE, |codes| codes == SOUND)
        .expect("200");
    // Wait, because failed probes of a new sentinel do not count for 10 s.
    thread::sleep(Duration::from_secs(12));

    const NOTHING: Words = &["succeeded since"];
    let world = &outages.scene.node.world;
    let dropped: Words = &["forward", "lost", "dropped"];
    outages.is_503(
        "everything forwarded is dropped",
        4,
        &[dropped, NOTHING],
        || world.block_forwarding(true).expect("a filter"),
        |()| world.block_forwarding(false).expect("no filter"),
    );
    let misrouted: Words = &["misrouted", "route", "device"];
    outages.is_503(
        "routes to pods removed",
        5,
        &[misrouted, NOTHING],
        || world.cut_pod_routes().expect("cut routes"),
        |cut| world.mend_pod_routes(&cut).expect("mend routes"),
    );
    let stale: Words = &["stale", "removed"];
    outages.is_503(
        "kube-proxy frozen, the ingress pod replaced",
        25,
        &[stale],
        || {
            outages.scene.node.proxy().freeze();
            let delete = "delete pod -l app=ingress --timeout 60s";
            outages.scene.kubectl(delete);
        },
        |()| outages.scene.node.proxy().thaw(),
    );
}

/// Plans of clients of the node port: both families, three sources.
fn sources(world: &World) -> Vec<Plan> {
    let of = |family: Family| {
        let target = SocketAddr::new(world.node_address(family), NODE_PORT);
        (0..3).map(move |source| Plan::from_outside(world, source, target).rate(RATE))
    };
    Family::ALL.into_iter().flat_map(of).collect()
}

struct Outages {
    prober: Watch,
    users: Users,
    scene: Scene,
}

impl Outages {
    /// Asserts a 503 within `limit` seconds of the first failed connection, an explanation by `why`, and 200
    /// after the repair.
    fn is_503<T>(
        &self,
        what: &str,
        limit: u64,
        parts: &[Words],
        inject: impl FnOnce() -> T,
        repair: impl FnOnce(T),
    ) {
        let limit = Duration::from_secs(limit);
        let since = Instant::now();
        let injected = inject();
        let patience = limit + SPARE;
        let seen = self.prober.wait(patience, |codes| codes.healthz == 503);
        let usual: [Words; 4] = [
            &["/healthz answers 503"],
            &["ago", "since"],
            &["default/ingress"],
            &["outside"],
        ];
        let why = Explanation::read(|| self.scene.why(), &[&usual, parts].concat());
        let felt = self.users.felt(since);
        let begun = felt.first_failure.unwrap_or(since);
        let seen = seen.unwrap_or_else(|error| {
            panic!(
                "{what}: {error:#}; users {felt}\n{}\n{}",
                why.page,
                self.scene.told()
            )
        });
        let took = seen.saturating_duration_since(begun);
        repair(injected);
        let repaired = Instant::now();
        let back = self.prober.wait(PATIENCE, |codes| codes == SOUND);
        let back = back.unwrap_or_else(|error| panic!("{what}: never 200 again: {error:#}"));
        println!(
            "MEASURED {what}: 503 after {:.1} s, limit {limit:?}; users {felt}; 200 after {:.1} s",
            took.as_secs_f64(),
            back.saturating_duration_since(repaired).as_secs_f64(),
        );
        assert!(took < scaled(patience), "{what}: 503 after {took:?}");
        let missing = &why.missing;
        assert!(
            missing.is_empty(),
            "{what}: why names none of {missing:?}\n{}",
            why.page
        );
        self.users.wait_served();
    }
}

impl Scene {
    fn why(&self) -> Command {
        let mut command = self
            .node
            .world
            .node
            .command(agent_binary().expect("a binary"));
        command.arg("why");
        command
    }

    /// Starts an outside client with ten connections per second.
    fn client(&self) -> Client {
        let world = &self.node.world;
        let target = SocketAddr::new(world.node_address(Family::V4), NODE_PORT);
        Plan::from_outside(world, 0, target)
            .start()
            .expect("a client")
    }

    /// Waits for a second in which all of the client's connections succeed.
    fn assert_served(&self, client: &Client) {
        self.wait("the Service answers", || {
            let before = client.tally();
            thread::sleep(Duration::from_secs(1));
            let felt = client.tally() - before;
            felt.ok > 0 && felt.failed() == 0
        });
    }
}
