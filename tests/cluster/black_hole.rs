//! An API server whose packets are dropped, while connections to it stay open.

use node_tests::cluster::ControlPlane;
use node_tests::prelude::*;

use crate::scene::{PATIENCE, Scene, flush, wait_healthz};

/// Maximum time to report a dead connection: 15 s, and 5 s for a busy machine.
const NOTICED: Duration = Duration::from_secs(15 + 5);

/// Starts or stops dropping the packets that come from the API server.
fn black_hole(scene: &Scene, on: bool) {
    let mut script = "table inet hole {}\ndelete table inet hole\n".to_owned();
    if on {
        let port = scene.far().port();
        let chain = format!("type filter hook input priority -10; tcp sport {port} drop;");
        script += &format!("table inet hole {{ chain input {{ {chain} }}\n}}\n");
    }
    scene.world.node.nft(&script).expect("a filter");
}

/// Waits until the report has these problems of the cluster view and this coverage.
fn wait(scene: &Scene, patience: Duration, wanted: &Value) {
    let mut last = Value::Null;
    let seen = until(patience, || {
        let report = scene.agent().verdict().ok()?;
        let problems = report["cluster"]["problems"].as_array()?.iter();
        // Cut off the cause in brackets, which changes from one attempt to the next.
        let problems = problems.filter_map(|problem| problem.as_str()?.split(" (").next());
        let mut problems: Vec<&str> = problems.collect();
        problems.dedup();
        let coverage = &report["verdict"]["coverage"];
        let losses = coverage["losses"].as_array()?.iter();
        last = json!({
            "problems": problems,
            "losses": losses.map(|loss| &loss["loss"]).collect::<Vec<_>>(),
            "lost_suspended": coverage["lost_suspended"],
            "misrouted_suspended": coverage["misrouted_suspended"],
        });
        (last == *wanted).then_some(())
    });
    let log = || scene.agent().log();
    assert!(seen.is_some(), "{last:#}, not {wanted:#}\n{}", log());
}

#[test]
fn a_black_holed_api_server_suspends_misrouted_connections_alone() {
    let mut scene = needs!(Scene::bare(Mode::Nftables));
    // Connect kube-proxy directly, so that it is not cut off.
    drop(scene.proxy.take());
    scene.start_proxy_by(ControlPlane::address());
    scene.start_agent(&[]);
    scene.wait_proven();
    let mut state = json!({
        "problems": [],
        "losses": [],
        "lost_suspended": false,
        "misrouted_suspended": false,
    });
    wait(&scene, PATIENCE, &state);
    let watch = scene.watch_healthy();

    black_hole(&scene, true);
    state["problems"] = json!(["API server: cannot be reached"]);
    state["losses"] = json!(["source_silent"]);
    state["misrouted_suspended"] = json!(true);
    wait(&scene, NOTICED, &state);
    assert_never_503(&watch);
    // All failures except misrouted connections still count.
    flush(&scene.world.node);
    wait_healthz(&watch, 503);

    // Misrouted connections stay suspended until kube-proxy had time to catch up.
    black_hole(&scene, false);
    state["problems"] = json!([]);
    wait(&scene, PATIENCE, &state);
}
