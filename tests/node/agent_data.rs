//! Data is dropped after the handshake, either that of real connections or, as the negative control, that of
//! the sentinel. An inline filter that does not recognize the sentinel's bytes has the second effect.

use node_tests::prelude::*;

/// Drops data packets that match these conditions, as a rule for packets in state INVALID does.
fn drop_data(scene: &Scene, conditions: [&str; 2]) {
    let rules = conditions
        .map(|condition| format!("{condition} tcp flags & (psh | ack) == psh | ack drop;"));
    let rules = rules.join(" ");
    scene.nft(&format!(
        "table inet fault {{ chain data_rules {{ type filter hook forward priority -10; {rules} }}\n}}\n"
    ));
}

/// Handshakes succeed, but no client gets an answer.
#[test]
fn data_that_is_dropped_on_real_connections_alone_is_503() {
    let scene = Scene::busy(Backend::Nftables, &[]);
    let watch = scene.watch();
    wait_answers(&watch, 200);
    drop_data(
        &scene,
        [
            "ip saddr != 198.18.0.0/15 ip daddr != 198.18.0.0/15",
            "ip6 saddr != 2001:2::/48 ip6 daddr != 2001:2::/48",
        ],
    );
    let report = scene.wait("broken in both families", |report| {
        in_both(report, |family| {
            family["state"] == "broken" && family["cause"] == "no_data"
        })
    });
    let reason = report["verdict"]["reason"].as_str().unwrap_or_default();
    assert!(reason.contains("their data is not forwarded"), "{reason}");
    wait_answers(&watch, 503);
    scene.nft("delete table inet fault");
    wait_answers(&watch, 200);
}

/// Real connections carry data successfully, so the loss of the sentinel's data is no fault of the node.
#[test]
fn a_filter_that_drops_the_sentinels_data_alone_is_no_503() {
    let scene = Scene::busy(Backend::Nftables, &[]);
    let watch = scene.watch();
    wait_answers(&watch, 200);
    drop_data(&scene, ["ip daddr 198.18.0.0/15", "ip6 daddr 2001:2::/48"]);
    let report = scene.wait("the probes' trouble told", |report| {
        in_both(report, |family| family["state"] == "degraded")
    });
    assert_eq!(report["verdict"]["cause"], "no_data", "{report:#}");
    throughout(Duration::from_secs(10), || {
        assert_eq!(scene.asked("/healthz"), 200)
    });
    assert_never_503(&watch);
}
