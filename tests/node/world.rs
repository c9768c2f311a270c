//! Tests of the test world, on which all other tests rely. No agent runs.

use std::collections::BTreeSet;
use std::net::IpAddr;

use node_tests::prelude::*;
use node_tests::traffic::{Answer, Failure};

/// A client's timeout, long enough for a loaded machine, and short enough for tests that wait for it to
/// expire.
const PATIENCE: Duration = Duration::from_millis(400);

/// The usual scene with two more Services: `far` has no local endpoint, and `empty` has no endpoint.
fn scene(backend: Backend) -> Scene {
    let mut scene = Scene::bare(backend);
    let far = Service::new("far", 3, [scene.world.pod("web-3")]);
    for service in [
        far.node_port(30083).external_local(),
        Service::new("empty", 4, []).node_port(30084),
    ] {
        scene.manifests.add(service).expect("add a Service");
    }
    scene.rules.install().expect("install the rules");
    scene
}

fn from_pod(scene: &Scene, pod: &str, target: SocketAddr) -> Plan {
    scene.pod_plan(pod, target).patience(PATIENCE)
}

fn from_outside(scene: &Scene, target: SocketAddr) -> Plan {
    Plan::from_outside(&scene.world, 0, target).patience(PATIENCE)
}

/// Makes connections, all of which must succeed. Returns the servers that answered, and the sources that they
/// saw.
fn many(plan: &Plan, count: u16) -> (BTreeSet<String>, BTreeSet<IpAddr>) {
    let mut servers = BTreeSet::new();
    let mut sources = BTreeSet::new();
    for number in 0..count {
        let Answer { server, seen_as } = plan
            .once(number)
            .unwrap_or_else(|why| panic!("{} -> {}: {why:?}", plan.name, plan.target));
        servers.insert(server);
        sources.insert(seen_as.ip());
    }
    (servers, sources)
}

fn set<T: Ord + Clone>(items: &[T]) -> BTreeSet<T> {
    items.iter().cloned().collect()
}

#[test]
fn comes_up_and_routes() {
    let start = Instant::now();
    let world = World::builder()
        .pods(&["web-1", "client-1"])
        .bridged_pods(&["db-1", "db-2"])
        .remote_pods(&["web-3"])
        .build()
        .expect("build a world");
    eprintln!("up after {:?}", start.elapsed());
    let servers: Vec<Server> = world
        .pods()
        .map(|pod| Server::start(pod, 8080).expect("start a server"))
        .collect();
    for family in Family::ALL {
        for from in world.pods() {
            for to in world.pods() {
                let plan = Plan::from_pod(&world, from, to.endpoint(family, 8080));
                let (served, sources) = many(&plan, 1);
                assert_eq!(
                    served,
                    set(std::slice::from_ref(&to.name)),
                    "from {}",
                    from.name
                );
                assert_eq!(sources, set(&[from.address(family)]), "no NAT between pods");
            }
        }
    }
    drop(servers);
    let name = format!("{}-node", world.name());
    drop(world);
    assert!(!std::path::Path::new("/run/netns").join(name).exists());
}

#[rstest]
#[case::nftables(Backend::Nftables)]
#[case::iptables_legacy(Backend::IptablesLegacy)]
#[case::iptables_nft(Backend::IptablesNft)]
fn every_kind_of_traffic_flows(#[case] backend: Backend) {
    let scene = scene(backend);
    let world = &scene.world;
    for family in Family::ALL {
        let pod = world.pod("client-1").address(family);
        let node = world.node_address(family);
        let outsider = world.outside_client(0, family);

        // ClusterIP from a pod: local and remote endpoints, no masquerade.
        let plan = from_pod(&scene, "client-1", scene.cluster_ip("web", family));
        let all = set(&["web-1".to_owned(), "web-2".to_owned(), "web-3".to_owned()]);
        assert_eq!(many(&plan, 40), (all.clone(), set(&[pod])));

        // Hairpin: a pod that connects to itself sees another source address than its own.
        let plan = from_pod(&scene, "web-1", scene.cluster_ip("web", family));
        let (servers, sources) = many(&plan, 40);
        assert_eq!(servers, all);
        assert!(sources.contains(&world.pod("web-1").address(family)) && sources.len() == 2);

        // A bridged pod dials a Service whose endpoint is on the same bridge.
        let plan = from_pod(&scene, "db-2", scene.cluster_ip("db", family));
        assert_eq!(many(&plan, 5).0, set(&["db-1".to_owned()]));

        let plan = Plan::from_node(world, scene.cluster_ip("web", family));
        assert_eq!(many(&plan, 40).0, all);

        // Connections from outside to node port and load balancer address are masqueraded to the node's
        // address that the kernel prefers for the outgoing device.
        let vip = scene.manifests.service("web").load_balancer_ip(family);
        for target in [scene.node_port(30080, family), SocketAddr::new(vip, 80)] {
            let (servers, sources) = many(&from_outside(&scene, target), 40);
            assert_eq!(servers, all);
            assert!(
                sources.contains(&node) && !sources.contains(&outsider),
                "{sources:?}"
            );
        }

        let vip = scene.manifests.service("db").external_ip(family);
        assert_eq!(
            many(&from_outside(&scene, SocketAddr::new(vip, 80)), 5).0,
            set(&["db-1".to_owned()])
        );

        // externalTrafficPolicy Local without a local endpoint: clients outside are dropped, pods are served.
        let target = scene.node_port(30083, family);
        assert_eq!(from_outside(&scene, target).once(0), Err(Failure::Timeout));
        assert_eq!(
            many(&from_pod(&scene, "client-1", target), 5).0,
            set(&["web-3".to_owned()])
        );

        // Connections to a Service without endpoints are refused. The timeout allows a second SYN: the kernel
        // drops an ICMP error that arrives while connect() still holds the socket, and veths are fast enough
        // for that.
        let plan = from_pod(&scene, "client-1", scene.cluster_ip("empty", family));
        assert_eq!(
            plan.patience(Duration::from_millis(1800)).once(0),
            Err(Failure::Refused)
        );
        // Without a listener or a rule, the node answers with RST.
        assert_eq!(
            from_outside(&scene, scene.node_port(31999, family)).once(0),
            Err(Failure::Refused)
        );
    }
}

#[test]
fn rules_follow_the_manifests() {
    let mut scene = scene(Backend::Nftables);
    let target = scene.cluster_ip("far", Family::V4);
    let plan = from_pod(&scene, "client-1", target);
    assert_eq!(many(&plan, 5).0, set(&["web-3".to_owned()]));
    scene
        .manifests
        .swap_endpoint("far", "web-3", scene.world.pod("web-1"))
        .expect("swap");
    assert_eq!(
        many(&plan, 5).0,
        set(&["web-3".to_owned()]),
        "the rules have not followed yet"
    );
    scene.rules.install().expect("install");
    assert_eq!(many(&plan, 5).0, set(&["web-1".to_owned()]));
    // A terminating endpoint that is still serving is used if none is ready.
    let fade = |service: &mut Service| {
        for endpoint in &mut service.endpoints {
            (endpoint.ready, endpoint.serving, endpoint.terminating) = (false, true, true);
        }
    };
    scene.manifests.change("far", fade).expect("change");
    scene.rules.install().expect("install");
    assert_eq!(many(&plan, 5).0, set(&["web-1".to_owned()]));
}
