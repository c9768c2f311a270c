//! A fault that users feel in part: the rule that masquerades is gone, as another firewall leaves it
//! that rewrites POSTROUTING. Answers of endpoints on other nodes pass this node by; those of its
//! own endpoints come back all the same.

use std::time::Duration;

use node_tests::rules::Backend;
use node_tests::scene::{Scene, assert_never_503, in_both};
use node_tests::world::Family;

use crate::measured::{Fault, settled};
use crate::parts::{NAMED, SOUND, everybody_is_served, flushed, stays};

const BUSY: Duration = Duration::from_secs(12);

fn flush(scene: &Scene) {
    let flush = |family| format!("flush chain {family} kube-proxy postrouting\n");
    let both = flush("ip") + &flush("ip6");
    scene.nft(&both);
}

/// Both families are named.
fn is_named(scene: &Scene, state: &str) {
    scene.wait("not masqueraded in both families", |report| {
        in_both(report, |verdict| {
            verdict["state"] == state && verdict["cause"] == "not_masqueraded"
        })
    });
}

#[test]
fn a_quarter_lost_outside_is_a_fault() {
    let scene = Scene::busy(Backend::Nftables, &[]);
    let watch = settled(&scene);
    let fault = Fault::inject(&scene, &watch, flush);
    let felt = fault.is_503_within(BUSY);
    let (failed, all) = felt.outside;
    assert!(failed * 5 > all, "the users do not feel it: {felt:?}");
    is_named(&scene, "broken");
    fault.is_200_once(|scene| scene.rules.install().expect("install again"));
    scene.wait_probed();
}

/// The negative control: clients outside dial endpoints of this node alone, and all are served.
#[test]
fn nobody_feels_it_where_endpoints_are_local() {
    let mut scene = Scene::idle(Backend::Nftables, &[]);
    scene.pod_traffic();
    for family in Family::ALL {
        scene.dial_outside(1, scene.node_port(30082, family), 6.0);
    }
    let watch = scene.watch();
    stays(&scene, &watch, &SOUND);
    flush(&scene);
    is_named(&scene, "degraded");
    stays(&scene, &watch, &NAMED);
    everybody_is_served(&scene);
    assert_never_503(&watch);
    scene.rules.install().expect("install again");
    scene.wait_probed();
    flushed(&scene, &watch);
}
