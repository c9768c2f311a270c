//! Healthy nodes: every kind of connection is proven, and counted exactly once.

use std::collections::BTreeMap;

use node_tests::prelude::*;

const FAILURES: [&str; 5] = ["refused", "leaked", "misrouted", "stale", "lost"];

/// Service, path and plan of each kind of connection.
fn everything(scene: &Scene, family: Family) -> Vec<(&'static str, &'static str, Plan)> {
    let cluster_ip = |service| scene.cluster_ip(service, family);
    let node_port = scene.node_port(30081, family);
    let vip = scene.manifests.service("web").load_balancer_ip(family);
    let external = scene.manifests.service("db").external_ip(family);
    let pod = |service, pod: &str, target| (service, "pod", scene.pod_plan(pod, target));
    let outside = |service, client, target| {
        let plan = Plan::from_outside(&scene.world, client, target);
        (service, "external", plan)
    };
    vec![
        // Local and remote endpoints, from a routed pod and from a bridged one.
        pod("web", "client-1", cluster_ip("web")),
        pod("web", "db-2", cluster_ip("web")),
        // The client is itself one of the endpoints.
        pod("web", "web-1", cluster_ip("web")),
        // The endpoint is behind the same bridge, so the SYN passes port, bridge and port.
        pod("db", "db-2", cluster_ip("db")),
        pod("db", "client-2", cluster_ip("db")),
        pod("api", "client-1", node_port),
        outside("api", 0, node_port),
        outside("web", 1, SocketAddr::new(vip, 80)),
        outside("db", 2, SocketAddr::new(external, 80)),
    ]
}

#[rstest]
#[case::nftables(Backend::Nftables)]
#[case::iptables_legacy(Backend::IptablesLegacy)]
#[case::iptables_nft(Backend::IptablesNft)]
fn every_path_is_proven_and_each_connection_counted_once(#[case] backend: Backend) {
    let scene = Scene::new(backend, &[]);
    let mut clients = Vec::new();
    for family in Family::ALL {
        for (service, path, plan) in everything(&scene, family) {
            let client = plan.rate(5.0).start().expect("start a client");
            clients.push(((service, name(family), path), client));
        }
    }
    thread::sleep(Duration::from_secs(2));
    let mut by_path = BTreeMap::<_, u64>::new();
    for ((service, family, path), client) in clients {
        let (from, target) = (client.plan.name.clone(), client.plan.target);
        let tally = client.finish();
        assert!(
            tally.ok > 0 && tally.failed() == 0,
            "{from} to {target}: {tally:?}"
        );
        *by_path.entry((service, family, path)).or_default() += tally.started;
    }
    for ((service, family, path), started) in by_path {
        let counts = |outcome: &str, wanted: u64| {
            let labels = [
                format!("service_name=\"{service}\""),
                format!("family=\"{family}\""),
                format!("path=\"{path}\""),
                format!("outcome=\"{outcome}\""),
            ];
            eventually(&format!("{wanted} connections {labels:?}"), || {
                let name = "pathproof_service_connections_total";
                metric(&scene.metrics(), name, &labels) == wanted
            });
        };
        for done in ["arrived", "proven", "answered"] {
            counts(done, started);
        }
        for failure in FAILURES {
            counts(failure, 0);
        }
    }
    let report = scene.wait_proven();
    let text = scene.metrics();
    for family in Family::ALL {
        for path in ["pod", "external"] {
            assert_eq!(
                path_of(&report, family, path),
                "proven",
                "{family:?} {path}"
            );
        }
        let label = [format!("family=\"{}\"", name(family))];
        let state = [format!("family=\"{}\",state=\"proven\"", name(family))];
        assert_eq!(metric(&text, "pathproof_state", &state), 1, "{text}");
        assert!(metric(&text, "pathproof_connections_total", &label) > 0);
    }
    assert_eq!(scene.asked("/healthz"), 200);
    assert_eq!(scene.asked("/livez"), 200);
}

/// Connections of the node itself are translated before they reach a device. They are not counted.
#[test]
fn host_connections_do_no_harm() {
    let scene = Scene::new(Backend::Nftables, &[]);
    for family in Family::ALL {
        let plan = Plan::from_node(&scene.world, scene.cluster_ip("web", family));
        for number in 0..10 {
            plan.once(number).expect("an answer");
        }
    }
    let report = scene.report();
    thread::sleep(Duration::from_millis(1500));
    for family in Family::ALL {
        for failure in FAILURES {
            assert_eq!(
                scene.count("web", family, "", failure),
                0,
                "{failure}: {report:#}"
            );
        }
    }
}
