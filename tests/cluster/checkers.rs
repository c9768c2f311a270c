//! Real HAProxy, nginx, keepalived and Envoy beside a real kube-proxy, from the agent's installation to its
//! removal: how soon each follows the answer. The agent ends none of kubelet's connections.
//!
//! HAProxy opens a connection for each check, Envoy keeps one. Debian's nginx makes no checks: here it passes
//! requests on by a connection that it keeps. keepalived runs a script on the node.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

use anyhow::Context as _;
use node_tests::cluster::Process;
use node_tests::prelude::*;
use node_tests::watch::Poll;
use node_tests::world::{HEALTHZ_PORT, write_script};
use node_tests::{built, http};

use crate::scene::{PATIENCE, Scene, flush};

/// Address that keepalived adds to the node while its script succeeds.
const VIRTUAL: &str = "192.0.2.99/32";
/// Interval of reading the checkers' states.
const EVERY: Duration = Duration::from_millis(100);
/// The script of a machine without curl.
const SCRIPT: &str = r#"#!/bin/bash
exec 3<>/dev/tcp/127.10.2.56/10256 || exit 1
printf 'GET /healthz HTTP/1.0\r\n\r\n' >&3
read -r -t 1 _ status _ <&3 && [ "$status" = 200 ]
"#;

/// A program that checks the node, and whether it would send connections there.
struct Checker {
    name: &'static str,
    /// Longest times, in seconds, that the checker takes to follow the first 503, later ones, and 200.
    limits: [u64; 3],
    is_up: Poll<bool>,
    _process: Process,
}

/// The limits of a checker with a connection to kube-proxy, which the agent ends within 30 s.
const KEEPS_CONNECTION: [u64; 3] = [32, 3, 3];

impl Checker {
    fn start(
        scene: &Scene,
        (name, limits): (&'static str, [u64; 3]),
        command: Command,
        is_up: impl Fn() -> Option<bool> + Send + 'static,
    ) -> Self {
        let process = Process::start(command, name, scene.world.dir()).expect("a checker");
        let ask = move || is_up().map(|is_up| (Instant::now(), is_up));
        let is_up = Poll::start(&scene.world.outside, name, EVERY, ask).expect("a poller");
        Self {
            name,
            limits,
            is_up,
            _process: process,
        }
    }
}

fn haproxy(scene: &Scene) -> Checker {
    let (node, dir) = (scene.world.node_address(Family::V4), scene.world.dir());
    let front = SocketAddr::new(scene.world.outside_client(1, Family::V4), 8_000);
    let socket = dir.join("haproxy.sock");
    let text = format!(
        "global\n stats socket {}\ndefaults\n mode tcp\n timeout connect 500ms\n \
         timeout client 5s\n timeout server 5s\nlisten nodes\n bind {front}\n \
         option httpchk GET /healthz\n \
         server node-1 {node}:30080 check port {HEALTHZ_PORT} inter 500ms fall 2 rise 2\n",
        socket.display()
    );
    let file = dir.join("haproxy.cfg");
    fs::write(&file, text).expect("a configuration");
    let mut command = scene.world.outside.command("haproxy");
    command.arg("-db").arg("-f").arg(&file);
    Checker::start(scene, ("haproxy", [3, 3, 3]), command, move || {
        haproxy_state(&socket)
    })
}

/// Whether HAProxy uses the server; `None` if it does not answer.
fn haproxy_state(socket: &Path) -> Option<bool> {
    let mut stream = UnixStream::connect(socket).ok()?;
    stream.write_all(b"show stat\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    let line = text
        .lines()
        .find(|line| line.starts_with("nodes,node-1,"))?;
    Some(line.split(',').nth(17)?.starts_with("UP"))
}

/// An nginx that passes requests on to the node by a connection that it keeps.
fn nginx(scene: &Scene, program: &Path) -> Checker {
    let folder = scene.world.dir().join("nginx");
    fs::create_dir_all(&folder).expect("a folder");
    let node = scene.world.node_address(Family::V4);
    let front = SocketAddr::new(scene.world.outside_client(2, Family::V4), 8_001);
    let text = format!(
        "daemon off;\nmaster_process off;\nerror_log stderr;\npid nginx.pid;\nevents {{}}\n\
         http {{\n access_log off;\n client_body_temp_path a;\n proxy_temp_path b;\n \
         fastcgi_temp_path c;\n uwsgi_temp_path d;\n scgi_temp_path e;\n \
         upstream node {{ server {node}:{HEALTHZ_PORT}; keepalive 1; }}\n \
         server {{\n listen {front};\n location / {{\n proxy_pass http://node;\n \
         proxy_http_version 1.1;\n proxy_set_header Connection \"\";\n }}\n }}\n}}\n"
    );
    let file = folder.join("nginx.conf");
    fs::write(&file, text).expect("a configuration");
    let mut command = scene.world.outside.command(program);
    command.args(["-e", "stderr", "-p"]).arg(&folder);
    command.arg("-c").arg(&file);
    Checker::start(scene, ("nginx", KEEPS_CONNECTION), command, move || {
        let answer = http::get(front, "/healthz", scaled(Duration::from_secs(1)));
        // 502 is an answer of nginx itself: the connection was closed during the request.
        let status = answer.ok()?.status;
        (status != 502).then_some(status == 200)
    })
}

/// A keepalived on the node. Its script dials the address for checks.
fn keepalived(scene: &Scene) -> Checker {
    let dir = scene.world.dir();
    let [script, file, pid, vrrp] =
        ["check.sh", "keepalived.conf", "keepalived.pid", "vrrp.pid"].map(|name| dir.join(name));
    write_script(&script, SCRIPT).expect("a script");
    let text = format!(
        "global_defs {{\n script_user root\n}}\nvrrp_script datapath {{\n script \"{}\"\n \
         interval 1\n timeout 1\n fall 2\n rise 2\n}}\nvrrp_instance nodes {{\n state MASTER\n \
         interface eth0\n virtual_router_id 51\n priority 100\n advert_int 1\n \
         virtual_ipaddress {{\n {VIRTUAL}\n }}\n track_script {{\n datapath\n }}\n}}\n",
        script.display()
    );
    fs::write(&file, text).expect("a configuration");
    let mut command = scene.world.node.command("keepalived");
    command.args(["-P", "-n", "-l", "-f"]).arg(&file);
    command.arg("-p").arg(&pid).arg("-r").arg(&vrrp);
    let node = scene.world.node.clone();
    // keepalived also waits for other nodes' announcements, for 4 s.
    Checker::start(scene, ("keepalived", [6, 6, 12]), command, move || {
        let addresses = node.ip("-4 addr show dev eth0").ok()?;
        Some(addresses.contains(VIRTUAL))
    })
}

/// An Envoy that keeps the connection of its checks, as by default.
fn envoy(scene: &Scene, program: &Path) -> Checker {
    let node = scene.world.node_address(Family::V4);
    let admin = SocketAddr::new(scene.world.outside_client(1, Family::V4), 9_901);
    let address = |ip: IpAddr, port: u16| {
        let address = serde_json::json!({"address": ip, "port_value": port});
        serde_json::json!({"socket_address": address})
    };
    let endpoint = serde_json::json!({
        "address": address(node, 30_080),
        "health_check_config": {"port_value": HEALTHZ_PORT},
    });
    let check = serde_json::json!({
        "timeout": "0.5s",
        "interval": "0.5s",
        // A minute by default, where no requests pass.
        "no_traffic_interval": "0.5s",
        "unhealthy_threshold": 2,
        "healthy_threshold": 2,
        "http_health_check": {"path": "/healthz"},
    });
    let cluster = serde_json::json!({
        "name": "nodes",
        "type": "STATIC",
        "health_checks": [check],
        "load_assignment": {
            "cluster_name": "nodes",
            "endpoints": [{"lb_endpoints": [{"endpoint": endpoint}]}],
        },
    });
    let text = serde_json::json!({
        "admin": {"address": address(admin.ip(), admin.port())},
        "static_resources": {"clusters": [cluster]},
    });
    let file = scene.world.dir().join("envoy.json");
    fs::write(&file, text.to_string()).expect("a configuration");
    let mut command = scene.world.outside.command(program);
    command.args(["--disable-hot-restart", "--concurrency", "1", "-l", "warn"]);
    command.arg("-c").arg(&file);
    Checker::start(scene, ("envoy", KEEPS_CONNECTION), command, move || {
        let answer = http::get(admin, "/clusters", scaled(Duration::from_secs(1)));
        let (_, flags) = (answer.as_ref().ok()?.body).split_once("::health_flags::")?;
        Some(flags.starts_with("healthy"))
    })
}

/// Number of completed syncs in kube-proxy's log, one for each family.
fn syncs(scene: &Scene) -> usize {
    let log = scene.proxy().process.log();
    log.matches("SyncProxyRules complete").count()
}

/// Moves kube-proxy to port 10256, and waits until it has written the rules of both families.
fn move_proxy(scene: &mut Scene) {
    let before = syncs(scene);
    drop(scene.proxy.take());
    scene.start_proxy_at(HEALTHZ_PORT, &[]);
    let synced = until(PATIENCE, || (syncs(scene) >= before + 2).then_some(()));
    assert!(synced.is_some(), "{}", scene.proxy().process.log());
}

/// Connections of the node to kube-proxy, from before the installation: kubelet's at loopback, and others.
fn own_connections(scene: &Scene) -> Vec<TcpStream> {
    let node = scene.world.node_address(Family::V4);
    let to: [IpAddr; 2] = [Ipv4Addr::LOCALHOST.into(), node];
    let connect = |ip: IpAddr| {
        let stream = (scene.world.node).run(|| TcpStream::connect((ip, HEALTHZ_PORT)));
        let stream = stream.expect("a connection");
        let timeout = Some(scaled(Duration::from_secs(2)));
        stream.set_read_timeout(timeout).expect("a timeout");
        stream
    };
    Vec::from(to.map(connect))
}

#[track_caller]
fn assert_open(kept: &[TcpStream]) {
    for mut stream in kept {
        let request = b"GET /healthz HTTP/1.1\r\nHost: node\r\n\r\n";
        stream.write_all(request).expect("an open connection");
        let mut answer = [0; 2_048];
        let length = stream.read(&mut answer).expect("an answer");
        let text = String::from_utf8_lossy(&answer[..length]);
        assert!(text.starts_with("HTTP/1.1 200"), "{stream:?}: {text}");
    }
}

/// Waits until each checker's state is `up`. Asserts the time since the answer changed, with the limit of
/// that number.
fn follow(checkers: &[Checker], up: bool, event: Instant, answer: Instant, limit: usize) {
    for checker in checkers {
        let seen = checker.is_up.first(event, PATIENCE, |is| *is == up);
        let seen = seen.unwrap_or_else(|| panic!("{}: never {up}", checker.name));
        let took = seen.saturating_duration_since(answer);
        println!("| {} | {up} | {took:?} |", checker.name);
        let limit = scaled(Duration::from_secs(checker.limits[limit]));
        assert!(took < limit, "{}, {up}: {took:?}", checker.name);
    }
}

/// Breaks the node and repairs it. `limit` is the number of the fault's limit.
fn break_and_mend(scene: &Scene, checkers: &[Checker], limit: usize) {
    let watch = scene.watch_healthy();
    let broken = Instant::now();
    let rules = flush(&scene.world.node);
    let answer = watch.wait(PATIENCE, |codes| codes.healthz == 503);
    follow(checkers, false, broken, answer.expect("503"), limit);
    let mended = Instant::now();
    scene.world.node.nft(&rules).expect("the rules again");
    let answer = watch.wait(PATIENCE, |codes| codes.healthz == 200);
    follow(checkers, true, mended, answer.expect("200"), 2);
}

/// Asserts that the checkers follow two faults, and nothing that happens to the agent alone.
fn from_installation_to_removal(scene: &mut Scene, checkers: &[Checker]) {
    let are_up = || {
        checkers
            .iter()
            .all(|checker| checker.is_up.now() == Some(true))
    };
    assert!(until(PATIENCE, || are_up().then_some(())).is_some());
    let own = own_connections(scene);
    assert_open(&own);
    let changes = || {
        let changes = checkers.iter().map(|checker| checker.is_up.changes().len());
        changes.collect::<Vec<_>>()
    };

    let before = changes();
    scene.start_agent(&["--flap-dwell", "0"]);
    scene.wait_proven();
    settle();
    assert_eq!(changes(), before, "the installation");
    break_and_mend(scene, checkers, 0);
    break_and_mend(scene, checkers, 1);

    let before = changes();
    scene.upgrade_agent();
    scene.agent.take().expect("an agent").kill().expect("kill");
    thread::sleep(Duration::from_secs(3));
    scene.start_agent(&[]);
    scene.wait_proven();
    let agent = scene.agent.take().expect("an agent");
    agent.terminate().expect("an end in order");
    thread::sleep(Duration::from_secs(3));
    assert_eq!(changes(), before, "update, kill and removal");
    assert!(are_up());
    assert_open(&own);
}

#[test]
fn checkers_follow_the_verdict_and_keep_the_node_through_an_update_a_kill_and_the_removal() {
    needs!(skip::tool("haproxy"));
    needs!(skip::tool("keepalived"));
    let program = built::unpacked("nginx").context("nginx, which `cargo xtask test` unpacks");
    let program = needs!(skip::needed(program));
    let mut scene = needs!(Scene::bare(Mode::Nftables));
    move_proxy(&mut scene);
    let checkers = [haproxy(&scene), nginx(&scene, &program), keepalived(&scene)];
    from_installation_to_removal(&mut scene, &checkers);
}

#[test]
fn envoy_follows_the_verdict_although_it_keeps_its_connection() {
    let folder = built::folder("envoy", "envoy/_bin");
    let program =
        built::program(&folder, "envoy").context("Envoy, which `cargo xtask test` fetches");
    let program = needs!(skip::needed(program));
    let mut scene = needs!(Scene::bare(Mode::Nftables));
    move_proxy(&mut scene);
    let checkers = [envoy(&scene, &program)];
    from_installation_to_removal(&mut scene, &checkers);
}
