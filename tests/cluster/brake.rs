//! The fleet brake and the enforcement annotations, from the Nodes' conditions through the rotator's count to
//! the answer. The other nodes are only Node objects: that suffices, because the rotator counts conditions.

use node_tests::cluster::{Process, create};
use node_tests::prelude::*;

use crate::scene::{NODE, PATIENCE, Scene, flush};

const SERVICE: &str = "/api/v1/namespaces/pathproof/services/pathproof-sentinel";
const PEERS: [&str; 4] = ["peer-1", "peer-2", "peer-3", "peer-4"];

impl Scene {
    /// Waits for the agent's condition, and writes the conditions of the peers.
    pub(crate) fn fleet(&self, leaking: usize) {
        self.wait_condition("True", "DatapathProven");
        self.peers(leaking);
    }

    /// Writes the peers' conditions: the first `leaking` peers are broken.
    pub(crate) fn peers(&self, leaking: usize) {
        for (number, name) in PEERS.iter().enumerate() {
            let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name } });
            if self.api.get(&format!("/api/v1/nodes/{name}")).is_err() {
                create(&self.api, node).expect("a Node");
            }
            let (status, reason) = match number < leaking {
                true => ("False", "DatapathBrokenLeaked"),
                false => ("True", "DatapathProven"),
            };
            let now = jiff::Timestamp::now()
                .round(jiff::Unit::Second)
                .expect("a time");
            let condition = json!({ "conditions": [{
                "type": "ServiceDatapathReady", "status": status, "reason": reason, "message": "",
                "lastHeartbeatTime": now, "lastTransitionTime": now,
            }] });
            let written = self.api.patch_node_status(name, &condition);
            written.expect("a condition");
        }
    }

    fn annotate(&self, path: &str, value: Option<&str>) {
        let change =
            json!({ "metadata": { "annotations": { "pathproof.io/enforcement": value } } });
        self.api.patch(path, &change).expect("an annotation");
    }
}

#[test]
fn one_node_is_503_and_one_of_many_keeps_its_200() {
    let scene = needs!(Scene::proven(Mode::Nftables, &["--flap-dwell", "0"]));
    scene.fleet(0);
    let rotator = scene.rotator("rotator", &[]);
    a_node_that_fails_alone_is_503_and_switches_are_in_force_at_once(&scene);
    a_node_that_fails_with_many_others_keeps_its_200(&scene, rotator);
}

fn a_node_that_fails_alone_is_503_and_switches_are_in_force_at_once(scene: &Scene) {
    scene.counted(0, 5);
    let rules = flush(&scene.world.node);
    scene.wait_for("broken", 503, PATIENCE);
    scene.counted(1, 5);
    scene.wait_for("broken", 503, PATIENCE);

    let soon = Duration::from_secs(3);
    for (path, by) in [(NODE, "node"), (SERVICE, "cluster")] {
        let began = Instant::now();
        scene.annotate(path, Some("audit"));
        let report = scene.wait_for("broken", 200, soon);
        println!(
            "the switch of the {by} is in force after {:.0?}",
            began.elapsed()
        );
        assert_eq!(report["answers"]["audit"], by);
        assert_eq!(report["agent"]["enforcement"], "audit");
        let metrics = scene.agent().metrics().expect("metrics");
        assert!(metrics.contains("pathproof_enforcing 0"), "{metrics}");
        scene.annotate(path, Some("Audit, please"));
        let report = scene.wait_for("broken", 503, soon);
        let ignored = report["fleet"]["ignored"][0].as_str().unwrap_or_default();
        assert!(
            ignored.contains("\"Audit, please\""),
            "{:#}",
            report["fleet"]
        );
        scene.annotate(path, None);
        scene.wait_for("broken", 503, soon);
    }
    scene.world.node.nft(&rules).expect("the rules again");
    scene.wait_proven();
}

fn a_node_that_fails_with_many_others_keeps_its_200(scene: &Scene, mut rotator: Process) {
    scene.peers(2);
    scene.counted(2, 5);
    let watch = scene.watch();
    flush(&scene.world.node);
    let report = scene.wait_for("broken", 200, PATIENCE);
    assert_eq!(report["answers"]["livez"]["would_fail"], true);
    assert!(
        report["answers"]["held"]["fleet"].is_object(),
        "{:#}",
        report["answers"]
    );
    scene.counted(3, 5);
    let metrics = scene.agent().metrics().expect("metrics");
    assert!(
        metrics.contains("pathproof_braked{reason=\"fleet\"} 1"),
        "{metrics}"
    );
    let said = scene.agent().command(&["status"]).output().expect("status");
    let page = String::from_utf8_lossy(&said.stdout).into_owned();
    let words = [
        "503 is held back: the fleet brake is on",
        "3 of 5 nodes fail",
    ];
    assert!(words.iter().all(|words| page.contains(words)), "{page}");
    // After the rotator is killed, its last count stays in force.
    rotator.kill().expect("kill");
    scene.peers(0);
    // The next rotator publishes that the peers have recovered.
    let _next = scene.rotator("next", &[]);
    scene.counted(1, 5);
    assert_never_503(&watch);
    let all_200 = |codes: &Codes| (codes.healthz, codes.livez) == (200, 200);
    assert!(
        watch.changes().iter().all(|change| all_200(&change.codes)),
        "{:?}",
        watch.changes()
    );
    scene.wait_for("broken", 503, PATIENCE);
}
