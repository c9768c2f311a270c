//! Sound nodes: every kind of connection is proven, and counted as often as it was made.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use node_tests::rules::Backend;
use node_tests::traffic::{Client, Plan};
use node_tests::world::Family;
use rstest::rstest;

use node_tests::scene::{Scene, eventually, metric, name, path_of};

const FAILURES: [&str; 5] = ["refused", "leaked", "misrouted", "stale", "lost"];

/// What is dialled, and where the agent must count it.
struct Dialled {
    service: &'static str,
    family: Family,
    path: &'static str,
    plan: Plan,
}

fn everything(scene: &Scene, family: Family) -> Vec<Dialled> {
    let web = scene.cluster_ip("web", family);
    let db = scene.cluster_ip("db", family);
    let vip = |service: &str| scene.manifests.service(service).load_balancer_ip(family);
    let external = scene.manifests.service("db").external_ip(family);
    let pod = |service, pod: &str, target| (service, "pod", scene.pod_plan(pod, target));
    let outside = |service, client, target| {
        (
            service,
            "external",
            Plan::from_outside(&scene.world, client, target),
        )
    };
    let dialled = [
        // Local and remote endpoints, from a pod with a route of its own and from a bridged one.
        pod("web", "client-1", web),
        pod("web", "db-2", web),
        // Itself among the endpoints.
        pod("web", "web-1", web),
        // An endpoint behind the same bridge: one SYN crosses port, bridge and port.
        pod("db", "db-2", db),
        pod("db", "client-2", db),
        // A node port dialled by a pod.
        pod("api", "client-1", scene.node_port(30081, family)),
        outside("api", 0, scene.node_port(30081, family)),
        outside("web", 1, SocketAddr::new(vip("web"), 80)),
        outside("db", 2, SocketAddr::new(external, 80)),
    ];
    dialled
        .into_iter()
        .map(|(service, path, plan)| Dialled {
            service,
            family,
            path,
            plan: plan.rate(15.0),
        })
        .collect()
}

#[rstest]
#[case::nftables(Backend::Nftables)]
#[case::iptables_legacy(Backend::IptablesLegacy)]
#[case::iptables_nft(Backend::IptablesNft)]
fn every_path_is_proven_and_each_connection_counted_once(#[case] backend: Backend) {
    let scene = Scene::new(backend, &[]);
    let mut started = Vec::new();
    let clients: Vec<(Client, _)> = Family::ALL
        .into_iter()
        .flat_map(|family| everything(&scene, family))
        .map(
            |Dialled {
                 service,
                 family,
                 path,
                 plan,
             }| {
                (
                    plan.start().expect("start a client"),
                    (service, family, path),
                )
            },
        )
        .collect();
    thread::sleep(Duration::from_secs(2));
    for (client, whom) in clients {
        let target = client.plan().target;
        let from = client.plan().name.clone();
        let tally = client.finish();
        assert!(
            tally.ok > 0 && tally.failed() == 0,
            "{from} to {target}: {tally:?}"
        );
        started.push((whom, tally.started));
    }
    for (service, family, path) in started.iter().map(|(whom, _)| *whom) {
        let wanted: u64 = started
            .iter()
            .filter(|(whom, _)| *whom == (service, family, path))
            .map(|(_, count)| count)
            .sum();
        for outcome in ["arrived", "proven", "answered"] {
            eventually(
                &format!("{wanted} {outcome} {service} {family:?} {path}"),
                || scene.count(service, family, path, outcome) == wanted,
            );
        }
        for failure in FAILURES {
            assert_eq!(
                scene.count(service, family, path, failure),
                0,
                "{service} {failure}"
            );
        }
    }
    for (service, family) in started
        .iter()
        .map(|((service, family, _), _)| (*service, *family))
    {
        let of_service = started
            .iter()
            .filter(|((of, in_family, _), _)| (*of, *in_family) == (service, family));
        let wanted: u64 = of_service.map(|(_, count)| count).sum();
        let labels = [
            format!("service_name=\"{service}\""),
            format!("family=\"{}\"", name(family)),
        ];
        eventually(
            &format!("{wanted} handshakes of {service} {family:?}"),
            || {
                let count = "pathproof_service_handshake_seconds_count";
                metric(&scene.metrics(), count, &labels) == wanted
            },
        );
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

/// The node's own connections are translated before they meet a device: they count nowhere, and
/// accuse nobody.
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
