//! A node in a real cluster, without kube-proxy or agent at first.

use std::path::PathBuf;

use anyhow::{Context, Result};
use node_tests::cluster::{Api, ControlPlane, Process, Servers, base, install};
use node_tests::manifests::Manifests;
use node_tests::world::{Agent, World, agent_binary};

/// API clients that create and change objects in parallel.
const CLIENTS: usize = 4;

/// The cluster. Its parts are dropped in this order.
pub(crate) struct Site {
    pub(crate) apis: Vec<Api>,
    pub(crate) control: ControlPlane,
    pub(crate) manifests: Manifests,
    pub(crate) servers: Servers,
    pub(crate) world: World,
}

impl Site {
    /// Creates the pods `web` and `client`, but no Service.
    pub(crate) fn build() -> Result<Self> {
        let servers = Servers::find()?;
        let world = World::builder().pods(&["web", "client"]).build()?;
        let manifests = Manifests::write(&world, Vec::new())?;
        let control = ControlPlane::start(&world, &servers)?;
        let apis = (0..CLIENTS).map(|_| control.api());
        let apis = apis.collect::<Result<Vec<_>>>()?;
        install(&apis[0], &manifests)?;
        Ok(Self {
            apis,
            control,
            manifests,
            servers,
            world,
        })
    }

    fn kubeconfig(&self, account: &str) -> Result<PathBuf> {
        self.control
            .account_kubeconfig(&self.world, ControlPlane::address(), account)
    }

    /// Starts the agent without waiting.
    pub(crate) fn agent(&self, options: &[&str]) -> Result<Agent> {
        let file = self.kubeconfig(base::AGENT)?;
        let file = file.to_str().context("a path in UTF-8")?;
        let reads = ["--kubeconfig", file, "--log-filter", "warn"];
        let options = [&reads[..], options].concat();
        self.world
            .spawn_agent(&agent_binary()?, self.world.dir(), &options)
    }

    pub(crate) fn rotator(&self, options: &[&str]) -> Result<Process> {
        let mut command = self.world.node.command(agent_binary()?);
        command.arg("rotate").args(options);
        command
            .arg("--kubeconfig")
            .arg(self.kubeconfig(base::ROTATOR)?);
        Process::start(command, "rotator", self.world.dir())
    }
}
