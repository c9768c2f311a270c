//! kube-proxy keeps port 10256 and its configuration. Outside clients get the agent's answer at this port,
//! and the node itself gets kube-proxy's. If one of the two ends, the other answers all clients.

use node_tests::http;
use node_tests::prelude::*;
use node_tests::world::HEALTHZ_PORT;

use crate::faults::flush;
use crate::scene::{PATIENCE, Scene};

impl Scene {
    /// Status codes: from outside in both families, from the node at its address for checks, and from the
    /// node itself.
    fn answers(&self) -> [Option<u16>; 4] {
        let outside = |family| self.agent.as_ref()?.outside("/healthz", family).ok();
        let here = self
            .proxy
            .as_ref()
            .and_then(|client| client.ask_here("/healthz").ok());
        let [v4, v6, here] = [outside(Family::V4), outside(Family::V6), here]
            .map(|answered| answered.map(|answer| answer.status));
        let checks = self.world.node.run(|| get_at([127, 10, 2, 56]).ok());
        [v4, v6, checks, here]
    }

    /// Waits until the agent reports that kube-proxy has opened the port.
    fn wait_owner(&self) {
        let mut way = Value::Null;
        let seen = until(PATIENCE, || {
            way = self.agent().verdict().ok()?["port"].clone();
            (way["way"] == "steered" && way["owner"] == true).then_some(())
        });
        assert!(seen.is_some(), "{way}");
    }

    fn wait_answers(&self, what: &str, wanted: [u16; 4]) {
        let is_it = || self.answers() == wanted.map(Some);
        let seen = until(PATIENCE, || is_it().then_some(()));
        let answers = self.answers();
        assert!(seen.is_some(), "never {wanted:?}: {what}: {answers:?}");
    }
}

#[rstest]
#[case(Mode::Nftables)]
#[case(Mode::Iptables)]
fn outside_clients_get_our_answer_and_the_node_gets_kube_proxys(#[case] mode: Mode) {
    let scene = needs!(Scene::bare(mode));
    share_the_port(scene);
}

/// kube-proxy and the agent share the port, from their start until a dead kube-proxy is restarted.
pub(crate) fn share_the_port(mut scene: Scene) {
    drop(scene.proxy.take());
    scene.start_proxy_at(HEALTHZ_PORT, &[]);
    scene.start_agent(&[]);
    scene.wait_proven();
    scene.wait_answers("sound", [200; 4]);
    scene.wait_owner();

    // Flush the rules: then the answers differ and show who gave them. First wait for kube-proxy's first sync
    // of each family, which would restore the rules.
    let synced = until(PATIENCE, || {
        let log = scene.proxy().process.log();
        (log.matches("SyncProxyRules complete").count() >= 2).then_some(())
    });
    assert!(synced.is_some(), "{}", scene.proxy().process.log());
    flush(&scene, &["ip", "ip6"]);
    scene.wait_answers("flushed", [503, 503, 503, 200]);

    // While kube-proxy is dead, the agent also answers the node itself. When kube-proxy is back, kube-proxy
    // answers the node again.
    drop(scene.proxy.take());
    let get_here = || get_at([127, 0, 0, 1]).ok();
    let ours = until(PATIENCE, || scene.world.node.run(get_here));
    assert!(
        ours.is_some(),
        "the port is nobody's, and ours does not answer there"
    );
    scene.start_proxy_at(HEALTHZ_PORT, &["--bind-address-hard-fail=true"]);
    // kube-proxy restores the rules when it starts.
    scene.wait_owner();
    scene.wait_answers("kube-proxy is back", [200; 4]);
    let proxy = scene.proxy.as_mut().expect("a kube-proxy");
    let ended = proxy.process.exited().expect("wait");
    assert_eq!(ended, None, "kube-proxy found the port taken");
}

#[test]
fn a_killed_agent_leaves_the_port_as_it_was() {
    let mut scene = needs!(Scene::bare(Mode::Iptables));
    drop(scene.proxy.take());
    // Start the agent first. It must leave the port free for kube-proxy.
    scene.start_agent(&[]);
    scene.start_proxy_at(HEALTHZ_PORT, &["--bind-address-hard-fail=true"]);
    scene.wait_proven();
    scene.wait_owner();
    scene.wait_answers("sound", [200; 4]);
    let watch = scene.watch_healthy();
    scene.agent.take().expect("an agent").kill().expect("kill");
    // Wait until kube-proxy answers 200, which the watch shows within 20 ms.
    std::thread::sleep(Duration::from_secs(1));
    let port = SocketAddr::new(scene.world.node_address(Family::V4), HEALTHZ_PORT);
    for path in ["/healthz", "/livez"] {
        let ask = || http::get(port, path, scaled(Duration::from_secs(1)));
        let answer = scene.world.outside.run(ask).expect("kube-proxy's answer");
        assert_eq!(answer.status, 200, "{path}: {:?}", watch.changes());
    }
    let checks = scene.world.node.run(|| get_at([127, 10, 2, 56]));
    assert_eq!(checks.expect("kube-proxy's answer"), 200);
    assert!(
        watch
            .changes()
            .iter()
            .all(|change| change.codes.healthz != 503),
        "false 503: {:?}",
        watch.changes()
    );
}

fn get_at(address: [u8; 4]) -> anyhow::Result<u16> {
    let here = SocketAddr::from((address, HEALTHZ_PORT));
    Ok(http::get(here, "/healthz", Duration::from_secs(2))?.status)
}
