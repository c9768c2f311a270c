//! The node under measurement: a scene with a sentinel and the agent, idle or with traffic.

use std::ops::{Deref, DerefMut};

use anyhow::{Context, Result};

use crate::manifests::Manifests;
use crate::prelude::*;
use crate::world::Agent;

/// Timeout of each wait, far longer than any step takes.
const PATIENCE: Duration = Duration::from_secs(60);
/// Failed probes do not count for 10 s after the sentinel appeared or its devices were damaged.
const SETTLED: Duration = Duration::from_secs(11);

/// Traffic beside the sentinel's probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// No traffic to any Service.
    Idle,
    /// 120 connections a second from pods and from outside, in both families.
    Busy,
    /// Only clients outside the node, as on an ingress node.
    Outside,
    /// Only one pod.
    OnePod,
}

/// Reverts a change of the stage.
pub type Undo = Box<dyn FnOnce(&mut Stage) -> Result<()>>;

pub struct Stage {
    pub agent: Agent,
    /// Everything except the agent, so `scene.agent` is `None`.
    scene: Scene,
    /// Time from which failed probes count as failures.
    settled: Instant,
    /// Number of reports of damaged sentinel devices in the agent's log so far.
    damages: usize,
}

impl Deref for Stage {
    type Target = Scene;

    fn deref(&self) -> &Self::Target {
        &self.scene
    }
}

impl DerefMut for Stage {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.scene
    }
}

impl Stage {
    /// Starts everything. `start` starts the agent.
    pub fn build(
        backend: Backend,
        load: Load,
        start: impl FnOnce(&World, &Manifests) -> Result<Agent>,
    ) -> Result<Self> {
        let mut scene = Scene::bare(backend);
        scene.add_sentinel(&Sentinel::default());
        let agent = start(&scene.world, &scene.manifests)?;
        match load {
            Load::Idle => {}
            Load::Busy => scene.traffic(),
            Load::Outside => scene.outside_traffic(),
            Load::OnePod => scene.traffic_of("client-1"),
        }
        Ok(Self {
            agent,
            scene,
            settled: Instant::now() + SETTLED,
            damages: 0,
        })
    }

    /// Waits until every path is probed and proven, /healthz answers 200, and a failed probe would count.
    pub fn settle(&mut self) -> Result<()> {
        let settled = until(PATIENCE, || {
            let damages = self.agent.log().matches("interfaces are damaged").count();
            if damages > self.damages {
                self.damages = damages;
                self.settled = Instant::now() + SETTLED;
            }
            let report = self.agent.verdict().ok()?;
            let is_proven = report["answers"]["healthz"]["status"] == 200 && is_probed(&report);
            (Instant::now() >= self.settled && is_proven).then_some(())
        });
        settled.with_context(|| {
            let (verdict, log) = (self.agent.verdict(), self.agent.log());
            format!("not proven within {PATIENCE:?}: {verdict:#?}\nand the agent said:\n{log}")
        })
    }

    /// Adds a chain in a separate table.
    pub fn filter(&self, name: &'static str, chain: &str) -> Result<Undo> {
        let script = format!("table inet fault-{name} {{ chain it {{ {chain} }}\n}}\n");
        self.world.node.nft(&script)?;
        Ok(Box::new(move |stage| {
            let script = format!("delete table inet fault-{name}");
            stage.world.node.nft(&script).map(drop)
        }))
    }
}
