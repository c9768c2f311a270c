//! The node of all cases: a real kube-proxy and API server, Services with endpoints on both nodes, and clients.
//! Each case gets a fresh agent in enforce mode, so that no case depends on those before it.

use std::fs;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use pathproof_facts::time::Wall;
use pathproof_node::replay::replay;
use pathproof_sim as sim;

use super::case::{Case, WARM_FOR_HOST};
use super::history::{History, Moment};
use super::pairs::{Undo, paired};
use super::pods::{NAMESPACES, NEW_PODS, PROBES, client_name, endpoints, service_name};
use crate::cluster::{Mode, PATIENCE, Scene, Servers};
use crate::manifests::Service;
use crate::pod_probe;
use crate::scene::is_probed;
use crate::traffic::{Client, Plan};
use crate::wait::{settled, until};
use crate::world::{Place, World};

/// Number of pods that dial.
const CLIENTS: u8 = 4;
/// Node port of the first Service; the others follow.
const NODE_PORT: u16 = 30080;
/// Timeout of a connection. The kernel repeats a SYN after 1, 3 and 7 s, like the simulator.
const TIMEOUT: Duration = Duration::from_secs(8);

fn services(world: &World) -> Vec<Service> {
    let each = NAMESPACES.into_iter().enumerate();
    let service = |(place, namespace)| {
        let pods = endpoints(place);
        let pods = pods.iter().map(|(pod, _)| world.pod(pod));
        let service = Service::new(&service_name(place), place as u8, pods);
        Service {
            namespace,
            ..service.node_port(NODE_PORT + place as u16)
        }
    };
    each.map(service).collect()
}

pub struct Stage(Scene);

/// Result of a case in namespaces.
pub struct Played {
    pub history: History,
    /// As `pathproof replay` reads it.
    pub recording: Vec<u8>,
}

impl Stage {
    /// Starts everything except the agent. Panics if something does not start.
    pub fn build(programs: Servers) -> Self {
        let pods = (0..NAMESPACES.len()).flat_map(endpoints);
        let (local, remote): (Vec<_>, Vec<_>) = pods.partition(|(_, place)| *place == Place::Local);
        let mut servers: Vec<String> = local.into_iter().map(|(pod, _)| pod).collect();
        servers.push(NEW_PODS[0].to_owned());
        let clients: Vec<String> = (0..CLIENTS).map(client_name).collect();
        let here = servers.iter().chain(&clients).map(String::as_str);
        let here: Vec<&str> = here.chain([PROBES[0].0]).collect();
        let mut away: Vec<&str> = remote.iter().map(|(pod, _)| pod.as_str()).collect();
        away.push(NEW_PODS[1]);
        let probes = PROBES.iter().skip(1).map(|(pod, _)| *pod);
        let there: Vec<&str> = away.iter().copied().chain(probes).collect();
        let world = World::builder().pods(&here).remote_pods(&there);
        let mut scene = Scene::new(world, programs, Mode::Nftables, services);
        for pod in servers.iter().map(String::as_str).chain(away) {
            scene.serve(pod);
        }
        scene.start_proxy();
        Self(scene)
    }

    /// Plays a case, and repairs everything. After an error the stage may be broken.
    pub fn play(&mut self, case: &Case) -> Result<Played> {
        let scene = &mut self.0;
        scene.start_agent(&[]);
        let world = case.world(Duration::ZERO);
        let clients = dial(scene, &world)?;
        let has_probe = world.services.iter().any(sim::ServiceSpec::is_pod_probe);
        let probes = has_probe.then(|| pod_probe::start_in(scene, &PROBES));
        let probes = probes.transpose()?;
        let mut undo: Vec<Undo> = Vec::new();
        let played = watch(scene, case, &clients, &mut undo);
        drop(clients);
        // Drop the agent before the repair, which it need not judge. This also removes its state and its maps.
        scene.agent = None;
        if let Some(probes) = probes {
            drop(probes);
            pod_probe::withdraw(scene)?;
        }
        for undo in undo.into_iter().rev() {
            undo(scene)?;
        }
        // An entry of a broken connection would fail a later one with the same ports.
        scene.world.node.feed("conntrack", &["-F"], "")?;
        played
    }
}

/// Starts the clients of a simulated world.
fn dial(scene: &Scene, world: &sim::World) -> Result<Vec<Client>> {
    let plans = world
        .streams
        .iter()
        .filter_map(|stream| plan(scene, stream));
    plans.map(Plan::start).collect()
}

/// The client of a stream; `None` for the pod probe, which is a separate program.
fn plan(scene: &Scene, stream: &sim::Stream) -> Option<Plan> {
    let (world, family) = (&scene.world, stream.family);
    let cluster_ip = || scene.inside(&service_name(stream.service), family);
    let plan = match stream.client {
        sim::Client::PodProbe => return None,
        sim::Client::Pod(number) => {
            Plan::from_pod(world, world.pod(&client_name(number)), cluster_ip())
        }
        sim::Client::Host => Plan::from_node(world, cluster_ip()),
        sim::Client::Outsider(number) => {
            let port = NODE_PORT + stream.service as u16;
            let target = SocketAddr::new(world.node_address(family), port);
            Plan::from_outside(world, number, target)
        }
    };
    let rate = 1.0 / stream.every.as_secs_f64();
    Some(plan.rate(rate).patience(TIMEOUT))
}

/// Brings the case's acts about once the node is proven, and returns the verdicts from the first act on.
fn watch(
    scene: &mut Scene,
    case: &Case,
    clients: &[Client],
    undo: &mut Vec<Undo>,
) -> Result<Played> {
    wait_proven(scene, clients)?;
    thread::sleep(match case.has_host() {
        true => WARM_FOR_HOST.0,
        false => settled(),
    });
    let watch = scene.watch();
    let since = Wall::of(Timestamp::now()).context("a time before the year 2262")?;
    let begun = Instant::now();
    for (at, act) in case.world(Duration::ZERO).acts {
        thread::sleep((begun + at).saturating_duration_since(Instant::now()));
        let inject = paired(&act).with_context(|| format!("{act:?} has no pair"))?;
        undo.push(inject(scene).with_context(|| format!("{act:?}"))?);
    }
    let left = (begun + case.watched()).saturating_duration_since(Instant::now());
    // Without a 503 this waits for the whole time.
    let _ = watch.wait(left, |codes| codes.livez == 503);
    recorded(scene, since)
}

fn wait_proven(scene: &Scene, clients: &[Client]) -> Result<()> {
    let agent = scene.agent();
    let proven = until(PATIENCE, || {
        let report = agent.verdict().ok()?;
        let is_proven = report["answers"]["healthz"]["status"] == 200 && is_probed(&report);
        let served = || clients.iter().all(|client| client.tally().ok > 0);
        (is_proven && served()).then_some(())
    });
    proven.with_context(|| format!("not proven: {:#?}\n{}", agent.verdict(), agent.log()))
}

/// The verdicts from a moment on. They are read from the agent's recording, because polls would miss short states.
fn recorded(scene: &Scene, since: Wall) -> Result<Played> {
    let file = scene.world.dir().join("case.pathproof");
    let path = file.to_string_lossy();
    let mut record = scene.agent().command(&["record", "--output", &path]);
    let output = record.output()?;
    ensure!(output.status.success(), "not recorded: {output:?}");
    let recording = fs::read(&file)?;
    let replayed = replay(&recording, None)?;
    let differs = replayed.differs;
    ensure!(differs.is_none(), "the replay differs at {differs:?}");
    let moments = replayed.moments;
    let first = moments.iter().rposition(|moment| moment.at <= since);
    let first = first.context("the recording begins after the first act")?;
    let history = History::of(moments[first..].iter().map(|moment| Moment {
        state: moment.update.verdict.state,
        livez: moment.update.answers.livez.status,
        cause: moment.update.verdict.cause,
    }));
    Ok(Played { history, recording })
}
