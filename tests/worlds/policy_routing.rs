//! Policy routing per pod, as with the AWS VPC CNI: some pods have addresses of a second uplink, and their
//! packets use the routing table of this uplink. The Node has no pod range. Imitated with the CNI's rules and
//! its mark 0x80, which returns answers of node ports by the uplink of the request.

use node_tests::prelude::*;
use node_tests::world::layout::{ROUTER, WORKER, WORKER_POD_CIDRS, pick};

use crate::parts::idle_then_busy;

/// Addresses of the second uplink: the router's and the node's.
const SECOND: [[&str; 2]; 2] = [
    ["100.64.0.1", "100.64.0.10"],
    ["fd00:100:64::1", "fd00:100:64::a"],
];

#[test]
fn two_uplinks_are_sound() {
    let mut scene = two_uplinks();
    scene.add_sentinel(&Sentinel::default());
    scene.start(&[]);
    scene.wait_probed();
    idle_then_busy(&mut scene);
}

pub(crate) fn two_uplinks() -> Scene {
    let mut scene = Scene::bare(Backend::IptablesNft);
    let (outside, node) = (&scene.world.outside, &scene.world.node);
    let name = node.name();
    let second = format!("link add second type veth peer name eth1 netns {name}");
    outside.ip(&second).expect("a second network");
    outside.ip("link set second up").expect("up");
    node.ip("link set eth1 up").expect("up");
    for family in Family::ALL {
        add_uplink(&scene.world, family);
    }
    let marks = "table inet aws { chain prerouting { type filter hook prerouting priority mangle;\n\
         iifname eth0 fib daddr . iif type local ct mark set 0x80\n\
         iifname \"veth-*\" meta mark set ct mark and 0x80\n}\n}\n";
    node.nft(marks).expect("marks");
    let (from, to) = (scene.world.pod("client-2"), scene.world.pod("web-3"));
    for family in Family::ALL {
        let (to, source) = (to.address(family), from.address(family));
        let asked = format!("route get {to} from {source} iif {}", from.device);
        let route = node.ip(&asked).expect("a route");
        assert!(route.contains("dev eth1"), "{route}");
    }
    scene.manifests.remove_pod_cidrs().expect("no podCIDRs");
    scene
}

/// Gives client-2 and web-2 addresses of the second uplink.
fn add_uplink(world: &World, family: Family) {
    let v6 = family == Family::V6;
    let [router, address] = SECOND[usize::from(v6)];
    let (length, flag) = if v6 { (64, "-6") } else { (24, "-4") };
    let far = if v6 {
        WORKER_POD_CIDRS.1
    } else {
        WORKER_POD_CIDRS.0
    };
    let mut outside = format!(
        "addr add {router}/{length} dev second\nroute add {far} via {}\n",
        pick(WORKER, family)
    );
    let mut node = format!(
        "addr add {address}/{length} dev eth1\nroute add default via {router} dev eth1 table 2\n\
         rule add pref 1024 fwmark 0x80/0x80 lookup main\n"
    );
    let mut worker = String::new();
    for pod in world.pods().filter(|pod| pod.place != Place::Remote) {
        let own = pod.address(family);
        node += &format!("rule add pref 512 to {own} lookup main\n");
        if ["client-2", "web-2"].contains(&pod.name.as_str()) {
            node += &format!("rule add pref 1536 from {own} lookup 2\n");
            outside += &format!("route add {own} via {address}\n");
            worker += &format!("route add {own} via {}\n", pick(ROUTER, family));
        }
    }
    for (ns, batch) in [
        (&world.outside, outside),
        (&world.node, node),
        (&world.worker, worker),
    ] {
        let args = [flag, "-batch", "-"];
        ns.feed("ip", &args, &batch).expect("policy routing");
    }
}
