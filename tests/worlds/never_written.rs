//! A total fault: the proxy is there and never wrote a rule since the node started (its credentials are
//! refused, or it waits for its own API). Nothing worked before.

use node_tests::manifests::Sentinel;
use node_tests::rules::Backend;
use node_tests::scene::{Scene, throughout, wait_answers};

use crate::measured::Fault;

#[test]
fn rules_that_were_never_there_are_a_fault_once_somebody_dials() {
    let mut scene = Scene::bare(Backend::Nftables);
    scene.rules.remove().expect("no rules");
    let sentinel = Sentinel::default();
    scene.manifests.put_sentinel(&sentinel).expect("a sentinel");
    scene.start(&[]);
    let watch = scene.watch();
    // The machine was up long before, so this is no start: nothing is known.
    throughout(std::time::Duration::from_secs(5), || {
        assert_eq!(scene.report()["verdict"]["state"], "unknown");
    });
    scene.traffic();
    let fault = Fault::inject(&scene, &watch, |_| {});
    wait_answers(&watch, 503);
    let felt = fault.felt(std::time::Instant::now());
    assert!(felt.pods.1 > 10, "{felt:?}");
    assert_eq!(felt.pods.0, felt.pods.1, "somebody is served: {felt:?}");
    assert_eq!(scene.report()["verdict"]["cause"], "leaked");
    fault.is_200_once(|scene| scene.rules.install().expect("install"));
    scene.wait_probed();
}
