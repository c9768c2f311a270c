//! Tests of the rotator against an API server in this process.

use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::lifecycle::tests::CapturedLog;

mod metrics;
mod server;

use server::{HOUR, LEASE, SERVICE, SLICES, Server};

#[tokio::test]
async fn slices_are_made_and_move_together() {
    let server = Server::start().await;
    let mut rotator = server.rotator("a", Duration::ZERO).await;
    rotator.look().await;
    assert_eq!(server.generations(), [20_001; 4]);
    let slice = server.slice("ipv6").unwrap();
    assert_eq!(slice["addressType"], "IPv6");
    assert_eq!(slice["endpoints"][0]["addresses"], json!(["2001:2::2"]));
    let labels = json!({
        "kubernetes.io/service-name": "pathproof-sentinel",
        "endpointslice.kubernetes.io/managed-by": "pathproof",
    });
    assert_eq!(slice["metadata"]["labels"], labels);
    let ports = json!([
        { "name": "tcp", "port": 20_001, "protocol": "TCP" },
        { "name": "udp", "port": 20_001, "protocol": "UDP" },
    ]);
    assert_eq!(slice["ports"], ports);
    for generation in 20_002..20_005 {
        rotator.look().await;
        assert_eq!(server.generations(), [generation; 4]);
    }
    assert_eq!(rotator.said, None);
}

/// The API server accepts such a condition, so it must not stop the rotation for ever.
#[tokio::test]
async fn the_services_condition_may_have_a_null_time() {
    let server = Server::start().await;
    let mut service = server.store().objects[SERVICE].clone();
    service["status"] = json!({"conditions": [
        {"type": "T", "status": "True", "reason": "r", "message": "m", "lastTransitionTime": null},
    ]});
    server.store().put(SERVICE, service);
    let mut rotator = server.rotator("a", Duration::ZERO).await;
    rotator.look().await;
    assert_eq!(rotator.said, None);
    assert_eq!(server.generations(), [20_001; 4]);
}

#[tokio::test]
async fn many_nodes_slow_the_rotation_down() {
    let server = Server::start().await;
    server.store().nodes = 600;
    let mut rotator = server.rotator("a", Duration::ZERO).await;
    server
        .until_counted(&mut rotator, r#"{"nodes":600,"unsound":{}}"#)
        .await;
    let before = server.generations();
    rotator.look().await;
    assert_eq!(server.generations(), before, "12 s from one to the next");
}

#[tokio::test]
async fn the_count_of_failing_nodes_follows_them_in_one_slice() {
    let server = Server::start().await;
    server.store().nodes = 3;
    let mut rotator = server.rotator("a", HOUR).await;
    let sound = r#"{"nodes":3,"unsound":{}}"#;
    server.until_counted(&mut rotator, sound).await;
    let annotations = &server.slice("ipv6").unwrap()["metadata"]["annotations"];
    assert!(annotations["pathproof.io/fleet"].is_null(), "{annotations}");
    rotator.look().await;
    let calm = server.writes_to_slices();
    rotator.look().await;
    assert_eq!(server.writes_to_slices(), calm);
    server.store().failing = 2;
    let failing = r#"{"nodes":3,"unsound":{"DatapathBrokenLeaked":2}}"#;
    assert_eq!(server.until_counted(&mut rotator, failing).await, 1);
    // A removed annotation is restored, and the next leader publishes the same count.
    let mut slice = server.slice("ipv4").unwrap();
    slice["metadata"]["annotations"] = json!({});
    server
        .store()
        .put(&format!("{SLICES}/pathproof-sentinel-ipv4"), slice);
    assert_eq!(server.until_counted(&mut rotator, failing).await, 1);
    rotator.give_up().await;
    let mut second = server.rotator("b", HOUR).await;
    server.until_counted(&mut second, failing).await;
    assert_eq!(server.generations(), [20_001; 4]);
}

/// The addresses of the endpoint, and of the probes' sources.
#[rstest]
#[case::endpoint(
    json!({ "spec": { "podCIDR": "198.18.0.0/24" } }),
    "198.18.0.2 is in podCIDR 198.18.0.0/24"
)]
#[case::source(
    json!({ "spec": { "podCIDR": "198.18.0.0/31" } }),
    "198.18.0.1 is in podCIDR 198.18.0.0/31"
)]
#[case::source_of_ipv6(
    json!({ "spec": { "podCIDRs": ["10.244.0.0/24", "2001:2::/127"] } }),
    "2001:2::1 is in podCIDR 2001:2::/127"
)]
#[case::source_as_a_nodes_address(
    json!({ "status": { "addresses": [{ "type": "InternalIP", "address": "198.18.0.1" }] } }),
    "198.18.0.1 is an address"
)]
#[tokio::test]
async fn a_node_that_uses_the_sentinels_address_is_published(
    #[case] first: Value,
    #[case] used: &str,
) {
    let server = Server::start().await;
    server.store().nodes = 3;
    server.store().first = first;
    let mut rotator = server.rotator("a", HOUR).await;
    let expected = format!(
        r#"{{"nodes":3,"unsound":{{}},"in_use":"the sentinel's address {used} of Node node-0"}}"#
    );
    server.until_counted(&mut rotator, &expected).await;
}

/// The first node is one of a pool; the others have no such label.
#[tokio::test]
async fn a_failing_node_is_counted_in_its_pool() {
    let server = Server::start().await;
    server.store().nodes = 3;
    server.store().first = json!({ "metadata": { "labels": { "pool": "a", "other": "b" } } });
    let mut rotator = server.rotator("a", HOUR).await;
    let sound = r#"{"nodes":3,"unsound":{},"domains":{"pool":{}}}"#;
    server.until_counted(&mut rotator, sound).await;
}

/// A node leaves by its agent's condition. One whose machine goes in any case does not count.
#[rstest]
#[case::marked(json!({}), "", 1)]
#[case::kubelet_shuts_down(json!({}), "node is shutting down", 0)]
#[case::another_taint(
    json!({ "spec": { "taints": [{ "key": "other", "effect": "NoSchedule" }] } }), "", 1
)]
#[case::autoscaler(
    json!({ "spec": { "taints": [{ "key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule" }] } }),
    "",
    0
)]
#[case::deleted(json!({ "metadata": { "deletionTimestamp": "2026-11-21T10:00:00Z" } }), "", 0)]
#[tokio::test]
async fn a_node_that_leaves_is_counted(
    #[case] first: Value,
    #[case] ready: &str,
    #[case] leaving: u32,
) {
    let server = Server::start().await;
    let (mut first, now) = (first, clock::wall().to_string());
    first["status"] = json!({ "conditions": [{
        "type": "ServiceDatapathReady", "status": "True", "reason": "NodeLeaving",
        "lastHeartbeatTime": now, "lastTransitionTime": now,
    }, { "type": "Ready", "status": "False", "message": ready }] });
    server.store().nodes = 3;
    server.store().first = first;
    let mut rotator = server.rotator("a", HOUR).await;
    let expected = format!(r#"{{"nodes":3,"unsound":{{}},"leaving":{leaving}}}"#);
    server.until_counted(&mut rotator, &expected).await;
}

#[tokio::test]
async fn a_failing_node_is_checked_early() {
    let server = Server::start().await;
    server.store().nodes = 3;
    let mut rotator = server.rotator("a", HOUR).await;
    let sound = r#"{"nodes":3,"unsound":{}}"#;
    server.until_counted(&mut rotator, sound).await;
    // Consume the wake-up that the first list caused.
    rotator.pause().await;
    let (paused, ()) = tokio::join!(timeout(LOOK - EARLY, rotator.pause()), async {
        sleep(EARLY).await;
        server.store().failing = 1;
    });
    assert!(paused.is_ok(), "the rotator waited for its regular check");
    rotator.look().await;
    let failing = r#"{"nodes":3,"unsound":{"DatapathBrokenLeaked":1}}"#;
    assert_eq!(server.until_counted(&mut rotator, failing).await, 0);
}

#[tokio::test]
async fn edited_or_deleted_slices_are_restored() {
    let server = Server::start().await;
    let mut rotator = server.rotator("a", HOUR).await;
    rotator.look().await;
    let before = server.slice("ipv4").unwrap();
    let mut edited = before.clone();
    edited["endpoints"] = json!([{ "addresses": ["10.1.1.1"] }]);
    server
        .store()
        .put(&format!("{SLICES}/pathproof-sentinel-ipv4"), edited);
    server
        .store()
        .objects
        .remove(&format!("{SLICES}/pathproof-sentinel-ipv6"));
    rotator.look().await;
    assert_eq!(
        server.slice("ipv4").unwrap()["endpoints"],
        before["endpoints"]
    );
    assert_eq!(server.generations(), [20_001; 4]);
    let writes = server.writes_to_slices();
    rotator.look().await;
    assert_eq!(
        server.writes_to_slices(),
        writes,
        "an unchanged state causes no write"
    );
}

/// Case `lost`: without the Service's label no list contains the slice, but its name is taken. Case `hidden`:
/// a label names another proxy, so this cluster's proxy ignores the slice.
#[rstest]
#[case::lost(json!({ "mine": "1" }))]
#[case::hidden(json!({
    "kubernetes.io/service-name": "pathproof-sentinel",
    "endpointslice.kubernetes.io/managed-by": "pathproof",
    "service.kubernetes.io/service-proxy-name": "another",
    "mine": "1",
}))]
#[tokio::test]
async fn a_slice_with_changed_labels_is_restored(#[case] labels: Value) {
    let server = Server::start().await;
    let mut rotator = server.rotator("a", HOUR).await;
    rotator.look().await;
    let before = server.slice("ipv6").unwrap();
    let mut edited = before.clone();
    edited["metadata"]["labels"] = labels;
    server
        .store()
        .put(&format!("{SLICES}/pathproof-sentinel-ipv6"), edited);
    rotator.look().await;
    let after = server.slice("ipv6").unwrap();
    let mut expected = before["metadata"]["labels"].clone();
    expected["mine"] = json!("1");
    assert_eq!(after["metadata"]["labels"], expected);
    assert_eq!(after["ports"], before["ports"]);
    assert_eq!(rotator.said, None);
}

/// The list that this rotator reads is older than the slice.
#[tokio::test]
async fn a_slice_that_another_rotator_has_just_made_stays() {
    let server = Server::start().await;
    let mut rotator = server.rotator("a", HOUR).await;
    rotator.look().await;
    let before = server.slice("ipv4");
    server.store().lists_late = true;
    rotator.look().await;
    assert_eq!(server.slice("ipv4"), before);
    assert!(server.store().writes.last().unwrap().starts_with("POST"));
}

#[tokio::test]
async fn one_leads_and_the_other_follows_at_once() {
    let server = Server::start().await;
    let mut first = server.rotator("a", Duration::ZERO).await;
    let mut second = server.rotator("b", Duration::ZERO).await;
    first.look().await;
    let writes = server.store().writes.len();
    second.look().await;
    assert_eq!(
        server.store().writes.len(),
        writes,
        "a follower writes nothing"
    );
    let holder = || server.store().objects[LEASE]["spec"]["holderIdentity"].clone();
    assert!(holder().as_str().unwrap().starts_with("a_"));
    first.give_up().await;
    assert_eq!(holder(), Value::Null);
    second.look().await;
    assert!(holder().as_str().unwrap().starts_with("b_"));
    assert_eq!(server.store().objects[LEASE]["spec"]["leaseTransitions"], 1);
    assert_eq!(server.generations(), [20_002; 4]);
    first.look().await;
    assert_eq!(
        server.generations(),
        [20_002; 4],
        "the first rotator follows now"
    );
}

#[tokio::test]
async fn a_concurrent_write_wins() {
    let server = Server::start().await;
    let mut rotator = server.rotator("a", Duration::ZERO).await;
    rotator.look().await;
    server.store().races = true;
    rotator.look().await;
    assert_eq!(
        server.generations(),
        [20_001; 4],
        "a write based on an outdated version is refused"
    );
    server.store().races = false;
    rotator.look().await;
    assert_eq!(server.generations(), [20_002; 4]);
}

#[tokio::test]
async fn an_api_that_is_away_is_survived() {
    let server = Server::start().await;
    let mut rotator = server.rotator("a", Duration::ZERO).await;
    rotator.look().await;
    server.store().away = true;
    for _ in 0..3 {
        rotator.look().await;
        assert_eq!(
            rotator.said.as_deref(),
            Some("the API server is not available: ServiceUnavailable")
        );
    }
    server.store().away = false;
    rotator.look().await;
    assert_eq!(rotator.said, None);
    assert_eq!(server.generations().len(), 4);
}

#[tokio::test]
async fn an_outage_is_logged_once_with_its_root_cause() {
    let log = CapturedLog::begin();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let server = Server {
        url: format!("http://{}", listener.local_addr().unwrap()),
        ..Server::default()
    };
    drop(listener);
    let mut rotator = server.rotator("a", HOUR).await;
    for _ in 0..3 {
        rotator.look().await;
    }
    let text = log.end();
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(
        text.contains("the API server is not available: Connection refused"),
        "{text}"
    );
}

#[tokio::test]
async fn without_the_service_nothing_is_written() {
    let server = Server::start().await;
    server.store().objects.remove(SERVICE);
    let mut rotator = server.rotator("a", Duration::ZERO).await;
    rotator.look().await;
    assert_eq!(server.writes_to_slices(), 0);
    assert!(
        rotator
            .said
            .unwrap()
            .contains("Service pathproof/pathproof-sentinel is not in")
    );
}

/// Nodes return although the sentinel's Service is missing and another node cannot be patched.
#[tokio::test]
async fn nodes_go_back_to_load_balancers_without_a_sentinel() {
    let path = |name: &str| format!("/api/v1/nodes/{name}");
    let server = Server::start().await;
    let nodes = ["a", "b"];
    for name in nodes {
        server
            .store()
            .put(&path(name), json!({ "metadata": { "name": name } }));
    }
    server.store().objects.remove(SERVICE);
    server.store().withdrawn = nodes.to_vec();
    server.store().refused = "/api/v1/nodes/a";
    let mut rotator = server.rotator("a", Duration::ZERO).await;
    rotator.config.withdraw = Withdraw::Label;
    let returned = |name| format!("PATCH {}", path(name));
    for _ in 0..1_000 {
        rotator.look().await;
        if server.store().writes.contains(&returned("b")) {
            break;
        }
        sleep(Duration::from_millis(5)).await;
    }
    let writes = server.store().writes.clone();
    assert!(
        nodes
            .map(returned)
            .iter()
            .all(|write| writes.contains(write)),
        "{writes:?}"
    );
    assert!(rotator.said.unwrap().contains("is not in the cluster"));
}

/// No node may be withdrawn earlier, because the Service may have the emergency switch.
#[tokio::test]
async fn nobody_is_withdrawn_before_the_service_was_read() {
    let server = Server::start().await;
    server.store().nodes = 3;
    server.store().failing = 1;
    server.store().unreadable = SERVICE;
    let mut rotator = server.rotator("a", HOUR).await;
    rotator.config.withdraw = Withdraw::Label;
    rotator.config.withdraw_after = Duration::ZERO;
    let is_withdrawn = || {
        let writes = &server.store().writes;
        writes.contains(&"PATCH /api/v1/nodes/node-0".to_owned())
    };
    for _ in 0..40 {
        rotator.look().await;
        sleep(Duration::from_millis(5)).await;
    }
    assert!(!is_withdrawn());
    server.store().unreadable = "";
    for _ in 0..1_000 {
        rotator.look().await;
        if is_withdrawn() {
            return;
        }
        sleep(Duration::from_millis(5)).await;
    }
    panic!("never withdrawn");
}

#[tokio::test]
async fn a_foreign_slice_is_named() {
    let server = Server::start().await;
    let stranger = json!({
        "metadata": { "name": "other", "labels": { "kubernetes.io/service-name": "pathproof-sentinel" } },
        "addressType": "IPv4", "endpoints": [], "ports": [],
    });
    server.store().put(&format!("{SLICES}/other"), stranger);
    let mut rotator = server.rotator("a", HOUR).await;
    rotator.look().await;
    assert!(rotator.said.unwrap().contains("EndpointSlice other"));
    assert_eq!(
        server.generations(),
        [20_001; 4],
        "the rotator still maintains its own slices"
    );
}
