//! Time that kube-proxy takes to follow the sentinel's endpoint: as the agent tells it, and as a
//! packet capture shows it with connections of our own, one every 10 ms.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use node_tests::capture::Capture;
use node_tests::cluster::{Api, KubeProxy};
use node_tests::detect::Figure;
use node_tests::scene::family_of;
use node_tests::wait::until;
use node_tests::worker::Worker;
use node_tests::world::{Agent, Family, Namespace};
use serde_json::Value;

use crate::site::Site;

/// Moves of the sentinel's endpoint, and as many with kube-proxy stopped.
const MOVES: usize = 6;
/// From one move to the next, and more.
const PATIENCE: Duration = Duration::from_secs(90);
/// The sentinel's Service and its slice of IPv4.
const SERVICE: &str = "/api/v1/namespaces/pathproof/services/pathproof-sentinel";
const SLICE: &str =
    "/apis/discovery.k8s.io/v1/namespaces/pathproof/endpointslices/pathproof-sentinel-ipv4";
/// kube-proxy is stopped for so long.
const HOLD: Duration = Duration::from_secs(6);
/// Between two connections.
const PACE: Duration = Duration::from_millis(10);

/// Lags that were measured.
#[derive(Default)]
pub(super) struct Lags {
    /// Between both, on the path that is probed in haste until the rules follow: the first one by TCP.
    pub(super) hasty: Figure,
    /// Between both, on the path that is off most.
    pub(super) farthest: Figure,
    /// As the capture shows it.
    pub(super) captured: Figure,
}

/// Has `pathproof rotate` move the endpoint, and as often with kube-proxy stopped for a while as it
/// does.
pub(super) fn measure(site: &Site, agent: &Agent, proxy: &KubeProxy) -> Result<[Lags; 2]> {
    let _rotator = site.rotator(&["--interval", "10"])?;
    let service = site.apis[0].get(SERVICE)?;
    let address = service["spec"]["clusterIP"].as_str();
    let address: IpAddr = address.context("a ClusterIP")?.parse()?;
    let port = port(&service["spec"])?;
    let _dialler = dial(&site.world.pod("client").ns, SocketAddr::new(address, port))?;
    let mut lags = <[Lags; 2]>::default();
    for _ in 0..MOVES {
        one(site, agent, None, &mut lags[0])?;
        one(site, agent, Some(proxy), &mut lags[1])?;
    }
    Ok(lags)
}

/// Waits for a move, and for both to tell how long it took.
fn one(site: &Site, agent: &Agent, held: Option<&KubeProxy>, lags: &mut Lags) -> Result<()> {
    let before = generation(&site.apis[0])?;
    let client = site.world.pod("client").address(Family::V4);
    let mut capture = Capture::start(&site.world.node);
    held.inspect(|proxy| proxy.freeze());
    let moved = until(PATIENCE, || {
        // Frames that came before are not wanted, and take room.
        capture.drain();
        capture.frames.clear();
        generation(&site.apis[0]).ok().filter(|now| *now != before)
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
    port(&api.get(SLICE)?)
}

fn port(object: &Value) -> Result<u16> {
    let port = object["ports"][0]["port"].as_u64().context("a port")?;
    Ok(u16::try_from(port)?)
}

/// The lag of each of IPv4's TCP lanes in the order of probes, once all are on the new generation.
fn told(report: &Value, generation: u16) -> Option<Vec<Duration>> {
    let lanes = family_of(report, Family::V4)["lanes"].as_array()?.iter();
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
fn dial(ns: &Namespace, to: SocketAddr) -> Result<Worker> {
    let kind = socket2::Type::STREAM.nonblocking();
    let work = move |stop: &AtomicBool| {
        while !stop.load(Ordering::Relaxed) {
            if let Ok(socket) = socket2::Socket::new(socket2::Domain::for_address(to), kind, None) {
                // In progress is what it says; nobody answers strangers there.
                let _ = socket.connect(&to.into());
            }
            thread::sleep(PACE);
        }
    };
    Ok(Worker::within(ns, "dialler", work)?)
}
