//! kube-proxy gives way to a program that pathproof does not know, such as Calico's eBPF dataplane: it
//! serves users, and need not serve the sentinel. Imitated by a classifier at the uplink that passes
//! everything on, and by kube-proxy's rules in a table of another name.

use node_tests::bpf::{Attached, Code, Program};
use node_tests::manifests::Sentinel;
use node_tests::rules::Backend;
use node_tests::scene::{Scene, in_both, wait_answers};
use node_tests::skip;

use crate::parts::{everybody_is_served, stays};

#[test]
fn who_took_over_need_not_be_known() {
    if skip::without_tcx("unknown_translator") {
        return;
    }
    let mut scene = Scene::bare(Backend::Nftables);
    // Before the sentinel is there.
    let users = scene.rules.scripts().expect("rules of all Services");
    scene.add_sentinel(&Sentinel::default());
    scene.start(&[]);
    scene.wait_probed();
    let watch = scene.watch();
    for (_, script) in users {
        scene.nft(&script.replace(" kube-proxy ", " unknown "));
    }
    let program = classifier(&scene);
    scene.wait("the program is seen", |report| {
        let strangers = report["datapath"]["strangers"].as_array();
        strangers.is_some_and(|found| !found.is_empty())
    });
    scene.rules.remove().expect("kube-proxy's rules go");
    stays(&scene, &watch, &["proven", "suspect", "unknown"]);
    scene.wait("not known", |report| {
        in_both(report, |family| family["state"] == "unknown")
    });
    scene.traffic();
    stays(&scene, &watch, &["proven"]);
    everybody_is_served(&scene);

    drop(program);
    scene.nft("delete table ip unknown\ndelete table ip6 unknown\n");
    wait_answers(&watch, 503);
}

fn classifier(scene: &Scene) -> Attached {
    const PASS: i32 = 0;
    let node = &scene.world.node;
    let uplink = node.ifindex("eth0").expect("the uplink");
    let attach = || Program::load("unknown", &Code::returning(PASS))?.attach(uplink);
    node.run(attach).expect("a classifier")
}
