//! The commands beside `run`, on a real node: what they say during a fault, what they exit with,
//! and that they leave nothing behind.

use std::process::{Command, Output};
use std::thread;
use std::time::Duration;

use node_tests::manifests::Sentinel;
use node_tests::process;
use node_tests::rules::Backend;
use node_tests::world::{NODE_NAME, World, agent_binary};
use serde_json::Value;

use node_tests::scene::{Scene, eventually};

/// A command of the agent's binary on the node, with none of the tester's settings.
fn command(world: &World, args: &[&str]) -> Command {
    let binary = agent_binary().expect("the agent's binary");
    let mut command = world.node.command(binary);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("PATHPROOF_") {
            command.env_remove(name);
        }
    }
    command.env("NO_COLOR", "1").args(args);
    command
}

fn output(mut command: Command) -> Output {
    command.output().expect("run the command")
}

fn text(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("no JSON: {}", text(output)))
}

/// `pathproof check` without an agent.
fn check(scene: &Scene, extra: &[&str]) -> Command {
    let folder = scene.manifests.dir().to_string_lossy().into_owned();
    let mut command = command(
        &scene.world,
        &["check", "--manifests", &folder, "--node-name", NODE_NAME],
    );
    command.args(extra);
    command
}

/// Interfaces, routes, neighbours, queueing disciplines (clsact among them) and pinned programs, as
/// they stand. Links of TCX that nothing pins end with the process.
fn remains(world: &World) -> String {
    let mut all = String::new();
    for args in [
        &["-br", "link"][..],
        &["route", "show", "table", "all"],
        &["-6", "route", "show", "table", "all"],
        &["neigh", "show", "nud", "permanent"],
    ] {
        let ip = world.node.command("ip").args(args).output();
        let text = ip.map(|ip| String::from_utf8_lossy(&ip.stdout).into_owned());
        let text = text.expect("ip");
        // Neighbours come in the order of a hash table, which may have grown meanwhile.
        let mut lines: Vec<&str> = text.split_inclusive('\n').collect();
        lines.sort_unstable();
        all.extend(lines);
    }
    let tc = world.node.command("tc").args(["qdisc", "show"]).output();
    all.push_str(&String::from_utf8_lossy(&tc.expect("tc").stdout));
    let pins = std::fs::read_dir(world.pin_dir());
    let pins = pins.map_or(0, |entries| entries.count());
    all.push_str(&format!("{pins} pins\n"));
    all
}

/// Devices and all come a moment after the link is made, and go so.
fn settled(world: &World) -> String {
    let mut last = remains(world);
    eventually("the interfaces settle", || {
        thread::sleep(Duration::from_millis(300));
        let now = remains(world);
        std::mem::replace(&mut last, now.clone()) == now
    });
    last
}

#[test]
fn why_tells_where_a_probe_was_last_seen() {
    let scene = Scene::idle(Backend::Nftables, &[]);
    let sound = text(&output(command(&scene.world, &["why"])));
    assert!(sound.starts_with("PROVEN"), "{sound}");
    assert!(sound.contains("Nothing to do."), "{sound}");

    scene.rules.flush_services().expect("flush");
    scene.wait("broken", |report| report["verdict"]["state"] == "broken");
    let said = output(command(&scene.world, &["why"]));
    let page = text(&said);
    assert_eq!(said.status.code(), Some(0), "{page}");
    for part in [
        "BROKEN",
        "/healthz answers 503",
        "leaked",
        "✔ arrived     entered the node at pathproof-c0",
        "✘ translated",
        "untranslated",
        "nft list chain ip kube-proxy services",
        "docs/operations.md#leaked",
    ] {
        assert!(page.contains(part), "{part:?} is not in\n{page}");
    }
    assert!(
        page.lines().all(|line| line.chars().count() <= 100),
        "{page}"
    );

    let chain = json(&output(command(&scene.world, &["why", "--output", "json"])));
    assert_eq!(chain["state"], "broken", "{chain:#}");
    let lane = &chain["lanes"][0];
    assert_eq!(lane["cause"], "leaked", "{chain:#}");
    assert_eq!(lane["client"], "198.18.0.1", "{chain:#}");
    let steps = lane["steps"].as_array().expect("steps");
    let last = steps.last().expect("a step");
    assert_eq!(
        (&last["stage"], &last["reached"]),
        (&Value::from("translated"), &Value::from(false)),
        "{chain:#}"
    );

    let status = text(&output(command(&scene.world, &["status"])));
    assert!(
        status.contains("sent ✔ arrived ✔ translated ✘ leaked"),
        "{status}"
    );
    assert!(
        status.contains("probing pathproof/pathproof-sentinel"),
        "{status}"
    );
}

#[test]
fn a_report_shows_the_sentinel() {
    let scene = Scene::idle(Backend::Nftables, &[]);
    let report = scene.report();
    let sentinel = &report["sentinel"];
    assert_eq!(sentinel["state"], "probing", "{report:#}");
    assert_eq!(sentinel["devices"]["client_near"], "pathproof-c0");
    assert_eq!(sentinel["families"][1]["endpoint"], "[2001:2::2]:20001");

    let altered = Sentinel {
        endpoints: [[10, 0, 0, 9].into(), Sentinel::default().endpoints[1]],
        ..Sentinel::default()
    };
    scene.manifests.put_sentinel(&altered).expect("alter it");
    let report = scene.wait("altered", |report| report["sentinel"]["state"] == "altered");
    let sentence = report["sentinel"]["sentence"].as_str().unwrap_or_default();
    assert!(sentence.contains("198.18.0.2"), "{report:#}");
    let why = text(&output(command(&scene.world, &["why"])));
    assert!(why.contains("altered"), "{why}");
}

#[test]
fn a_check_of_a_sound_node_leaves_nothing() {
    let scene = Scene::bare(Backend::Nftables);
    scene.add_sentinel(&Sentinel::default());
    let before = settled(&scene.world);
    let checked = output(check(&scene, &["--seconds", "3"]));
    assert_eq!(checked.status.code(), Some(0), "{}", text(&checked));
    assert!(text(&checked).starts_with("PROVEN"), "{}", text(&checked));
    assert_eq!(settled(&scene.world), before);

    let told = json(&output(check(&scene, &["--seconds", "3", "-o", "json"])));
    assert_eq!(told["result"], "sound", "{told:#}");
    let paths = told["paths"].as_array().expect("paths");
    assert!(paths.len() >= 10, "{told:#}");
    assert!(
        paths.iter().all(|path| path["result"] == "pass"),
        "{told:#}"
    );
}

#[test]
fn a_check_of_a_flushed_node_names_the_cause() {
    let scene = Scene::bare(Backend::Nftables);
    scene.add_sentinel(&Sentinel::default());
    let before = settled(&scene.world);
    scene.rules.flush_services().expect("flush");
    let checked = output(check(&scene, &[]));
    let page = text(&checked);
    assert_eq!(checked.status.code(), Some(1), "{page}");
    assert!(page.starts_with("BROKEN"), "{page}");
    assert!(page.contains("leaked"), "{page}");
    assert!(
        page.contains("The Service's rules are missing or empty."),
        "{page}"
    );
    assert_eq!(settled(&scene.world), before);
}

#[test]
fn a_check_that_can_tell_nothing_says_so() {
    let scene = Scene::bare(Backend::Nftables);
    let absent = output(check(&scene, &[]));
    assert_eq!(absent.status.code(), Some(3), "{}", text(&absent));
    assert!(
        text(&absent).contains("There is no sentinel"),
        "{}",
        text(&absent)
    );

    // A device of another program.
    scene.add_sentinel(&Sentinel::default());
    let ip = |args: &[&str]| {
        let done = scene.world.node.command("ip").args(args).status();
        assert!(done.expect("ip").success(), "ip {args:?}");
    };
    ip(&["link", "add", "pathproof-c0", "type", "bridge"]);
    let foreign = output(check(&scene, &[]));
    assert_eq!(foreign.status.code(), Some(3), "{}", text(&foreign));
    assert!(
        text(&foreign).contains("is not a veth"),
        "{}",
        text(&foreign)
    );
    assert!(remains(&scene.world).contains("pathproof-c0"));
    ip(&["link", "del", "pathproof-c0"]);

    // A filter that a policy may well be.
    let filter = "table inet fault { chain drops { type filter hook forward priority -10; \
                  ip saddr 198.18.0.1 drop; ip6 saddr 2001:2::1 drop; }\n}\n";
    scene.nft(filter);
    let dropped = output(check(&scene, &["--seconds", "3"]));
    assert_eq!(dropped.status.code(), Some(3), "{}", text(&dropped));
    assert!(text(&dropped).contains("lost"), "{}", text(&dropped));
    scene.nft("delete table inet fault");

    // Nothing to read, and no right to look.
    let nowhere = output(command(&scene.world, &["check"]));
    assert_eq!(nowhere.status.code(), Some(64), "{}", text(&nowhere));
    let check = check(&scene, &[]);
    let mut powerless = scene.world.node.command("setpriv");
    powerless
        .args(["--bounding-set=-all", "--inh-caps=-all", "--"])
        .arg(check.get_program())
        .args(check.get_args());
    let denied = output(powerless);
    assert_eq!(denied.status.code(), Some(77), "{}", text(&denied));
}

#[test]
fn a_check_that_is_ended_leaves_nothing() {
    let scene = Scene::bare(Backend::Nftables);
    scene.add_sentinel(&Sentinel::default());
    let before = settled(&scene.world);
    for signal in [libc::SIGINT, libc::SIGTERM] {
        let mut command = check(&scene, &["--seconds", "600"]);
        let mut child = command
            .stderr(std::process::Stdio::piped())
            .spawn()
            .expect("start a check");
        eventually("devices", || remains(&scene.world).contains("pathproof-s1"));
        thread::sleep(Duration::from_millis(500));
        assert!(process::signal(child.id(), signal));
        let status = child.wait().expect("an end");
        assert_eq!(status.code(), Some(3), "signal {signal}");
        assert_eq!(settled(&scene.world), before, "signal {signal}");
    }
}

#[test]
fn a_check_beside_an_agent_reads_its_verdict() {
    let mut scene = Scene::idle(Backend::Nftables, &[]);
    let devices = remains(&scene.world);
    let checked = output(check(&scene, &[]));
    assert_eq!(checked.status.code(), Some(0), "{}", text(&checked));
    assert!(text(&checked).contains("from the agent at 127.0.0.1:19256"));
    assert_eq!(remains(&scene.world), devices);

    // An agent that is not asked is not disturbed.
    let elsewhere = output(check(&scene, &["--admin-address", "127.0.0.1:1"]));
    assert_eq!(elsewhere.status.code(), Some(3), "{}", text(&elsewhere));
    assert!(
        text(&elsewhere).contains("--admin-address"),
        "{}",
        text(&elsewhere)
    );
    assert_eq!(remains(&scene.world), devices);

    scene.rules.flush_services().expect("flush");
    scene.wait("broken", |report| report["verdict"]["state"] == "broken");
    let broken = output(check(&scene, &[]));
    assert_eq!(broken.status.code(), Some(1), "{}", text(&broken));
    assert!(text(&broken).contains("leaked"), "{}", text(&broken));

    // What a killed agent leaves, cleanup takes.
    let pins = scene.world.pin_dir().to_string_lossy().into_owned();
    scene.take_agent().kill().expect("kill");
    assert!(remains(&scene.world).contains("pathproof-c0"));
    let cleanup = ["cleanup", "--pin-dir", &pins, "--state-dir", "none"];
    let cleaned = output(command(&scene.world, &cleanup));
    assert_eq!(cleaned.status.code(), Some(0), "{}", text(&cleaned));
    assert!(
        text(&cleaned).contains("4 sentinel interfaces"),
        "{}",
        text(&cleaned)
    );
    let left = remains(&scene.world);
    assert!(!left.contains("pathproof-"), "{left}");
    assert!(!left.contains("198.18.0."), "{left}");
}
