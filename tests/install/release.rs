//! Installation from a registry: helm fetches the chart, and kubelet fetches the image that the chart names.
//! The registry's folder comes from `cargo xtask release --dry-run` (xtask/src/release/dry_run.rs).

use std::net::TcpStream;
use std::path::{Path, PathBuf};

use anyhow::Context;
use node_tests::built;
use node_tests::prelude::*;
use node_tests::process::Process;

use crate::scene::{PATIENCE, Scene};

/// The address in the folder's config.yml.
const ADDRESS: &str = "127.0.0.1:5000";
const VERSION: &str = env!("CARGO_PKG_VERSION");

fn registry() -> Needed<(PathBuf, PathBuf)> {
    let folder = std::env::var_os("PATHPROOF_REGISTRY").map(PathBuf::from);
    let folder = folder.context("PATHPROOF_REGISTRY, which `cargo xtask test` sets");
    let program = built::unpacked("docker-registry").context("docker-registry");
    Ok((skip::needed(folder)?, skip::needed(program)?))
}

/// Serves the folder on the loopback address of a namespace.
fn serve(
    scene: &Scene,
    place: &Namespace,
    name: &str,
    (folder, program): (&Path, &Path),
) -> Process {
    let mut command = place.command(program);
    command.arg("serve").arg(folder.join("config.yml"));
    let logs = scene.node.world.dir();
    let mut process = Process::start(command, name, logs).expect("a registry");
    let listens = || place.run(|| TcpStream::connect(ADDRESS).is_ok());
    process.wait("a port", PATIENCE, listens).expect("a port");
    process
}

#[test]
fn helm_installs_a_release_from_a_registry() {
    let (folder, program) = needs!(registry());
    let scene = needs!(Scene::bare());
    // Loopback differs between the two networks, so each gets a registry.
    let world = &scene.node.world;
    let _served = [
        ("node-registry", &world.node),
        ("desk-registry", &world.outside),
    ]
    .map(|(name, place)| serve(&scene, place, name, (folder.as_path(), program.as_path())));
    let chart = format!("oci://{ADDRESS}/pathproof/charts/pathproof");
    let mut words = vec!["install", "pathproof", &chart, "--plain-http"];
    words.extend(["--version", VERSION]);
    words.extend(["--namespace", "pathproof", "--create-namespace"]);
    words.extend(["--set", "agent.enforcement=enforce"]);
    scene.node.desk.helm(&words).expect("an install");
    scene.wait_proven();
    scene.wait_codes(200, 200);

    let image = format!("{ADDRESS}/pathproof/pathproof:{VERSION}");
    let agent = scene.agent();
    assert_eq!(agent["spec"]["containers"][0]["image"], image.as_str());
    // The images that the test loads from files have other names.
    let images = scene
        .node
        .ctr(&["images", "list", "--quiet"])
        .expect("images");
    assert!(images.lines().any(|line| line == image), "{images}");
}
