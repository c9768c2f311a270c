//! A dead overlay: packets that enter the tunnel of [`node_tests::tunnels`] never leave it. This is no fault
//! of this node's Service rules, but it must not count as a proof of them either.

use node_tests::prelude::*;
use node_tests::tunnels::{path, tunnels};

use crate::parts::{NAMED, SOUND, named_until_mended, some_fail, stays};

#[test]
fn a_dead_overlay_proves_nothing() {
    let mut scene = Scene::idle(Backend::Nftables, &[]);
    tunnels(&scene.world).expect("tunnels");
    let far = Service::new("far", 4, [scene.world.pod("web-3")]);
    scene.add(far);
    for family in Family::ALL {
        scene.dial("client-1", "far", family, 10.0);
    }
    scene.wait("the pods' path proven", are_pods_proven);
    let watch = scene.watch();
    scene
        .world
        .worker
        .nft(
            "table inet dead {\n\
             chain input { type filter hook input priority -300; udp dport 8472 drop\n}\n\
             chain output { type filter hook output priority -300; udp dport 8472 drop\n}\n}\n",
        )
        .expect("a dead overlay");
    some_fail(&scene);
    let before = (counts(&scene, "proven"), counts(&scene, "forwarded"));
    stays(&scene, &watch, &SOUND);
    let after = (counts(&scene, "proven"), counts(&scene, "forwarded"));
    assert_eq!(before.0, after.0, "proven without an answer");
    assert!(before.1 < after.1, "not forwarded: {before:?} {after:?}");
    let report = scene.report();
    for family in Family::ALL {
        assert_ne!(path_of(&report, family, "pod"), "proven", "{report:#}");
    }
    scene.traffic();
    stays(&scene, &watch, &NAMED);
    scene
        .world
        .worker
        .nft("delete table inet dead")
        .expect("repair");
    eventually("answers prove again", || {
        let now = counts(&scene, "proven");
        now.iter().zip(after.0).all(|(now, then)| *now > then)
    });
}

/// Pods dial Services on three other nodes; one Service also has a local endpoint. The three nodes are one
/// namespace under three names, because the agent takes the names of nodes from slices.
fn dial_three_nodes(scene: &mut Scene) {
    tunnels(&scene.world).expect("tunnels");
    for (index, node, pod) in [
        (4, "far-a", "web-3"),
        (5, "far-b", "api-2"),
        (6, "far-c", "web-3"),
    ] {
        let mut service = Service::new(node, index, [scene.world.pod(pod)]);
        service.endpoints[0].node = node;
        if node == "far-a" {
            let near = Service::new("near", index, [scene.world.pod("web-1")]);
            service.endpoints.extend(near.endpoints);
        }
        scene.manifests.add(service).expect("a Service");
    }
    scene.rules.install().expect("its rules");
    for family in Family::ALL {
        for service in ["far-a", "far-b", "far-c"] {
            for pod in ["client-1", "client-2"] {
                scene.dial(pod, service, family, 4.0);
            }
        }
    }
    scene.wait("three nodes dialled, none silent", |report| {
        report["peers"]["dialled"] == 3 && report["peers"]["silent"] == serde_json::json!([])
    });
    scene.wait("the pods' path proven", are_pods_proven);
}

#[rstest]
#[case::nothing_arrives("input")]
#[case::nothing_comes_back("output")]
fn a_dead_overlay_that_pods_feel_is_named(#[case] hook: &str) {
    let mut scene = Scene::idle(Backend::Nftables, &[]);
    dial_three_nodes(&mut scene);
    let report = named_until_mended(&scene, &path(hook, ""), "overlay");
    let reason = report["verdict"]["reason"].as_str().unwrap_or_default();
    let is_named = |node: &&str| reason.contains(*node);
    assert!(["far-a", "far-b", "far-c"].iter().all(is_named), "{reason}");
}

/// One node answers. The others do not answer, because they are powered off, drained or cut off.
#[test]
fn silent_nodes_are_named_while_another_answers() {
    let mut scene = Scene::idle(Backend::Nftables, &[]);
    dial_three_nodes(&mut scene);
    let watch = scene.watch();
    let gone = scene.world.pod("web-3");
    let off = format!(
        "table inet off {{\n\
         chain forward {{ type filter hook forward priority -300; ip daddr {} drop\n\
         ip6 daddr {} drop\n}}\n}}\n",
        gone.v4, gone.v6
    );
    scene.world.worker.nft(&off).expect("a node that is off");
    some_fail(&scene);
    stays(&scene, &watch, &NAMED);
    let report = scene.report();
    let silent: Vec<&str> = (report["peers"]["silent"].as_array())
        .map(|nodes| nodes.iter().filter_map(|node| node.as_str()).collect())
        .unwrap_or_default();
    assert_eq!(silent, ["far-a", "far-c"], "{report:#}");
}

fn counts(scene: &Scene, outcome: &str) -> [u64; 2] {
    Family::ALL.map(|family| scene.count("far", family, "pod", outcome))
}
