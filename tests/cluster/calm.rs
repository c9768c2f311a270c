//! Events that are no fault of the node's datapath. None of them may cause a 503.

use std::collections::BTreeSet;

use node_tests::manifests::Endpoint;
use node_tests::prelude::*;

use crate::scene::{PATIENCE, PORT, Scene};

const AWAY: Duration = Duration::from_secs(15);

/// Watches of both health servers, and the rows of the printed table.
struct Calm {
    ours: Watch,
    theirs: Watch,
    since: Instant,
    rows: Vec<String>,
}

impl Calm {
    fn start(scene: &Scene) -> Self {
        let (ours, theirs) = (scene.watch_healthy(), scene.watch_proxy());
        Self {
            ours,
            theirs,
            since: Instant::now(),
            rows: Vec::new(),
        }
    }

    /// Asserts that there was no 503. First waits until the agent answers, because the poller counts a late
    /// answer as none.
    fn still(&mut self, after: &str) {
        let answers = |codes: Codes| codes.healthz != 0 && codes.livez != 0;
        let answered = self.ours.wait(PATIENCE, answers);
        assert!(answered.is_ok(), "no answer after {after}: {answered:?}");
        let changes = self.ours.changes();
        let bad = |code: u16| code == 503;
        let seen = changes
            .iter()
            .any(|change| bad(change.codes.healthz) || bad(change.codes.livez));
        assert!(!seen, "false 503 after {after}: {changes:?}");
        let theirs = self.theirs.changes().into_iter();
        let theirs: BTreeSet<String> = theirs
            .filter(|change| change.at > self.since)
            .map(|change| match change.codes.healthz {
                0 => "no answer".to_owned(),
                code => code.to_string(),
            })
            .collect();
        let theirs = match theirs.len() {
            0 => "200".to_owned(),
            _ => theirs.into_iter().collect::<Vec<_>>().join(", "),
        };
        self.rows.push(format!("| {after} | 200 | {theirs} |"));
        self.since = Instant::now();
    }

    fn print(&self, mode: Mode) {
        println!("\n| {} | pathproof | kube-proxy's healthz |", mode.name());
        println!("|---|---|---|");
        self.rows.iter().for_each(|row| println!("{row}"));
    }
}

/// Harmless events of kube-proxy and of backends.
fn calm(scene: &mut Scene, calm: &mut Calm) {
    scene.agree("calm", 200);
    scene.traffic();
    // Wait until failed probes count, so that the restart is judged by probes too.
    settle();

    scene.proxy = None;
    scene.start_proxy();
    thread::sleep(Duration::from_secs(3));
    calm.still("a restart of kube-proxy");

    endpoints_change(scene);
    calm.still("20 changes of endpoints");
    services_come_and_go(scene);
    calm.still("Services that came and went");
    lose_backends(scene);
    calm.still("all backends of a Service killed");
    lose_endpoints(scene);
    calm.still("a Service without endpoints, dialled");
}

/// Harmless events of the agent and of the API server, which do not depend on kube-proxy's mode.
fn calm_beside(scene: &mut Scene, calm: &mut Calm) {
    for _ in 0..3 {
        scene.upgrade_agent();
        thread::sleep(Duration::from_secs(1));
    }
    calm.still("rolling updates of the agent");

    scene.control.apiserver = None;
    thread::sleep(AWAY);
    calm.still("an API server that is away");
    scene
        .control
        .start_apiserver()
        .expect("the API server again");
    thread::sleep(Duration::from_secs(5));
    calm.still("its return");
    // Check that the agent follows changes again.
    let endpoints = |report: &Value| report["expectations"]["endpoints"].as_u64();
    let before = endpoints(&scene.report());
    let more = Endpoint::from(scene.world.pod("spare"));
    (scene.manifests)
        .change("api", |service| service.endpoints.push(more))
        .expect("one endpoint more");
    scene.put("api");
    scene.wait("one endpoint more", |report| endpoints(report) > before);
    thread::sleep(Duration::from_secs(4));
    calm.still("a change after it");
}

fn endpoints_change(scene: &mut Scene) {
    let pods = ["web-1", "spare"];
    for turn in 0..20 {
        scene.replace("web", pods[turn % 2], pods[(turn + 1) % 2]);
        thread::sleep(Duration::from_millis(500));
    }
    let mut clients = scene.clients.iter();
    let came = clients.any(|client| client.servers().contains_key("spare"));
    assert!(came, "connections follow the endpoints");
}

fn services_come_and_go(scene: &mut Scene) {
    for turn in 0..4 {
        let name = format!("new-{turn}");
        let service = Service::new(&name, 40 + turn, [scene.world.pod("api-1")]);
        scene.manifests.add(service).expect("add a Service");
        scene.put(&name);
        let target = scene.inside(&name, Family::V4);
        let plan = Plan::from_pod(&scene.world, scene.world.pod("spare"), target);
        // Use another source port for each attempt: conntrack keeps an early connection untranslated.
        let mut attempt = 0;
        let dialled = until(PATIENCE, || {
            attempt += 1;
            plan.once(attempt).ok()
        });
        assert!(dialled.is_some(), "kube-proxy serves {name}");
        scene.remove(&name);
        thread::sleep(Duration::from_millis(700));
    }
}

fn refused(scene: &Scene) -> u64 {
    scene
        .clients
        .iter()
        .map(|client| client.tally().refused)
        .sum()
}

/// The pods stay, but their server ends.
fn lose_backends(scene: &mut Scene) {
    let before = refused(scene);
    drop(scene.servers.remove("api-1").expect("a server"));
    thread::sleep(Duration::from_secs(6));
    assert!(refused(scene) > before, "nothing listens");
    let server = Server::start(scene.world.pod("api-1"), PORT).expect("a server again");
    scene.servers.insert("api-1".to_owned(), server);
}

/// kube-proxy rejects connections to a Service without endpoints, by design.
fn lose_endpoints(scene: &mut Scene) {
    let endpoints = scene.manifests.service("api").endpoints.clone();
    for endpoints in [Vec::new(), endpoints] {
        let (none, before) = (endpoints.is_empty(), refused(scene));
        scene
            .manifests
            .change("api", |service| service.endpoints = endpoints)
            .expect("change the endpoints");
        scene.put("api");
        thread::sleep(Duration::from_secs(6));
        assert!(!none || refused(scene) > before, "kube-proxy rejects");
    }
}

#[test]
fn no_503_without_a_fault_in_nftables_mode() {
    let options = ["--shutdown-grace", "5s"];
    let mut scene = needs!(Scene::proven(Mode::Nftables, &options));
    let mut seen = Calm::start(&scene);
    calm(&mut scene, &mut seen);
    calm_beside(&mut scene, &mut seen);
    scene.wait_proven();
    seen.print(Mode::Nftables);
}

#[test]
fn no_503_without_a_fault_in_iptables_mode() {
    let mut scene = needs!(Scene::proven(Mode::Iptables, &[]));
    let mut seen = Calm::start(&scene);
    calm(&mut scene, &mut seen);
    scene.wait_proven();
    seen.print(Mode::Iptables);
}
