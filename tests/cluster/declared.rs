//! `--datapath`: if rules were never written, this is a fault only if the option declares a datapath.

use node_tests::prelude::*;

use crate::scene::{PATIENCE, Scene};

#[test]
fn missing_rules_are_a_fault_only_if_a_datapath_is_declared() {
    let mut scene = needs!(Scene::bare(Mode::Nftables));
    scene.proxy = None;
    for family in ["ip", "ip6"] {
        // Create the table before deleting it, because kube-proxy may not have created it yet.
        let table = format!("table {family} kube-proxy");
        let script = format!("add {table}\ndelete {table}\n");
        scene.world.node.nft(&script).expect("no table");
    }

    // Without `--datapath` no rules are expected.
    scene.start_agent(&[]);
    let failed = |report: &Value| {
        let lanes = node_tests::scene::family_of(report, Family::V4)["lanes"].as_array();
        let counts = lanes
            .into_iter()
            .flatten()
            .filter_map(|lane| lane["failed"].as_u64());
        counts.max().unwrap_or_default()
    };
    scene.wait("probes that failed", |report| failed(report) >= 20);
    scene.wait_for("unknown", 200, Duration::ZERO);
    scene.agent = None;

    // After a change of the sentinel, the proxy gets time to write its rules: two minutes with a shipped
    // agent.
    scene.start_agent(&["--datapath=kube-proxy"]);
    let report = scene.wait_for("broken", 503, 3 * PATIENCE);
    println!("declared: {}", report["verdict"]["cause"]);
    scene.start_proxy();
    scene.wait_proven();
}
