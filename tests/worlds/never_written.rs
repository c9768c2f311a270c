//! A total fault: the proxy has written no rule since the node started, because its credentials are refused
//! or the API is unreachable. No connection ever succeeded.

use node_tests::prelude::*;

use crate::measured::Fault;

#[test]
fn rules_that_were_never_written_are_a_fault_once_pods_dial() {
    let mut scene = Scene::bare(Backend::Nftables);
    scene.rules.remove().expect("no rules");
    let sentinel = Sentinel::default();
    scene.manifests.put_sentinel(&sentinel).expect("a sentinel");
    scene.start(&[]);
    let watch = scene.watch();
    // The state is Unknown and not Starting, because the machine booted long ago.
    throughout(std::time::Duration::from_secs(5), || {
        assert_eq!(scene.report()["verdict"]["state"], "unknown");
    });
    scene.traffic();
    let fault = Fault::inject(&scene, &watch, |_| {});
    wait_answers(&watch, 503);
    let felt = fault.felt(std::time::Instant::now());
    assert!(felt.pods.1 > 10, "{felt:?}");
    assert_eq!(felt.pods.0, felt.pods.1, "a pod is served: {felt:?}");
    assert_eq!(scene.report()["verdict"]["cause"], "leaked");
    fault.is_200_once(|scene| scene.rules.install().expect("install"));
    scene.wait_probed();
}
