//! `nodePortAddresses` of kube-proxy is narrowed while the node runs: only a second address of the node
//! serves node ports, and the primary one refuses them. Imitated by the rules of the tests' proxy, which then
//! match the second address only.

use std::net::IpAddr;

use node_tests::prelude::*;

use crate::parts::{everybody_is_served, stays};

fn other(family: Family) -> IpAddr {
    match family {
        Family::V4 => [192, 0, 2, 11].into(),
        Family::V6 => [0x2001, 0xdb8, 0, 1, 0, 0, 0, 0x11].into(),
    }
}

pub(crate) fn second_addresses(scene: &Scene) {
    for (family, length) in Family::ALL.into_iter().zip([24, 64]) {
        let address = other(family);
        let words = format!("addr add {address}/{length} dev eth0");
        scene.world.node.ip(&words).expect("a second address");
    }
}

pub(crate) fn narrow(scene: &Scene) {
    for (family, script) in scene.rules.scripts().expect("scripts") {
        let (any, only) = match family {
            Family::V4 => ("fib daddr type local ip daddr != 127.0.0.0/8", "ip daddr"),
            Family::V6 => ("fib daddr type local ip6 daddr != ::1", "ip6 daddr"),
        };
        assert!(script.contains(any), "{script}");
        let script = script.replace(any, &format!("{only} {}", other(family)));
        scene.nft(&script);
    }
}

#[test]
fn narrowed_node_ports_are_a_fault_only_to_those_who_dial_them() {
    let mut scene = Scene::idle(Backend::Nftables, &[]);
    second_addresses(&scene);
    // Clients at the primary address are served, and then end.
    scene.outside_traffic();
    eventually("clients outside are served", || {
        scene.clients.iter().all(|client| client.tally().ok > 2)
    });
    scene.clients.clear();
    let watch = scene.watch();
    narrow(&scene);
    scene.wait("node ports are refused to probes", |report| {
        lanes_are(report, "node_port", "tcp", "failing") && report["verdict"]["state"] == "degraded"
    });
    stays(&scene, &watch, &["degraded"]);
    scene.pod_traffic();
    stays(&scene, &watch, &["degraded"]);
    // Dial the address that now serves node ports.
    for family in Family::ALL {
        scene.dial_outside(0, SocketAddr::new(other(family), 30081), 10.0);
    }
    stays(&scene, &watch, &["degraded"]);
    everybody_is_served(&scene);
    scene.clients.clear();
    // Dial the primary address, like a load balancer with the old configuration.
    for family in Family::ALL {
        scene.dial_outside(1, scene.node_port(30081, family), 10.0);
    }
    wait_answers(&watch, 503);
    let report = scene.report();
    assert_eq!(report["verdict"]["cause"], "refused");
    scene
        .rules
        .install()
        .expect("node ports on every address again");
    wait_answers(&watch, 200);
}
