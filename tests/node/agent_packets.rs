//! Crafted packets on real devices: a flood must neither become evidence of a fault nor hide one.

use std::net::Ipv4Addr;

use node_tests::prelude::*;
use node_tests::traffic::RawSender;

use crate::agent_kernel::pending;

/// Unanswered SYNs go to a Service without endpoints and to one that does not answer, more than the map of
/// connections has room for. Coverage stays complete, and a fault of another Service is still found.
#[test]
fn a_flood_that_nobody_answers_hides_no_fault() {
    const FLOOD: u32 = 40_000;
    const SOURCES: u32 = 96;
    let mut scene = Scene::proven(Backend::Nftables, &[]);
    let watch = scene.watch();
    let family = Family::V4;
    let spare = scene.world.pod("spare").clone();
    let silence = "table inet t {\n chain c {\n type filter hook input priority 0\n \
                   tcp dport 8080 drop\n }\n}\n";
    spare.ns.nft(silence).expect("silence");
    for service in [
        Service::new("void", 3, []),
        Service::new("silent", 4, [&spare]),
    ] {
        scene.manifests.add(service).expect("add a Service");
    }
    scene.rules.install().expect("install");
    // Add a route back to the pod for each source. Otherwise the kernel drops the packets.
    let client = scene.world.pod("client-2").v4;
    for range in ["10.244.0.32/27", "10.244.0.64/26"] {
        let route = format!("route add {range} via {client} dev veth-client-2 onlink");
        scene.world.node.ip(&route).expect("a route");
    }
    let services = ["void", "silent"];
    let raw = RawSender::from_pod(scene.world.pod("client-2")).expect("a packet socket");
    let send = |number: u32| {
        let source = Ipv4Addr::from(0x0af4_0020 + number % SOURCES);
        let from = SocketAddr::from((source, 1_024 + (number / SOURCES) as u16));
        let to = scene.cluster_ip(services[number as usize % 2], family);
        // Ignore the error: a full queue may drop some of the SYNs.
        let _ = raw.send_syn(from, to, number.wrapping_mul(2_654_435_761));
    };
    eventually("both known", || {
        (0..2).for_each(send);
        services
            .iter()
            .all(|service| scene.count(service, family, "pod", "arrived") > 0)
    });
    for number in 2..FLOOD {
        send(number);
        if number % 80 == 0 {
            thread::sleep(Duration::from_millis(10));
        }
        if number % 4_000 == 0 {
            let report = scene.report();
            assert_eq!(report["verdict"]["state"], "proven", "{report:#}");
            for loss in ["first_syn_uncertain", "pending_full"] {
                assert!(!lacks(&report, loss), "{loss}: {report:#}");
            }
        }
    }
    let arrived = services.map(|service| scene.count(service, family, "pod", "arrived"));
    assert!(
        arrived
            .iter()
            .all(|count| (500..u64::from(FLOOD) / 4).contains(count)),
        "sampled: {arrived:?}"
    );
    eventually("evicted", || pending(&scene.world) < 3 * 4_096);

    let right = scene.world.pod("db-1").endpoint(family, PORT);
    let wrong = spare.endpoint(family, PORT);
    scene.rules.redirect(right, wrong).expect("redirect");
    let report = scene.wait("db blamed", |report| {
        report["verdict"]["state"] == "degraded" && blames(report, "demo/db")
    });
    assert_eq!(report["verdict"]["cause"], "misrouted", "{report:#}");
    assert_eq!(report["verdict"]["coverage"]["misrouted_suspended"], false);
    for loss in ["first_syn_uncertain", "pending_full"] {
        assert!(!lacks(&report, loss), "{loss}: {report:#}");
    }
    scene.rules.repair().expect("repair");
    scene.wait_proven();
    assert_never_503(&watch);
}
