//! A dead overlay: what enters the tunnel of [`overlay`](crate::overlay) never comes out. That is no
//! fault of this node's Service rules, and must not count as a proof of them either.

use node_tests::manifests::Service;
use node_tests::rules::Backend;
use node_tests::scene::{Scene, eventually, path_of};
use node_tests::world::Family;

use crate::overlay::tunnels;
use crate::parts::{NAMED, SOUND, some_fail, stays};

#[test]
fn a_dead_overlay_proves_nothing() {
    let Some(mut scene) = Scene::idle("dead_overlay", Backend::Nftables, &[]) else {
        return;
    };
    tunnels(&scene);
    let far = Service::new("far", 4, [scene.world.pod("web-3")]);
    scene.manifests.add(far).expect("a Service");
    scene.rules.install().expect("its rules");
    for family in Family::ALL {
        let plan = scene.pod_plan("client-1", scene.cluster_ip("far", family));
        scene.run(plan);
    }
    wait_pods_proven(&scene);
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
    assert_eq!(before.0, after.0, "no answer, no proof");
    assert!(before.1 < after.1, "sent on: {before:?} {after:?}");
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

fn counts(scene: &Scene, outcome: &str) -> [u64; 2] {
    Family::ALL.map(|family| scene.count("far", family, "pod", outcome))
}

fn wait_pods_proven(scene: &Scene) {
    scene.wait("the pods' path proven", |report| {
        let proven = |family| path_of(report, family, "pod") == "proven";
        Family::ALL.into_iter().all(proven)
    });
}
