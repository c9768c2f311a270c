//! Hanging watches: before it reports a fault, the agent reads the sentinel again with an uncached request.

use node_tests::cluster::{ControlPlane, Manner, base, create};
use node_tests::prelude::*;

use crate::scene::{Scene, flush, wait_healthz};

const SERVICE: &str = "/api/v1/namespaces/pathproof/services/pathproof-sentinel";
/// Time for which the agent reuses one uncached read of the sentinel, plus 1 s.
const READING_SERVES: Duration = Duration::from_secs(11);

/// Only the agent's watches hang. Flushed rules must still be a fault, and a deleted sentinel must be none.
#[test]
fn hung_watches_hide_no_fault_and_make_none() {
    let mut scene = needs!(Scene::bare(Mode::Nftables));
    drop(scene.proxy.take());
    scene.start_proxy_by(ControlPlane::address());
    scene.start_agent(&["--flap-dwell", "0"]);
    scene.wait_proven();
    settle();
    scene.relay.set(Manner::Hung);

    let watch = scene.watch_healthy();
    let rules = flush(&scene.world.node);
    wait_healthz(&watch, 503);
    scene.world.node.nft(&rules).expect("the rules again");
    scene.wait_proven();
    // Wait, because the next check would otherwise reuse the uncached read of this one.
    thread::sleep(READING_SERVES);

    let watch = scene.watch_healthy();
    let before = scene.agent().log().len();
    scene.api.delete(SERVICE).expect("delete the Service");
    thread::sleep(Duration::from_secs(8));
    assert_never_503(&watch);
    let log = scene.agent().log();
    assert!(log[before..].contains("uncached"), "{log}");
    // Let the watches work again, and create the sentinel again.
    scene.relay.set(Manner::Open);
    for object in base::objects().expect("deploy/base") {
        create(&scene.api, object).expect("deploy/base again");
    }
    scene.wait_proven();
}
