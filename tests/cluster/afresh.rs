//! Watches that hang: the agent reads the sentinel again, uncached, before it reports a fault.

use std::thread;
use std::time::Duration;

use node_tests::cluster::{ControlPlane, Manner, Mode, base, create};
use node_tests::scene::assert_never_503;
use node_tests::wait::settle;

use crate::scene::{PATIENCE, Scene, flush};

const SERVICE: &str = "/api/v1/namespaces/pathproof/services/pathproof-sentinel";
/// Time for which one uncached read of the sentinel is reused, and 1 s more.
const READING_SERVES: Duration = Duration::from_secs(11);

/// Only the agent's watches hang. Flushed rules are still a fault, and a deleted sentinel is none.
#[test]
fn hung_watches_hide_no_fault_and_make_none() {
    let name = "hung_watches_hide_no_fault_and_make_none";
    let Some(mut scene) = Scene::bare(name, Mode::Nftables) else {
        return;
    };
    drop(scene.proxy.take());
    scene.start_proxy_by(ControlPlane::address());
    scene.start_agent(&["--flap-dwell", "0"]);
    scene.wait_proven();
    settle();
    scene.relay.set(Manner::Hung);

    let watch = scene.watch_healthy();
    let rules = flush(&scene.world.node);
    watch
        .wait(PATIENCE, |codes| codes.healthz == 503)
        .expect("503 while watches hang");
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
