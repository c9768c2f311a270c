//! Answers to outside clients leave by a second network, whose table is selected by a rule on the source. The
//! rule has to match pods' addresses, because the translation of an answer is reverted only after its route
//! was selected. Clients are served as usual.

use node_tests::prelude::*;
use node_tests::world::layout::{CLUSTER_CIDRS, outside_client, pick};

use crate::parts::{SOUND, everybody_is_served, flushed, stays};

/// Addresses of the second network: the router's and the node's.
const SECOND: [[&str; 2]; 2] = [
    ["100.64.0.1", "100.64.0.10"],
    ["fd00:100:64::1", "fd00:100:64::a"],
];

/// Rules that drop packets which leave by the second network.
const DROP: &str = "table inet second { chain forward {
type filter hook forward priority filter; policy accept;
oifname \"eth1\" drop\n}\n}\n";

/// The second network's table has a default route, or only routes to the clients.
#[rstest]
#[case::a_default_route(true)]
#[case::routes_to_clients_alone(false)]
fn answers_by_it_arrive(#[case] is_default: bool) {
    let mut scene = Scene::bare(Backend::Nftables);
    let (outside, node) = (&scene.world.outside, &scene.world.node);
    let peer = node.name();
    let second = format!("link add second type veth peer name eth1 netns {peer}");
    outside.ip(&second).expect("a second network");
    outside.ip("link set second up").expect("up");
    node.ip("link set eth1 up").expect("up");
    for family in Family::ALL {
        route_by_it(&scene.world, family, is_default);
    }
    scene.start(&[]);
    scene.traffic();
    scene.wait_proven();
    let watch = scene.watch();
    stays(&scene, &watch, &SOUND);
    everybody_is_served(&scene);
    let external = |outcome| {
        let services = ["web", "api", "db"].map(|service| {
            let families =
                Family::ALL.map(|family| scene.count(service, family, "external", outcome));
            families.iter().sum::<u64>()
        });
        services.iter().sum::<u64>()
    };
    let (answered, lost) = (external("answered"), external("lost"));
    assert!(
        answered > 0 && lost == 0,
        "{answered} answered, {lost} lost"
    );
    drop(watch);
    // Dropped answers must still count as lost.
    scene.nft(DROP);
    eventually("lost connections", || external("lost") > 20);
    scene.nft("delete table inet second\n");
    eventually("answered connections", || {
        external("answered") > answered + 20
    });
    let watch = scene.watch();
    wait_answers(&watch, 200);
    flushed(&scene, &watch);
}

fn route_by_it(world: &World, family: Family, is_default: bool) {
    let v6 = family == Family::V6;
    let [router, address] = SECOND[usize::from(v6)];
    let (length, whole, flag) = if v6 { (64, 128, "-6") } else { (24, 32, "-4") };
    let pods = if v6 { CLUSTER_CIDRS.1 } else { CLUSTER_CIDRS.0 };
    let add = format!("addr add {router}/{length} dev second\n");
    let mut node = format!(
        "addr add {address}/{length} dev eth1\nrule add pref 512 to {pods} lookup main\n\
         rule add pref 1024 from {pods} lookup 2\n"
    );
    if is_default {
        node += &format!("route add default via {router} dev eth1 table 2\n");
    } else {
        for client in 0..3 {
            let client = pick(outside_client(client), family);
            node += &format!("route add {client}/{whole} via {router} dev eth1 table 2\n");
        }
    }
    for (ns, batch) in [(&world.outside, add), (&world.node, node)] {
        let args = [flag, "-batch", "-"];
        ns.feed("ip", &args, &batch).expect("routes");
    }
}
