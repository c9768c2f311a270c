//! The firewall of `forward_policy` on an idle node. Probes of cluster IPs are dropped, so only refused
//! probes of node ports show a flush. After the repair no probe passes, and yet the node must recover,
//! since users are served.

use node_tests::prelude::*;

use crate::forward_policy::pods_only;
use crate::parts::{flushed, stays};

#[test]
fn an_idle_node_behind_the_firewall_recovers() {
    let scene = Scene::idle(Backend::Nftables, &[]);
    let watch = scene.watch();
    pods_only(&scene, "drop");
    // The node stays proven until failures of the new sentinel count.
    stays(&scene, &watch, &["proven", "suspect"]);
    assert_eq!(scene.report()["verdict"]["state"], "suspect");
    flushed(&scene, &watch);
}
