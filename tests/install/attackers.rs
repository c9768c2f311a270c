//! Foreign writers, hostile connections and a frozen agent, on a real node with the chart in enforce mode.

use std::net::TcpStream;

use node_tests::abuse::{Crowd, pipelined, send_unread};
use node_tests::cluster::refused;
use node_tests::prelude::*;
use node_tests::watch::Change;
use node_tests::world::HEALTHZ_PORT;

use crate::scene::Scene;

const ECHO: &str = "/api/v1/namespaces/pathproof/services/pathproof-echo";
/// Creates nothing, but is admitted or refused like any other request.
const SERVICES: &str = "/api/v1/namespaces/default/services?dryRun=All";
const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";

/// Silent and slow connections, half of them each.
const CROWD: usize = 2_000;
/// Connections with many requests whose answers nobody reads.
const UNREAD: usize = 17;
/// Requests of a load balancer during the attack, over 20 s.
const REQUESTS: usize = 80;

#[test]
fn foreign_slices_are_admitted_and_claims_are_refused() {
    let scene = needs!(Scene::with_chart());
    let echo = scene.node.api.get(ECHO).expect("the pod probe's Service");
    let echo = echo["spec"]["clusterIP"].as_str().expect("an address");
    // A new policy takes a moment to be in force.
    scene.wait("a claim of the pod probe's address is refused", || {
        scene.try_external_ip(echo) == Err(Some(403))
    });
    assert_eq!(scene.try_external_ip("192.0.2.7"), Ok(()));

    for (name, endpoints) in [("null", Value::Null), ("empty", json!([]))] {
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": { "name": name, "namespace": "default" }, "endpoints": endpoints,
        });
        scene.node.api.post(SLICES, &slice).expect("a slice");
        scene.kubectl(&format!("label endpointslice {name} example.com/of=shop"));
        let one = json!([{ "addresses": ["192.0.2.21"] }]);
        for endpoints in [one, endpoints] {
            scene.patch_slice(name, &endpoints).expect("an update");
        }
        let claim = json!([{ "addresses": ["198.18.0.2"] }]);
        let is_denied =
            |error: anyhow::Error| format!("{error:#}").contains("pathproof-reserved-endpoints");
        scene.wait("a claim of the sentinel's address is refused", || {
            scene.patch_slice(name, &claim).is_err_and(is_denied)
        });
    }
}

#[test]
fn hostile_connections_fit_into_the_shipped_memory_limit() {
    let scene = needs!(Scene::with_chart());
    let pod = scene.agent();
    let limit = &pod["spec"]["containers"][0]["resources"]["limits"]["memory"];
    assert_eq!(*limit, "128Mi");
    let process = scene.agent_process();
    let world = &scene.node.world;
    let target = SocketAddr::new(world.node_address(Family::V4), HEALTHZ_PORT);
    let crowd = Crowd::gather(&world.outside, target, CROWD).expect("a crowd");
    let requests = pipelined();
    let send = |_| send_unread(target, &requests).expect("a connection");
    let unread: Vec<TcpStream> = world.outside.run(|| (0..UNREAD).map(send).collect());
    scene.wait("most connections are open", || {
        crowd.open() >= CROWD * 9 / 10
    });

    let code = || scene.node.ask("/healthz").map_or(0, |answer| answer.status);
    let mut unanswered = 0;
    for _ in 0..REQUESTS {
        match code() {
            200 => {}
            0 => unanswered += 1,
            other => panic!("{other} at /healthz beside hostile connections"),
        }
        thread::sleep(Duration::from_millis(250));
    }
    // On a busy machine one may be late, and load balancers act only after several failures in a row.
    assert!(unanswered <= REQUESTS / 20, "{unanswered} of {REQUESTS}");
    assert_eq!(scene.agent_process(), process, "another process");
    scene.assert_never_restarted();
    drop(unread);
}

#[test]
fn a_frozen_agent_leaves_10256_to_kube_proxy() {
    let scene = needs!(Scene::with_chart());
    let prober = scene.node.watch().expect("a prober");
    scene.wait_agent_answers();
    scene.signal_agent("STOP");
    // The agent answers nothing now, so these answers are kube-proxy's.
    let took = scene.wait_codes(200, 200);
    println!("MEASURED kube-proxy answered {took:.1?} after the agent was frozen");
    assert!(took < scaled(Duration::from_secs(12)), "{took:?}");
    throughout(Duration::from_secs(1), || {
        assert_eq!(scene.node.ask("/healthz").expect("an answer").status, 200);
    });

    scene.signal_agent("CONT");
    scene.wait_proven();
    scene.wait_agent_answers();
    scene.assert_never_restarted();
    let failed = |change: &Change| [change.codes.healthz, change.codes.livez].contains(&503);
    let changes = prober.changes();
    assert!(!changes.iter().any(failed), "false 503: {changes:#?}");
}

impl Scene {
    /// Creates a Service with this external address. If it is refused, returns the status code.
    fn try_external_ip(&self, address: &str) -> Result<(), Option<u16>> {
        let service = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": { "name": "claim", "namespace": "default" },
            "spec": { "externalIPs": [address], "ports": [{ "port": 19_257 }] },
        });
        let created = self.node.api.post(SERVICES, &service);
        created.map(drop).map_err(|error| refused(&error))
    }

    /// Changes the endpoints of a slice by kubectl.
    fn patch_slice(&self, name: &str, endpoints: &Value) -> anyhow::Result<String> {
        let patch = json!({ "endpoints": endpoints }).to_string();
        let words = ["patch", "endpointslice", name, "--type=merge", "-p", &patch];
        self.node.desk.kubectl_with(&words)
    }

    /// Sends a signal to the agent's process on the node.
    fn signal_agent(&self, signal: &str) {
        let kill = format!("kill -{signal} {}", self.agent_process());
        self.node.run("bash", &["-c", &kill]).expect("a signal");
    }

    /// Waits until the agent, and not kube-proxy, answers a request from outside.
    fn wait_agent_answers(&self) {
        self.wait("the agent answers at 10256", || {
            let before = self.answered();
            let answer = self.node.ask("/healthz");
            answer.is_ok_and(|answer| answer.status == 200) && self.answered() > before
        });
    }

    fn assert_never_restarted(&self) {
        let pod = self.agent();
        let status = &pod["status"]["containerStatuses"][0];
        assert_eq!(status["restartCount"], 0, "{}", self.told());
    }
}
