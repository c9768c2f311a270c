//! The proxy waits for a lock and does not sync while an endpoint is replaced. The rules still send half of a
//! Service's connections to the old endpoint, whose server has ended. `graceful_ending` is the negative
//! control: there the old server still answers.

use node_tests::prelude::*;

use crate::measured::{Fault, settled};

const PROMISED: Duration = Duration::from_secs(18);

#[rstest]
#[case::nftables(Backend::Nftables)]
#[case::iptables(Backend::IptablesLegacy)]
fn rules_that_do_not_follow_are_a_fault(#[case] backend: Backend) {
    let mut scene = Scene::busy(backend, &[]);
    let watch = settled(&scene);
    let old = scene.servers.remove("api-1");
    scene.swap_endpoint("api", "api-1", "spare");
    let fault = Fault::inject(&scene, &watch, |_| drop(old));
    let felt = fault.is_503_within(PROMISED);
    assert!(
        felt.pods.0 * 8 > felt.pods.1,
        "too few pods are affected: {felt:?}"
    );
    let verdict = scene.report()["verdict"].clone();
    assert_eq!(verdict["state"], "stale", "{verdict:#}");
    assert_eq!(verdict["cause"], "stale", "{verdict:#}");
    fault.is_200_once(|scene| scene.rules.install().expect("the rules follow"));
    scene.wait_probed();
}
