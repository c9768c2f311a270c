//! A bad option is reported in one sentence that names the remedy, and with the right exit code.

use std::fs;
use std::path::Path;
use std::process::Output;

use node_tests::traffic::{Manner, Server};
use node_tests::world::{World, agent_binary, clean};
use rstest::rstest;

fn world() -> World {
    World::builder().build().expect("build a world")
}

/// Runs the agent's binary on the node. It must end within 60 s.
fn run(world: &World, args: &[&str]) -> Output {
    let mut command = world.node.command("timeout");
    command
        .arg("60")
        .arg(agent_binary().expect("the agent's binary"))
        .args(args);
    clean(&mut command);
    command.output().expect("run the agent")
}

fn assert_said(output: &Output, code: i32, words: &[&str]) {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{said}");
    for word in words {
        assert!(said.contains(word), "{word:?} is not in {said}");
    }
}

/// An option, an invalid value, and the text that the message must contain beside the option.
const UNSOUND: [(&str, &str, &str); 12] = [
    ("--no-such-flag", "1", "--no-such-flag"),
    ("--healthz-bind-address", "node-1:10256", "node-1:10256"),
    ("--admin-bind-address", "127.0.0.1:99999", "99999"),
    ("--healthz-allow-cidr", "10.0.0.0/33", "10.0.0.0/33"),
    ("--terminating-taint", "a b", "a b"),
    ("--enforcement", "maybe", "maybe"),
    ("--families", "ipv4", "ipv4"),
    ("--interface-include", "eth0/1", "eth0/1"),
    ("--flap-dwell", "10", "10s"),
    ("--pin-dir", "pins", "pins"),
    ("--log-filter", "pathproof=loudly", "pathproof=loudly"),
    // A valid address, but of another machine.
    ("--healthz-bind-address", "192.0.2.77:10256", "192.0.2.77"),
];

/// A valid command line, with an empty folder of manifests.
fn sound(folder: &str) -> [&str; 9] {
    [
        "run",
        "--node-name",
        "node-1",
        "--manifests",
        folder,
        "--pin-dir",
        "none",
        "--state-dir",
        "none",
    ]
}

#[test]
fn unsound_options_are_64() {
    let world = world();
    let folder = world.dir().to_string_lossy().into_owned();
    for (option, value, named) in UNSOUND {
        let mut args = sound(&folder).to_vec();
        match args.iter().position(|arg| *arg == option) {
            Some(at) => args[at + 1] = value,
            None => args.extend([option, value]),
        }
        assert_said(&run(&world, &args), 64, &[option, named]);
    }
}

#[test]
fn no_folder_is_64() {
    let world = world();
    let missing = world.dir().join("nowhere").to_string_lossy().into_owned();
    let args = ["run", "--node-name", "node-1", "--manifests", &missing];
    let said = ["--manifests", &missing, "create it"];
    assert_said(&run(&world, &args), 64, &said);
    let file = world.dir().join("file").to_string_lossy().into_owned();
    fs::write(&file, "").expect("write a file");
    let args = ["run", "--node-name", "node-1", "--manifests", &file];
    assert_said(&run(&world, &args), 64, &["--manifests", &file]);
    let without = run(&world, &["run", "--node-name", "node-1"]);
    assert_said(&without, 64, &["--manifests"]);
}

#[rstest]
#[case::garbage("\u{1}: ][")]
#[case::without_current_context("apiVersion: v1\nkind: Config\n")]
fn an_unusable_kubeconfig_is_64(#[case] text: &str) {
    let world = world();
    let file = world
        .dir()
        .join("admin.conf")
        .to_string_lossy()
        .into_owned();
    fs::write(&file, text).expect("write a kubeconfig");
    let mut args = vec!["run", "--node-name", "node-1", "--kubeconfig", &file];
    args.extend(["--pin-dir", "none", "--state-dir", "none"]);
    let said = ["--kubeconfig", &file, "config view --minify"];
    assert_said(&run(&world, &args), 64, &said);
}

#[test]
fn a_time_that_is_none_is_64() {
    let why = run(&world(), &["why", "--at", "yesterday"]);
    let said = ["'yesterday' for '--at <TIME>'", "give a time", "2026-"];
    assert_said(&why, 64, &said);
}

#[test]
fn an_unreadable_folder_is_77() {
    let world = world();
    let folder = world.dir().join("secret");
    fs::create_dir(&folder).expect("make a folder");
    // Remove CAP_DAC_OVERRIDE, so that permissions restrict root too.
    set_mode(&folder, 0o000);
    let folder = folder.to_string_lossy().into_owned();
    let agent = agent_binary().expect("the agent's binary");
    let mut command = world.node.command("setpriv");
    command.args(["--no-new-privs", "--inh-caps", "-all", "--bounding-set"]);
    command.arg("-all,+bpf,+net_admin,+perfmon").arg(agent);
    command.args(["run", "--node-name", "node-1", "--manifests", &folder]);
    clean(&mut command);
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
    let world = world();
    let _holder =
        Server::start_as(&world.node, "holder", port, Manner::Mute).expect("hold the port");
    let folder = world.dir().to_string_lossy().into_owned();
    // Without this option the agent would leave the healthz port to the process that holds it.
    let args = [&sound(&folder)[..], &["--port-takeover", "bind"]].concat();
    let said = [option, &port.to_string(), "in use"];
    assert_said(&run(&world, &args), 64, &said);
}
