//! Obstacles that show in the state of the kernel, and that affect real traffic while the sentinel's probes
//! pass: policy rules, the reverse path filter, neighbours that do not answer. Each has a negative control.

use node_tests::outage::Users;
use node_tests::prelude::*;

/// Endpoints of two Services, which are in different namespaces.
const DEMO: [&str; 2] = ["web-1", "web-2"];
const SHOP: [&str; 2] = ["api-1", "spare"];
const NODE_PORTS: [u16; 2] = [30080, 30081];
/// Number of the outside client that the node answers through its second network.
const ASYMMETRIC: u8 = 2;
/// Time for which no 503 may come: several times as long as a confirmation takes.
const WATCHED: Duration = Duration::from_secs(12);
/// Longer than the agent remembers unconfirmed failures without new traffic.
const AWAY: Duration = Duration::from_secs(35);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Outside,
    Pods,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// A policy rule sends packets for pods to a table that has no route for them.
    ToPods,
    /// A policy rule sends packets from pods to a table that has no route for them, so that answers are lost.
    FromPods,
    /// The reverse path filter becomes strict, although the node answers some clients through another
    /// interface.
    ReversePath,
    /// Pods do not answer ARP and neighbour discovery.
    Neighbours,
    /// Packets between ports of the pods' bridge no longer pass through netfilter.
    BridgeFilter,
    /// The pods' bridge loses its ports.
    BridgePorts,
}

/// Starts a node with two uplinks and only local endpoints.
fn scene(bridged: bool, strict: bool) -> Scene {
    let names = ["web-1", "web-2", "api-1", "spare", "client-1", "client-2"];
    let world = match bridged {
        true => World::builder().bridged_pods(&names),
        false => World::builder().pods(&names),
    };
    let world = world.build().expect("a world");
    if bridged {
        shorten_neighbours(&world.node);
    }
    let pods = |names: [&str; 2]| names.map(|name| world.pod(name).clone());
    let web = Service::new("web", 0, &pods(DEMO)).node_port(NODE_PORTS[0]);
    let mut api = Service::new("api", 1, &pods(SHOP)).node_port(NODE_PORTS[1]);
    api.namespace = "shop";
    let mut scene = Scene::of(world, vec![web, api], Backend::Nftables);
    scene.rules.install().expect("the rules");
    for pod in DEMO.into_iter().chain(SHOP) {
        scene.serve(pod);
    }
    add_uplink(&scene.world);
    filter_strictly(&scene.world.node, strict);
    scene.add_sentinel(&Sentinel::default());
    scene.start(&["--flap-dwell", "0"]);
    scene.wait_probed();
    scene
}

/// Adds a second network, through which the node answers one outside client over IPv4.
fn add_uplink(world: &World) {
    let node = world.node.name();
    let second = format!(
        "link add second type veth peer name eth1 netns {node}\nlink set second up\n\
         addr add 100.64.0.1/24 dev second\n"
    );
    world.outside.ip_batch(&second).expect("a second network");
    let client = world.outside_client(ASYMMETRIC, Family::V4);
    let first = format!(
        "link set eth1 up\naddr add 100.64.0.10/24 dev eth1\n\
         route add {client}/32 via 100.64.0.1 dev eth1\n"
    );
    world.node.ip_batch(&first).expect("a second uplink");
}

/// Makes the reverse path filter strict or loose. It stays loose at the interfaces of pods and sentinel,
/// because the larger of the values for all and for the interface applies.
fn filter_strictly(node: &Namespace, strict: bool) {
    let value = if strict { "1" } else { "2" };
    for device in ["all", "eth0"] {
        let key = format!("net/ipv4/conf/{device}/rp_filter");
        node.sysctl(&key, value).expect("a switch");
    }
}

fn dial(scene: &Scene, sources: std::ops::Range<u8>, ports: &[u16], family: Family) -> Vec<Plan> {
    let plan = |(source, port): (u8, &u16)| {
        let target = SocketAddr::new(scene.world.node_address(family), *port);
        Plan::from_outside(&scene.world, source, target).rate(5.0)
    };
    let all = sources.flat_map(|source| ports.iter().map(move |port| (source, port)));
    all.map(plan).collect()
}

impl Use {
    fn plans(self, scene: &Scene, fault: Fault) -> Vec<Plan> {
        let families = match fault {
            // IPv6 has no reverse path filter.
            Fault::ReversePath => &[Family::V4][..],
            _ => &Family::ALL,
        };
        let of_family = |family: &Family| match (self, fault) {
            (Self::Outside, Fault::ReversePath) => {
                dial(scene, ASYMMETRIC..ASYMMETRIC + 1, &NODE_PORTS, *family)
            }
            (Self::Outside, _) => dial(scene, 0..2, &NODE_PORTS, *family),
            (Self::Pods, _) => [("client-1", "web"), ("client-2", "api")]
                .map(|(pod, service)| scene.pod_plan(pod, scene.cluster_ip(service, *family)))
                .into(),
        };
        families.iter().flat_map(of_family).collect()
    }
}

impl Fault {
    const RULES: [(&str, &str); 2] = [("", "10.244.0.0/24"), ("-6 ", "fd00:10:244::/64")];

    fn inject(self, scene: &Scene) {
        let node = &scene.world.node;
        match self {
            Self::ToPods | Self::FromPods => {
                let way = if self == Self::ToPods { "to" } else { "from" };
                for (flag, pods) in Self::RULES {
                    let route = format!("{flag}route add unreachable default table 100");
                    node.ip(&route).expect("a route");
                    let rule = format!("{flag}rule add pref 10 {way} {pods} lookup 100");
                    node.ip(&rule).expect("a policy rule");
                }
            }
            Self::ReversePath => filter_strictly(node, true),
            Self::Neighbours => DEMO.iter().chain(&SHOP).for_each(|pod| mute(scene, pod)),
            Self::BridgeFilter => filter_bridge(node, "0"),
            Self::BridgePorts => ports(scene, "nomaster"),
        }
    }

    fn is_of_bridge(self) -> bool {
        matches!(self, Self::BridgeFilter | Self::BridgePorts)
    }

    fn repair(self, scene: &Scene) {
        let node = &scene.world.node;
        match self {
            Self::ToPods | Self::FromPods => {
                for (flag, _) in Self::RULES {
                    node.ip(&format!("{flag}rule del pref 10"))
                        .expect("no rule");
                }
            }
            Self::ReversePath => filter_strictly(node, false),
            Self::Neighbours => {
                for pod in DEMO.iter().chain(&SHOP) {
                    let pod = &scene.world.pod(pod).ns;
                    pod.nft("delete table netdev mute\n").expect("no filter");
                }
            }
            Self::BridgeFilter => filter_bridge(node, "1"),
            Self::BridgePorts => ports(scene, "master cni0"),
        }
    }

    fn cause(self) -> &'static str {
        match self {
            Self::ReversePath => "reverse_path",
            Self::Neighbours | Self::BridgePorts => "no_neighbour",
            Self::ToPods | Self::FromPods => "no_route",
            Self::BridgeFilter => "bridge_filter",
        }
    }
}

fn filter_bridge(node: &Namespace, value: &str) {
    for key in ["bridge-nf-call-iptables", "bridge-nf-call-ip6tables"] {
        let key = format!("net/bridge/{key}");
        node.sysctl(&key, value).expect("a switch of br_netfilter");
    }
}

/// Makes the bridge's neighbour entries expire within 6 s. The kernel's default is a random time of 23 to 53
/// s.
fn shorten_neighbours(node: &Namespace) {
    let times = [
        ("base_reachable_time_ms", "2000"),
        ("delay_first_probe_time", "1"),
    ];
    for (family, (name, value)) in ["ipv4", "ipv6"].iter().flat_map(|f| times.map(|t| (f, t))) {
        let key = format!("net/{family}/neigh/cni0/{name}");
        node.sysctl(&key, value).expect("a time of neighbours");
    }
}

/// Changes the ports of the bridge to which the endpoints are connected.
fn ports(scene: &Scene, change: &str) {
    for pod in DEMO.iter().chain(&SHOP) {
        let words = format!("link set {} {change}", scene.world.pod(pod).device);
        scene.world.node.ip(&words).expect("a port");
    }
}

/// Makes a pod ignore ARP and neighbour discovery, and deletes its entries from the node's neighbour table.
fn mute(scene: &Scene, pod: &str) {
    let pod = scene.world.pod(pod);
    let filter = "table netdev mute { chain drops { type filter hook ingress device eth0 priority 0;\n\
         ether type arp drop\nicmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } drop\n}\n}\n";
    pod.ns.nft(filter).expect("a filter");
    for family in Family::ALL {
        let (address, device) = (pod.address(family), &pod.device);
        let words = format!("neigh del {address} dev {device}");
        scene.world.node.ip(&words).expect("an entry");
    }
}

fn started(plans: Vec<Plan>) -> Users {
    let users = Users::start(plans);
    users.wait_served();
    users
}

#[rstest]
#[case::to_pods(Fault::ToPods, Use::Outside)]
#[case::to_pods_of_pods(Fault::ToPods, Use::Pods)]
#[case::from_pods(Fault::FromPods, Use::Outside)]
#[case::from_pods_of_pods(Fault::FromPods, Use::Pods)]
#[case::reverse_path(Fault::ReversePath, Use::Outside)]
#[case::neighbours(Fault::Neighbours, Use::Outside)]
#[case::neighbours_of_pods(Fault::Neighbours, Use::Pods)]
#[case::bridge_filter_of_pods(Fault::BridgeFilter, Use::Pods)]
#[case::bridge_ports(Fault::BridgePorts, Use::Outside)]
#[case::bridge_ports_of_pods(Fault::BridgePorts, Use::Pods)]
fn an_obstacle_for_all_who_dial_is_503(#[case] fault: Fault, #[case] dialling: Use) {
    let scene = scene(fault.is_of_bridge(), false);
    let users = started(dialling.plans(&scene, fault));
    settle();
    let watch = scene.watch();
    fault.inject(&scene);
    wait_answers(&watch, 503);
    let report = scene.report();
    let cause = &report["verdict"]["cause"];
    assert_eq!(cause, fault.cause(), "{report:#}");
    drop(users);
    if fault == Fault::ToPods {
        // Without connections of clients nothing shows whether the obstacle is gone, so the 503 must stay.
        thread::sleep(AWAY);
        assert_eq!(watch.now().healthz, 503, "{:#}", scene.report());
    }
    fault.repair(&scene);
    let users = Users::start(dialling.plans(&scene, fault));
    wait_answers(&watch, 200);
    users.wait_served();
}

/// Asserts that these users fail and that the node never answers 503.
fn stays_healthy(scene: &Scene, watch: &Watch, users: &Users) {
    thread::sleep(Duration::from_secs(1));
    let since = std::time::Instant::now();
    thread::sleep(WATCHED);
    let felt = users.felt(since);
    assert!(felt.all > 0 && felt.ok == 0, "{felt}: {:#}", scene.report());
    assert_never_503(watch);
}

/// The kernel has no route to the endpoints of the only Service that is dialled. The other Service has no
/// traffic.
#[rstest]
#[case::a_blackhole_of_the_operator(false)]
#[case::pods_are_gone_before_the_cluster_knows(true)]
fn endpoints_of_one_service_are_never_503(#[case] gone: bool) {
    let mut scene = scene(gone, false);
    let outside = |port: u16| {
        let plans = Family::ALL.map(|family| dial(&scene, 0..2, &[port], family));
        plans.into_iter().flatten().collect()
    };
    let (users, others) = (outside(NODE_PORTS[0]), outside(NODE_PORTS[1]));
    let (users, others) = (started(users), started(others));
    settle();
    let watch = scene.watch();
    drop(others);
    for pod in DEMO {
        if gone {
            scene.servers.remove(pod);
            scene.world.remove_pod(pod).expect("remove a pod");
            continue;
        }
        for family in Family::ALL {
            let address = scene.world.pod(pod).address(family);
            let words = format!("route replace blackhole {address}");
            scene.world.node.ip(&words).expect("a route");
        }
    }
    stays_healthy(&scene, &watch, &users);
}

/// The reverse path filter was strict from the start. The clients that were served are idle, and the packets
/// that arrive have sources of the second network, which were never served.
#[test]
fn sources_that_were_never_served_are_never_503() {
    let scene = scene(false, true);
    let served = started(dial(&scene, 0..2, &NODE_PORTS, Family::V4));
    settle();
    let watch = scene.watch();
    drop(served);
    let forged = dial(&scene, ASYMMETRIC..ASYMMETRIC + 1, &NODE_PORTS, Family::V4);
    stays_healthy(&scene, &watch, &Users::start(forged));
}

/// The operator blocks the only client that sends traffic.
#[rstest]
#[case::by_a_rule("rule add pref 10 from CLIENT prohibit", Use::Outside)]
#[case::by_a_route("route add blackhole CLIENT", Use::Outside)]
#[case::a_pod_by_a_rule("rule add pref 10 from CLIENT prohibit", Use::Pods)]
fn a_client_that_the_operator_blocks_is_never_503(#[case] block: &str, #[case] dialling: Use) {
    let scene = scene(false, false);
    let plans = match dialling {
        Use::Outside => dial(&scene, 0..1, &NODE_PORTS, Family::V4),
        Use::Pods => ["web", "api"]
            .map(|service| scene.pod_plan("client-1", scene.cluster_ip(service, Family::V4)))
            .into(),
    };
    let client = plans[0].source.to_string();
    let users = started(plans);
    settle();
    let watch = scene.watch();
    let block = block.replace("CLIENT", &client);
    scene.world.node.ip(&block).expect("a block");
    stays_healthy(&scene, &watch, &users);
}

/// Packets of clients outside pass only one port of the bridge, so they need no netfilter between ports.
#[test]
fn a_bridge_without_netfilter_is_no_obstacle_for_clients_outside() {
    let scene = scene(true, false);
    let users = started(Use::Outside.plans(&scene, Fault::BridgeFilter));
    settle();
    let watch = scene.watch();
    Fault::BridgeFilter.inject(&scene);
    let since = std::time::Instant::now();
    thread::sleep(WATCHED);
    let felt = users.felt(since);
    assert!(
        felt.all > 0 && felt.ok == felt.all,
        "{felt}: {:#}",
        scene.report()
    );
    assert_never_503(&watch);
}
