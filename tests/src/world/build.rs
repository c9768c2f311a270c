//! Makes the namespaces, devices, addresses and routes of a [`World`].

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::layout::{self, BRIDGE, NODE, NODE_NAME, Place, ROUTER, UPLINK, WORKER};
use super::remains::{self, Remains};
use super::{Namespace, Pod, World};
use crate::wait::scaled;

/// Link-local gateway of pods with host routes, as Calico has it. No device bears it: a static
/// neighbour entry in the pod stands for the node's end of the veth.
const GATEWAY: (&str, &str) = ("169.254.1.1", "fe80::1");
/// Hardware addresses, fixed at creation: a device manager may not change them then.
pub(super) const ROUTER_HARDWARE: [u8; 6] = [0x02, 0x70, 0x70, 0x01, 0, 0x01];
pub(super) const NODE_HARDWARE: [u8; 6] = [0x02, 0x70, 0x70, 0, 0, 0x10];
const WORKER_HARDWARE: [u8; 6] = [0x02, 0x70, 0x70, 0, 0, 0x20];
const BRIDGE_HARDWARE: [u8; 6] = [0x02, 0x70, 0x70, 0x02, 0, 0x01];
/// The bridge's addresses on the node.
const BRIDGE_ADDRESS: (&str, &str) = ("10.244.0.129", "fd00:10:244:0:1::1");

/// Description of a world.
#[derive(Clone, Debug)]
pub struct Builder {
    pods: Vec<(String, Place)>,
    clients: u8,
    node_name: &'static str,
    fixed_name: Option<String>,
    masquerade_egress: bool,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            pods: Vec::new(),
            clients: 3,
            node_name: NODE_NAME,
            fixed_name: None,
            masquerade_egress: true,
        }
    }
}

impl Builder {
    /// Adds pods on the node with host routes. Names: at most 10 characters.
    pub fn pods(mut self, names: &[&str]) -> Self {
        self.pods
            .extend(names.iter().map(|name| ((*name).to_owned(), Place::Local)));
        self
    }

    /// Adds pods on the node behind the bridge.
    pub fn bridged_pods(mut self, names: &[&str]) -> Self {
        self.pods.extend(
            names
                .iter()
                .map(|name| ((*name).to_owned(), Place::Bridged)),
        );
        self
    }

    /// Adds pods on the other node.
    pub fn remote_pods(mut self, names: &[&str]) -> Self {
        self.pods
            .extend(names.iter().map(|name| ((*name).to_owned(), Place::Remote)));
        self
    }

    /// Number of outside clients (3 unless told).
    pub fn outside_clients(mut self, count: u8) -> Self {
        self.clients = count;
        self
    }

    /// Name of its Node, for several worlds beside one API server ([`NODE_NAME`] unless told).
    pub fn node_name(mut self, name: &'static str) -> Self {
        self.node_name = name;
        self
    }

    /// A fixed name, for a world that may be kept. Must not begin like a test world's.
    pub fn named(mut self, name: &str) -> Self {
        self.fixed_name = Some(name.to_owned());
        self
    }

    /// Whether the node masquerades what pods send out of the cluster, as CNI plugins do
    /// (default), or lets it out with the pod's address.
    pub fn masquerade_egress(mut self, on: bool) -> Self {
        self.masquerade_egress = on;
        self
    }

    /// Makes the world.
    pub fn build(self) -> Result<World> {
        remains::sweep()?;
        if let Some(name) = &self.fixed_name {
            ensure!(
                !remains::exists(name),
                "a world named {name} is still there; remove it first"
            );
        }
        let mut world = self.world(true)?;
        network(&world)?;
        if self.masquerade_egress {
            masquerade_egress(&world.node)?;
        }
        add_pods(&mut world, &self.pods)?;
        Ok(world)
    }

    /// Opens a kept world that was built from the same description, from another process. Dropping
    /// the value leaves the world as it is.
    pub fn attach(self) -> Result<World> {
        let mut world = self.world(false)?;
        for (name, place) in &self.pods {
            let pod = new_pod(&mut world, name, *place)?;
            world.pods.insert(name.clone(), pod);
        }
        Ok(world)
    }

    fn world(&self, make: bool) -> Result<World> {
        let mut remains = Remains::new(self.fixed_name.as_deref())?;
        let names = ["node", "outside", "worker"].map(|part| format!("{}-{part}", remains.name()));
        if make {
            remains.make_namespaces(&names)?;
        } else {
            remains.keep();
        }
        let [node, outside, worker] = names;
        Ok(World {
            name: remains.name().to_owned(),
            node_name: self.node_name.to_owned(),
            node: Namespace::open(&node)?,
            outside: Namespace::open(&outside)?,
            worker: Namespace::open(&worker)?,
            pods: BTreeMap::new(),
            clients: self.clients,
            dir: remains.dir().to_owned(),
            pins: remains.pins().to_owned(),
            ports: Mutex::new(HashMap::new()),
            indexes: HashMap::new(),
            remains,
        })
    }
}

/// Settings of every namespace, before it has devices.
const EVERYWHERE: [(&str, &str); 16] = [
    // Hairpin traffic would make the node tell pods that a ClusterIP is their neighbour.
    ("net/ipv4/conf/all/accept_redirects", "0"),
    ("net/ipv4/conf/default/accept_redirects", "0"),
    ("net/ipv4/conf/all/send_redirects", "0"),
    ("net/ipv4/conf/default/send_redirects", "0"),
    ("net/ipv6/conf/all/accept_redirects", "0"),
    ("net/ipv6/conf/default/accept_redirects", "0"),
    // Loose: a reply may leave by another device than the request came.
    ("net/ipv4/conf/all/rp_filter", "2"),
    ("net/ipv4/conf/default/rp_filter", "2"),
    // Addresses usable at once.
    ("net/ipv6/conf/all/accept_dad", "0"),
    ("net/ipv6/conf/default/accept_dad", "0"),
    ("net/ipv6/conf/default/dad_transmits", "0"),
    ("net/ipv6/conf/default/accept_ra", "0"),
    ("net/ipv6/conf/default/router_solicitations", "0"),
    ("net/ipv6/conf/all/disable_ipv6", "0"),
    ("net/ipv6/conf/default/disable_ipv6", "0"),
    ("net/ipv6/conf/lo/disable_ipv6", "0"),
];

const ROUTING: [(&str, &str); 2] = [
    ("net/ipv4/ip_forward", "1"),
    ("net/ipv6/conf/all/forwarding", "1"),
];

/// The node network: router, node, worker and their routes.
fn network(world: &World) -> Result<()> {
    for namespace in [&world.node, &world.outside, &world.worker] {
        namespace.sysctls(&EVERYWHERE)?;
        namespace.sysctls(&ROUTING)?;
    }
    bridge_filter(&world.outside, "0");
    bridge_filter(&world.node, "1");
    world.outside.ip_batch(&router(world))?;
    world
        .node
        .ip_batch(&member(NODE, layout::WORKER_POD_CIDRS, WORKER))?;
    world
        .worker
        .ip_batch(&member(WORKER, layout::NODE_POD_CIDRS, NODE))?;
    wait_up(&world.outside)?;
    Ok(())
}

fn router(world: &World) -> String {
    let (v4, v6) = ROUTER;
    let (node4, node6) = NODE;
    let (vips4, vips6) = layout::VIP_CIDRS;
    let mut batch = format!(
        "link set lo up\nlink add lan0 address {} type bridge\n",
        mac(ROUTER_HARDWARE)
    );
    for (port, peer, hardware) in [
        ("node", world.node.name(), NODE_HARDWARE),
        ("worker", world.worker.name(), WORKER_HARDWARE),
    ] {
        let mac = mac(hardware);
        let _ = writeln!(
            batch,
            "link add {port} type veth peer name {UPLINK} address {mac} netns {peer}\n\
             link set {port} master lan0\nlink set {port} up"
        );
    }
    let _ = writeln!(
        batch,
        "link set lan0 up\naddr add {v4}/24 dev lan0\naddr add {v6}/64 dev lan0 nodad\n\
         route add {vips4} via {node4}\nroute add {vips6} via {node6}\n\
         route add blackhole default\nroute add blackhole ::/0 metric 4096"
    );
    for index in 0..world.clients {
        let (v4, v6) = layout::outside_client(index);
        let _ = writeln!(
            batch,
            "addr add {v4}/32 dev lo\naddr add {v6}/128 dev lo nodad"
        );
    }
    batch
}

/// A node's uplink, default route, and route to the other node's pods.
fn member(
    (v4, v6): (std::net::Ipv4Addr, std::net::Ipv6Addr),
    (pods4, pods6): (&str, &str),
    (other4, other6): (std::net::Ipv4Addr, std::net::Ipv6Addr),
) -> String {
    let (router4, router6) = ROUTER;
    format!(
        "link set lo up\nlink set {UPLINK} up\n\
         addr add {v4}/24 dev {UPLINK}\naddr add {v6}/64 dev {UPLINK} nodad\n\
         route add default via {router4} dev {UPLINK}\n\
         route add default via {router6} dev {UPLINK}\n\
         route add {pods4} via {other4} dev {UPLINK}\n\
         route add {pods6} via {other6} dev {UPLINK}\n"
    )
}

/// What CNI plugins do with pods' traffic to the world: the node's address in front.
fn masquerade_egress(node: &Namespace) -> Result<()> {
    let (pods4, pods6) = layout::CLUSTER_CIDRS;
    node.nft(&format!(
        "table inet cni {{ chain egress {{ type nat hook postrouting priority 110; policy accept;\n\
         ip saddr {pods4} ip daddr != {pods4} oifname {UPLINK} masquerade\n\
         ip6 saddr {pods6} ip6 daddr != {pods6} oifname {UPLINK} masquerade\n}}\n}}\n"
    ))
    .map(drop)
}

/// br_netfilter, where the kernel has it: bridged pods need it on the node, as in Kubernetes.
fn bridge_filter(namespace: &Namespace, value: &str) {
    if Path::new("/proc/sys/net/bridge").exists() {
        for key in ["bridge-nf-call-iptables", "bridge-nf-call-ip6tables"] {
            // Older kernels have no setting per namespace; the default (on) serves the node.
            let _ = namespace.sysctl(&format!("net/bridge/{key}"), value);
        }
    }
}

/// Adds pods: all namespaces in one process, then one batch for each host and pod.
pub(super) fn add_pods(world: &mut World, pods: &[(String, Place)]) -> Result<()> {
    let names: Vec<String> = pods
        .iter()
        .map(|(name, _)| format!("{}-{name}", world.name))
        .collect();
    world.remains.make_namespaces(&names)?;
    let (mut on_node, mut on_worker) = (String::new(), String::new());
    let needs_bridge = pods.iter().any(|(_, place)| *place == Place::Bridged)
        && !world.pods.values().any(|pod| pod.place == Place::Bridged);
    if needs_bridge {
        let (v4, v6) = BRIDGE_ADDRESS;
        let _ = writeln!(
            on_node,
            "link add {BRIDGE} address {} type bridge\nlink set {BRIDGE} up\n\
             addr add {v4}/25 dev {BRIDGE}\naddr add {v6}/80 dev {BRIDGE} nodad",
            mac(BRIDGE_HARDWARE)
        );
    }
    let mut made = Vec::new();
    for (name, place) in pods {
        ensure!(!world.pods.contains_key(name), "two pods named {name}");
        let pod = new_pod(world, name, *place)?;
        pod.ns.sysctls(&EVERYWHERE)?;
        let host = if *place == Place::Remote {
            &mut on_worker
        } else {
            &mut on_node
        };
        host.push_str(&host_side(&pod));
        made.push(pod);
    }
    world.node.ip_batch(&on_node)?;
    world.worker.ip_batch(&on_worker)?;
    for pod in &made {
        pod.ns.ip_batch(&pod_side(pod))?;
    }
    for pod in made {
        wait_up(&pod.ns)?;
        world.pods.insert(pod.name.clone(), pod);
    }
    wait_up(&world.node)?;
    wait_up(&world.worker)
}

/// Waits until every device of a namespace works: the kernel notices a carrier by a work item,
/// late on a loaded machine, and drops what is sent before.
fn wait_up(namespace: &Namespace) -> Result<()> {
    let start = Instant::now();
    loop {
        let links = namespace.ip("-o link show")?;
        let waits = |line: &&str| !line.contains("LOOPBACK") && !line.contains("state UP");
        let Some(waiting) = links.lines().find(waits) else {
            return Ok(());
        };
        if start.elapsed() > scaled(Duration::from_secs(5)) {
            bail!(
                "a device of {} does not come up: {waiting}",
                namespace.name()
            );
        }
        thread::sleep(Duration::from_millis(2));
    }
}

fn new_pod(world: &mut World, name: &str, place: Place) -> Result<Pod> {
    let device = format!("veth-{name}");
    if device.len() > 15 {
        bail!("pod name {name} is too long: its device {device} may have 15 characters");
    }
    let kind = match place {
        Place::Local => "local",
        Place::Bridged => "bridged",
        Place::Remote => "remote",
    };
    let index = world.indexes.entry(kind).or_insert(0);
    let (v4, v6) = layout::pod(place, *index);
    *index += 1;
    let ns = Namespace::open(&format!("{}-{name}", world.name)).context("open a pod")?;
    Ok(Pod {
        name: name.to_owned(),
        place,
        ns,
        v4,
        v6,
        device,
    })
}

/// Hardware addresses of a pod: (its gateway's, its own).
pub(super) fn hardware(pod: &Pod) -> ([u8; 6], [u8; 6]) {
    let [_, _, third, fourth] = pod.v4.octets();
    let host = match pod.place {
        // What a bridged pod sends to its gateway goes to the bridge, not to the port.
        Place::Bridged => BRIDGE_HARDWARE,
        Place::Local | Place::Remote => [0x02, 0x70, 0x70, 0xee, third, fourth],
    };
    (host, [0x02, 0x70, 0x70, 0x0d, third, fourth])
}

fn mac(bytes: [u8; 6]) -> String {
    bytes.map(|byte| format!("{byte:02x}")).join(":")
}

fn host_side(pod: &Pod) -> String {
    let Pod { device, v4, v6, .. } = pod;
    let (host, inside) = hardware(pod);
    let (host, inside) = (mac(host), mac(inside));
    // A port has an address of its own; the bridge answers for the gateway.
    let own = if pod.place == Place::Bridged {
        String::new()
    } else {
        format!(" address {host}")
    };
    let mut batch = format!(
        "link add {device}{own} type veth peer name eth0 address {inside} netns {}\n",
        pod.ns.name()
    );
    if pod.place == Place::Bridged {
        let _ = writeln!(
            batch,
            "link set {device} master {BRIDGE}\nlink set {device} type bridge_slave hairpin on\n\
             link set {device} up"
        );
    } else {
        let _ = writeln!(
            batch,
            "link set {device} up\nroute add {v4}/32 dev {device} scope link\n\
             route add {v6}/128 dev {device}\n\
             neigh add {v4} lladdr {inside} dev {device} nud permanent\n\
             neigh add {v6} lladdr {inside} dev {device} nud permanent"
        );
    }
    batch
}

fn pod_side(pod: &Pod) -> String {
    let Pod { v4, v6, .. } = pod;
    let (host, _) = hardware(pod);
    let host = mac(host);
    let up = "link set lo up\nlink set eth0 up\n";
    if pod.place == Place::Bridged {
        let (gateway4, gateway6) = BRIDGE_ADDRESS;
        return format!(
            "{up}addr add {v4}/25 dev eth0\naddr add {v6}/80 dev eth0 nodad\n\
             route add default via {gateway4}\nroute add default via {gateway6}\n"
        );
    }
    let (gateway4, gateway6) = GATEWAY;
    format!(
        "{up}addr add {v4}/32 dev eth0\naddr add {v6}/128 dev eth0 nodad\n\
         neigh add {gateway4} lladdr {host} dev eth0 nud permanent\n\
         neigh add {gateway6} lladdr {host} dev eth0 nud permanent\n\
         route add {gateway4} dev eth0 scope link\n\
         route add default via {gateway4} dev eth0\n\
         route add default via {gateway6} dev eth0\n"
    )
}
