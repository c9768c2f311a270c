//! An unknown program, such as Calico's eBPF dataplane, replaces kube-proxy. It serves users, but not
//! necessarily the sentinel. Imitated by a classifier at the uplink that passes all packets, and by
//! kube-proxy's rules in a table of another name.

use aya::Ebpf;
use aya::programs::TcAttachType;
use node_tests::prelude::*;
use pathproof::datapath::load;
use pathproof_wire::abi::program;

use crate::parts::{everybody_is_served, stays};

#[test]
fn an_unknown_successor_of_kube_proxy_is_no_fault() {
    needs!(skip::linux(skip::TCX));
    let mut scene = Scene::bare(Backend::Nftables);
    // Take these rules before the sentinel exists, so that they do not serve it.
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

/// Attaches an empty classifier. It is detached when the result is dropped.
fn classifier(scene: &Scene) -> Ebpf {
    let mut ebpf = Ebpf::load(load::OBJECT).expect("load the object");
    let empty = load::classifier(&mut ebpf, program::EMPTY).expect("the empty program");
    empty.load().expect("load the empty program");
    let attach = || empty.attach("eth0", TcAttachType::Ingress);
    scene.world.node.run(attach).expect("attach it");
    ebpf
}
