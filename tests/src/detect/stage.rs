//! The node under measurement: three Services, their servers and rules, a sentinel and the agent,
//! idle or with traffic.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::manifests::{Manifests, Sentinel};
use crate::rules::{Backend, Rules};
use crate::scene::{Scene, is_probed, services};
use crate::traffic::{Client, Server, Tally};
use crate::wait::until;
use crate::world::{Agent, World};

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
        f.pad(&format!("{self:?}").to_lowercase())
    }
}

/// Takes back what was done to a stage.
pub type Undo = Box<dyn FnOnce(&mut Stage) -> Result<()>>;

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
    /// Since when failed probes count.
    settled: Instant,
    /// How often the agent had said that the sentinel's devices were damaged.
    damages: usize,
}

impl Stage {
    /// Port of the servers.
    pub const PORT: u16 = 8080;

    /// Puts everything up, with a ready agent. If `probed`, waits until every path is proven.
    pub fn build(
        binary: &Path,
        backend: Backend,
        load: Load,
        options: &[&str],
        probed: bool,
    ) -> Result<Self> {
        let mut stage = Self::build_with(backend, load, |world, manifests| {
            world.ready_agent(binary, manifests.dir(), options)
        })?;
        if probed {
            stage.settle()?;
        }
        Ok(stage)
    }

    /// The same with an agent that is started otherwise.
    pub fn build_with(
        backend: Backend,
        load: Load,
        agent: impl FnOnce(&World, &Manifests) -> Result<Agent>,
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
        let agent = agent(&world, &manifests)?;
        let mut scene = Scene {
            clients: Vec::new(),
            servers: BTreeMap::new(),
            agent: None,
            rules,
            manifests,
            world,
        };
        for pod in ["web-1", "web-2", "web-3", "api-1", "api-2", "db-1"] {
            scene.serve(pod);
        }
        if load == Load::Busy {
            scene.traffic();
        }
        Ok(Self {
            clients: scene.clients,
            servers: scene.servers,
            agent,
            rules: scene.rules,
            manifests: scene.manifests,
            world: scene.world,
            settled: Instant::now() + SETTLED,
            damages: 0,
        })
    }

    /// Starts the server of a pod.
    pub fn serve(&mut self, pod: &str) -> Result<()> {
        let server = Server::start(self.world.pod(pod), Self::PORT)?;
        self.servers.insert(pod.to_owned(), server);
        Ok(())
    }

    /// Waits until every path is probed and proven, /healthz says 200, and failures would count.
    pub fn settle(&mut self) -> Result<()> {
        let mut last = Value::Null;
        let settled = until(PATIENCE, || {
            let damages = self.agent.log().matches("interfaces are damaged").count();
            if damages > self.damages {
                self.damages = damages;
                self.settled = Instant::now() + SETTLED;
            }
            last = self.agent.verdict().ok()?;
            (Instant::now() >= self.settled && is_proven(&last)).then_some(())
        });
        settled.with_context(|| {
            let log = self.agent.log();
            format!("not proven within {PATIENCE:?}; the last verdict was {last:#}\nand the agent said:\n{log}")
        })
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

    /// Adds a chain, in a table of its own.
    pub fn filter(&self, name: &'static str, chain: &str) -> Result<Undo> {
        let script = format!("table inet fault-{name} {{ chain it {{ {chain} }}\n}}\n");
        self.world.node.nft(&script)?;
        Ok(Box::new(move |stage| {
            let script = format!("delete table inet fault-{name}");
            stage.world.node.nft(&script).map(drop)
        }))
    }
}

fn is_proven(report: &Value) -> bool {
    report["answers"]["healthz"]["status"] == 200 && is_probed(report)
}
