//! An upgrade, a rollback, and an upgrade that does not become ready. Load balancers notice none of them.

use node_tests::prelude::*;
use serde_json::Value;

use crate::scene::Scene;

#[test]
fn upgrades_and_rollbacks_never_show_at_10256() {
    let scene = needs!(Scene::with_chart());
    let prober = scene.node.watch().expect("a prober");
    scene.wait_rolled_out();
    let first = scene.agent();
    scene
        .helm(&["upgrade", "--set", "agent.flapDwell=11s"])
        .expect("an upgrade");
    scene.wait_rolled_out();
    let second = scene.agent();
    assert_ne!(first["metadata"]["uid"], second["metadata"]["uid"]);
    assert!(
        args(&second).contains("--flap-dwell=11s"),
        "{}",
        args(&second)
    );

    // Upgrade to an agent that does not start: helm fails, and the old agent keeps running.
    let wrong = [
        "upgrade",
        "--wait",
        "--timeout=20s",
        "--set",
        "agent.extraArgs={--no-such}",
    ];
    let refused = scene
        .helm(&wrong)
        .expect_err("helm accepts an agent that is not ready");
    let refused = format!("{refused:#}");
    assert!(
        refused.contains("deadline") || refused.contains("timed out"),
        "{refused}"
    );
    let log = scene.agent_log();
    assert!(log.contains("--no-such"), "the error is not logged:\n{log}");
    let stays = |pod: &Value| pod["metadata"]["uid"] == second["metadata"]["uid"];
    assert!(scene.agents().iter().any(stays), "{:#?}", scene.agents());
    let verdict = scene.node.verdict().expect("the old agent answers");
    assert_eq!(verdict["verdict"]["state"], "proven", "{verdict:#}");

    scene
        .node
        .desk
        .helm(&["rollback", "pathproof", "1", "-n", "pathproof"])
        .expect("a rollback");
    scene.wait_rolled_out();
    assert_eq!(args(&scene.agent()), args(&first));
    scene.assert_always_200(&prober);
}

fn args(pod: &Value) -> String {
    pod["spec"]["containers"][0]["args"].to_string()
}
