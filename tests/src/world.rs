//! A node with its pods, another node, a router and outside clients, as network namespaces.
//!
//! [`World::builder`] makes one in about half a second; dropping it removes every namespace, pin
//! and file. Worlds are independent of each other (names carry the process id and a counter), so
//! tests run in parallel. A world never touches the host's own devices, rules or sysctls; the one
//! thing it may add to the host is the bpffs mount at /sys/fs/bpf, which the agent needs.
//! Addresses: see [`layout`].

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

use anyhow::{Context, Result};

pub use agent::{ADMIN_PORT, Agent, HEALTHZ_PORT, agent_binary};
pub use build::Builder;
pub use layout::{Family, NODE_NAME, Place};
pub use netns::Namespace;
pub use old_kernel::OldKernel;
pub use program::{copy_program, write_script};
use remains::Remains;
pub(crate) use remains::of_dead_process;
pub use remains::remove_kept;
pub use routes::Routes;

/// A pod: a namespace with one device, eth0.
#[derive(Clone, Debug)]
pub struct Pod {
    /// Name, such as "web-1".
    pub name: String,
    /// Where it lives.
    pub place: Place,
    pub ns: Namespace,
    /// Its addresses.
    pub v4: Ipv4Addr,
    /// Its addresses.
    pub v6: Ipv6Addr,
    /// Its device on the node (or on the other node), such as "veth-web-1".
    pub device: String,
}

impl Pod {
    pub fn address(&self, family: Family) -> IpAddr {
        layout::pick((self.v4, self.v6), family)
    }

    /// Hardware addresses of frames from the pod to its host: (source, destination).
    pub fn link(&self) -> ([u8; 6], [u8; 6]) {
        let (host, inside) = build::hardware(self);
        (inside, host)
    }

    /// An address and port of the pod.
    pub fn endpoint(&self, family: Family, port: u16) -> SocketAddr {
        SocketAddr::new(self.address(family), port)
    }
}

/// The world; see the module's page.
#[derive(Debug)]
pub struct World {
    name: String,
    node_name: String,
    /// The node under test.
    pub node: Namespace,
    /// The router, which also holds the outside clients' addresses.
    pub outside: Namespace,
    /// The other node.
    pub worker: Namespace,
    pods: BTreeMap<String, Pod>,
    clients: u8,
    dir: PathBuf,
    pins: PathBuf,
    ports: Mutex<HashMap<IpAddr, u16>>,
    indexes: HashMap<&'static str, u8>,
    // Last: removed after everything else of the world has gone.
    remains: Remains,
}

impl World {
    /// Starts the description of a world: a node, a worker, a router, three outside clients and no
    /// pods yet.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Name, the prefix of its namespaces' names.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Name of the Node that the node under test is.
    pub fn node_name(&self) -> &str {
        &self.node_name
    }

    /// A folder of its own for manifests, logs and state, removed with the world.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Folder for what waits for a disk at every write: in memory, removed with the world.
    pub fn quick_dir(&self) -> std::io::Result<PathBuf> {
        let dir = remains::quick_dir(&self.name);
        std::fs::create_dir_all(&dir)?;
        Ok(dir)
    }

    /// The folder of the agent's pins, under /sys/fs/bpf.
    pub fn pin_dir(&self) -> &Path {
        &self.pins
    }

    /// A pod by name. Panics where there is none: the name is a mistake in the test.
    pub fn pod(&self, name: &str) -> &Pod {
        self.pods
            .get(name)
            .unwrap_or_else(|| panic!("no pod {name} in the world"))
    }

    /// All pods by name.
    pub fn pods(&self) -> impl Iterator<Item = &Pod> {
        self.pods.values()
    }

    /// Address of an outside client, counted from 0.
    pub fn outside_client(&self, index: u8, family: Family) -> IpAddr {
        assert!(
            index < self.clients,
            "the world has {} outside clients",
            self.clients
        );
        layout::pick(layout::outside_client(index), family)
    }

    /// Hardware addresses of frames from the outside router to the node: (source, destination).
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

    /// Removes a pod: its namespace and both ends of its veth go at once, under traffic too.
    pub fn remove_pod(&mut self, name: &str) -> Result<()> {
        let pod = self
            .pods
            .remove(name)
            .with_context(|| format!("no pod {name}"))?;
        let host = if pod.place == Place::Remote {
            &self.worker
        } else {
            &self.node
        };
        // The device first: a namespace with threads in it outlives its name.
        host.ip(&format!("link del {}", pod.device))?;
        self.remains.remove_namespace(pod.ns.name())
    }

    /// A range of source ports that no other client of this world with the same source address
    /// uses, in sequence: kernel-chosen ports would meet conntrack entries of an earlier fault.
    /// Avoids the NodePort range.
    pub fn source_ports(&self, source: IpAddr) -> std::ops::Range<u16> {
        const SIZE: u16 = 2500;
        let mut next = self
            .ports
            .lock()
            .expect("no panic while ports are handed out");
        let slot = next.entry(source).or_insert(0);
        let index = *slot % 18;
        *slot += 1;
        // 8 ranges from 10000 to 29999, 10 from 33000 to 57999.
        let start = if index < 8 {
            10_000 + index * SIZE
        } else {
            33_000 + (index - 8) * SIZE
        };
        start..start + SIZE
    }

    /// Turns forwarding on the node on or off, for both families.
    pub fn set_forwarding(&self, on: bool) -> Result<()> {
        let value = if on { "1" } else { "0" };
        self.node.sysctls(&[
            ("net/ipv4/ip_forward", value),
            ("net/ipv6/conf/all/forwarding", value),
        ])
    }

    /// Removes the node's route to a pod, so that its traffic takes the default route (finding 10).
    pub fn cut_route(&self, pod: &str) -> Result<()> {
        let pod = self.pod(pod);
        self.node
            .ip(&format!("route del {}/32 dev {}", pod.v4, pod.device))?;
        self.node
            .ip(&format!("-6 route del {}/128 dev {}", pod.v6, pod.device))?;
        Ok(())
    }

    /// Puts the route back.
    pub fn mend_route(&self, pod: &str) -> Result<()> {
        let pod = self.pod(pod);
        self.node.ip(&format!(
            "route replace {}/32 dev {} scope link",
            pod.v4, pod.device
        ))?;
        self.node.ip(&format!(
            "-6 route replace {}/128 dev {}",
            pod.v6, pod.device
        ))?;
        Ok(())
    }

    /// Drops everything that the node would forward, or stops doing so.
    pub fn block_forwarding(&self, on: bool) -> Result<()> {
        let mut script = String::from("table inet fault {}\ndelete table inet fault\n");
        if on {
            script.push_str(
                "table inet fault { chain block { type filter hook forward priority -10; policy drop; }\n}\n",
            );
        }
        self.node.nft(&script).map(drop)
    }

    /// Notes a process that a kept world leaves running, so that [`remove_kept`] ends it.
    pub fn record_process(&self, name: &str, pid: u32) -> Result<()> {
        remains::record(&self.dir, name, pid)
    }

    /// Leaves the world up when this process ends; [`remove_kept`] removes it.
    pub fn keep(mut self) {
        self.remains.keep();
    }
}

/// Where a tool lies in PATH (and the places of system tools, which sudo may leave out).
pub fn tool(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin", "/usr/local/sbin"].map(PathBuf::from);
    std::env::split_paths(&path)
        .chain(system)
        .map(|dir| dir.join(name))
        .find(|file| file.is_file())
}
