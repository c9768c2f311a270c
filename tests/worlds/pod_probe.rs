//! The pod probe (`pathproof echo`) on a node that has no other traffic, with other nodes behind the tunnels
//! of [`overlay`](crate::overlay).

use std::process::{Child, Command};

use node_tests::manifests::{Endpoint, Service};
use node_tests::rules::Backend;
use node_tests::scene::{Scene, assert_never_503, path_of};
use node_tests::world::{Family, agent_binary};

use crate::overlay::tunnels;
use crate::parts::{NAMED, SOUND, stays};

/// Where `pathproof echo` answers, and where it tells of transfers that were cut.
const ECHO_PORT: u16 = 19257;
const CUT_PORT: u16 = 19258;

/// The pod probe of every node: one here, two elsewhere.
struct Probes(Vec<Child>);

impl Probes {
    fn start(scene: &mut Scene) -> Self {
        tunnels(scene);
        let nodes = [
            ("client-1", None),
            ("web-3", Some("far-a")),
            ("api-2", Some("far-b")),
        ];
        let mut service = Service::new("pathproof-echo", 4, []);
        service.namespace = "pathproof";
        (service.port, service.target_port) = (ECHO_PORT, ECHO_PORT);
        service.second = Some(("cut", CUT_PORT));
        for (pod, node) in nodes {
            let mut endpoint = Endpoint::from(scene.world.pod(pod));
            endpoint.node = node.unwrap_or(endpoint.node);
            service.endpoints.push(endpoint);
        }
        scene.manifests.add(service).expect("a Service");
        scene.rules.install().expect("its rules");
        let ips =
            Family::ALL.map(|family| scene.cluster_ip("pathproof-echo", family).ip().to_string());
        let echo = |(pod, _)| {
            let mut command: Command = scene
                .world
                .pod(pod)
                .ns
                .command(agent_binary().expect("the agent"));
            let command = command.args(["echo", "--service", &ips.join(",")]);
            command.spawn().expect("the pod probe")
        };
        Self(nodes.map(echo).into())
    }
}

impl Drop for Probes {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // One that ended by itself is gone already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn it_proves_the_way_of_pods_on_an_idle_node() {
    let name = "it_proves_the_way_of_pods_on_an_idle_node";
    let Some(mut scene) = Scene::idle(name, Backend::Nftables, &[]) else {
        return;
    };
    let watch = scene.watch();
    let _probes = Probes::start(&mut scene);
    scene.wait("pods proven, by other nodes too", |report| {
        let proven = |family| path_of(report, family, "pod") == "proven";
        report["peers"]["dialled"] == 2 && Family::ALL.into_iter().all(proven)
    });
    stays(&scene, &watch, &SOUND);
}

/// The probe alone names the overlay. It accuses nobody: a policy that denies it looks the same.
#[test]
fn a_dead_overlay_is_named_on_an_idle_node() {
    let name = "a_dead_overlay_is_named_on_an_idle_node";
    let Some(mut scene) = Scene::idle(name, Backend::Nftables, &[]) else {
        return;
    };
    let watch = scene.watch();
    let _probes = Probes::start(&mut scene);
    scene.wait("two nodes answered", |report| {
        report["peers"]["dialled"] == 2
    });
    scene
        .world
        .worker
        .nft("table inet dead {\nchain it { type filter hook input priority -300; udp dport 8472 drop\n}\n}\n")
        .expect("a dead overlay");
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
    let _probes = Probes::start(&mut scene);
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
    let _probes = Probes::start(&mut scene);
    scene.wait("two nodes answered", |report| {
        report["peers"]["dialled"] == 2
    });
    stays(&scene, &watch, &SOUND);
}
