//! A real HAProxy in front of two nodes, one of which breaks. The test counts its clients' failures, first
//! with kube-proxy's answers at the health check node port, then with the agent's. The second node is a plain
//! server without health checks.

use std::fs;

use node_tests::cluster::Process;
use node_tests::prelude::*;
use node_tests::traffic::{Manner, Tally};
use node_tests::world::layout;

use crate::scene::{PATIENCE, Scene, flush};

/// Health check node port of the Service web.
const HEALTH: u16 = 30_999;
const PORT: u16 = 30_080;
const FRONT: u16 = 8_000;
/// Connections per second; every second one goes to the node that breaks.
const RATE: f64 = 40.0;
const BROKEN: Duration = Duration::from_secs(8);

/// An HAProxy that withdraws a node after 3 failed checks and restores it after 2 passed ones, as by default.
/// It checks every second, while its default is 2 s.
fn balancer(scene: &Scene, front: SocketAddr) -> Process {
    let node = scene.world.node_address(Family::V4);
    let (worker, _) = layout::WORKER;
    let text = format!(
        "defaults\n mode tcp\n retries 0\n timeout connect 500ms\n timeout client 5s\n \
         timeout server 5s\nlisten nodes\n bind {front}\n balance roundrobin\n \
         option httpchk GET /healthz\n \
         server node-1 {node}:{PORT} check port {HEALTH} inter 1s fall 3 rise 2\n \
         server node-2 {worker}:{PORT}\n"
    );
    let file = scene.world.dir().join("haproxy.cfg");
    fs::write(&file, text).expect("a configuration");
    let mut command = scene.world.outside.command("haproxy");
    command.arg("-db").arg("-f").arg(&file);
    Process::start(command, "haproxy", scene.world.dir()).expect("a HAProxy")
}

/// Breaks the node for [`BROKEN`]. Returns the client's tally of that time, and of its last quarter.
fn break_under(scene: &Scene, client: &Client) -> [Tally; 2] {
    let before = client.tally();
    let rules = flush(&scene.world.node);
    thread::sleep(BROKEN * 3 / 4);
    let late = client.tally();
    thread::sleep(BROKEN / 4);
    let end = client.tally();
    scene.world.node.nft(&rules).expect("the rules again");
    [end - before, end - late]
}

#[test]
fn clients_of_a_load_balancer_are_spared_a_broken_node() {
    needs!(skip::tool("haproxy"));
    let mut scene = needs!(Scene::bare(Mode::Nftables));
    let port = |service: &mut node_tests::manifests::Service| {
        *service = service.clone().health_port(HEALTH);
    };
    scene.manifests.change("web", port).expect("web");
    scene.put("web");
    let worker = Server::start_as(&scene.world.worker, "node-2", PORT, Manner::Answers);
    let _worker = worker.expect("the second node");
    let front = SocketAddr::new(scene.world.outside_client(1, Family::V4), FRONT);
    let _balancer = balancer(&scene, front);
    let plan = Plan::from_outside(&scene.world, 0, front).rate(RATE);
    let client = plan.start().expect("a client");
    let both = || {
        let nodes = client.servers().keys().cloned().collect::<Vec<_>>();
        (nodes.len() > 1 && nodes.contains(&"node-2".to_owned())).then_some(())
    };
    assert!(until(PATIENCE, both).is_some(), "both nodes answer");

    let [alone, alone_late] = break_under(&scene, &client);
    scene.start_agent(&["--flap-dwell", "0"]);
    scene.wait_proven();
    settle();
    let [ours, ours_late] = break_under(&scene, &client);

    println!(
        "| answers at the health check node port | connections | failed | in the last {:?} |",
        BROKEN / 4
    );
    for (name, all, late) in [
        ("kube-proxy's", alone, alone_late),
        ("ours", ours, ours_late),
    ] {
        println!(
            "| {name} | {} | {} | {} |",
            all.started,
            all.failed(),
            late.failed()
        );
    }
    assert!(
        alone_late.failed() > alone_late.started / 4,
        "{alone_late:?}"
    );
    assert_eq!(ours_late.failed(), 0, "{ours_late:?}");
    // The limit is the time to detect the fault, plus three checks.
    let in_seconds = ours.failed() as f64 / (RATE / 2.0);
    assert!(in_seconds < 6.0, "{in_seconds} s of failures");
}
