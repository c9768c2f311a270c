//! The firewall of `forward_policy`, on an idle node: the probes of cluster IPs are dropped, and node
//! ports that are refused to probes are all that shows the fault. When it is repaired, nothing gets
//! through to a witness; users are served.

use node_tests::rules::Backend;
use node_tests::scene::Scene;

use crate::forward_policy::pods_only;
use crate::parts::{flushed, stays};

#[test]
fn an_idle_node_behind_the_firewall_recovers() {
    let scene = Scene::idle(Backend::Nftables, &[]);
    let watch = scene.watch();
    pods_only(&scene, "drop");
    // Proven until the sentinel is settled: earlier failures do not count.
    stays(&scene, &watch, &["proven", "suspect"]);
    assert_eq!(scene.report()["verdict"]["state"], "suspect");
    flushed(&scene, &watch);
}
