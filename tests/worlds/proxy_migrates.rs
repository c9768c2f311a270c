//! kube-proxy migrates from iptables to nftables under traffic. The rules are those of the tests' proxy, in
//! kube-proxy's tables and chains.

use node_tests::prelude::*;
use node_tests::rules::Rules;

use crate::parts::{SOUND, everybody_is_served, flushed, stays};

/// Time until failures of the sentinel count.
const SETTLED: Duration = Duration::from_secs(12);

fn scene(busy: bool) -> (Scene, Rules) {
    let make = if busy { Scene::busy } else { Scene::idle };
    let scene = make(Backend::IptablesNft, &[]);
    let second = Rules::new(&scene.world, Backend::Nftables, scene.manifests.dir());
    (scene, second)
}

#[rstest]
#[case::idle(false)]
#[case::busy(true)]
fn a_second_owner_takes_over(#[case] busy: bool) {
    let (mut scene, second) = scene(busy);
    let watch = scene.watch();
    second.install().expect("rules of the second");
    thread::sleep(Duration::from_secs(3));
    scene.rules.remove().expect("those of the first go");
    // The state is Unknown under the new rules until a probe passes.
    stays(&scene, &watch, &["proven", "unknown"]);
    stays(&scene, &watch, &SOUND);
    if busy {
        everybody_is_served(&scene);
    }
    scene.rules = second;
    flushed(&scene, &watch);
}

/// kube-proxy 1.36 first removes the other mode's rules, and writes its own once it has listed the cluster.
/// Users are not served in between, so the node answers 503, and 200 soon after.
#[rstest]
#[case::idle(false)]
#[case::busy(true)]
fn the_second_cleans_up_first(#[case] busy: bool) {
    let (mut scene, second) = scene(busy);
    let watch = scene.watch();
    thread::sleep(SETTLED);
    scene.rules.remove().expect("those of the first go");
    wait_answers(&watch, 503);
    thread::sleep(Duration::from_secs(2));
    second.install().expect("rules of the second");
    wait_answers(&watch, 200);
    let watch = scene.watch();
    // The last failures count only when their loss window ends, and under the new rules the state is Unknown
    // at first.
    stays(&scene, &watch, &["proven", "degraded", "unknown"]);
    scene.wait_probed();
    scene.rules = second;
    flushed(&scene, &watch);
}
