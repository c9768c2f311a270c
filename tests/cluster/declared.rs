//! `--datapath`: a kube-proxy that never wrote its rules, and what wrote none and was not expected to.

use std::time::Duration;

use node_tests::cluster::Mode;
use node_tests::world::Family;
use serde_json::Value;

use crate::scene::{PATIENCE, Scene};

#[test]
fn rules_that_were_never_written_are_a_fault_where_a_datapath_is_declared() {
    let name = "rules_that_were_never_written_are_a_fault_where_a_datapath_is_declared";
    let Some(mut scene) = Scene::bare(name, Mode::Nftables) else {
        return;
    };
    scene.proxy = None;
    for family in ["ip", "ip6"] {
        // Whether it came as far as that or not.
        let table = format!("table {family} kube-proxy");
        let script = format!("add {table}\ndelete {table}\n");
        scene.world.node.nft(&script).expect("no table");
    }

    // Nobody said that they should be there.
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

    // The proxy gets its time after a new sentinel: of a shipped agent, two minutes.
    scene.start_agent(&["--datapath=kube-proxy"]);
    let report = scene.wait_for("broken", 503, 3 * PATIENCE);
    println!("declared: {}", report["verdict"]["cause"]);
    scene.start_proxy();
    scene.wait_proven();
}
