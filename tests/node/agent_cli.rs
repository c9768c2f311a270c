//! The commands other than `run` on a real node: their output during a fault, their exit codes, and that they
//! leave nothing behind.

use std::process::{Command, Stdio};

use node_tests::prelude::*;
use node_tests::process;

use crate::commands::{assert_says, object, pathproof, told};

fn check(scene: &Scene, extra: &[&str]) -> Command {
    let folder = scene.manifests.dir().to_string_lossy().into_owned();
    let args = ["check", "--manifests", &folder, "--node-name", NODE_NAME];
    pathproof(&scene.world, &[&args, extra].concat())
}

/// Interfaces, routes, permanent neighbours, qdiscs and the number of pins. Unpinned TCX links are not
/// listed, because they end with their process.
fn remains(world: &World) -> String {
    let mut all = String::new();
    for words in [
        "-br link",
        "route show table all",
        "-6 route show table all",
        "neigh show nud permanent",
    ] {
        let text = world.node.ip(words).expect("ip");
        // Sort the lines: neighbours are listed in the order of a hash table, which may have grown in
        // between.
        let mut lines: Vec<&str> = text.split_inclusive('\n').collect();
        lines.sort_unstable();
        all.extend(lines);
    }
    all += &world.node.feed("tc", &["qdisc", "show"], "").expect("tc");
    let pins = std::fs::read_dir(world.pin_dir());
    let pins = pins.map_or(0, |entries| entries.count());
    all + &format!("{pins} pins\n")
}

/// The value of [`remains`] once it no longer changes: routes and qdiscs change a moment after an interface
/// is added or removed.
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
fn why_shows_where_a_probe_was_last_seen() {
    let scene = Scene::idle(Backend::Nftables, &[]);
    let why = || pathproof(&scene.world, &["why"]);
    let sound = told(why(), 0);
    assert!(sound.starts_with("PROVEN"), "{sound}");
    assert_says(&sound, &["Nothing to do."]);

    scene.rules.flush_services().expect("flush");
    scene.wait("broken", |report| report["verdict"]["state"] == "broken");
    let page = told(why(), 0);
    assert_says(
        &page,
        &[
            "BROKEN",
            "/healthz answers 503",
            "leaked",
            "✔ arrived     entered the node at pathproof-c0",
            "✘ translated",
            "untranslated",
            "nft list chain ip kube-proxy services",
            "docs/operations.md#leaked",
        ],
    );
    let is_narrow = |line: &str| line.chars().count() <= 100;
    assert!(page.lines().all(is_narrow), "{page}");

    let chain = object(pathproof(&scene.world, &["why", "--output", "json"]));
    assert_eq!(chain["state"], "broken", "{chain:#}");
    let lane = &chain["lanes"][0];
    assert_eq!(lane["cause"], "leaked", "{chain:#}");
    assert_eq!(lane["client"], "198.18.0.1", "{chain:#}");
    let steps = lane["steps"].as_array().expect("steps");
    let last = steps.last().expect("a step");
    assert_eq!(last["stage"], "translated", "{chain:#}");
    assert_eq!(last["reached"], false, "{chain:#}");

    let status = told(pathproof(&scene.world, &["status"]), 0);
    assert_says(
        &status,
        &[
            "sent ✔ arrived ✔ translated ✘ leaked",
            "probing pathproof/pathproof-sentinel",
        ],
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
    let why = told(pathproof(&scene.world, &["why"]), 0);
    assert_says(&why, &["altered"]);
}

#[test]
fn a_check_of_a_sound_node_leaves_nothing() {
    let scene = Scene::bare(Backend::Nftables);
    scene.add_sentinel(&Sentinel::default());
    let before = settled(&scene.world);
    let checked = told(check(&scene, &["--seconds", "3"]), 0);
    assert!(checked.starts_with("PROVEN"), "{checked}");
    assert_eq!(settled(&scene.world), before);

    let told = object(check(&scene, &["--seconds", "3", "-o", "json"]));
    assert_eq!(told["result"], "healthy", "{told:#}");
    let paths = told["paths"].as_array().expect("paths");
    assert!(paths.len() >= 10, "{told:#}");
    let passes = |path: &Value| path["result"] == "pass";
    assert!(paths.iter().all(passes), "{told:#}");
}

#[test]
fn a_check_of_a_flushed_node_names_the_cause() {
    let scene = Scene::bare(Backend::Nftables);
    scene.add_sentinel(&Sentinel::default());
    let before = settled(&scene.world);
    scene.rules.flush_services().expect("flush");
    let page = told(check(&scene, &[]), 1);
    assert!(page.starts_with("BROKEN"), "{page}");
    let cause = "The Service's rules are missing or empty.";
    assert_says(&page, &["leaked", cause]);
    assert_eq!(settled(&scene.world), before);
}

#[test]
fn a_check_without_a_result_names_the_reason() {
    let scene = Scene::bare(Backend::Nftables);
    let absent = told(check(&scene, &[]), 3);
    assert_says(&absent, &["There is no sentinel"]);

    // `check` fails if another program's device has a name of the sentinel's.
    scene.add_sentinel(&Sentinel::default());
    let node = &scene.world.node;
    node.ip("link add pathproof-c0 type bridge").expect("add");
    let foreign = told(check(&scene, &[]), 3);
    assert_says(&foreign, &["is not a veth"]);
    assert!(remains(&scene.world).contains("pathproof-c0"));
    node.ip("link del pathproof-c0").expect("delete");

    // If a filter drops probes, `check` reports them as lost, because a policy may be the reason.
    let filter = "table inet fault { chain drops { type filter hook forward priority -10; \
                  ip saddr 198.18.0.1 drop; ip6 saddr 2001:2::1 drop; }\n}\n";
    scene.nft(filter);
    let dropped = told(check(&scene, &["--seconds", "3"]), 3);
    assert_says(&dropped, &["lost"]);
    scene.nft("delete table inet fault");

    // Run `check` without manifests, and then without capabilities.
    told(pathproof(&scene.world, &["check"]), 64);
    let check = check(&scene, &[]);
    let mut powerless = scene.world.node.command("setpriv");
    powerless
        .args(["--bounding-set=-all", "--inh-caps=-all", "--"])
        .arg(check.get_program())
        .args(check.get_args());
    told(powerless, 77);
}

/// Taints and the deletion of a Node that does not exist cannot be seen: by the check itself, or by the agent
/// that it reads.
#[test]
fn a_check_of_a_node_that_does_not_exist_is_unknown() {
    let mut scene = Scene::bare(Backend::Nftables);
    scene.add_sentinel(&Sentinel::default());
    let folder = scene.manifests.dir().to_string_lossy().into_owned();
    let wrong = ["--node-name", "nobody"];
    let args = [&["check", "--manifests", &*folder][..], &wrong].concat();
    let said = ["No Node is named nobody", "--node-name"];
    assert_says(&told(pathproof(&scene.world, &args), 3), &said);

    scene.spawn(&wrong);
    scene.wait("no Node", |report| {
        report["cluster"]["missing_node"].is_string()
    });
    let read = told(pathproof(&scene.world, &args), 3);
    assert_says(&read, &said);
    assert_says(&read, &["from the agent at"]);
}

#[test]
fn a_check_that_is_ended_leaves_nothing() {
    let scene = Scene::bare(Backend::Nftables);
    scene.add_sentinel(&Sentinel::default());
    let before = settled(&scene.world);
    for signal in [libc::SIGINT, libc::SIGTERM] {
        let mut check = check(&scene, &["--seconds", "600"]);
        let child = check.stderr(Stdio::piped()).spawn();
        let mut child = child.expect("start a check");
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
    let checked = told(check(&scene, &[]), 0);
    assert_says(&checked, &["from the agent at 127.0.0.1:19256"]);
    assert_eq!(remains(&scene.world), devices);

    // A check with another admin address does not disturb the agent that runs.
    let elsewhere = check(&scene, &["--admin-address", "127.0.0.1:1"]);
    assert_says(&told(elsewhere, 3), &["--admin-address"]);
    assert_eq!(remains(&scene.world), devices);

    scene.rules.flush_services().expect("flush");
    scene.wait("broken", |report| report["verdict"]["state"] == "broken");
    assert_says(&told(check(&scene, &[]), 1), &["leaked"]);

    let pins = scene.world.pin_dir().to_string_lossy().into_owned();
    scene.take_agent().kill().expect("kill");
    assert!(remains(&scene.world).contains("pathproof-c0"));
    let cleanup = ["cleanup", "--pin-dir", &pins, "--state-dir", "none"];
    let cleaned = told(pathproof(&scene.world, &cleanup), 0);
    assert_says(&cleaned, &["4 sentinel interfaces"]);
    let left = remains(&scene.world);
    assert!(!left.contains("pathproof-"), "{left}");
    assert!(!left.contains("198.18.0."), "{left}");
}
