//! Watches that hang: what the agent takes the sentinel for is read once more before it accuses.

use std::thread;
use std::time::Duration;

use node_tests::cluster::{ControlPlane, Manner, Mode, base, create};

use crate::scene::{PATIENCE, Scene};

const SERVICE: &str = "/api/v1/namespaces/pathproof/services/pathproof-sentinel";
/// News of the sentinel count for nothing so soon after them.
const SETTLED: Duration = Duration::from_secs(11);

/// kube-proxy keeps its watches, the agent's hang.
fn scene(name: &str) -> Option<Scene> {
    let mut scene = Scene::bare(name, Mode::Nftables)?;
    drop(scene.proxy.take());
    scene.start_proxy_by(ControlPlane::address());
    scene.start_agent(&[]);
    scene.wait_proven();
    thread::sleep(SETTLED);
    scene.relay.set(Manner::Hung);
    Some(scene)
}

#[test]
fn a_sentinel_that_is_deleted_while_watches_hang_is_no_fault() {
    let name = "a_sentinel_that_is_deleted_while_watches_hang_is_no_fault";
    let Some(scene) = scene(name) else {
        return;
    };
    let watch = scene.watch_healthy();
    scene.api.delete(SERVICE).expect("delete the Service");
    thread::sleep(Duration::from_secs(8));
    let log = scene.agent().log();
    assert!(log.contains("read uncached"), "{log}");
    let changes = watch.changes();
    assert!(
        changes.iter().all(|change| change.codes.healthz == 200),
        "{changes:?}"
    );
    // The watches find out in time, and the sentinel may come back.
    scene.relay.set(Manner::Open);
    for object in base::objects().expect("deploy/base") {
        create(&scene.api, object).expect("deploy/base again");
    }
    scene.wait_proven();
}

/// The twin: the sentinel is as it was, and the node is broken.
#[test]
fn a_fault_while_watches_hang_is_seen() {
    let name = "a_fault_while_watches_hang_is_seen";
    let Some(scene) = scene(name) else {
        return;
    };
    let watch = scene.watch_healthy();
    let flush = "flush chain ip kube-proxy services\nflush chain ip6 kube-proxy services\n";
    scene.world.node.nft(flush).expect("flush");
    watch
        .wait(PATIENCE, |codes| codes.healthz == 503)
        .expect("503");
}
