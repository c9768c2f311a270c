//! Watches that hang: the agent reads the sentinel again, uncached, before it reports a fault.

use node_tests::cluster::{ControlPlane, Manner, base, create};
use node_tests::prelude::*;

use crate::scene::{Scene, flush, wait_healthz};

const SERVICE: &str = "/api/v1/namespaces/pathproof/services/pathproof-sentinel";
/// Time for which one uncached read of the sentinel is reused, and 1 s more.
const READING_SERVES: Duration = Duration::from_secs(11);

/// Only the agent's watches hang. Flushed rules are still a fault, and a deleted sentinel is none.
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
    // Otherwise the next check would reuse the read of this one.
    thread::sleep(READING_SERVES);

    let watch = scene.watch_healthy();
    let before = scene.agent().log().len();
    scene.api.delete(SERVICE).expect("delete the Service");
    thread::sleep(Duration::from_secs(8));
    assert_never_503(&watch);
    let log = scene.agent().log();
    assert!(log[before..].contains("uncached"), "{log}");
    // Once the watches work again, the sentinel may come back.
    scene.relay.set(Manner::Open);
    for object in base::objects().expect("deploy/base") {
        create(&scene.api, object).expect("deploy/base again");
    }
    scene.wait_proven();
}
