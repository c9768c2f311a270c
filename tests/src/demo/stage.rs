//! The demo's world, Services, traffic and agent.

use std::collections::VecDeque;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::signals;
use super::teller::Node;
use super::timeline::{Kind, Style, Timeline, span};
use super::verdict::{self, Seen};
use super::words::tail;
use crate::manifests::{Manifests, Sentinel, Service};
use crate::pod_probe::{self, Placed, Probes};
use crate::process::Process;
use crate::rules::{Backend, Rules};
use crate::traffic::{Client, Plan, Server, Tally};
use crate::tunnels::tunnels;
use crate::watch::{Poll, Watch};
use crate::world::{Agent, Builder, Family, World};

const PORT: u16 = 8080;
/// The pod probe's place in the address plan, and its pods.
const PROBE_INDEX: u8 = 4;
const PROBED: [Placed; 2] = [("client-1", None), ("web-3", None)];
/// Options of the agent beside the world's: a short dwell, or the demo would mostly wait for it.
const OPTIONS: [&str; 2] = ["--flap-dwell", "1s"];
/// How often /healthz and /livez are asked.
const ASK_EVERY: Duration = Duration::from_millis(20);

/// Everything that is up.
#[derive(Debug)]
pub(super) struct Stage {
    // Dropped in this order: those who ask, those who dial, those who answer, the agent, the world.
    pub(super) verdicts: Poll<Seen>,
    pub(super) watch: Watch,
    pub(super) clients: Vec<Client>,
    pub(super) servers: Vec<(String, Server)>,
    pub(super) agent: Option<Agent>,
    pub(super) rules: Rules,
    pub(super) manifests: Manifests,
    pub(super) binary: PathBuf,
    history: VecDeque<(Instant, Tally)>,
    pub(super) world: World,
}

fn description(fixed_name: Option<&str>) -> Builder {
    let builder = World::builder()
        .pods(&["web-1", "web-2", "web-4", "api-1", "client-1", "client-2"])
        .bridged_pods(&["db-1"])
        .remote_pods(&["web-3", "api-2"]);
    match fixed_name {
        Some(name) => builder.named(name),
        None => builder,
    }
}

fn services(world: &World) -> Vec<Service> {
    let pods = |names: &[&str]| names.iter().map(|name| world.pod(name)).collect::<Vec<_>>();
    vec![
        Service::new("web", 0, pods(&["web-1", "web-2", "web-3"])).load_balancer(30080),
        Service::new("api", 1, pods(&["api-1", "api-2"])).node_port(30081),
        Service::new("db", 2, pods(&["db-1"])).node_port(30082),
    ]
}

/// A server in every pod that may be an endpoint.
fn start_servers(world: &World) -> Result<Vec<(String, Server)>> {
    let pods = world.pods().filter(|pod| !pod.name.starts_with("client"));
    pods.map(|pod| Ok((pod.name.clone(), Server::start(pod, PORT)?)))
        .collect()
}

/// 20 connections a second to each Service: from two pods to the ClusterIP, since one pod alone accuses
/// nobody, from outside to the load balancer's address or the node port, in both families.
fn start_clients(world: &World, services: &[Service]) -> Result<Vec<Client>> {
    let mut clients = Vec::new();
    for service in services {
        for (number, family) in [(0, Family::V4), (1, Family::V6)] {
            let inside = SocketAddr::new(service.cluster_ip(family), service.port);
            for pod in ["client-1", "client-2"] {
                let plan = Plan::from_pod(world, world.pod(pod), inside);
                clients.push(plan.rate(3.0).start()?);
            }
            let outside = match service.node_port {
                Some(port) if !service.load_balancer => {
                    SocketAddr::new(world.node_address(family), port)
                }
                _ => SocketAddr::new(service.load_balancer_ip(family), service.port),
            };
            clients.push(
                Plan::from_outside(world, number, outside)
                    .rate(4.0)
                    .start()?,
            );
        }
    }
    Ok(clients)
}

impl Stage {
    /// Tunnels between the nodes, and the pod probe on both.
    pub(super) fn start_probes(&mut self) -> Result<Probes> {
        tunnels(&self.world)?;
        let service = pod_probe::service(&self.world, PROBE_INDEX, &PROBED);
        self.manifests.add(service)?;
        self.rules.install()?;
        Probes::start(&self.world, &self.binary, PROBE_INDEX, &PROBED)
    }

    /// After the probes ended: their Service.
    pub(super) fn remove_probes(&mut self) -> Result<()> {
        self.manifests.remove("pathproof-echo")?;
        self.rules.install()
    }

    /// Puts everything up, in the order that the timeline tells.
    pub(super) fn build(
        binary: &Path,
        fixed_name: Option<&str>,
        timeline: &mut Timeline,
    ) -> Result<Self> {
        let start = Instant::now();
        let world = description(fixed_name).build().context(
            "create the namespaces (`cargo xtask demo --remove` removes those that were \
             kept)",
        )?;
        signals::check()?;
        let manifests = Manifests::write(&world, services(&world))?;
        manifests.put_sentinel(&Sentinel::default())?;
        let rules = Rules::new(&world, Backend::Nftables, manifests.dir());
        rules.install()?;
        let servers = start_servers(&world)?;
        timeline.tell(
            Kind::Act,
            &format!(
                "a node, {} pods, another node and outside clients as namespaces, in {} ms",
                world.pods().count(),
                start.elapsed().as_millis()
            ),
        );
        sketch(timeline);
        timeline.tell(
            Kind::Act,
            "Service NAT: real nftables rules from the same YAML as the agent's; no traffic yet",
        );
        let watch = Watch::start(&world, ASK_EVERY)?;
        let verdicts = verdict::watch(&world)?;
        let mut stage = Self {
            verdicts,
            watch,
            clients: Vec::new(),
            servers,
            agent: None,
            rules,
            manifests,
            binary: binary.to_owned(),
            history: VecDeque::new(),
            world,
        };
        stage.start_agent()?;
        Ok(stage)
    }

    /// Starts all clients.
    pub(super) fn start_traffic(&mut self) -> Result<()> {
        self.clients = start_clients(&self.world, self.manifests.services())?;
        self.history.clear();
        Ok(())
    }

    /// Starts the agent and does not wait.
    pub(super) fn start_agent(&mut self) -> Result<()> {
        let manifests = self.manifests.dir();
        let agent = self.world.spawn_agent(&self.binary, manifests, &OPTIONS)?;
        self.agent = Some(agent);
        Ok(())
    }

    /// What the clients felt so far, together.
    pub(super) fn tally(&self) -> Tally {
        self.clients.iter().map(Client::tally).sum()
    }

    /// Ends the server of a pod, as when the pod is gone.
    pub(super) fn stop_server(&mut self, pod: &str) {
        self.servers.retain(|(name, _)| name != pod);
    }

    /// Leaves the world, the agent and, by another process, servers and clients up.
    pub(super) fn keep(mut self, binary: &Path, timeline: &mut Timeline) -> Result<()> {
        let dir = self.world.dir().to_owned();
        let script: String = self
            .rules
            .scripts()?
            .into_iter()
            .map(|(_, text)| text)
            .collect();
        fs::write(dir.join("services.nft"), script)?;
        self.clients.clear();
        self.servers.clear();
        let mut command = self.world.node.command(std::env::current_exe()?);
        command.arg("--tend");
        let clients = Process::start_lasting(command, "clients", &dir)?;
        clients.leave();
        self.agent.take().context("the agent runs")?.leave();
        how_to_play(timeline, self.world.name(), &dir, binary);
        let Self { world, .. } = self;
        world.keep();
        Ok(())
    }
}

impl Node for Stage {
    fn watch(&self) -> &Watch {
        &self.watch
    }

    fn verdicts(&self) -> &Poll<Seen> {
        &self.verdicts
    }

    /// An agent that ends by itself ends the demo.
    fn check(&mut self) -> Result<()> {
        self.recent();
        if let Some(agent) = &mut self.agent
            && let Some(status) = agent.exited()?
        {
            bail!(
                "the agent ended with {status}; the end of its log:\n{}",
                tail(&agent.log())
            );
        }
        Ok(())
    }

    fn recent(&mut self) -> Tally {
        let now = Instant::now();
        let tally = self.tally();
        self.history.push_back((now, tally));
        while self.history.len() > 2
            && self
                .history
                .get(1)
                .is_some_and(|(at, _)| now - *at >= Duration::from_secs(1))
        {
            self.history.pop_front();
        }
        self.history
            .front()
            .map_or(tally, |(_, earlier)| tally - *earlier)
    }
}

/// Servers and clients of a kept world, until a signal.
pub(super) fn tend(name: &str) -> Result<()> {
    let world = description(Some(name)).attach()?;
    let _servers = start_servers(&world)?;
    let clients = start_clients(&world, &services(&world))?;
    let mut before = Tally::default();
    while !signals::interrupted() {
        thread::sleep(Duration::from_secs(1));
        let now: Tally = clients.iter().map(Client::tally).sum();
        let second = now - before;
        before = now;
        println!(
            "last second: {} answered, {} refused, {} timed out, {} otherwise failed",
            second.ok, second.refused, second.timeouts, second.other
        );
    }
    Ok(())
}

fn sketch(timeline: &mut Timeline) {
    let lines = [
        "  outside clients ── router ──┬── eth0 NODE ──┬─ veth ─ web-1 web-2 api-1 client-1 client-2",
        "  203.0.113.11..   192.0.2.1  │   192.0.2.10  └─ cni0 ─ db-1",
        "                              └── another node ─ veth ─ web-3 api-2",
    ];
    for line in lines {
        timeline.raw(vec![span(Style::Dim, format!("         {line}"))]);
    }
}

fn how_to_play(timeline: &mut Timeline, name: &str, dir: &Path, binary: &Path) {
    let node = format!("ip netns exec {name}-node");
    let (dir, binary) = (dir.display(), binary.display());
    timeline.title("The namespaces still exist. As root, in any terminal:");
    let lines = [
        (
            "ask it",
            format!("ip netns exec {name}-outside curl -si http://192.0.2.10:10256/healthz"),
        ),
        ("read it", format!("{node} {binary} status")),
        (
            "break it",
            format!("{node} nft flush chain ip kube-proxy services"),
        ),
        (
            "",
            format!("{node} nft flush chain ip6 kube-proxy services"),
        ),
        ("mend it", format!("{node} nft -f {dir}/services.nft")),
        (
            "taint it",
            format!("edit {dir}/manifests/node.yaml (spec.taints)"),
        ),
        ("clients", format!("tail -f {dir}/clients.log")),
        ("agent", format!("tail -f {dir}/agent.log")),
        ("remove", "cargo xtask demo --remove".to_owned()),
    ];
    for (what, how) in lines {
        timeline.raw(vec![
            span(Style::Act, format!("   {what:9}")),
            span(Style::Plain, how),
        ]);
    }
}
