//! kube-proxy gives way to programs that pathproof does not know, as Calico's eBPF dataplane: they
//! translate at the pods' devices, and need not serve the sentinel's. Imitated, and IPv4 alone: IPv6 is
//! not dialled.

use node_tests::cilium::{Datapath, Programs};
use node_tests::rules::Backend;
use node_tests::scene::{PORT, Scene, family_of, wait_answers};
use node_tests::skip;
use node_tests::world::Family::V4;

use crate::parts::{everybody_is_served, stays};

const CLIENTS: [&str; 2] = ["client-1", "client-2"];
/// Each with the endpoint that its cluster IP leads to.
const SERVICES: [(&str, &str); 3] = [("web", "web-1"), ("api", "api-1"), ("db", "db-1")];

#[test]
fn who_took_over_need_not_be_known() {
    if skip::without_tcx("unknown_translator") {
        return;
    }
    let mut scene = Scene::idle(Backend::Nftables, &[]);
    let watch = scene.watch();
    let programs = programs(&scene);
    scene.wait("the programs are seen", |report| {
        let strangers = report["datapath"]["strangers"].as_array();
        strangers.is_some_and(|found| !found.is_empty())
    });
    scene.rules.remove().expect("kube-proxy's rules go");
    stays(&scene, &watch, &["proven", "suspect", "unknown"]);
    scene.wait("not known", |report| {
        family_of(report, V4)["state"] == "unknown"
    });
    dial(&mut scene);
    stays(&scene, &watch, &["proven"]);
    everybody_is_served(&scene);

    drop(programs);
    wait_answers(&watch, 503);
}

/// Two pods, three Services.
fn dial(scene: &mut Scene) {
    for (service, _) in SERVICES {
        let target = scene.cluster_ip(service, V4);
        for pod in CLIENTS {
            scene.run(scene.pod_plan(pod, target).rate(7.0));
        }
    }
}

fn programs(scene: &Scene) -> Programs {
    let mut datapath = Datapath::foreign();
    for (service, endpoint) in SERVICES {
        let frontend = scene.cluster_ip(service, V4);
        for pod in CLIENTS {
            let (client, backend) = (scene.world.pod(pod), scene.world.pod(endpoint));
            datapath
                .pod(&scene.world, client, frontend, (backend, PORT))
                .expect("rules");
        }
    }
    datapath.attach(&scene.world).expect("programs")
}
