//! The routes to pods are missing while the source of the cluster view is silent. Misrouted connections do
//! not count in this case, because endpoints may have moved. Pods of this node cannot have moved, so the node
//! still answers 503.

use std::fs;

use node_tests::prelude::*;

use crate::measured::{Fault, settled};

const PROMISED: Duration = Duration::from_secs(8);
const PODS: [(&str, &str); 2] = [("", "10.244."), ("-6 ", "fd00:10:244:")];

/// Deletes the routes to local and remote pods. Returns the commands that restore them.
fn cut(scene: &Scene) -> Vec<String> {
    let node = &scene.world.node;
    let mut gone = Vec::new();
    for (options, pods) in PODS {
        let routes = node.ip(&format!("{options}route show")).expect("routes");
        for route in routes.lines().filter(|route| route.starts_with(pods)) {
            let route = route.replace("linkdown", "");
            node.ip(&format!("{options}route del {route}"))
                .expect("delete a route");
            gone.push(format!("{options}route replace {route}"));
        }
    }
    gone
}

#[rstest]
#[case::fresh(false)]
#[case::old(true)]
fn an_old_view_hides_no_total_fault(#[case] old: bool) {
    let scene = Scene::busy(Backend::Nftables, &[]);
    let watch = settled(&scene);
    let folder = scene.manifests.dir();
    let away = scene.world.dir().join("away");
    if old {
        fs::rename(folder, &away).expect("move the folder");
        scene.wait("misrouted is suspended", |report| {
            lacks(report, "source_silent")
                && report["verdict"]["coverage"]["misrouted_suspended"] == true
        });
        throughout(Duration::from_secs(10), || {
            assert!(lacks(&scene.report(), "source_silent"));
        });
        assert_never_503(&watch);
    }
    let mut gone = Vec::new();
    let fault = Fault::inject(&scene, &watch, |scene| gone = cut(scene));
    let felt = fault.is_503_within(PROMISED);
    assert!(
        felt.pods.0 * 2 > felt.pods.1,
        "too few pods are affected: {felt:?}"
    );
    fault.is_200_once(|scene| {
        for route in &gone {
            scene.world.node.ip(route).expect("add a route");
        }
    });
    if old {
        fs::rename(&away, folder).expect("move it back");
    }
    scene.wait_probed();
}
