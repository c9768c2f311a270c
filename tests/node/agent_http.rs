//! The HTTP listeners on a real node, and the commands that query them.

use std::io::Write;
use std::net::TcpStream;

use node_tests::abuse::ManyFiles;
use node_tests::http;
use node_tests::prelude::*;
use node_tests::world::HEALTHZ_PORT;

use crate::agent_http_abuse::{Probes, open};
use crate::commands::{assert_says, object, pathproof, told};

/// Answers equal those of kube-proxy byte by byte: fields and their order, times and headers. They are
/// compared at the default address in both families.
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
    // By default, only the node itself can reach the admin port.
    let admin = SocketAddr::new(scene.world.node_address(Family::V4), 19256);
    let asked = scene
        .world
        .outside
        .run(|| http::get(admin, "/metrics", Duration::from_secs(2)));
    assert!(asked.is_err(), "{asked:?}");
}

/// Probes are answered beside 10,000 idle connections.
#[test]
fn idle_connections_do_not_silence_it() {
    let scene = Scene::new(Backend::Nftables, &[]);
    let _files = ManyFiles::open();
    let address = SocketAddr::new(scene.world.node_address(Family::V4), HEALTHZ_PORT);
    let connect = |number| {
        let mut stream = TcpStream::connect_timeout(&address, PATIENCE).ok()?;
        if number % 2 == 0 {
            // Half of them send the beginning of a request.
            stream.write_all(b"GET /healthz HTTP/1.1\r\nHost:").ok()?;
        }
        Some(stream)
    };
    let thousand = || (0..1_000).filter_map(connect).collect::<Vec<TcpStream>>();
    let (mut idle, mut probes) = (Vec::new(), Probes::default());
    for _ in 0..10 {
        idle.extend(scene.world.outside.run(thousand));
        probes.send(&scene);
    }
    assert!(idle.len() > 9_000, "{} connections", idle.len());
    for _ in 0..5 {
        probes.send(&scene);
    }
    probes.assert_answered();
    let held = open(&scene);
    assert!(held > 9_000, "the agent holds {held}");
    drop(idle);
    eventually("none left open", || open(&scene) < 10);
}

#[test]
fn status_and_version_tell() {
    let scene = Scene::proven(Backend::Nftables, &[]);
    let pathproof = |args: &[&str]| pathproof(&scene.world, args);
    let said = told(pathproof(&["status"]), 0).to_lowercase();
    assert_says(&said, &["node-1", "proven", "ipv4", "ipv6", "pod", "200"]);
    let report = object(pathproof(&["status", "--output", "json"]));
    assert_eq!(report["verdict"]["state"], "proven", "{report:#}");
    assert_eq!(report["node"], "node-1");

    scene.rules.flush_services().expect("flush");
    scene.wait("broken", |report| report["verdict"]["state"] == "broken");
    // `status` exits with 0 whatever the verdict is, because it only reports.
    let said = told(pathproof(&["status"]), 0).to_lowercase();
    assert_says(&said, &["broken", "503"]);

    let version = env!("CARGO_PKG_VERSION");
    assert_says(&told(pathproof(&["version"]), 0), &[version, "revision"]);

    // `--watch` prints the page again each second until it is ended.
    let mut watching = scene.world.node.command("timeout");
    let binary = agent_binary().expect("the agent's binary");
    watching.arg("2.5").arg(binary).args(["status", "--watch"]);
    let output = watching.output().expect("run status");
    let pages = String::from_utf8(output.stdout).expect("text");
    assert!(pages.matches("node-1").count() >= 2, "{pages}");

    // Errors: an address without an agent, and an invalid option.
    let nobody = "127.0.0.1:1";
    let complaint = told(pathproof(&["status", "--admin-address", nobody]), 1);
    assert_says(&complaint, &[nobody]);
    told(pathproof(&["status", "--output", "pictures"]), 64);
}
