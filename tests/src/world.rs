//! A node with its pods, another node, a router and outside clients, as network namespaces.
//!
//! [`World::builder`] makes one in about half a second; dropping it removes every namespace, pin and file.
//! Worlds are independent of each other (names contain the process id and a counter), so tests run in
//! parallel. A world never changes devices, rules or sysctls of the host. Its only change to the host is the
//! bpffs mount at /sys/fs/bpf, which the agent needs, if that mount is missing. For addresses see [`layout`].

mod agent;
mod build;
pub mod layout;
mod netns;
mod old_kernel;
mod program;
mod remains;
mod routes;

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

pub use agent::{ADMIN_PORT, Agent, HEALTHZ_PORT, agent_binary, clean};
use anyhow::{Context, Result};
pub use build::Builder;
pub use layout::{Family, NODE_NAME, Place};
pub use netns::Namespace;
pub(crate) use netns::feed;
pub use old_kernel::OldKernel;
pub use program::{copy_program, write_script};
use remains::Remains;
pub(crate) use remains::world_of_dead_process;

/// A pod: a namespace with one device, eth0.
#[derive(Clone, Debug)]
pub struct Pod {
    /// Name, such as "web-1".
    pub name: String,
    pub place: Place,
    pub ns: Namespace,
    pub v4: Ipv4Addr,
    pub v6: Ipv6Addr,
    /// The pod's device on its node, such as "veth-web-1".
    pub device: String,
}

impl Pod {
    pub fn address(&self, family: Family) -> IpAddr {
        layout::pick((self.v4, self.v6), family)
    }

    /// Source and destination hardware addresses of frames from the pod to its host.
    pub fn link(&self) -> ([u8; 6], [u8; 6]) {
        let [_, _, third, fourth] = self.v4.octets();
        let host = match self.place {
            // The gateway of a bridged pod is the bridge, not the port.
            Place::Bridged => build::BRIDGE_HARDWARE,
            Place::Local | Place::Remote => [0x02, 0x70, 0x70, 0xee, third, fourth],
        };
        ([0x02, 0x70, 0x70, 0x0d, third, fourth], host)
    }

    pub fn endpoint(&self, family: Family, port: u16) -> SocketAddr {
        SocketAddr::new(self.address(family), port)
    }
}

/// A test world; see the module documentation.
#[derive(Debug)]
pub struct World {
    /// Name of the Node object that represents the node under test.
    pub node_name: String,
    /// The node under test.
    pub node: Namespace,
    /// The router, which also has the outside clients' addresses.
    pub outside: Namespace,
    /// The other node.
    pub worker: Namespace,
    pods: BTreeMap<String, Pod>,
    /// Number of source port ranges in use, by source address.
    ports: Mutex<HashMap<IpAddr, u16>>,
    /// Number of pods of each place so far.
    indexes: [u8; 3],
    // Dropped last, because it removes what remains of the world.
    remains: Remains,
}

impl World {
    /// A builder for a world with a node, a worker, a router, three outside clients and no pods yet.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Prefix of the names of its namespaces.
    pub fn name(&self) -> &str {
        &self.remains.name
    }

    /// A folder for manifests, logs and state, removed with the world.
    pub fn dir(&self) -> &Path {
        &self.remains.dir
    }

    /// A folder in memory for programs that sync at every write, removed with the world.
    pub fn quick_dir(&self) -> std::io::Result<PathBuf> {
        std::fs::create_dir_all(&self.remains.quick)?;
        Ok(self.remains.quick.clone())
    }

    /// The folder of the agent's pins, under /sys/fs/bpf.
    pub fn pin_dir(&self) -> &Path {
        &self.remains.pins
    }

    /// A pod by name. Panics if there is none, because then the test has a wrong name.
    pub fn pod(&self, name: &str) -> &Pod {
        self.pods
            .get(name)
            .unwrap_or_else(|| panic!("no pod {name} in the world"))
    }

    pub fn pods(&self) -> impl Iterator<Item = &Pod> {
        self.pods.values()
    }

    /// Address of an outside client, counted from 0.
    pub fn outside_client(&self, index: u8, family: Family) -> IpAddr {
        assert!(index < build::CLIENTS, "no outside client {index}");
        layout::pick(layout::outside_client(index), family)
    }

    /// Source and destination hardware addresses of frames from the outside router to the node.
    pub fn outside_link() -> ([u8; 6], [u8; 6]) {
        (build::ROUTER_HARDWARE, build::NODE_HARDWARE)
    }

    pub fn node_address(&self, family: Family) -> IpAddr {
        layout::pick(layout::NODE, family)
    }

    /// Adds a pod while the world runs.
    pub fn add_pod(&mut self, name: &str, place: Place) -> Result<&Pod> {
        build::add_pods(self, &[(name.to_owned(), place)])?;
        Ok(self.pod(name))
    }

    /// Removes a pod while the world runs, with its namespace and both ends of its veth.
    pub fn remove_pod(&mut self, name: &str) -> Result<()> {
        let pod = self.pods.remove(name);
        let pod = pod.with_context(|| format!("no pod {name}"))?;
        // Delete the device first: a namespace with threads in it continues to exist without its name.
        let host = self.host(pod.place);
        host.ip(&format!("link del {}", pod.device))?;
        remains::host("ip", &["netns", "del", pod.ns.name()], "")
    }

    /// The namespace at the other end of the pods' devices.
    fn host(&self, place: Place) -> &Namespace {
        match place {
            Place::Remote => &self.worker,
            Place::Local | Place::Bridged => &self.node,
        }
    }

    /// A range of source ports that no other client with this source address uses. Ports are not left to the
    /// kernel: it may choose one that still has a conntrack entry of an earlier fault. The range avoids node
    /// ports.
    pub fn source_ports(&self, source: IpAddr) -> std::ops::Range<u16> {
        const SIZE: u16 = 2500;
        let mut handed_out = self.ports.lock().expect("no panic in here");
        let number = handed_out.entry(source).or_default();
        let ranges = (10_000..30_000).chain(33_000..58_000);
        let mut starts = ranges.step_by(SIZE.into()).cycle();
        let start = starts.nth((*number).into()).expect("it never ends");
        *number += 1;
        start..start + SIZE
    }

    /// Turns forwarding on the node on or off, for both families.
    pub fn set_forwarding(&self, on: bool) -> Result<()> {
        build::forward(&self.node, on)
    }

    /// Turns IPv4 forwarding on or off for each interface of the node except those with this prefix, as a
    /// network manager does.
    pub fn set_forwarding_of_each(&self, but: &str, on: bool) -> Result<()> {
        self.set_forwarding_after(&[], but, on)
    }

    /// Turns IPv4 forwarding off for the node, and on again for each interface except those with this prefix.
    /// Both happen in one step, because on a busy machine a pause between them would be an outage.
    pub fn forward_by_interface(&self, but: &str) -> Result<()> {
        self.set_forwarding_after(&[("net/ipv4/ip_forward", "0")], but, true)
    }

    fn set_forwarding_after(&self, first: &[(&str, &str)], but: &str, on: bool) -> Result<()> {
        let devices = self.node.ip("-br link")?;
        let names = devices
            .lines()
            .filter_map(|line| line.split(['@', ' ']).next());
        let names = names.filter(|name| but.is_empty() || !name.starts_with(but));
        let files: Vec<String> = names
            .map(|name| format!("net/ipv4/conf/{name}/forwarding"))
            .collect();
        let on = if on { "1" } else { "0" };
        let mut settings = first.to_vec();
        settings.extend(files.iter().map(|file| (file.as_str(), on)));
        self.node.sysctls(&settings)
    }

    /// Removes the node's route to a pod, so that traffic to the pod takes the default route (finding 10).
    pub fn cut_route(&self, pod: &str) -> Result<()> {
        let Pod { v4, v6, device, .. } = self.pod(pod);
        self.node.ip_batch(&format!(
            "route del {v4}/32 dev {device}\nroute del {v6}/128 dev {device}\n"
        ))
    }

    pub fn mend_route(&self, pod: &str) -> Result<()> {
        let Pod { v4, v6, device, .. } = self.pod(pod);
        self.node.ip_batch(&format!(
            "route replace {v4}/32 dev {device} scope link\nroute replace {v6}/128 dev {device}\n"
        ))
    }

    /// Starts or stops dropping everything that the node would forward.
    pub fn block_forwarding(&self, on: bool) -> Result<()> {
        let chain = match on {
            true => "chain block { type filter hook forward priority -10; policy drop; }\n",
            false => "",
        };
        let new = "table inet fault {}\ndelete table inet fault\n";
        let table = format!("{new}table inet fault {{ {chain}}}\n");
        self.node.nft(&table).map(drop)
    }
}

/// Path of a tool in PATH, or in the folders of system tools, which may be missing from PATH under sudo.
pub fn tool(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin", "/usr/local/sbin"].map(PathBuf::from);
    std::env::split_paths(&path)
        .chain(system)
        .map(|dir| dir.join(name))
        .find(|file| file.is_file())
}
