//! The agent as it runs in a pod: with a mounted ServiceAccount, and the API server behind a ClusterIP that
//! works only while the node's rules do.

use std::fs;
use std::path::{Path, PathBuf};

use node_tests::cluster::{base, node_pod};
use node_tests::prelude::*;
use node_tests::world::write_script;

use crate::scene::{PATIENCE, Scene, flush};

const MOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// Time until the agent uses a new token: it rereads its files within a minute.
const NEW_TOKEN: std::time::Duration = std::time::Duration::from_secs(150);

/// A script that runs the agent with a ServiceAccount mounted, as in a pod. The script has a private mount
/// namespace, so that it leaves no mount on the machine.
fn pod(scene: &Scene) -> PathBuf {
    let dir = scene.world.dir().join("mount");
    fs::create_dir_all(&dir).expect("a folder");
    fs::write(dir.join("ca.crt"), &scene.control.ca).expect("a certificate");
    fs::write(dir.join("namespace"), base::NAMESPACE).expect("a namespace");
    fs::copy(token(scene), dir.join("token")).expect("a token");
    let agent = agent_binary().expect("the agent's binary");
    let script = format!(
        "#!/bin/sh\n\
         export KUBERNETES_SERVICE_HOST=10.96.0.1 KUBERNETES_SERVICE_PORT=443\n\
         exec unshare --mount sh -ec 'mkdir -p /var/run/secrets\n\
         mount -t tmpfs none /var/run/secrets\n\
         mkdir -p {MOUNT}\n\
         mount --bind {dir} {MOUNT}\n\
         exec {agent} \"$@\"' agent \"$@\"\n",
        dir = dir.display(),
        agent = agent.display(),
    );
    let program = scene.world.dir().join("pod.sh");
    write_script(&program, &script).expect("a script");
    program
}

fn token(scene: &Scene) -> PathBuf {
    scene.kubeconfig_of(base::AGENT);
    scene.world.dir().join(format!("{}.token", base::AGENT))
}

fn start(scene: &mut Scene, program: &Path) {
    let agent = scene.world.spawn_agent(program, Path::new(""), &[]);
    let agent = scene.agent.insert(agent.expect("start the agent"));
    agent.wait_ready(PATIENCE).expect("a ready agent");
}

/// Asserts that the agent receives changes of the Node's taints.
fn hears(scene: &Scene, patience: std::time::Duration) {
    for (keys, wanted) in [(vec![AUTOSCALER_TAINT], "tainted"), (vec![], "eligible")] {
        scene.taint(&keys);
        scene.wait_within(patience, wanted, |report| {
            report["verdict"]["eligibility"]["state"] == wanted
        });
    }
}

#[test]
fn a_pod_reaches_the_api_server_whatever_the_node_does() {
    let mut scene = needs!(Scene::bare(Mode::Nftables));
    let program = pod(&scene);
    start(&mut scene, &program);
    scene.wait_proven();
    hears(&scene, PATIENCE);
    let known = scene.world.dir().join("state/api-servers.json");
    let learned = until(PATIENCE, || known.exists().then_some(()));
    assert!(learned.is_some(), "{} is not there", known.display());

    // Break the ClusterIP and keep it broken: a new agent must not need it.
    scene.proxy().freeze();
    flush(&scene.world.node);
    scene
        .agent
        .take()
        .expect("an agent")
        .terminate()
        .expect("end");
    start(&mut scene, &program);
    let synced = until(PATIENCE, || {
        let report = scene.agent().verdict().ok()?;
        (report["cluster"]["synced"] == true).then_some(())
    });
    assert!(synced.is_some(), "{}", scene.agent().log());
    hears(&scene, PATIENCE);

    // Make the pod's token invalid and write a new one to its file. The API server ends the watches.
    let pod = format!(
        "/api/v1/namespaces/{}/pods/{}-node-1",
        base::NAMESPACE,
        base::AGENT
    );
    let gone = format!("{pod}?gracePeriodSeconds=0");
    scene.api.delete(&gone).expect("delete the pod");
    let made = until(PATIENCE, || {
        node_pod(&scene.api, base::AGENT, NODE_NAME).ok()
    });
    assert!(made.is_some(), "the pod was not created again");
    fs::copy(token(&scene), scene.world.dir().join("mount/token")).expect("a new token");
    scene.control.apiserver = None;
    scene.control.start_apiserver().expect("the API server");
    hears(&scene, NEW_TOKEN);
}
