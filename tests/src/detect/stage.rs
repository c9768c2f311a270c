//! The node under measurement: three Services, their servers and rules, a sentinel and the agent,
//! idle or with traffic.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde_json::Value;

use crate::manifests::{Manifests, Sentinel, Service};
use crate::rules::{Backend, Rules};
use crate::scene::is_probed;
use crate::traffic::{Client, Plan, Server, Tally};
use crate::world::{Agent, Family, Routes, World};

/// Far longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);
/// Failed probes do not count for 10 s after the sentinel appeared or its devices were damaged.
const SETTLED: Duration = Duration::from_secs(11);

/// Whether anyone but the sentinel sends anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// No traffic to any Service.
    Idle,
    /// 120 connections a second from pods and from outside, in both families.
    Busy,
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Idle => "idle",
            Self::Busy => "busy",
        })
    }
}

/// Everything that is up. Dropped in this order: who dials, who answers, the agent, the world.
#[derive(Debug)]
pub struct Stage {
    /// Those who dial.
    pub clients: Vec<Client>,
    /// Those who answer, by pod.
    pub servers: BTreeMap<String, Server>,
    pub agent: Agent,
    /// The node's Service NAT.
    pub rules: Rules,
    /// The cluster.
    pub manifests: Manifests,
    /// The node, its pods and everyone else.
    pub world: World,
    /// Routes that a fault has taken away.
    pub(super) cut: Option<Routes>,
    /// Since when failed probes count.
    settled: Instant,
    /// How often the agent had said that the sentinel's devices were damaged.
    damages: usize,
}

impl Stage {
    /// Port of the servers.
    pub const PORT: u16 = 8080;
    /// One of three backends of a Service.
    const VICTIM: &str = "web-1";

    /// Puts everything up. Where `probed`, waits until every path is proven.
    pub fn build(
        binary: &Path,
        backend: Backend,
        load: Load,
        options: &[&str],
        probed: bool,
    ) -> Result<Self> {
        let options = options.iter().map(|&word| word.to_owned()).collect();
        Self::build_with(binary, backend, load, probed, |_, _| Ok(options))
    }

    /// The same, with options of the agent that depend on the node and its cluster.
    pub fn build_with(
        binary: &Path,
        backend: Backend,
        load: Load,
        probed: bool,
        options: impl FnOnce(&World, &Manifests) -> Result<Vec<String>>,
    ) -> Result<Self> {
        let world = World::builder()
            .pods(&["web-1", "web-2", "api-1", "client-1", "client-2"])
            .bridged_pods(&["db-1"])
            .remote_pods(&["web-3", "api-2"])
            .build()?;
        let manifests = Manifests::write(&world, services(&world))?;
        manifests.put_sentinel(&Sentinel::default())?;
        let rules = Rules::new(&world, backend, manifests.dir());
        rules.install()?;
        let mut servers = BTreeMap::new();
        for pod in world.pods().filter(|pod| !pod.name.starts_with("client")) {
            servers.insert(pod.name.clone(), Server::start(pod, Self::PORT)?);
        }
        let options = options(&world, &manifests)?;
        let words: Vec<&str> = options.iter().map(String::as_str).collect();
        let agent = world.ready_agent(binary, manifests.dir(), &words)?;
        let mut stage = Self {
            clients: Vec::new(),
            servers,
            agent,
            rules,
            manifests,
            world,
            cut: None,
            settled: Instant::now() + SETTLED,
            damages: 0,
        };
        if load == Load::Busy {
            stage.clients = clients(&stage.world, &stage.manifests)?;
        }
        if probed {
            stage.settle()?;
        }
        Ok(stage)
    }

    /// Waits until every path is probed and proven, /healthz says 200, and failures would count.
    pub fn settle(&mut self) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        let mut last = Value::Null;
        loop {
            let damages = self.agent.log().matches("interfaces are damaged").count();
            if damages > self.damages {
                self.damages = damages;
                self.settled = Instant::now() + SETTLED;
            }
            if let Ok(report) = self.agent.verdict() {
                last = report;
            }
            if Instant::now() >= self.settled && is_proven(&last) {
                return Ok(());
            }
            if Instant::now() >= end {
                bail!(
                    "not proven within {PATIENCE:?}; the last verdict was {last:#}\nand the agent said:\n{}",
                    self.agent.log()
                );
            }
            thread::sleep(Duration::from_millis(40));
        }
    }

    /// How many lanes are probed, in both families.
    pub fn lanes(&self) -> Result<usize> {
        let report = self.agent.verdict()?;
        let lanes = |family: &Value| family["lanes"].as_array().map_or(0, Vec::len);
        let families = report["verdict"]["families"].as_array();
        Ok(families.map_or(0, |families| families.iter().map(lanes).sum()))
    }

    /// What the clients felt so far, together.
    pub fn tally(&self) -> Tally {
        self.clients.iter().map(Client::tally).sum()
    }

    /// Kills one of three backends of a Service.
    pub fn kill_backend(&mut self) {
        self.servers.remove(Self::VICTIM);
    }

    /// Starts it again.
    pub fn revive_backend(&mut self) -> Result<()> {
        let server = Server::start(self.world.pod(Self::VICTIM), Self::PORT)?;
        self.servers.insert(Self::VICTIM.to_owned(), server);
        Ok(())
    }

    /// A filter named "range" drops the sentinel's ranges and nothing else.
    pub fn drop_range(&self) -> Result<()> {
        self.filter(
            "range",
            "type filter hook forward priority -10; \
             ip saddr 198.18.0.0/15 drop; ip daddr 198.18.0.0/15 drop; \
             ip6 saddr 2001:2::/48 drop; ip6 daddr 2001:2::/48 drop;",
        )
    }

    /// Adds a chain in a table of its own, until [`Stage::unfilter`].
    pub fn filter(&self, name: &str, chain: &str) -> Result<()> {
        let script = format!("table inet fault-{name} {{ chain it {{ {chain} }}\n}}\n");
        self.world.node.nft(&script).map(drop)
    }

    /// Removes it.
    pub fn unfilter(&self, name: &str) -> Result<()> {
        let script = format!("delete table inet fault-{name}");
        self.world.node.nft(&script).map(drop)
    }
}

fn is_proven(report: &Value) -> bool {
    report["answers"]["healthz"]["status"] == 200 && is_probed(report)
}

fn services(world: &World) -> Vec<Service> {
    let pods = |names: &[&str]| names.iter().map(|name| world.pod(name)).collect::<Vec<_>>();
    vec![
        Service::new("web", 0, pods(&["web-1", "web-2", "web-3"])).load_balancer(30080),
        Service::new("api", 1, pods(&["api-1", "api-2"])).node_port(30081),
        Service::new("db", 2, pods(&["db-1"])).node_port(30082),
    ]
}

/// 14 connections a second from pods and 6 from outside to each Service, in each family.
fn clients(world: &World, manifests: &Manifests) -> Result<Vec<Client>> {
    let mut clients = Vec::new();
    for service in manifests.services() {
        for family in Family::ALL {
            let inside = SocketAddr::new(service.cluster_ip(family), service.port);
            for pod in ["client-1", "client-2"] {
                let plan = Plan::from_pod(world, world.pod(pod), inside);
                clients.push(plan.rate(7.0).start()?);
            }
            let (client, outside) = match service.node_port {
                Some(port) if !service.load_balancer => {
                    (1, SocketAddr::new(world.node_address(family), port))
                }
                _ => (
                    0,
                    SocketAddr::new(service.load_balancer_ip(family), service.port),
                ),
            };
            let plan = Plan::from_outside(world, client, outside);
            clients.push(plan.rate(6.0).start()?);
        }
    }
    Ok(clients)
}
