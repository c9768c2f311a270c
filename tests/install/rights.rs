//! A capability of the manifests is missing. The agent names it, and either exits or judges the node without
//! the sentinel.

use node_tests::prelude::*;
use serde_json::json;

use crate::scene::Scene;

const ADDED: &str = "/spec/template/spec/containers/0/securityContext/capabilities/add";

#[test]
fn a_missing_capability_is_named_and_the_old_agent_keeps_answering() {
    let scene = needs!(Scene::installed());
    let before = scene.agent()["metadata"]["uid"].clone();
    let prober = scene.node.watch().expect("a prober");
    for missing in ["BPF", "PERFMON", "NET_ADMIN"] {
        scene.leave_out(missing);
        scene.wait_log(&[&format!("CAP_{missing}"), "docs/capabilities.md"]);
        scene.wait("exit 77", || {
            scene.agents().iter().any(|pod| {
                let status = &pod["status"]["containerStatuses"][0];
                let ended = |state: &str| status[state]["terminated"]["exitCode"] == 77;
                ended("state") || ended("lastState")
            })
        });
        // The rollout stops, so the agent that was ready keeps running.
        let uids: Vec<_> = scene.agents();
        assert!(uids.iter().any(|pod| pod["metadata"]["uid"] == before));
        assert_eq!(scene.node.ask("/healthz").expect("an answer").status, 200);
    }

    scene.leave_out("NET_RAW");
    scene.wait_log(&["CAP_NET_RAW is missing", "the sentinel is off"]);
    scene.wait("the verdict says so", || {
        let verdict = scene.node.verdict();
        verdict.is_ok_and(|verdict| verdict.to_string().contains("CAP_NET_RAW is missing"))
    });
    scene.assert_always_200(&prober);
}

impl Scene {
    fn leave_out(&self, missing: &str) {
        let all = ["BPF", "NET_ADMIN", "PERFMON", "NET_RAW"];
        let rest: Vec<&str> = all.into_iter().filter(|one| *one != missing).collect();
        self.patch_agent(&[("replace", ADDED, json!(rest))]);
    }

    fn wait_log(&self, words: &[&str]) {
        self.wait(&format!("{words:?} in the log"), || {
            let log = self.agent_log();
            log.lines()
                .any(|line| words.iter().all(|word| line.contains(word)))
        });
    }
}
