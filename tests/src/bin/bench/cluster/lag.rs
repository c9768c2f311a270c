//! Lag of kube-proxy behind moves of the sentinel's endpoint. The lag that the agent reports is compared with
//! the one in a packet capture, in which test connections start every 10 ms.

use std::net::IpAddr;

use anyhow::{Context, Result};
use node_tests::capture::Capture;
use node_tests::cluster::{KubeProxy, base};
use node_tests::detect::Figure;
use node_tests::prelude::*;
use node_tests::promises::{Missed, head};
use node_tests::world::Agent;

use crate::boot::dial;
use crate::site::Site;

/// Number of moves of the sentinel's endpoint. kube-proxy is stopped (SIGSTOP) at every second one.
const MOVES: usize = 12;
/// Timeout of each wait, longer than the time between two moves.
const PATIENCE: Duration = Duration::from_secs(90);
const SERVICE: &str = "/api/v1/namespaces/pathproof/services/pathproof-sentinel";
/// Time for which kube-proxy is stopped.
const HOLD: Duration = Duration::from_secs(6);
/// Interval between test connections.
const PACE: Duration = Duration::from_millis(10);
/// Maximum difference between the reported and the captured lag. Both are measured with probes, at intervals.
const EXACT: Duration = Duration::from_millis(600);

/// Starts `pathproof rotate`, which moves the endpoint, and compares the lag that the agent reports with
/// the captured one.
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
    // The sentinel does not answer unknown clients, so these connections are captured but never succeed.
    let _dialler = dial(site, target, PACE, PACE)?;
    let mut errors = Figure::default();
    for turn in 0..MOVES {
        let (seen, off) = one(site, agent, (turn % 2 == 1).then_some(proxy))?;
        println!("{seen:.3?} as captured ; the agent is off by {off:.3?}");
        errors.note(off.into_iter().max());
    }
    head(&format!("lag off | {}", Figure::COLUMNS));
    errors.print("farthest path", EXACT, missed);
    Ok(())
}

/// The captured lag, and how far the agent's lag of each TCP lane of IPv4 is off, in the order of probes.
type Lag = (Option<Duration>, Vec<Duration>);

/// Waits for a move and measures it.
fn one(site: &Site, agent: &Agent, held: Option<&KubeProxy>) -> Result<Lag> {
    let generation = || port(&site.apis[0].get(base::SLICE)?);
    let before = generation()?;
    let client = site.world.pod("client").address(Family::V4);
    let mut capture = Capture::start(&site.world.node);
    held.inspect(|proxy| proxy.freeze());
    let moved = until(PATIENCE, || {
        // Drop frames from before the move, which would only fill memory.
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
        // Count frames of the test connections only: the agent's control probe reaches the endpoint without
        // the rules.
        let goes = |ends: [(IpAddr, u16); 2]| ends[0].0 == client && ends[1].1 == moved;
        let mut frames = capture.frames.drain(..).filter_map(|frame| frame.ends());
        frames.any(goes).then(|| start.elapsed())
    });
    // A slow kube-proxy may skip a move, and then no packet goes to the new port.
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

/// The lag of each TCP lane of IPv4, in the order of probes, once all lanes are on the new generation.
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
