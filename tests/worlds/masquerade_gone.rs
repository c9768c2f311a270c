//! A partial fault: another firewall rewrote POSTROUTING and so removed the masquerade rule. Answers of
//! endpoints on other nodes bypass this node. Answers of local endpoints still return through it.

use node_tests::prelude::*;

use crate::measured::{Fault, settled};
use crate::parts::{NAMED, SOUND, everybody_is_served, flushed, stays};

const BUSY: Duration = Duration::from_secs(12);

fn flush(scene: &Scene) {
    let flush = |family| format!("flush chain {family} kube-proxy postrouting\n");
    let both = flush("ip") + &flush("ip6");
    scene.nft(&both);
}

/// Waits until the state is this in both families, with the missing masquerade as the cause.
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
    assert!(failed * 5 > all, "too few users are affected: {felt:?}");
    is_named(&scene, "broken");
    fault.is_200_once(|scene| scene.rules.install().expect("install again"));
    scene.wait_probed();
}

/// Negative control: outside clients only dial local endpoints, and all are served.
#[test]
fn a_missing_masquerade_is_no_fault_if_endpoints_are_local() {
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
