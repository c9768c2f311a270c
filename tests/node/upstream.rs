//! The node's own proxy as one more voice: a server that says what kube-proxy says, at the port and
//! address that are kube-proxy's. That of the real one is asked in tests/cluster.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use node_tests::rules::Backend;
use serde_json::Value;

use crate::agent_scene::{Scene, eventually};

const URL: &str = "http://127.0.0.1:10256";
/// As kube-proxy 1.36 says it.
const LATE: &str = r#"{"lastUpdated":"2026-01-01T00:00:00Z","currentTime":"2026-01-01T00:01:12Z","healthy":false,"status":{"IPv4":{"lastUpdated":"2026-01-01T00:00:00Z","healthy":false}}}"#;

/// A proxy's health server at the node's loopback.
struct Proxy {
    late: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
}

impl Proxy {
    fn start(scene: &Scene) -> Self {
        let (late, stop) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let said = (Arc::clone(&late), Arc::clone(&stop));
        let thread = scene.world.node.spawn("proxy", move || {
            let (late, stop): (Arc<AtomicBool>, Arc<AtomicBool>) = said;
            let listener = TcpListener::bind("127.0.0.1:10256").expect("bind");
            while !stop.load(Ordering::Relaxed) {
                let Ok((mut stream, _)) = listener.accept() else {
                    continue;
                };
                let mut request = [0; 1024];
                let _ = stream.read(&mut request);
                let (status, body) = match late.load(Ordering::Relaxed) {
                    true => ("503 Service Unavailable", LATE),
                    false => ("200 OK", "{}"),
                };
                let length = body.len();
                let answer = format!(
                    "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
                );
                let _ = stream.write_all(answer.as_bytes());
            }
        });
        drop(thread.expect("a thread"));
        Self { late, stop }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn upstream(report: &Value) -> (Option<&str>, bool) {
    let upstream = &report["upstream"];
    (upstream["state"].as_str(), upstream["counts"] == true)
}

/// Without a sentinel nothing measures how old the rules are: a proxy that says they are is believed,
/// of the family that it says it of. With one that shows that they follow it is not.
#[test]
fn a_proxy_that_is_late_is_believed_where_nothing_measures_it() {
    let name = "a_proxy_that_is_late_is_believed_where_nothing_measures_it";
    let Some(mut scene) = Scene::bare(name, Backend::Nftables) else {
        return;
    };
    let proxy = Proxy::start(&scene);
    scene.start(&["--upstream", URL]);
    scene.traffic();
    scene.wait_proven();
    eventually("it is asked", || {
        upstream(&scene.report()) == (Some("healthy"), false)
    });
    assert_eq!(scene.asked("/livez"), 200);
    proxy.late.store(true, Ordering::Relaxed);
    let report = scene.wait("stale", |report| report["verdict"]["state"] == "stale");
    assert_eq!(
        report["verdict"]["cause"], "upstream_unhealthy",
        "{report:#}"
    );
    assert_eq!(upstream(&report), (Some("unhealthy"), true));
    eventually("503", || scene.asked("/livez") == 503);
    let families = &report["verdict"]["families"];
    assert_eq!(families[1]["state"], "proven", "of IPv6 it says nothing");
    proxy.late.store(false, Ordering::Relaxed);
    eventually("200", || scene.asked("/livez") == 200);
}

/// Nobody listens there, so the question comes to pathproof: that is no witness.
#[test]
fn pathproof_is_no_witness_for_itself() {
    let name = "pathproof_is_no_witness_for_itself";
    let Some(scene) = Scene::proven(name, Backend::Nftables, &["--upstream", URL]) else {
        return;
    };
    let report = scene.wait("silence counts", |report| {
        upstream(report) == (Some("silent"), true)
    });
    let said = report["upstream"]["said"].as_str().unwrap_or_default();
    assert!(said.contains("nobody but pathproof"), "{said}");
    let report = scene.wait("degraded", |report| {
        report["verdict"]["state"] == "degraded"
    });
    assert_eq!(report["verdict"]["cause"], "upstream_silent");
    assert_eq!(scene.asked("/livez"), 200, "nothing is known to be wrong");
}
