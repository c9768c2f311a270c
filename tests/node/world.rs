//! The test world itself: what every other test takes for granted. Without the agent.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use node_tests::manifests::{Manifests, Service};
use node_tests::rules::{Backend, Rules};
use node_tests::skip;
use node_tests::traffic::{Answer, Client, Failure, Plan, RawSender, Server};
use node_tests::world::{Family, Place, World};
use rstest::rstest;

/// Long enough for a loaded machine, short enough for a test of refusals by silence.
const PATIENCE: Duration = Duration::from_millis(400);

/// A world with three Services, their servers and their rules.
struct Scene {
    rules: Rules,
    manifests: Manifests,
    _servers: Vec<Server>,
    world: World,
}

fn scene(backend: Backend) -> Scene {
    let world = World::builder()
        .pods(&["web-1", "web-2", "client-1"])
        .bridged_pods(&["db-1", "db-2"])
        .remote_pods(&["web-3"])
        .build()
        .expect("build a world");
    let servers = ["web-1", "web-2", "web-3", "db-1"];
    let servers = servers
        .map(|name| Server::start(world.pod(name), 8080).expect("start a server"))
        .into();
    let pods = |names: &[&str]| names.iter().map(|name| world.pod(name)).collect::<Vec<_>>();
    let manifests = Manifests::write(
        &world,
        vec![
            Service::new("web", 0, pods(&["web-1", "web-2", "web-3"])).load_balancer(30080),
            Service::new("db", 1, pods(&["db-1"]))
                .node_port(30081)
                .external_ips(),
            Service::new("far", 2, pods(&["web-3"]))
                .node_port(30082)
                .external_local(),
            Service::new("empty", 3, pods(&[])).node_port(30083),
        ],
    )
    .expect("write manifests");
    let rules = Rules::new(&world, backend, manifests.dir());
    rules.install().expect("install the rules");
    Scene {
        rules,
        manifests,
        _servers: servers,
        world,
    }
}

impl Scene {
    fn pod_plan(&self, pod: &str, target: SocketAddr) -> Plan {
        Plan::from_pod(&self.world, self.world.pod(pod), target).patience(PATIENCE)
    }

    fn outside_plan(&self, target: SocketAddr) -> Plan {
        Plan::from_outside(&self.world, 0, target).patience(PATIENCE)
    }

    fn cluster_ip(&self, service: &str, family: Family) -> SocketAddr {
        SocketAddr::new(self.manifests.service(service).cluster_ip(family), 80)
    }

    fn node_port(&self, port: u16, family: Family) -> SocketAddr {
        SocketAddr::new(self.world.node_address(family), port)
    }
}

/// Servers and sources seen in many connections, all of which must succeed.
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
    if skip::without_root("comes_up_and_routes") {
        return;
    }
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
    let name = "every_kind_of_traffic_flows";
    if skip::without_root(name) || skip::without_tool(name, backend.tool()) {
        return;
    }
    let scene = scene(backend);
    let world = &scene.world;
    for family in Family::ALL {
        let pod = world.pod("client-1").address(family);
        let node = world.node_address(family);
        let outsider = world.outside_client(0, family);

        // ClusterIP from a pod: local and remote endpoints, no masquerade.
        let plan = scene.pod_plan("client-1", scene.cluster_ip("web", family));
        let all = set(&["web-1".to_owned(), "web-2".to_owned(), "web-3".to_owned()]);
        assert_eq!(many(&plan, 40), (all.clone(), set(&[pod])));

        // Hairpin: a pod that reaches itself sees another source than itself.
        let plan = scene.pod_plan("web-1", scene.cluster_ip("web", family));
        let (servers, sources) = many(&plan, 40);
        assert_eq!(servers, all);
        assert!(sources.contains(&world.pod("web-1").address(family)) && sources.len() == 2);

        // A bridged pod to a Service whose endpoint is its neighbour on the bridge.
        let plan = scene.pod_plan("db-2", scene.cluster_ip("db", family));
        assert_eq!(many(&plan, 5).0, set(&["db-1".to_owned()]));

        // ClusterIP from the node itself.
        let plan = Plan::from_node(world, scene.cluster_ip("web", family));
        assert_eq!(many(&plan, 40).0, all);

        // NodePort and load balancer address from outside: masqueraded. What goes to a pod behind
        // a veth gets an address of the node, whichever the kernel prefers there.
        let vip = scene.manifests.service("web").load_balancer_ip(family);
        for target in [scene.node_port(30080, family), SocketAddr::new(vip, 80)] {
            let (servers, sources) = many(&scene.outside_plan(target), 40);
            assert_eq!(servers, all);
            assert!(
                sources.contains(&node) && !sources.contains(&outsider),
                "{sources:?}"
            );
        }

        // External IP from outside.
        let vip = scene.manifests.service("db").external_ip(family);
        assert_eq!(
            many(&scene.outside_plan(SocketAddr::new(vip, 80)), 5).0,
            set(&["db-1".to_owned()])
        );

        // externalTrafficPolicy Local without a local endpoint: drops outsiders, serves pods.
        let target = scene.node_port(30082, family);
        assert_eq!(scene.outside_plan(target).once(0), Err(Failure::Timeout));
        assert_eq!(
            many(&scene.pod_plan("client-1", target), 5).0,
            set(&["web-3".to_owned()])
        );

        // No endpoint: refused. Patience for a second SYN, since an ICMP error that comes while
        // connect() still holds the socket is dropped, and veths are as fast as that.
        let plan = scene.pod_plan("client-1", scene.cluster_ip("empty", family));
        assert_eq!(
            plan.patience(Duration::from_millis(1800)).once(0),
            Err(Failure::Refused)
        );
        // Nothing listens and no rule fits: the node answers with RST.
        assert_eq!(
            scene.outside_plan(scene.node_port(31999, family)).once(0),
            Err(Failure::Refused)
        );
    }
}

#[rstest]
#[case::nftables(Backend::Nftables)]
#[case::iptables_legacy(Backend::IptablesLegacy)]
#[case::iptables_nft(Backend::IptablesNft)]
fn faults_break_it_and_repairs_mend_it(#[case] backend: Backend) {
    let name = "faults_break_it_and_repairs_mend_it";
    if skip::without_root(name) || skip::without_tool(name, backend.tool()) {
        return;
    }
    let mut scene = scene(backend);
    for family in Family::ALL {
        let from_pod = scene.pod_plan("client-1", scene.cluster_ip("web", family));
        let from_outside = scene.outside_plan(scene.node_port(30080, family));
        let sound = |skip: u16| {
            assert!(from_pod.once(skip).is_ok(), "{family:?} from a pod, {skip}");
            assert!(
                from_outside.once(skip).is_ok(),
                "{family:?} from outside, {skip}"
            );
        };
        sound(0);

        // The Service chain flushed: ClusterIPs vanish upstream, the node refuses node ports.
        scene.rules.flush_services().expect("flush");
        assert_eq!(from_pod.once(1), Err(Failure::Timeout));
        assert_eq!(from_outside.once(1), Err(Failure::Refused));
        scene.rules.install().expect("install again");
        sound(2);

        scene.world.set_forwarding(false).expect("forwarding off");
        assert!(from_pod.once(3).is_err());
        scene.world.set_forwarding(true).expect("forwarding on");
        // IPv6 forgets its default routes by such a switch nowhere in this world.
        sound(4);

        scene.world.block_forwarding(true).expect("block");
        assert_eq!(from_pod.once(5), Err(Failure::Timeout));
        scene.world.block_forwarding(false).expect("unblock");
        sound(6);

        // One endpoint's rule rewritten to a pod of another Service: answered, by the wrong one.
        let wrong = scene.world.pod("db-1").endpoint(family, 8080);
        for pod in ["web-1", "web-2", "web-3"] {
            let endpoint = scene.world.pod(pod).endpoint(family, 8080);
            scene.rules.redirect(endpoint, wrong).expect("redirect");
        }
        assert_eq!(from_pod.once(7).expect("an answer").server, "db-1");
        scene.rules.repair().expect("repair");
        sound(8);
    }
    // A route cut: to the one endpoint only.
    let target = scene.world.pod("web-1").endpoint(Family::V4, 8080);
    let plan = scene.pod_plan("client-1", target);
    scene.world.cut_route("web-1").expect("cut");
    assert_eq!(plan.once(0), Err(Failure::Timeout));
    scene.world.mend_route("web-1").expect("mend");
    assert!(plan.once(1).is_ok());
}

#[test]
fn rules_follow_the_manifests() {
    if skip::without_root("rules_follow_the_manifests") {
        return;
    }
    let mut scene = scene(Backend::Nftables);
    let target = scene.cluster_ip("far", Family::V4);
    let plan = scene.pod_plan("client-1", target);
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
    // A terminating endpoint that still serves is used where none is ready.
    let fade = |service: &mut Service| {
        for endpoint in &mut service.endpoints {
            (endpoint.ready, endpoint.serving, endpoint.terminating) = (false, true, true);
        }
    };
    scene.manifests.change("far", fade).expect("change");
    scene.rules.install().expect("install");
    assert_eq!(many(&plan, 5).0, set(&["web-1".to_owned()]));
    // Source ranges at the load balancer's address.
    let vip = scene.manifests.service("web").load_balancer_ip(Family::V4);
    let outside = scene.outside_plan(SocketAddr::new(vip, 80));
    let change = |ranges: &[&str], scene: &mut Scene| {
        let ranges = ranges.iter().map(|range| (*range).to_owned()).collect();
        scene
            .manifests
            .change("web", |service| service.source_ranges = ranges)
            .expect("change");
        scene.rules.install().expect("install");
    };
    change(&["203.0.113.12/32", "2001:db8:ffff::/64"], &mut scene);
    assert_eq!(outside.once(0), Err(Failure::Timeout));
    change(&["203.0.113.11/32", "2001:db8:ffff::/64"], &mut scene);
    assert!(outside.once(1).is_ok());
}

#[test]
fn steady_clients_tell_what_they_feel() {
    if skip::without_root("steady_clients_tell_what_they_feel") {
        return;
    }
    let scene = scene(Backend::Nftables);
    let start = |plan: Plan| plan.rate(50.0).start().expect("start a client");
    let clients: Vec<Client> = Family::ALL
        .into_iter()
        .flat_map(|family| {
            [
                start(scene.pod_plan("client-1", scene.cluster_ip("web", family))),
                start(scene.outside_plan(scene.node_port(30080, family))),
            ]
        })
        .collect();
    thread::sleep(Duration::from_millis(500));
    for client in &clients {
        let tally = client.tally();
        assert!(
            tally.ok >= 10 && tally.failed() == 0,
            "{}: {tally:?}",
            client.plan().target
        );
        assert!(client.servers().len() >= 2);
    }
    scene.rules.flush_services().expect("flush");
    // Those under way end well or not; from here on each fails.
    thread::sleep(Duration::from_millis(100));
    let before: Vec<_> = clients.iter().map(Client::tally).collect();
    thread::sleep(PATIENCE + Duration::from_millis(300));
    for (client, before) in clients.into_iter().zip(before) {
        let target = client.plan().target;
        let tally = client.finish() - before;
        assert!(tally.ok == 0 && tally.failed() >= 5, "{target}: {tally:?}");
    }
}

#[test]
fn pods_come_and_go_under_traffic() {
    if skip::without_root("pods_come_and_go_under_traffic") {
        return;
    }
    let mut scene = scene(Backend::Nftables);
    let target = scene.cluster_ip("web", Family::V4);
    let client = scene
        .pod_plan("client-1", target)
        .rate(100.0)
        .start()
        .expect("start a client");
    for round in 0..3 {
        let name = format!("late-{round}");
        let pod = scene
            .world
            .add_pod(&name, Place::Local)
            .expect("add a pod")
            .clone();
        let server = Server::start(&pod, 8080).expect("start a server");
        let plan = scene.pod_plan("client-1", pod.endpoint(Family::V6, 8080));
        let plan = plan.patience(Duration::from_secs(2));
        assert_eq!(many(&plan, 2).0, set(std::slice::from_ref(&name)));
        scene.world.remove_pod(&name).expect("remove the pod");
        drop(server);
    }
    let tally = client.finish();
    assert!(tally.ok > 0 && tally.failed() == 0, "{tally:?}");
}

#[test]
fn crafted_syns_reach_the_servers() {
    if skip::without_root("crafted_syns_reach_the_servers") {
        return;
    }
    let scene = scene(Backend::Nftables);
    let watch = |filter: &str| {
        // nft counts what arrives: an observer of the test's own.
        scene
            .world
            .pod("db-1")
            .ns
            .nft(&format!(
                "table inet seen {{\n chain input {{\n type filter hook input priority 0\n \
                 tcp flags & (syn|ack) == syn {filter} counter\n }}\n}}\n"
            ))
            .expect("count");
    };
    watch("tcp dport 8080");
    for (family, number) in [(Family::V4, 1), (Family::V6, 2)] {
        let raw = RawSender::from_pod(scene.world.pod("client-1")).expect("a packet socket");
        let from = scene.world.pod("client-1").endpoint(family, 45_000);
        let to = scene.cluster_ip("db", family);
        raw.send_syn(from, to, 0x1234_5678).expect("send");
        let raw = RawSender::from_outside(&scene.world).expect("a packet socket");
        let from = SocketAddr::new(scene.world.outside_client(0, family), 45_000);
        let to = scene.node_port(30081, family);
        raw.send_syn(from, to, 0x1234_5678).expect("send");
        let wanted = format!("packets {}", number * 2);
        let ns = &scene.world.pod("db-1").ns;
        let end = Instant::now() + Duration::from_secs(2);
        loop {
            let listing = ns
                .command("nft")
                .args(["list", "table", "inet", "seen"])
                .output();
            let listing = String::from_utf8(listing.expect("list").stdout).expect("text");
            if listing.contains(&wanted) {
                break;
            }
            assert!(Instant::now() < end, "no {wanted} in {listing}");
            thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn worlds_are_independent() {
    if skip::without_root("worlds_are_independent") {
        return;
    }
    let one = scene(Backend::IptablesLegacy);
    let two = scene(Backend::IptablesLegacy);
    one.rules.flush_services().expect("flush");
    let target = two.cluster_ip("web", Family::V4);
    assert!(two.pod_plan("client-1", target).once(0).is_ok());
    assert!(one.pod_plan("client-1", target).once(0).is_err());
}
