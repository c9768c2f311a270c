//! The four capabilities of docs/capabilities.md suffice. If one is missing, the message explains what it is
//! for [finding 19].

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use node_tests::prelude::*;
use node_tests::world::copy_program;
use pathproof_wire::abi::ABI_VERSION;

const ALL: &str = "-all,+bpf,+net_admin,+perfmon,+net_raw";

/// A world without an agent, and a program that starts the agent with fewer privileges than root has.
fn confined(setpriv: &str) -> (Scene, PathBuf) {
    let scene = Scene::bare(Backend::Nftables);
    // Use a copy, because another user may not be able to read the build folder.
    let agent = scene.world.dir().join("pathproof");
    let built = agent_binary().expect("the agent's binary");
    copy_program(&built, &agent).expect("copy the binary");
    let binary = scene.wrapped(&format!("setpriv --no-new-privs {setpriv}"), &agent);
    (scene, binary)
}

fn bounded_by(capabilities: &str) -> String {
    format!("--inh-caps -all --bounding-set {capabilities}")
}

#[rstest]
#[case::all_four(ALL)]
// CAP_NET_RAW is not among them, because only the sentinel needs it, and this node has none.
#[case::without_net_raw("-all,+bpf,+net_admin,+perfmon")]
fn four_capabilities_are_enough(#[case] capabilities: &str) {
    let (mut scene, binary) = confined(&bounded_by(capabilities));
    scene.spawn_binary(binary, &[]);
    scene.traffic();
    let report = scene.wait_proven();
    let devices = report["devices"].as_array().expect("devices");
    let own = if skip::is_linux(skip::TCX) {
        "tcx"
    } else {
        "clsact"
    };
    assert!(
        devices
            .iter()
            .all(|one| one["attached"] == own && one["ingress_head"] != false)
    );
    let coverage = &report["verdict"]["coverage"];
    assert_eq!(coverage["attached"], coverage["wanted"], "{report:#}");
    let pinned = scene.world.pin_dir().join(format!("v{ABI_VERSION}"));
    assert!(pinned.is_dir(), "pinned");
    scene.rules.flush_services().expect("flush");
    scene.wait("broken", |report| report["verdict"]["state"] == "broken");
    // The four capabilities also suffice for an exit after SIGTERM.
    assert_eq!(
        scene
            .take_agent()
            .terminate()
            .expect("an end in order")
            .code(),
        Some(0)
    );
}

/// Without one of the capabilities, the agent exits with 77 and names the remedy.
#[rstest]
#[case::bpf("-all,+net_admin,+perfmon,+net_raw", "CAP_BPF")]
#[case::perfmon("-all,+bpf,+net_admin,+net_raw", "CAP_PERFMON")]
#[case::net_admin("-all,+bpf,+perfmon,+net_raw", "CAP_NET_ADMIN")]
#[case::nothing("-all", "CAP_BPF")]
fn a_missing_capability_ends_it_with_77(#[case] capabilities: &str, #[case] named: &str) {
    let (mut scene, binary) = confined(&bounded_by(capabilities));
    assert_refused(&mut scene, binary, named);
}

#[test]
fn another_user_ends_it_with_77() {
    let setpriv = "--reuid 65534 --regid 65534 --clear-groups";
    let (mut scene, binary) = confined(setpriv);
    // Let the user read the folders, so that only privileges are missing.
    for path in [scene.world.dir(), scene.manifests.dir()] {
        fs::set_permissions(path, Permissions::from_mode(0o755)).expect("readable");
    }
    assert_refused(&mut scene, binary, "root");
}

fn assert_refused(scene: &mut Scene, binary: PathBuf, named: &str) {
    scene.spawn_binary(binary, &[]);
    let agent = scene.agent.as_mut().expect("just started");
    let status = until(node_tests::scene::PATIENCE, || {
        agent.exited().ok().flatten()
    });
    let log = agent.log();
    let status = status.unwrap_or_else(|| panic!("it runs on:\n{log}"));
    assert_eq!(status.code(), Some(77), "{log}");
    let sentence = log.lines().rfind(|line| line.starts_with("pathproof: "));
    let sentence = sentence.unwrap_or_else(|| panic!("no sentence in {log}"));
    assert!(
        sentence.contains(named) && sentence.contains("docs/capabilities.md"),
        "{sentence}"
    );
    assert!(sentence.len() < 1000, "a sentence, not a log: {sentence}");
}
