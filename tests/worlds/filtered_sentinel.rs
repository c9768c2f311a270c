//! A filter drops the benchmarking ranges, as bogon lists do, and so the sentinel's addresses. In addition a
//! policy denies one pod a Service. At first there are no other clients.

use node_tests::prelude::*;

use crate::parts::{NAMED, policy, some_fail, stays};

#[test]
fn filtered_probes_and_one_denied_pod_accuse_nobody() {
    let mut scene = Scene::idle(Backend::Nftables, &[]);
    let watch = scene.watch();
    let device = scene.world.pod("client-1").device.clone();
    policy(
        &scene.world.node,
        &[
            "ip saddr 198.18.0.0/15 drop".to_owned(),
            "ip daddr 198.18.0.0/15 drop".to_owned(),
            "ip6 saddr 2001:2::/48 drop".to_owned(),
            "ip6 daddr 2001:2::/48 drop".to_owned(),
            format!("iifname {device} drop"),
        ],
    );
    for family in Family::ALL {
        scene.dial("client-1", "web", family, 4.0);
    }
    some_fail(&scene);
    // Wait, because probe failures count only once the agent has run for 10 s.
    scene.wait("suspect, the probes filtered", |report| {
        lanes_are(report, "off_cluster", "tcp", "failing")
            && report["verdict"]["state"] == "suspect"
    });
    stays(&scene, &watch, &["suspect"]);
    for family in Family::ALL {
        scene.dial("client-2", "db", family, 4.0);
    }
    stays(&scene, &watch, &NAMED);
}
