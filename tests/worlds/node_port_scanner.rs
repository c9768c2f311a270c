//! `nodePortAddresses` of kube-proxy is narrowed, as in `node_port_addresses`. One outside client scans the
//! node ports at the primary address, four times each. This address has no other clients, and pods are
//! served.

use node_tests::prelude::*;

use crate::node_port_addresses::{narrow, second_addresses};
use crate::parts::{everybody_is_served, stays};

#[test]
fn one_scanner_accuses_nobody() {
    let mut scene = Scene::idle(Backend::Nftables, &[]);
    second_addresses(&scene);
    narrow(&scene);
    scene.pod_traffic();
    let watch = scene.watch();
    scene.wait("node ports are refused to probes", |report| {
        report["verdict"]["state"] == "degraded"
    });
    for family in Family::ALL {
        for skip in 0..4 {
            for port in [30081, 30082] {
                let plan = Plan::from_outside(&scene.world, 2, scene.node_port(port, family));
                let answer = plan.once(skip);
                assert!(answer.is_err(), "{answer:?}");
            }
        }
    }
    eventually("their refusals are known", || {
        let known = |family| scene.count("api", family, "external", "refused") >= 4;
        Family::ALL.into_iter().all(known)
    });
    stays(&scene, &watch, &["degraded"]);
    everybody_is_served(&scene);
}
