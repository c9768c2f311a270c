//! The firewall of `forward_policy` on an idle node. Probes of cluster IPs are dropped, so only refused
//! probes of node ports can show a flush. After the repair still no probe of cluster IPs passes, but the node
//! must recover, because users are served.

use node_tests::prelude::*;

use crate::forward_policy::pods_only;
use crate::parts::{flushed, stays};

#[test]
fn an_idle_node_behind_the_firewall_recovers() {
    let scene = Scene::idle(Backend::Nftables, &[]);
    let watch = scene.watch();
    pods_only(&scene, "drop");
    // The state stays Proven at first, because failures of a new sentinel do not count yet.
    stays(&scene, &watch, &["proven", "suspect"]);
    assert_eq!(scene.report()["verdict"]["state"], "suspect");
    flushed(&scene, &watch);
}
