//! A host firewall that rejects the packets that it does not forward: firewalld, whose last rule rejects with
//! ICMP "admin-prohibited", and `ufw default reject routed`. The trusted zone contains the pods' ranges, as
//! k3s requires, but not the sentinel's addresses.
//!
//! firewalld accepts translated packets unless `StrictForwardPorts=yes` (2.3 and newer). Imitated with the
//! forward chain that Debian's firewalld 1.3.3 wrote, with and without the rule that accepts them.

use node_tests::prelude::*;

use crate::forward_policy::pods_only;
use crate::parts::{everybody_is_served, flushed, healthy, stays};

const REJECT: &str = "reject with icmpx type admin-prohibited";

#[test]
fn firewalld_forwards_what_was_translated() {
    healthy(Backend::Nftables, |scene| {
        pods_only(scene, &format!("ct status dnat accept\n{REJECT}"));
    });
}

#[test]
fn probes_that_a_firewall_rejects_are_no_fault() {
    let mut scene = Scene::idle(Backend::Nftables, &[]);
    let watch = scene.watch();
    pods_only(&scene, REJECT);
    // The state stays Proven at first, because failures of a new sentinel do not count yet.
    stays(&scene, &watch, &["proven", "suspect"]);
    assert_eq!(scene.report()["verdict"]["state"], "suspect");
    scene.traffic();
    stays(&scene, &watch, &["suspect", "degraded"]);
    everybody_is_served(&scene);
    flushed(&scene, &watch);
}
