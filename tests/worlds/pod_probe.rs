//! The pod probe (`pathproof echo`) on a node that has no other traffic, with other nodes behind real
//! tunnels.

use node_tests::little_memory::anonymous;
use node_tests::pod_probe::{Probes, service};
use node_tests::rules::Backend;
use node_tests::scene::{Scene, assert_never_503, path_of};
use node_tests::tunnels::{DEAD, tunnels};
use node_tests::world::{Family, agent_binary};

use crate::parts::{NAMED, SOUND, stays};

/// What a pod probe may hold.
const MEMORY: u64 = 8 << 20;

/// One here, two elsewhere.
const NODES: [(&str, Option<&str>); 3] = [
    ("client-1", None),
    ("web-3", Some("far-a")),
    ("api-2", Some("far-b")),
];

fn probes(scene: &mut Scene) -> Probes {
    tunnels(&scene.world).expect("tunnels");
    let service = service(&scene.world, 4, &NODES);
    scene.manifests.add(service).expect("a Service");
    scene.rules.install().expect("its rules");
    let agent = agent_binary().expect("the agent");
    Probes::start(&scene.world, &agent, 4, &NODES).expect("the pod probes")
}

#[test]
fn it_proves_the_way_of_pods_on_an_idle_node() {
    let name = "it_proves_the_way_of_pods_on_an_idle_node";
    let Some(mut scene) = Scene::idle(name, Backend::Nftables, &[]) else {
        return;
    };
    let watch = scene.watch();
    let started = probes(&mut scene);
    scene.wait("pods proven, by other nodes too", |report| {
        let proven = |family| path_of(report, family, "pod") == "proven";
        report["peers"]["dialled"] == 2 && Family::ALL.into_iter().all(proven)
    });
    stays(&scene, &watch, &SOUND);
    for pid in started.pids() {
        let held = anonymous(pid).expect("memory");
        assert!(held <= MEMORY, "{held} bytes");
    }
}

/// The probe alone names the overlay. It accuses nobody: a policy that denies it looks the same.
#[test]
fn a_dead_overlay_is_named_on_an_idle_node() {
    let name = "a_dead_overlay_is_named_on_an_idle_node";
    let Some(mut scene) = Scene::idle(name, Backend::Nftables, &[]) else {
        return;
    };
    let watch = scene.watch();
    let _probes = probes(&mut scene);
    scene.wait("two nodes answered", |report| {
        report["peers"]["dialled"] == 2
    });
    scene.world.worker.nft(DEAD).expect("a dead overlay");
    scene.wait("the overlay named", |report| {
        report["verdict"]["state"] == "degraded" && report["verdict"]["cause"] == "overlay"
    });
    stays(&scene, &watch, &NAMED);
    scene
        .world
        .worker
        .nft("delete table inet dead")
        .expect("repair");
    scene.wait("sound again", |report| {
        report["verdict"]["state"] == "proven"
    });
    assert_never_503(&watch);
}

/// The way between the nodes carries less than the pods send, and nobody tells them.
#[test]
fn large_packets_that_vanish_are_named() {
    let name = "large_packets_that_vanish_are_named";
    let Some(mut scene) = Scene::idle(name, Backend::Nftables, &[]) else {
        return;
    };
    let watch = scene.watch();
    let _probes = probes(&mut scene);
    scene.wait("two nodes answered", |report| {
        report["peers"]["dialled"] == 2
    });
    let vanish = "table inet path {\nchain it { type filter hook input priority -300; \
                  udp dport 8472 udp length > 1000 drop\n}\n}\n";
    scene.world.worker.nft(vanish).expect("a narrow path");
    scene.wait("large packets named", |report| {
        report["verdict"]["state"] == "degraded" && report["verdict"]["cause"] == "mtu"
    });
    stays(&scene, &watch, &NAMED);
    scene
        .world
        .worker
        .nft("delete table inet path")
        .expect("repair");
    scene.wait("sound again", |report| {
        report["verdict"]["state"] == "proven"
    });
    assert_never_503(&watch);
}

/// The same path with segments cut to it, as CNIs and clouds do: nothing is lost.
#[test]
fn clamped_segments_are_sound() {
    let name = "clamped_segments_are_sound";
    let Some(mut scene) = Scene::idle(name, Backend::Nftables, &[]) else {
        return;
    };
    let watch = scene.watch();
    let clamp = "table inet clamp {\nchain it { type filter hook forward priority -150; \
                 tcp flags syn tcp option maxseg size set 800\n}\n}\n";
    scene.world.worker.nft(clamp).expect("clamped segments");
    let vanish = "table inet path {\nchain it { type filter hook input priority -300; \
                  udp dport 8472 udp length > 1000 drop\n}\n}\n";
    scene.world.worker.nft(vanish).expect("a narrow path");
    let _probes = probes(&mut scene);
    scene.wait("two nodes answered", |report| {
        report["peers"]["dialled"] == 2
    });
    stays(&scene, &watch, &SOUND);
}
