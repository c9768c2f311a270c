//! The real kube-proxy's own health server as one more voice.

use node_tests::cluster::Mode;
use serde_json::Value;

use crate::scene::{PATIENCE, Scene, until};

fn said(scene: &Scene) -> (String, bool) {
    let report = scene.agent().verdict().unwrap_or_default();
    let upstream = &report["upstream"];
    let state = upstream["state"].as_str().unwrap_or_default().to_owned();
    (state, upstream["counts"] == true)
}

/// It is asked past the steering: the node's own connections are kube-proxy's. Hanging it is told
/// and cuts nobody off, since its rules stand; once it goes on nothing is left of it.
#[test]
fn a_kube_proxy_that_hangs_is_told() {
    let name = "a_kube_proxy_that_hangs_is_told";
    let Some(mut scene) = Scene::bare(name, Mode::Nftables) else {
        return;
    };
    if let Some(proxy) = scene.proxy.take() {
        proxy.kill().expect("kill kube-proxy");
    }
    // Where it usually is, at every address.
    scene.start_proxy_at(10_256, &[]);
    scene.start_agent(&["--upstream", "http://127.0.0.1:10256"]);
    scene.wait_proven();
    let wait = |what: &str, wanted: (&str, bool)| {
        let seen = until(PATIENCE, || {
            let (state, counts) = said(&scene);
            ((state.as_str(), counts) == wanted).then_some(())
        });
        assert!(seen.is_some(), "{what}: {:?}", said(&scene));
    };
    wait("it is asked", ("healthy", false));
    scene.proxy().freeze();
    wait("it hangs", ("silent", true));
    let degraded = |report: &Value| report["verdict"]["state"] == "degraded";
    let seen = until(PATIENCE, || scene.agent().verdict().ok().filter(degraded));
    let report = seen.expect("degraded");
    assert_eq!(report["verdict"]["cause"], "upstream_silent", "{report:#}");
    assert_eq!(scene.agent().livez().expect("an answer"), 200);
    scene.proxy().thaw();
    wait("it goes on", ("healthy", false));
    scene.wait_proven();
}
