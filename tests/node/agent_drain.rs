//! Drain insight: /drainz and `pathproof drain` report when no new connections arrive from outside.

use std::process::Command;

use node_tests::prelude::*;
use node_tests::traffic::Tally;
use node_tests::world::layout;

use crate::commands::{assert_says, pathproof, told};

/// The outside client that imitates the probes of a load balancer.
const PROBER: u8 = 2;

pub(crate) fn drainz(scene: &Scene, query: &str) -> (u16, Value) {
    let path = format!("/drainz{query}");
    // Retry, because a single request may time out on a loaded machine.
    let answer = until(PATIENCE, || scene.agent().admin(&path).ok()).expect("an answer");
    let body = serde_json::from_str(&answer.body);
    (
        answer.status,
        body.unwrap_or_else(|_| panic!("no JSON: {answer:?}")),
    )
}

fn reason(scene: &Scene, query: &str) -> (u16, String) {
    let (status, body) = drainz(scene, query);
    let reason = body["reason"].as_str().unwrap_or_default().to_owned();
    (status, reason)
}

pub(crate) fn drain(scene: &Scene, args: &[&str]) -> Command {
    pathproof(&scene.world, &[&["drain"], args].concat())
}

fn dial(scene: &mut Scene, client: u8) {
    for family in Family::ALL {
        scene.dial_outside(client, scene.node_port(30081, family), 10.0);
    }
}

/// Ends all clients with this source.
fn hang_up(scene: &mut Scene, client: u8) -> Tally {
    let (v4, v6) = layout::outside_client(client);
    let clients = std::mem::take(&mut scene.clients);
    let (ending, staying) = clients.into_iter().partition(|client| {
        let source = client.plan.source;
        source == v4 || source == v6
    });
    scene.clients = staying;
    let ending: Vec<node_tests::traffic::Client> = ending;
    ending.into_iter().map(|client| client.finish()).sum()
}

/// Connections of pods, of the sentinel and of a load balancer's probes continue. They do not count as
/// connections from outside.
#[test]
fn a_leaving_node_is_quiet_once_its_clients_stay_away() {
    let (v4, v6) = layout::outside_client(PROBER);
    let ranges = format!("{v4},{v6}/128");
    let extra = ["--drain-ignore-cidr", &ranges];
    let mut scene = Scene::idle(Backend::Nftables, &extra);
    scene.pod_traffic();
    dial(&mut scene, PROBER);
    dial(&mut scene, 0);
    eventually("connections of both", || {
        let (status, body) = drainz(&scene, "?quiet=1");
        assert_eq!((status, &body["reason"]), (503, &Value::from("notLeaving")));
        assert_eq!(
            (&body["draining"], &body["since"]),
            (&Value::from(false), &Value::Null)
        );
        body["total"].as_u64() > Some(9) && body["ignored"].as_u64() > Some(9)
    });
    assert_says(&told(drain(&scene, &[]), 1), &["is not being removed"]);

    scene.manifests.taint(AUTOSCALER_TAINT).expect("taint");
    eventually("counted since it leaves", || {
        let (status, body) = drainz(&scene, "?quiet=2s");
        assert_eq!(status, 503, "{body:#}");
        body["reason"] == "connections" && body["connections"].as_u64() > Some(9)
    });
    let made = hang_up(&mut scene, 0).started;
    eventually("quiet", || {
        reason(&scene, "?quiet=2s") == (200, "quiet".to_owned())
    });
    let (_, body) = drainz(&scene, "");
    assert_eq!(
        body["total"], made,
        "each of them once, and no other: {body:#}"
    );
    assert_eq!(body["node"], "tainted", "{body:#}");
    assert!(body["connections"].as_u64() < Some(made), "{body:#}");
    let counted = ["IPv4", "IPv6"].map(|family| {
        let label = format!("family=\"{family}\"");
        metric(
            &scene.metrics(),
            "pathproof_external_connections_total",
            &[label],
        )
    });
    assert!(counted[0] > 0 && counted[1] > 0, "{counted:?}");
    assert_eq!(counted[0] + counted[1], made);

    let waiting = drain(&scene, &["--wait", "--quiet", "2s", "--timeout", "40s"]);
    let waited = told(waiting, 0);
    assert!(waited.starts_with("QUIET"), "{waited}");
    scene.manifests.untaint().expect("untaint");
    eventually("it stays", || reason(&scene, "").1 == "notLeaving");
}

/// If the node has no taint, `drain --wait` in a termination hook counts connections from its own start.
#[test]
fn a_hook_waits_on_a_node_without_a_taint() {
    let mut scene = Scene::new(Backend::Nftables, &[]);
    dial(&mut scene, 0);
    eventually("connections", || {
        drainz(&scene, "").1["total"].as_u64() > Some(9)
    });
    let busy = drain(&scene, &["--wait", "--quiet", "1s", "--timeout", "3s"]);
    assert_says(&told(busy, 1), &["still arrive"]);
    hang_up(&mut scene, 0);
    let idle = drain(&scene, &["--wait", "--quiet", "2s", "--timeout", "40s"]);
    assert_says(&told(idle, 0), &["QUIET"]);
    // /drainz does not report the node as quiet, because the node is not being removed.
    assert_eq!(reason(&scene, ""), (503, "notLeaving".to_owned()));
    told(drain(&scene, &["--quiet", "soon"]), 64);
    let nobody = drain(&scene, &["--admin-address", "127.0.0.1:1"]);
    assert_says(&told(nobody, 3), &["no agent answers"]);
}

/// If the uplink is not observed, the absence of new connections proves nothing, so the node is never quiet.
#[test]
fn a_node_whose_uplink_is_not_observed_is_never_quiet() {
    let scene = Scene::new(Backend::Nftables, &["--interface-exclude", "eth0"]);
    eventually("blind", || {
        reason(&scene, "?quiet=1&waited=60").1 == "blind"
    });
    let blind = drain(&scene, &["--wait", "--quiet", "1s", "--timeout", "2s"]);
    assert_says(&told(blind, 3), &["default route"]);
}
