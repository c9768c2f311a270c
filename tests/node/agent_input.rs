//! Bad input: a sentence that names the thing and the remedy, and the exit code; and where running
//! on is possible, the last good view.

use std::fs;
use std::path::Path;
use std::process::Output;
use std::thread;
use std::time::Duration;

use node_tests::rules::Backend;
use node_tests::skip;
use node_tests::traffic::{Manner, Server};
use node_tests::world::{World, agent_binary};
use rstest::rstest;
use serde_json::Value;

use crate::agent_scene::{PATIENCE, Scene, eventually, lacks, metric, throughout};

fn world(test: &str) -> Option<World> {
    if skip::without_root(test) {
        return None;
    }
    Some(World::builder().build().expect("build a world"))
}

/// Runs the agent's binary on the node; what runs on after a while is a failure of the test.
fn run(world: &World, args: &[&str]) -> Output {
    let mut command = world.node.command("timeout");
    command.arg("60").arg(agent_binary().expect("the agent's binary")).args(args);
    command.env("NO_COLOR", "1").output().expect("run the agent")
}

fn assert_said(output: &Output, code: i32, words: &[&str]) {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{said}");
    for word in words {
        assert!(said.contains(word), "{word:?} is not in {said}");
    }
}

#[rstest]
#[case::unknown_flag(&["--no-such-flag"], &["--no-such-flag"])]
#[case::bad_address(&["--healthz-bind-address", "node-1:10256"], &["--healthz-bind-address", "node-1:10256"])]
#[case::bad_port(&["--admin-bind-address", "127.0.0.1:99999"], &["--admin-bind-address", "99999"])]
#[case::bad_cidr(&["--healthz-allow-cidr", "10.0.0.0/33"], &["--healthz-allow-cidr", "10.0.0.0/33"])]
#[case::bad_taint(&["--terminating-taint", "a b"], &["--terminating-taint", "a b"])]
#[case::bad_choice(&["--enforcement", "maybe"], &["--enforcement", "maybe"])]
#[case::bad_pattern(&["--interface-include", "eth0/1"], &["--interface-include", "eth0/1"])]
#[case::bad_duration(&["--flap-dwell", "10"], &["--flap-dwell"])]
#[case::relative_pins(&["--pin-dir", "pins"], &["--pin-dir", "pins"])]
#[case::bad_filter(&["--log-filter", "pathproof=loudly"], &["pathproof=loudly"])]
#[case::foreign_address(&["--healthz-bind-address", "192.0.2.77:10256"], &["--healthz-bind-address", "192.0.2.77"])]
fn configuration_is_64(#[case] extra: &[&str], #[case] words: &[&str]) {
    let Some(world) = world("configuration_is_64") else { return };
    let folder = world.dir().to_string_lossy().into_owned();
    let mut args = vec!["run", "--node-name", "node-1", "--manifests", &folder];
    if !extra.contains(&"--pin-dir") {
        args.extend(["--pin-dir", "none"]);
    }
    args.extend(["--state-dir", "none"]);
    args.extend(extra);
    assert_said(&run(&world, &args), 64, words);
}

#[test]
fn no_folder_is_64() {
    let Some(world) = world("no_folder_is_64") else { return };
    let missing = world.dir().join("nowhere").to_string_lossy().into_owned();
    let args = ["run", "--node-name", "node-1", "--manifests", &missing];
    assert_said(&run(&world, &args), 64, &["--manifests", &missing, "create it"]);
    let file = world.dir().join("file").to_string_lossy().into_owned();
    fs::write(&file, "").expect("write a file");
    let args = ["run", "--node-name", "node-1", "--manifests", &file];
    assert_said(&run(&world, &args), 64, &["--manifests", &file]);
    assert_said(&run(&world, &["run", "--node-name", "node-1"]), 64, &["--manifests"]);
}

#[test]
fn an_unreadable_folder_is_77() {
    let name = "an_unreadable_folder_is_77";
    let Some(world) = world(name) else { return };
    if skip::without_tool(name, "setpriv") {
        return;
    }
    let folder = world.dir().join("secret");
    fs::create_dir(&folder).expect("make a folder");
    // root without CAP_DAC_OVERRIDE is held to the permissions of its own files.
    set_mode(&folder, 0o000);
    let folder = folder.to_string_lossy().into_owned();
    let agent = agent_binary().expect("the agent's binary");
    let mut command = world.node.command("setpriv");
    command.args(["--no-new-privs", "--inh-caps", "-all", "--bounding-set"]);
    command.arg("-all,+bpf,+net_admin,+perfmon").arg(agent);
    command.args(["run", "--node-name", "node-1", "--manifests", &folder]);
    let output = command.output().expect("run the agent");
    assert_said(&output, 77, &["--manifests", &folder]);
}

fn set_mode(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("set the mode");
}

#[rstest]
#[case::healthz(10256, "--healthz-bind-address")]
#[case::admin(19256, "--admin-bind-address")]
fn a_port_in_use_is_64(#[case] port: u16, #[case] option: &str) {
    let Some(world) = world("a_port_in_use_is_64") else { return };
    let _holder =
        Server::start_as(&world.node, "holder", port, Manner::Mute).expect("hold the port");
    let folder = world.dir().to_string_lossy().into_owned();
    let args = [
        "run", "--node-name", "node-1", "--manifests", &folder, "--pin-dir", "none", "--state-dir",
        "none",
    ];
    assert_said(&run(&world, &args), 64, &[option, &port.to_string(), "in use"]);
}

fn problems(report: &Value) -> Vec<String> {
    let problems = report["cluster"]["problems"].as_array().cloned().unwrap_or_default();
    problems.iter().map(|one| one.as_str().unwrap_or_default().to_owned()).collect()
}

/// A file that cannot be read, or an object that cannot be: named with its line, and what was known
/// stays.
#[test]
fn a_broken_file_leaves_the_last_good_view() {
    let name = "a_broken_file_leaves_the_last_good_view";
    let Some(scene) = Scene::proven(name, Backend::Nftables, &[]) else { return };
    let watch = scene.watch();
    let manifests = &scene.manifests;
    let file = |name: &str| fs::read_to_string(manifests.dir().join(name)).expect("a manifest");
    let good = file("service-api.yaml");
    let size = scene.report()["expectations"].clone();

    let broken = good.replacen("  ports:\n", "  ports: [\n", 1);
    assert_ne!(broken, good);
    manifests.write_file("service-api.yaml", &broken).expect("break a file");
    let report = scene.wait("the broken file named", |report| {
        problems(report).iter().any(|problem| problem.contains("service-api.yaml:"))
    });
    assert_eq!(report["expectations"], size, "the last good view stays: {report:#}");
    eventually("in metrics", || {
        let none: [&str; 0] = [];
        let text = scene.agent().metrics().expect("metrics");
        metric(&text, "pathproof_view_problems", &none) > 0
    });
    assert!(scene.agent().log().contains("service-api.yaml:"), "and in the log");

    // Invalid in itself: no such port.
    let invalid = good.replacen("port: 80\n", "port: 80000\n", 1);
    manifests.write_file("service-api.yaml", &invalid).expect("write");
    let report = scene.wait("the invalid object named", |report| {
        problems(report).iter().any(|problem| {
            problem.contains("service-api.yaml:") && problem.contains("80000")
        })
    });
    assert_eq!(report["expectations"], size, "{report:#}");

    manifests.write_file("service-api.yaml", &good).expect("mend the file");
    scene.wait("no problems", |report| problems(report).is_empty());

    // The same object twice: told with both places.
    manifests.write_file("twice.yaml", &good).expect("write");
    scene.wait("the duplicate named", |report| {
        problems(report).iter().any(|problem| {
            problem.contains("twice.yaml") && problem.contains("service-api.yaml")
        })
    });
    fs::remove_file(manifests.dir().join("twice.yaml")).expect("remove");
    let report = scene.wait("no problems", |report| problems(report).is_empty());
    assert_eq!(report["expectations"], size, "{report:#}");

    // Of no use here, and no problem.
    let other = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: x\n";
    manifests.write_file("other.yaml", other).expect("write");
    scene.wait("counted as ignored", |report| report["cluster"]["ignored"] == 1);
    scene.wait_proven();
    crate::agent_scene::assert_never_503(&watch);
}

#[rstest]
#[case::open("open", 200)]
#[case::closed("closed", 503)]
fn an_empty_folder_is_unknown(#[case] policy: &str, #[case] status: u16) {
    let Some(mut scene) = Scene::bare("an_empty_folder_is_unknown", Backend::Nftables) else { return };
    let empty = scene.world.dir().join("empty");
    fs::create_dir(&empty).expect("make a folder");
    let folder = empty.to_string_lossy().into_owned();
    scene.spawn(&["--manifests", &folder, "--unknown-policy", policy]);
    let report = scene.wait("unknown", |report| {
        report["verdict"]["state"] == "unknown" && report["cluster"]["synced"] == true
    });
    assert_eq!(report["verdict"]["why"], "nothing_expected", "{report:#}");
    assert_eq!(report["verdict"]["eligibility"]["state"], "never_seen", "{report:#}");
    assert_eq!(scene.agent().healthz().expect("an answer"), status);
    let livez = scene.agent().livez().expect("an answer");
    assert_eq!(livez, status, "{:#}", scene.report());
    // A folder that fills later is followed.
    for file in fs::read_dir(scene.manifests.dir()).expect("list").flatten() {
        fs::copy(file.path(), empty.join(file.file_name())).expect("copy");
    }
    scene.traffic();
    scene.wait_proven();
    eventually("200", || scene.agent().healthz().is_ok_and(|code| code == 200));
}

/// The folder itself vanishes at runtime: the last good view stays, and it is told.
#[test]
fn a_folder_that_vanishes_is_told() {
    let Some(scene) = Scene::proven("a_folder_that_vanishes", Backend::Nftables, &[]) else { return };
    let away = scene.world.dir().join("away");
    fs::rename(scene.manifests.dir(), &away).expect("move the folder");
    scene.wait("told", |report| !problems(report).is_empty());
    let report = scene.report();
    assert_eq!(report["expectations"]["services"], 3, "{report:#}");
    fs::rename(&away, scene.manifests.dir()).expect("move it back");
    scene.wait("no problems", |report| problems(report).is_empty());
    scene.wait_proven();
}

/// Audit: everything is judged and told, and the datapath's part of every answer is 200.
#[test]
fn audit_answers_200_and_says_what_it_would_do() {
    let extra = ["--enforcement", "audit"];
    let Some(scene) = Scene::proven("audit", Backend::Nftables, &extra) else { return };
    let watch = scene.watch();
    let would_fail = || {
        let text = scene.agent().metrics().expect("metrics");
        ["healthz", "livez"].map(|endpoint| {
            let label = [format!("endpoint=\"{endpoint}\"")];
            metric(&text, "pathproof_would_fail", &label)
        })
    };
    assert_eq!(would_fail(), [0, 0]);
    scene.rules.flush_services().expect("flush");
    scene.wait("broken", |report| report["verdict"]["state"] == "broken");
    eventually("would fail", || would_fail() == [1, 1]);
    thread::sleep(Duration::from_millis(500));
    crate::agent_scene::assert_never_503(&watch);
    assert!(watch.wait(PATIENCE, |codes| codes.healthz == 200 && codes.livez == 200).is_ok());
    scene.rules.install().expect("install again");
    eventually("would not fail", || would_fail() == [0, 0]);
}

/// No eBPF file system, no tool, no privilege is missing here: nothing at all is lacking but time.
#[test]
fn a_sound_node_has_no_complaints() {
    let Some(scene) = Scene::proven("a_sound_node", Backend::Nftables, &[]) else { return };
    let report = scene.wait("settled", |report| !lacks(report, "settling"));
    assert_eq!(report["verdict"]["coverage"]["losses"].as_array().map(Vec::len), Some(0));
    assert!(problems(&report).is_empty(), "{report:#}");
    throughout(Duration::from_secs(1), || {
        assert_eq!(scene.report()["verdict"]["state"], "proven");
    });
    let log = scene.agent().log();
    assert!(!log.contains("WARN") && !log.contains("ERROR"), "{log}");
}
