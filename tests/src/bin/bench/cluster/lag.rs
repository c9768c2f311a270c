//! Time that kube-proxy takes to follow the sentinel's endpoint: as the agent tells it, and as a
//! packet capture shows it with connections of our own, one every 10 ms.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use node_tests::capture::Capture;
use node_tests::cluster::{KubeProxy, base};
use node_tests::detect::Figure;
use node_tests::promises::{Missed, head};
use node_tests::scene::family_of;
use node_tests::wait::until;
use node_tests::world::{Agent, Family};
use serde_json::Value;

use crate::boot::dial;
use crate::site::Site;

/// Moves of the sentinel's endpoint. kube-proxy is stopped at every other one.
const MOVES: usize = 12;
/// From one move to the next, and more.
const PATIENCE: Duration = Duration::from_secs(90);
/// The sentinel's Service.
const SERVICE: &str = "/api/v1/namespaces/pathproof/services/pathproof-sentinel";
/// kube-proxy is stopped for so long.
const HOLD: Duration = Duration::from_secs(6);
/// Between two connections.
const PACE: Duration = Duration::from_millis(10);
/// For so long after a move every path is probed in haste, and its lag told as exactly as this...
const IN_HASTE: Duration = Duration::from_secs(3);
const EXACT: Duration = Duration::from_millis(100);
/// ...and after that one path of each family alone; the others are as exact as their probes are far
/// apart.
const ROUND: Duration = Duration::from_millis(600);

/// Has `pathproof rotate` move the endpoint, and compares what the agent and the capture tell.
pub(super) fn measure(
    site: &Site,
    agent: &Agent,
    proxy: &KubeProxy,
    missed: &mut Missed,
) -> Result<()> {
    let _rotator = site.rotator(&["--interval", "10"])?;
    let service = site.apis[0].get(SERVICE)?;
    let address = service["spec"]["clusterIP"].as_str();
    let address: IpAddr = address.context("a ClusterIP")?.parse()?;
    let target = SocketAddr::new(address, port(&service["spec"])?);
    // Nobody answers strangers there.
    let _dialler = dial(site, target, PACE, PACE)?;
    let [mut exact, mut round] = <[Figure; 2]>::default();
    for turn in 0..MOVES {
        let (seen, off) = one(site, agent, (turn % 2 == 1).then_some(proxy))?;
        println!("{seen:.3?} as captured ; the agent is off by {off:.3?}");
        // The first path is probed in haste until the rules follow.
        exact.note(off.first().copied());
        match seen {
            Some(lag) if lag < IN_HASTE => exact.note(off.into_iter().max()),
            _ => round.note(off.into_iter().max()),
        }
    }
    head(&format!("lag off | {}", Figure::COLUMNS));
    exact.print("path in haste; below 3 s all", EXACT, missed);
    round.print("farthest path, from 3 s on", ROUND, missed);
    Ok(())
}

/// The lag as captured, and how far off the agent is on each of IPv4's TCP lanes, in the order of probes.
type Lag = (Option<Duration>, Vec<Duration>);

/// Waits for a move.
fn one(site: &Site, agent: &Agent, held: Option<&KubeProxy>) -> Result<Lag> {
    let generation = || port(&site.apis[0].get(base::SLICE)?);
    let before = generation()?;
    let client = site.world.pod("client").address(Family::V4);
    let mut capture = Capture::start(&site.world.node);
    held.inspect(|proxy| proxy.freeze());
    let moved = until(PATIENCE, || {
        // Frames that came before are not wanted, and take room.
        capture.drain();
        capture.frames.clear();
        generation().ok().filter(|now| *now != before)
    });
    let (moved, start) = (moved.context("no move")?, Instant::now());
    let followed = until(PATIENCE, || {
        if start.elapsed() >= HOLD {
            held.inspect(|proxy| proxy.thaw());
        }
        capture.drain();
        // Of our own connections alone: the agent's control probe goes there past the rules.
        let goes = |ends: [(IpAddr, u16); 2]| ends[0].0 == client && ends[1].1 == moved;
        let mut frames = capture.frames.drain(..).filter_map(|frame| frame.ends());
        frames.any(goes).then(|| start.elapsed())
    });
    // A slow kube-proxy may skip a move.
    let Some(seen) = followed else {
        return Ok((None, Vec::new()));
    };
    let told = until(PATIENCE, || told(&agent.verdict().ok()?, moved));
    let told = told.unwrap_or_default().into_iter();
    Ok((Some(seen), told.map(|lag| seen.abs_diff(lag)).collect()))
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
