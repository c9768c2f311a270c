//! kube-proxy keeps 10256 and its configuration: from outside pathproof answers there, on the node
//! itself kube-proxy does, and whoever is gone leaves the port to the other.

use std::net::SocketAddr;
use std::time::Duration;

use node_tests::cluster::Mode;
use node_tests::http;
use node_tests::wait::scaled;
use node_tests::world::{Family, HEALTHZ_PORT};
use serde_json::Value;

use crate::faults::flush;
use crate::scene::{PATIENCE, Scene, until};

impl Scene {
    /// From outside in both families, and on the node itself.
    fn answers(&self) -> [Option<u16>; 3] {
        let outside = |family| self.agent.as_ref()?.outside("/healthz", family).ok();
        let here = self
            .proxy
            .as_ref()
            .and_then(|of| of.ask_here("/healthz").ok());
        [outside(Family::V4), outside(Family::V6), here].map(|of| of.map(|answer| answer.status))
    }

    /// Waits until kube-proxy has opened its port, and the agent knows.
    fn wait_owner(&self) {
        let mut way = Value::Null;
        let seen = until(PATIENCE, || {
            way = self.agent().verdict().ok()?["port"].clone();
            (way["way"] == "steered" && way["owner"] == true).then_some(())
        });
        assert!(seen.is_some(), "{way}");
    }

    fn wait_answers(&self, what: &str, wanted: [u16; 3]) {
        let is_it = || self.answers() == wanted.map(Some);
        let seen = until(PATIENCE, || is_it().then_some(()));
        let answers = self.answers();
        assert!(seen.is_some(), "never {wanted:?}: {what}: {answers:?}");
    }
}

#[test]
fn outsiders_get_ours_and_the_node_gets_that_of_kube_proxy() {
    let name = "outsiders_get_ours_and_the_node_gets_that_of_kube_proxy";
    if let Some(scene) = Scene::bare(name, Mode::Nftables) {
        share_the_port(scene);
    }
}

/// kube-proxy and the agent at one port, from start to kube-proxy's return.
pub(crate) fn share_the_port(mut scene: Scene) {
    drop(scene.proxy.take());
    scene.start_proxy_at(HEALTHZ_PORT, &[]);
    scene.start_agent(&[]);
    scene.wait_proven();
    scene.wait_answers("sound", [200; 3]);
    scene.wait_owner();

    // Both may give the same bytes when they agree, so they are made to disagree. kube-proxy was started
    // a moment ago, and its first sync of each family mends what was flushed before it.
    let synced = until(PATIENCE, || {
        let log = scene.proxy().process.log();
        (log.matches("SyncProxyRules complete").count() >= 2).then_some(())
    });
    assert!(synced.is_some(), "{}", scene.proxy().process.log());
    flush(&scene, &["ip", "ip6"]);
    scene.wait_answers("flushed", [503, 503, 200]);

    // kube-proxy dies: whoever answers on the node itself now is ours, and gives way when it is back.
    drop(scene.proxy.take());
    let ours = until(PATIENCE, || scene.world.node.run(get_here).ok());
    assert!(
        ours.is_some(),
        "the port is nobody's, and ours does not answer there"
    );
    scene.start_proxy_at(HEALTHZ_PORT, &["--bind-address-hard-fail=true"]);
    // It mends the rules as it starts.
    scene.wait_owner();
    scene.wait_answers("kube-proxy is back", [200; 3]);
    let proxy = scene.proxy.as_mut().expect("a kube-proxy");
    let ended = proxy.process.exited().expect("wait");
    assert_eq!(ended, None, "it found the port taken");
}

#[test]
fn a_killed_agent_leaves_the_port_as_it_was() {
    let name = "a_killed_agent_leaves_the_port_as_it_was";
    let Some(mut scene) = Scene::bare(name, Mode::Iptables) else {
        return;
    };
    drop(scene.proxy.take());
    // The agent first: kube-proxy finds nothing in its way.
    scene.start_agent(&[]);
    scene.start_proxy_at(HEALTHZ_PORT, &["--bind-address-hard-fail=true"]);
    scene.wait_proven();
    scene.wait_owner();
    scene.wait_answers("sound", [200; 3]);
    let watch = scene.watch_healthy();
    scene.agent.take().expect("an agent").kill().expect("kill");
    // Asked every 20 ms: kube-proxy's 200 comes at once, or within a moment.
    std::thread::sleep(Duration::from_secs(1));
    let port = SocketAddr::new(scene.world.node_address(Family::V4), HEALTHZ_PORT);
    for path in ["/healthz", "/livez"] {
        let ask = || http::get(port, path, scaled(Duration::from_secs(1)));
        let answer = scene.world.outside.run(ask).expect("kube-proxy's answer");
        assert_eq!(answer.status, 200, "{path}: {:?}", watch.changes());
    }
    assert!(
        watch
            .changes()
            .iter()
            .all(|change| change.codes.healthz != 503),
        "false 503: {:?}",
        watch.changes()
    );
}

/// What 127.0.0.1 answers at the port.
fn get_here() -> anyhow::Result<u16> {
    let here = std::net::SocketAddr::from(([127, 0, 0, 1], HEALTHZ_PORT));
    Ok(node_tests::http::get(here, "/healthz", Duration::from_secs(2))?.status)
}
