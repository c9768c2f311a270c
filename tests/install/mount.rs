//! The agent mounts only its folder of pins from the node's bpffs. It takes over pins of older agents, which
//! mounted the whole bpffs.

use node_tests::prelude::*;
use serde_json::json;

use crate::scene::Scene;

const PINS: &str = "/sys/fs/bpf/pathproof";
const BPFFS: &str = "/sys/fs/bpf";
const VARIABLE: &str = "/spec/template/spec/containers/0/env/1/value";
const VOLUME: &str = "/spec/template/spec/volumes/0/hostPath";

impl Scene {
    /// Mounts either the whole bpffs or only the agent's folder, and waits for the rollout.
    fn mount(&self, whole: bool) {
        let (variable, path, kind) = match whole {
            true => (PINS, BPFFS, "Directory"),
            false => (BPFFS, PINS, "DirectoryOrCreate"),
        };
        self.patch_agent(&[
            ("replace", VARIABLE, json!(variable)),
            ("replace", VOLUME, json!({ "path": path, "type": kind })),
        ]);
        self.wait_rolled_out();
    }

    /// Paths and inodes of the pinned maps. A new pin of the same name has another inode.
    fn pinned_maps(&self) -> String {
        let script = format!("stat -c '%n %i' {PINS}/v*/maps/*");
        self.node.run("sh", &["-c", &script]).expect("pinned maps")
    }
}

#[test]
fn the_agent_mounts_only_its_pins_and_takes_over_old_ones() {
    let scene = needs!(Scene::with_chart());
    scene.wait_rolled_out();
    let prober = scene.node.watch().expect("a prober");
    let others = format!("{BPFFS}/others");
    scene
        .node
        .run("mkdir", &[&others])
        .expect("a folder of others");
    let maps = scene.pinned_maps();
    let sees = |path: &str| {
        let process = scene.agent_process();
        let path = format!("/proc/{process}/root{path}");
        scene.node.run("ls", &[&path]).is_ok()
    };
    for whole in [true, false] {
        scene.mount(whole);
        assert_eq!(scene.pinned_maps(), maps, "the same maps, {whole}");
        assert_eq!(sees(&others), whole, "others' folder");
        assert!(sees(BPFFS));
    }
    let nested = format!("{PINS}/pathproof");
    assert!(scene.node.run("ls", &[&nested]).is_err(), "pins twice");
    // Only root may use the pins.
    let script = format!("stat -c %a {PINS}/v*/maps/* | sort -u");
    let modes = scene.node.run("sh", &["-c", &script]).expect("modes");
    assert_eq!(modes.trim(), "600");
    scene.assert_always_200(&prober);
}

#[test]
fn without_bpffs_an_event_names_the_folder_and_a_value_helps() {
    let scene = needs!(Scene::bare());
    scene.node.run("umount", &[BPFFS]).expect("no bpffs");
    scene
        .helm(&["install", "--create-namespace"])
        .expect("an install");
    scene.wait("an Event that names the folder", || {
        let events = scene.kubectl("-n pathproof get events");
        let mut lines = events.lines();
        lines.any(|line| line.contains("FailedMount") && line.contains(PINS))
    });
    scene
        .helm(&["upgrade", "--set", "agent.pins=false"])
        .expect("an upgrade");
    scene.wait_proven();
}
