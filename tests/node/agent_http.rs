//! The listeners on a real node, and the commands that ask them.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use node_tests::abuse::raise_open_files;
use node_tests::http;
use node_tests::rules::Backend;
use node_tests::world::{Family, HEALTHZ_PORT};
use serde_json::Value;

use node_tests::scene::{PATIENCE, Scene, eventually, metric, until};

/// Order of the fields, times and header lines are kube-proxy's, over both families at the one
/// default address.
#[test]
fn answers_are_those_of_kube_proxy_to_the_byte() {
    let scene = Scene::proven(Backend::Nftables, &[]);
    for family in Family::ALL {
        for path in ["/healthz", "/livez"] {
            let answer = scene.get(path, family);
            assert_eq!(answer.status, 200);
            assert_eq!(answer.header("content-type"), Some("application/json"));
            assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
            let body: Value = serde_json::from_str(&answer.body).expect("JSON");
            let time = |value: &Value| value.as_str().expect("a time").to_owned();
            let updated = time(&body["lastUpdated"]);
            let eligible = if path == "/healthz" {
                "\"nodeEligible\":true,"
            } else {
                ""
            };
            let status = |name: &str| {
                let updated = time(&body["status"][name]["lastUpdated"]);
                format!("\"{name}\":{{\"lastUpdated\":\"{updated}\",\"healthy\":true}}")
            };
            let wanted = format!(
                "{{\"lastUpdated\":\"{updated}\",\"currentTime\":\"{}\",{eligible}\"healthy\":true,\
                 \"status\":{{{},{}}}}}",
                time(&body["currentTime"]),
                status("IPv4"),
                status("IPv6"),
            );
            assert_eq!(answer.body, wanted);
            assert!(
                updated.ends_with('Z') && updated.starts_with("20"),
                "{updated}"
            );
        }
        let missing = scene.get("/metrics", family);
        assert_eq!(
            (missing.status, &missing.body[..]),
            (404, "404 page not found\n")
        );
    }
    // The admin port is this machine's alone by default.
    let admin = SocketAddr::new(scene.world.node_address(Family::V4), 19256);
    let asked = scene
        .world
        .outside
        .run(|| http::get(admin, "/metrics", Duration::from_secs(2)));
    assert!(asked.is_err(), "{asked:?}");
}

#[test]
fn sources_beyond_the_allow_list_are_cut_off() {
    // The router's addresses are the source of what the outside namespace sends of its own.
    let extra = ["--healthz-allow-cidr", "192.0.2.1/32,2001:db8:0:1::1"];
    let scene = Scene::new(Backend::Nftables, &extra);
    for family in Family::ALL {
        let answer = scene.get("/healthz", family);
        assert_eq!(answer.status, 200);
        let address = SocketAddr::new(scene.world.node_address(family), HEALTHZ_PORT);
        let ask = || http::get(address, "/healthz", Duration::from_secs(3));
        let refused = scene.world.worker.run(ask);
        assert!(refused.is_err(), "{refused:?}");
        assert!(
            scene.world.node.run(ask).is_err(),
            "the node itself is not on the list"
        );
    }
    let text = scene.metrics();
    let labels = ["listener=\"healthz\"", "event=\"denied\""];
    assert!(
        metric(&text, "pathproof_http_connections_total", &labels) >= 4,
        "{text}"
    );
}

/// Ten thousand that say nothing: the next one is answered all the same.
#[test]
fn idle_connections_do_not_silence_it() {
    let scene = Scene::new(Backend::Nftables, &[]);
    raise_open_files();
    let address = SocketAddr::new(scene.world.node_address(Family::V4), HEALTHZ_PORT);
    let idle: Vec<TcpStream> = scene.world.outside.run(|| {
        let connect = |number| {
            let mut stream = TcpStream::connect_timeout(&address, PATIENCE).ok()?;
            if number % 2 == 0 {
                // Half of them begin to ask and never end.
                stream.write_all(b"GET /healthz HTTP/1.1\r\nHost:").ok()?;
            }
            if number % 1000 == 999 {
                // Asked on the way, with thousands open.
                let answer = http::get(address, "/healthz", PATIENCE).expect("an answer");
                assert_eq!(answer.status, 200);
            }
            Some(stream)
        };
        (0..10_000).filter_map(connect).collect()
    });
    assert!(idle.len() > 9_000, "{} connections", idle.len());
    for _ in 0..5 {
        assert_eq!(scene.asked("/healthz"), 200);
        assert_eq!(scene.asked("/livez"), 200);
    }
    let text = scene.metrics();
    let accepted = ["listener=\"healthz\"", "event=\"accepted\""];
    assert!(metric(&text, "pathproof_http_connections_total", &accepted) > 9_000);
    drop(idle);
    eventually("none left open", || {
        let text = scene.metrics();
        metric(
            &text,
            "pathproof_http_open_connections",
            &["listener=\"healthz\""],
        ) < 10
    });
}

fn command(scene: &Scene, args: &[&str]) -> (i32, String, String) {
    let output = scene.agent().command(args).output().expect("run a command");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.code().unwrap_or(-1),
        text(&output.stdout),
        text(&output.stderr),
    )
}

#[test]
fn status_and_version_tell() {
    let mut scene = Scene::proven(Backend::Nftables, &[]);
    let (code, said, _) = command(&scene, &["status"]);
    assert_eq!(code, 0, "{said}");
    for word in ["node-1", "proven", "IPv4", "IPv6", "pod", "200"] {
        assert!(
            said.to_lowercase().contains(&word.to_lowercase()),
            "{word} is not in {said}"
        );
    }
    let (code, said, _) = command(&scene, &["status", "--output", "json"]);
    assert_eq!(code, 0, "{said}");
    let report: Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(report["verdict"]["state"], "proven", "{report:#}");
    assert_eq!(report["node"], "node-1");

    scene.rules.flush_services().expect("flush");
    scene.wait("broken", |report| report["verdict"]["state"] == "broken");
    let (code, said, _) = command(&scene, &["status"]);
    assert_eq!(code, 0, "status tells; it does not judge: {said}");
    assert!(
        said.to_lowercase().contains("broken") && said.contains("503"),
        "{said}"
    );

    let (code, said, _) = command(&scene, &["version"]);
    assert_eq!(code, 0);
    assert!(said.contains(env!("CARGO_PKG_VERSION")), "{said}");
    let (code, said, _) = command(&scene, &["version", "--output", "json"]);
    assert_eq!(code, 0);
    let version: Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(version["version"], env!("CARGO_PKG_VERSION"), "{said}");

    // Drawn again each second until it is ended.
    let mut watching = scene.world.node.command("timeout");
    let binary = node_tests::world::agent_binary().expect("the agent's binary");
    let output = watching
        .arg("2.5")
        .arg(binary)
        .args(["status", "--watch"])
        .output();
    let pages = String::from_utf8(output.expect("run status").stdout).expect("text");
    assert!(pages.matches("node-1").count() >= 2, "{pages}");

    // Nobody there, and no address at all.
    let (code, _, complaint) = command(&scene, &["status", "--admin-address", "127.0.0.1:1"]);
    assert_eq!(code, 1, "{complaint}");
    assert!(complaint.contains("127.0.0.1:1"), "{complaint}");
    let (code, _, complaint) = command(&scene, &["status", "--output", "pictures"]);
    assert_eq!(code, 64, "{complaint}");
    scene.clients.clear();
}

/// A restart has no effect on what is answered but the gap itself: never 503 for a sound node.
#[test]
fn a_restart_answers_nothing_but_the_verdict() {
    let mut scene = Scene::proven(Backend::Nftables, &[]);
    let watch = scene.watch();
    scene.take_agent().terminate().expect("an end in order");
    thread::sleep(Duration::from_millis(200));
    scene.start(&[]);
    let first = until(PATIENCE, || scene.agent().verdict().ok()).expect("a verdict");
    assert_eq!(
        first["verdict"]["state"], "proven",
        "it begins from what it knew: {first:#}"
    );
    scene.wait_proven();
    node_tests::scene::assert_never_503(&watch);
}
