//! `kubectl pathproof` with a real kubelet for its exec, and only the rights of deploy/examples.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output};

use node_tests::cluster::flush_services;
use node_tests::prelude::*;
use node_tests::real_node::Desk;

use crate::scene::Scene;

/// Groups that the bindings of deploy/examples/fleet-rbac.yaml name.
const LISTERS: &str = "pathproof-fleet";
const ASKERS: &str = "pathproof-fleet-agents";

#[test]
fn kubectl_pathproof_runs_commands_of_the_nodes_agent() {
    let scene = needs!(Scene::installed());
    let rights = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/examples/fleet-rbac.yaml");
    scene.kubectl_with(&["apply", "-f", rights.to_str().expect("UTF-8")]);
    let lister = Person::new(&scene, "lister", &[LISTERS]);
    let asker = Person::new(&scene, "asker", &[LISTERS, ASKERS]);

    let page = lister.tell(&["-o", "json"]);
    let document: Value = serde_json::from_str(&page).expect("JSON");
    let node = &document["nodes"][0];
    assert_eq!(node["node"], NODE_NAME, "{document:#}");
    let status: Value =
        serde_json::from_str(&asker.tell(&["status", NODE_NAME, "-o", "json"])).expect("JSON");
    assert_eq!(status["verdict"]["state"], "proven", "{status:#}");

    flush_services(&scene.node.world.node).expect("flush");
    scene.wait_codes(503, 503);
    scene.wait_condition("False");
    let page = lister.tell(&[]);
    assert!(page.starts_with("NOT READY  1 node: 1 not ready"), "{page}");
    let why = asker.tell(&["why", NODE_NAME]);
    let head = format!("BROKEN  {NODE_NAME} ");
    assert!(why.starts_with(&head) && why.contains("\nlost "), "{why}");

    let bundle = asker.0.home.join("bundle.tar.gz");
    let file = bundle.to_str().expect("UTF-8");
    asker.tell(&["bundle", NODE_NAME, "--file", file]);
    let opened = Command::new("tar")
        .args(["xzf", file, "-C"])
        .arg(&asker.0.home)
        .status();
    assert!(opened.expect("tar").success());
    let index = fs::read_to_string(asker.0.home.join("index.txt")).expect("an index");
    for part in [
        "agent.log",
        "node.json",
        "why.txt",
        "verdict.json",
        "episodes.json",
    ] {
        assert!(index.contains(&format!("/{part}: ")), "{part} in {index}");
    }
    let recorded = index
        .lines()
        .filter_map(|line| Some(line.split_once(".pathproof: ")?.0));
    let recorded: Vec<_> = recorded
        .map(|name| asker.0.home.join(format!("{name}.pathproof")))
        .collect();
    // One of the last minutes, and one that the agent wrote when the answer changed.
    assert!(recorded.len() >= 2, "{index}");
    for recording in recorded {
        let mut replay = Command::new(agent_binary().expect("the agent's binary"));
        let replayed = replay
            .arg("replay")
            .arg(&recording)
            .output()
            .expect("a replay");
        assert!(
            replayed.status.success(),
            "{}: {replayed:?}",
            recording.display()
        );
    }

    let denied = lister.run(&["why", NODE_NAME]);
    let said = String::from_utf8_lossy(&denied.stderr);
    assert_eq!(denied.status.code(), Some(1), "{said}");
    assert!(said.contains("cannot list resource \"pods\""), "{said}");
}

struct Person(Desk);

impl Person {
    fn new(scene: &Scene, name: &str, groups: &[&str]) -> Self {
        let desk = scene.node.desk.of(name, groups).expect("a desk");
        let agent = agent_binary().expect("the agent's binary");
        symlink(agent, desk.home.join("kubectl-pathproof")).expect("a link");
        Self(desk)
    }

    fn run(&self, words: &[&str]) -> Output {
        let mut command = self.0.command("kubectl");
        let run = command.arg("pathproof").args(words).output();
        run.expect("kubectl runs")
    }

    /// Output of a command that must succeed.
    fn tell(&self, words: &[&str]) -> String {
        let output = self.run(words);
        assert!(output.status.success(), "{words:?}: {output:?}");
        String::from_utf8(output.stdout).expect("text")
    }
}
