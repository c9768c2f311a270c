//! How long kube-proxy takes to follow the sentinel's endpoint: as the agent tells it, and as a
//! packet capture shows it with connections of our own, one every 10 ms.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use node_tests::capture::Capture;
use node_tests::cluster::{Api, ControlPlane, KubeProxy, Process, base};
use node_tests::detect::Figure;
use node_tests::wait::until;
use node_tests::world::{Agent, Family, World};
use serde_json::Value;

/// From one move to the next, and more.
const PATIENCE: Duration = Duration::from_secs(90);
/// The sentinel's Service and its slice of IPv4.
const SERVICE: &str = "/api/v1/namespaces/pathproof/services/pathproof-sentinel";
const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/pathproof/endpointslices";
/// kube-proxy is stopped for so long.
const HOLD: Duration = Duration::from_secs(6);
/// Between two connections.
const PACE: Duration = Duration::from_millis(10);

/// What was measured.
#[derive(Default)]
pub(crate) struct Lags {
    /// Between both, on the path that is probed in haste until the rules follow: the first one by TCP.
    pub(crate) hasty: Figure,
    /// Between both, on the path that is off most.
    pub(crate) farthest: Figure,
    /// As the capture shows it.
    pub(crate) captured: Figure,
}

/// Has `pathproof rotate` move the endpoint so many times, and as often with kube-proxy stopped for
/// a while as it does.
pub(crate) fn measure(
    world: &World,
    control: &ControlPlane,
    agent: &Agent,
    binary: &Path,
    proxy: &KubeProxy,
    rotations: usize,
) -> Result<[Lags; 2]> {
    let api = control.api()?;
    let file = control.account_kubeconfig(world, ControlPlane::address(), base::ROTATOR)?;
    let mut command = world.node.command(binary);
    command
        .args(["rotate", "--interval", "10", "--kubeconfig"])
        .arg(file);
    let _rotator = Process::start(command, "rotator", world.dir())?;
    let service = api.get(SERVICE)?;
    let (address, port) = (
        &service["spec"]["clusterIP"],
        &service["spec"]["ports"][0]["port"],
    );
    let address: IpAddr = address.as_str().context("a ClusterIP")?.parse()?;
    let frontend = SocketAddr::new(address, u16::try_from(port.as_u64().context("a port")?)?);

    let stop = AtomicBool::new(false);
    let (mut lags, mut held) = (Lags::default(), Lags::default());
    thread::scope(|scope| {
        scope.spawn(|| world.pod("client").ns.run(|| dial(frontend, &stop)));
        let done = (0..rotations).try_for_each(|_| {
            one(world, &api, agent, None, &mut lags)?;
            one(world, &api, agent, Some(proxy), &mut held)
        });
        stop.store(true, Ordering::Relaxed);
        done
    })?;
    Ok([lags, held])
}

/// Waits for a move, and for both to tell how long it took.
fn one(
    world: &World,
    api: &Api,
    agent: &Agent,
    held: Option<&KubeProxy>,
    lags: &mut Lags,
) -> Result<()> {
    let before = generation(api)?;
    let client = world.pod("client").address(Family::V4);
    let mut capture = Capture::start(&world.node);
    held.inspect(|proxy| proxy.freeze());
    let moved = until(PATIENCE, || {
        // What came before is not wanted, and takes room.
        capture.drain();
        capture.frames.clear();
        generation(api).ok().filter(|now| *now != before)
    });
    let (moved, start) = (moved.context("no move")?, Instant::now());
    let followed = until(PATIENCE, || {
        if start.elapsed() >= HOLD {
            held.inspect(|proxy| proxy.thaw());
        }
        capture.drain();
        // Of our own connections alone: the agent's control probe goes there past the rules.
        let goes = |ends: [(IpAddr, u16); 2]| ends[0].0 == client && ends[1].1 == moved;
        let frames = capture.frames.drain(..);
        frames
            .filter_map(|frame| frame.ends())
            .any(goes)
            .then(|| start.elapsed())
    });
    lags.captured.note(followed);
    let told = until(PATIENCE, || told(&agent.verdict().ok()?, moved));
    let off: Vec<Duration> = match (followed, told) {
        (Some(seen), Some(told)) => told.iter().map(|lag| seen.abs_diff(*lag)).collect(),
        _ => Vec::new(),
    };
    lags.hasty.note(off.first().copied());
    lags.farthest.note(off.iter().max().copied());
    Ok(())
}

/// The port that the slice of IPv4 has.
fn generation(api: &Api) -> Result<u16> {
    let slices = api.get(SLICES)?;
    let mut slices = slices["items"].as_array().into_iter().flatten();
    let slice = slices.find(|slice| slice["addressType"] == "IPv4");
    let port = slice.and_then(|slice| slice["ports"][0]["port"].as_u64());
    Ok(u16::try_from(
        port.context("a port of the sentinel's slice")?,
    )?)
}

/// The lag of each of IPv4's TCP lanes in the order of probes, once all are on the new generation.
fn told(report: &Value, generation: u16) -> Option<Vec<Duration>> {
    let families = report["verdict"]["families"].as_array()?;
    let family = families.iter().find(|family| family["family"] == "IPv4")?;
    let lanes = family["lanes"].as_array()?.iter();
    let lags: Option<Vec<Duration>> = lanes
        .filter(|lane| lane["transport"] == "tcp" && lane["state"] != "off")
        .map(|lane| {
            let lag = lane["lag"].as_u64().map(Duration::from_nanos);
            lag.filter(|_| lane["generation"] == generation)
        })
        .collect();
    lags.filter(|lags| !lags.is_empty())
}

/// Begins a connection every 10 ms, and waits for none.
fn dial(to: SocketAddr, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        if let Ok(socket) = socket2::Socket::new(
            socket2::Domain::for_address(to),
            socket2::Type::STREAM.nonblocking(),
            None,
        ) {
            // In progress is what it says; nobody answers strangers there.
            let _ = socket.connect(&to.into());
        }
        thread::sleep(PACE);
    }
}
