//! A host firewall that forwards only packets of pods. ufw denies forwarding by default, and its users add
//! `ufw route allow from 10.244.0.0/16` and `to 10.244.0.0/16`. Users are served, but the sentinel's
//! addresses are not pods' addresses, so its probes are dropped. Imitated in nftables with the forward path
//! that Debian's ufw 0.36.2 wrote. kube-proxy is in nftables mode, because in iptables mode it accepts
//! packets that it marked for masquerading.

use node_tests::prelude::*;
use node_tests::world::layout::CLUSTER_CIDRS;

use crate::parts::{everybody_is_served, flushed, policy, stays};

/// Forwards packets from and to pods, and applies the rule `others` to all other packets.
pub(crate) fn pods_only(scene: &Scene, others: &str) {
    let (v4, v6) = CLUSTER_CIDRS;
    let rules = [
        "ct state { established, related } accept".to_owned(),
        "icmp type { destination-unreachable, time-exceeded, parameter-problem, echo-request } accept"
            .to_owned(),
        format!("ip saddr {v4} accept"),
        format!("ip daddr {v4} accept"),
        format!("ip6 saddr {v6} accept"),
        format!("ip6 daddr {v6} accept"),
        others.to_owned(),
    ];
    policy(&scene.world.node, &rules);
}

#[test]
fn a_sentinel_that_was_always_filtered_accuses_nobody() {
    let mut scene = Scene::bare(Backend::Nftables);
    pods_only(&scene, "drop");
    scene.add_sentinel(&Sentinel::default());
    scene.start(&[]);
    scene.wait("the lanes never worked", |report| {
        lanes_are(report, "off_cluster", "tcp", "never_worked")
    });
    let watch = scene.watch();
    // Before any traffic, the state stays Unknown, because no probe ever passed.
    stays(&scene, &watch, &["unknown"]);
    scene.traffic();
    scene.wait_proven();
    stays(&scene, &watch, &["proven"]);
    everybody_is_served(&scene);
    flushed(&scene, &watch);
}

#[test]
fn a_firewall_that_comes_later_is_no_fault() {
    let mut scene = Scene::idle(Backend::Nftables, &[]);
    let watch = scene.watch();
    pods_only(&scene, "drop");
    scene.wait("the probes fail", |report| {
        report["verdict"]["state"] == "suspect"
    });
    stays(&scene, &watch, &["suspect"]);
    scene.traffic();
    stays(
        &scene,
        &watch,
        &["suspect", "unknown", "degraded", "proven"],
    );
    everybody_is_served(&scene);
    flushed(&scene, &watch);
}
