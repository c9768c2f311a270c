//! The pod probe (`pathproof echo`) on a node without other traffic, with other nodes behind real tunnels.

use node_tests::pod_probe::{Probes, service};
use node_tests::prelude::*;
use node_tests::tunnels::{LARGE, path, tunnels};
use node_tests::usage;

use crate::parts::{SOUND, named_until_mended, stays};

const MEMORY: u64 = 8 << 20;

/// Rules that clamp segments to a size at which they pass a path that drops [`LARGE`] packets.
const CLAMP: &str = "table inet clamp {\nchain it { type filter hook forward priority -150; \
                     tcp flags syn tcp option maxseg size set 800\n}\n}\n";

/// Pods with a probe: one on this node, two on other nodes.
const NODES: [(&str, Option<&str>); 3] = [
    ("client-1", None),
    ("web-3", Some("far-a")),
    ("api-2", Some("far-b")),
];

fn probes(scene: &mut Scene) -> Probes {
    tunnels(&scene.world).expect("tunnels");
    let service = service(&scene.world, 4, &NODES);
    scene.add(service);
    let agent = agent_binary().expect("the agent");
    Probes::start(&scene.world, &agent, 4, &NODES).expect("the pod probes")
}

/// An idle node with pod probes that already reach both other nodes. `narrow` clamps segments.
fn probed(narrow: bool) -> (Scene, Probes) {
    let mut scene = Scene::idle(Backend::Nftables, &[]);
    if narrow {
        let worker = &scene.world.worker;
        worker.nft(CLAMP).expect("clamped segments");
        worker.nft(&path("input", LARGE)).expect("a narrow path");
    }
    let started = probes(&mut scene);
    scene.wait("two nodes dialled", |report| {
        report["peers"]["dialled"] == 2
    });
    (scene, started)
}

#[test]
fn the_pod_probe_proves_the_path_of_pods_on_an_idle_node() {
    let (scene, started) = probed(false);
    let watch = scene.watch();
    scene.wait("pods proven", are_pods_proven);
    stays(&scene, &watch, &SOUND);
    for pid in started.pids() {
        let held = usage::memory(pid).expect("memory").anonymous_kib * 1024;
        assert!(held <= MEMORY, "{held} bytes");
    }
}

/// The agent names a dead overlay, and a path that silently drops large packets. Neither is a 503, because a
/// policy that denies the pod probe has the same symptoms.
#[rstest]
#[case::a_dead_overlay("", "overlay")]
#[case::large_packets_that_vanish(LARGE, "mtu")]
fn the_pod_probe_shows_a_broken_path_on_an_idle_node(#[case] dropped: &str, #[case] cause: &str) {
    let (scene, _started) = probed(false);
    named_until_mended(&scene, &path("input", dropped), cause);
}

/// CNIs and clouds clamp segments to the size of the path, so nothing is lost.
#[test]
fn clamped_segments_are_sound() {
    let (scene, _started) = probed(true);
    let watch = scene.watch();
    stays(&scene, &watch, &SOUND);
}
