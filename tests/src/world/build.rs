//! Creates the namespaces, devices, addresses and routes of a [`World`].

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::sync::Mutex;

use anyhow::{Context, Result, ensure};

use super::layout::{self, BRIDGE, NODE, NODE_NAME, Place, ROUTER, UPLINK, WORKER};
use super::remains::{self, Remains};
use super::{Namespace, Pod, World};
use crate::prelude::*;

/// Link-local gateway of pods that have host routes, as with Calico. No device has this address: a static
/// neighbour entry in the pod maps it to the node's end of the veth.
const GATEWAY: (&str, &str) = ("169.254.1.1", "fe80::1");
/// Hardware addresses. They are set when a device is created, so that no device manager changes them.
pub(super) const ROUTER_HARDWARE: [u8; 6] = [0x02, 0x70, 0x70, 0x01, 0, 0x01];
pub(super) const NODE_HARDWARE: [u8; 6] = [0x02, 0x70, 0x70, 0, 0, 0x10];
const WORKER_HARDWARE: [u8; 6] = [0x02, 0x70, 0x70, 0, 0, 0x20];
pub(super) const BRIDGE_HARDWARE: [u8; 6] = [0x02, 0x70, 0x70, 0x02, 0, 0x01];
/// The bridge's addresses on the node.
const BRIDGE_ADDRESS: (&str, &str) = ("10.244.0.129", "fd00:10:244:0:1::1");

pub(super) const CLIENTS: u8 = 3;

#[derive(Clone, Debug, Default)]
pub struct Builder {
    pods: Vec<(String, Place)>,
    node_name: Option<&'static str>,
    keeps_pod_addresses: bool,
}

impl Builder {
    /// Adds pods on the node with host routes. Names have at most 10 characters.
    pub fn pods(self, names: &[&str]) -> Self {
        self.pods_at(Place::Local, names)
    }

    pub fn bridged_pods(self, names: &[&str]) -> Self {
        self.pods_at(Place::Bridged, names)
    }

    pub fn remote_pods(self, names: &[&str]) -> Self {
        self.pods_at(Place::Remote, names)
    }

    fn pods_at(mut self, place: Place, names: &[&str]) -> Self {
        let pods = names.iter().map(|name| ((*name).to_owned(), place));
        self.pods.extend(pods);
        self
    }

    /// Name of the Node object (default: [`NODE_NAME`]). Several worlds with one API server need different
    /// names.
    pub fn node_name(mut self, name: &'static str) -> Self {
        self.node_name = Some(name);
        self
    }

    /// Whether the node masquerades pods' traffic to outside, as CNI plugins do (default), or keeps the
    /// pod's address.
    pub fn masquerade_egress(mut self, on: bool) -> Self {
        self.keeps_pod_addresses = !on;
        self
    }

    pub fn build(self) -> Result<World> {
        let needs = "needs root: run `cargo xtask test` with sudo";
        ensure!(skip::is_root(), needs);
        remains::sweep()?;
        let remains = Remains::new()?;
        let names = ["node", "outside", "worker"].map(|part| format!("{}-{part}", remains.name));
        remains::make_namespaces(&names)?;
        let [node, outside, worker] = names.map(|name| Namespace::open(&name));
        let mut world = World {
            node_name: self.node_name.unwrap_or(NODE_NAME).to_owned(),
            node: node?,
            outside: outside?,
            worker: worker?,
            pods: BTreeMap::new(),
            ports: Mutex::default(),
            indexes: [0; 3],
            remains,
        };
        network(&world)?;
        if !self.keeps_pod_addresses {
            masquerade_egress(&world.node)?;
        }
        add_pods(&mut world, &self.pods)?;
        Ok(world)
    }
}

/// Settings of every namespace, made before it has devices.
const EVERYWHERE: [(&str, &str); 16] = [
    // Otherwise, for hairpin traffic, the node would send redirects, and pods would take a ClusterIP for a
    // neighbour.
    ("net/ipv4/conf/all/accept_redirects", "0"),
    ("net/ipv4/conf/default/accept_redirects", "0"),
    ("net/ipv4/conf/all/send_redirects", "0"),
    ("net/ipv4/conf/default/send_redirects", "0"),
    ("net/ipv6/conf/all/accept_redirects", "0"),
    ("net/ipv6/conf/default/accept_redirects", "0"),
    // Loose reverse path filter: a reply may leave by another device than its request came in by.
    ("net/ipv4/conf/all/rp_filter", "2"),
    ("net/ipv4/conf/default/rp_filter", "2"),
    // No duplicate address detection, so that addresses are usable at once.
    ("net/ipv6/conf/all/accept_dad", "0"),
    ("net/ipv6/conf/default/accept_dad", "0"),
    ("net/ipv6/conf/default/dad_transmits", "0"),
    ("net/ipv6/conf/default/accept_ra", "0"),
    ("net/ipv6/conf/default/router_solicitations", "0"),
    ("net/ipv6/conf/all/disable_ipv6", "0"),
    ("net/ipv6/conf/default/disable_ipv6", "0"),
    ("net/ipv6/conf/lo/disable_ipv6", "0"),
];

pub(super) fn forward(namespace: &Namespace, on: bool) -> Result<()> {
    let value = if on { "1" } else { "0" };
    namespace.sysctls(&[
        ("net/ipv4/ip_forward", value),
        ("net/ipv6/conf/all/forwarding", value),
    ])
}

/// The node network: router, node, worker and their routes.
fn network(world: &World) -> Result<()> {
    for namespace in [&world.node, &world.outside, &world.worker] {
        namespace.sysctls(&EVERYWHERE)?;
        forward(namespace, true)?;
    }
    bridge_filter(&world.outside, "0");
    bridge_filter(&world.node, "1");
    let node = member(NODE, layout::WORKER_POD_CIDRS, WORKER);
    let worker = member(WORKER, layout::NODE_POD_CIDRS, NODE);
    world.outside.ip_batch(&router(world))?;
    world.node.ip_batch(&node)?;
    world.worker.ip_batch(&worker)?;
    wait_up(&world.outside)
}

fn router(world: &World) -> String {
    let (v4, v6) = ROUTER;
    let (node4, node6) = NODE;
    let (vips4, vips6) = layout::VIP_CIDRS;
    let own = mac(ROUTER_HARDWARE);
    let mut batch = format!("link set lo up\nlink add lan0 address {own} type bridge\n");
    let ports = [
        ("node", &world.node, NODE_HARDWARE),
        ("worker", &world.worker, WORKER_HARDWARE),
    ];
    for (port, peer, hardware) in ports {
        let (peer, mac) = (peer.name(), mac(hardware));
        batch += &format!(
            "link add {port} type veth peer name {UPLINK} address {mac} netns {peer}\n\
             link set {port} master lan0\nlink set {port} up\n"
        );
    }
    batch += &format!(
        "link set lan0 up\naddr add {v4}/24 dev lan0\naddr add {v6}/64 dev lan0 nodad\n\
         route add {vips4} via {node4}\nroute add {vips6} via {node6}\n\
         route add blackhole default\nroute add blackhole ::/0 metric 4096\n"
    );
    for (v4, v6) in (0..CLIENTS).map(layout::outside_client) {
        batch += &format!("addr add {v4}/32 dev lo\naddr add {v6}/128 dev lo nodad\n");
    }
    batch
}

/// A node's uplink, default route, and route to the other node's pods.
fn member(
    (v4, v6): (Ipv4Addr, Ipv6Addr),
    (pods4, pods6): (&str, &str),
    (other4, other6): (Ipv4Addr, Ipv6Addr),
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

/// Replaces the source address of pods' traffic to outside by the node's, as CNI plugins do.
fn masquerade_egress(node: &Namespace) -> Result<()> {
    let (pods4, pods6) = layout::CLUSTER_CIDRS;
    node.nft(&format!(
        "table inet cni {{ chain egress {{ type nat hook postrouting priority 110; policy accept;\n\
         ip saddr {pods4} ip daddr != {pods4} oifname {UPLINK} masquerade\n\
         ip6 saddr {pods6} ip6 daddr != {pods6} oifname {UPLINK} masquerade\n}}\n}}\n"
    ))
    .map(drop)
}

/// Sets br_netfilter, if the kernel has it. The node needs it on for bridged pods, as in Kubernetes.
fn bridge_filter(namespace: &Namespace, value: &str) {
    if Path::new("/proc/sys/net/bridge").exists() {
        for key in ["bridge-nf-call-iptables", "bridge-nf-call-ip6tables"] {
            // Ignore the error: older kernels have no setting per namespace, and the default (on) suits the
            // node.
            let _ = namespace.sysctl(&format!("net/bridge/{key}"), value);
        }
    }
}

/// Adds pods. All namespaces are made by one process, then each host and pod gets one batch of commands.
pub(super) fn add_pods(world: &mut World, pods: &[(String, Place)]) -> Result<()> {
    let names = pods
        .iter()
        .map(|(name, _)| format!("{}-{name}", world.name()));
    let names: Vec<String> = names.collect();
    remains::make_namespaces(&names)?;
    let (mut on_node, mut on_worker) = (String::new(), String::new());
    let is_bridged = |(_, place): &(String, Place)| *place == Place::Bridged;
    if pods.iter().any(is_bridged) && world.indexes[Place::Bridged as usize] == 0 {
        let ((v4, v6), own) = (BRIDGE_ADDRESS, mac(BRIDGE_HARDWARE));
        on_node += &format!(
            "link add {BRIDGE} address {own} type bridge\nlink set {BRIDGE} up\n\
             addr add {v4}/25 dev {BRIDGE}\naddr add {v6}/80 dev {BRIDGE} nodad\n"
        );
    }
    let mut made = Vec::new();
    for ((name, place), ns) in pods.iter().zip(&names) {
        ensure!(!world.pods.contains_key(name), "two pods named {name}");
        let pod = new_pod(world, name, *place, ns)?;
        pod.ns.sysctls(&EVERYWHERE)?;
        match place {
            Place::Remote => on_worker += &host_side(&pod),
            Place::Local | Place::Bridged => on_node += &host_side(&pod),
        }
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

/// Waits until every device of a namespace is up. The kernel detects a carrier asynchronously, which takes
/// long on a busy machine, and drops packets until then.
fn wait_up(namespace: &Namespace) -> Result<()> {
    let waits = |line: &str| !line.contains("LOOPBACK") && !line.contains("state UP");
    let mut down = String::new();
    let up = until(Duration::from_secs(5), || {
        let links = namespace.ip("-o link show").ok()?;
        down = links.lines().filter(|line| waits(line)).collect();
        down.is_empty().then_some(())
    });
    up.with_context(|| format!("devices of {} stay down: {down}", namespace.name()))
}

fn new_pod(world: &mut World, name: &str, place: Place, ns: &str) -> Result<Pod> {
    let device = format!("veth-{name}");
    ensure!(
        device.len() <= 15,
        "the name of the device {device} is too long"
    );
    let ns = Namespace::open(ns).context("open a pod")?;
    let index = &mut world.indexes[place as usize];
    let (v4, v6) = layout::pod(place, *index);
    *index += 1;
    Ok(Pod {
        name: name.to_owned(),
        place,
        ns,
        v4,
        v6,
        device,
    })
}

fn mac(bytes: [u8; 6]) -> String {
    bytes.map(|byte| format!("{byte:02x}")).join(":")
}

fn host_side(pod: &Pod) -> String {
    let Pod { device, v4, v6, .. } = pod;
    let (inside, host) = pod.link();
    let (host, inside) = (mac(host), mac(inside));
    let ns = pod.ns.name();
    let link = format!("type veth peer name eth0 address {inside} netns {ns}");
    if pod.place == Place::Bridged {
        // A bridge port keeps its own hardware address, because the bridge is the gateway.
        return format!(
            "link add {device} {link}\nlink set {device} master {BRIDGE}\n\
             link set {device} type bridge_slave hairpin on\nlink set {device} up\n"
        );
    }
    format!(
        "link add {device} address {host} {link}\nlink set {device} up\n\
         route add {v4}/32 dev {device} scope link\nroute add {v6}/128 dev {device}\n\
         neigh add {v4} lladdr {inside} dev {device} nud permanent\n\
         neigh add {v6} lladdr {inside} dev {device} nud permanent\n"
    )
}

fn pod_side(pod: &Pod) -> String {
    let Pod { v4, v6, .. } = pod;
    let (_, host) = pod.link();
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
