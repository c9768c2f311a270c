//! Cost of a rotation at the API server. Each node has two watches of EndpointSlices, an agent's and a
//! proxy's. Both slices of the sentinel are written as the rotator writes them. The promise is computed for
//! the rotator's interval at this number of nodes.
//!
//! Rotations follow each other at once: each starts when the watches have received the previous one. At the
//! rotator's real interval, its share of a processor would be too small beside the server's other work. The
//! peer is the same server with the same watches and no writes.

use anyhow::{Context, Result, ensure};
use node_tests::cluster::{Watches, base};
use node_tests::prelude::*;
use node_tests::promises::{Missed, head, median};
use node_tests::usage;
use pathproof_facts::freshness::next_generation;
use pathproof_rotator::rotation::{INTERVAL, interval};

use crate::site::Site;

const SLICES: &str = "/apis/discovery.k8s.io/v1/endpointslices";
const ROTATIONS: usize = 20;
const PATIENCE: Duration = Duration::from_secs(300);
/// Duration of the measurement without writes.
const CALM: Duration = Duration::from_secs(10);
/// Promise: watch events of all rotations a second, as many as one rotation a minute causes at 3,000 nodes.
const PROMISED: f64 = 200.0;

pub(super) fn run(site: &Site, nodes: usize, missed: &mut Missed) -> Result<()> {
    let start = Instant::now();
    let config = site.control.admin_kubeconfig();
    let watches = Watches::start(&site.world.worker, &config, SLICES, 2 * nodes)?;
    let all = || (watches.open() == 2 * nodes).then_some(());
    let opened = until(PATIENCE, all);
    opened.with_context(|| format!("{} open, {} ended", watches.open(), watches.ended()))?;
    println!("{} watches opened in {:.0?}", 2 * nodes, start.elapsed());
    let apiserver = site.control.apiserver.as_ref().context("an API server")?;
    let used = || usage::processor(apiserver.pid());

    // Every watch first receives the existing objects.
    settle(&watches);
    let before = used()?;
    thread::sleep(CALM);
    let calm = (used()? - before).as_secs_f64() / CALM.as_secs_f64();

    let slices = [base::SLICE.to_owned(), base::SLICE.replace("ipv4", "ipv6")];
    let ports = site.apis[0].get(base::SLICE)?["ports"][0]["port"].as_u64();
    let mut generation = u16::try_from(ports.context("a generation")?)?;
    let (mut times, first) = (Vec::new(), watches.events());
    let (before, start) = (used()?, Instant::now());
    for _ in 0..ROTATIONS {
        let (begun, seen) = (Instant::now(), watches.events());
        generation = next_generation(generation);
        for slice in &slices {
            let port =
                |name, protocol| json!({ "name": name, "port": generation, "protocol": protocol });
            let ports = json!([port("tcp", "TCP"), port("udp", "UDP")]);
            site.apis[0].patch(slice, &json!({ "ports": ports }))?;
        }
        let sent = || (watches.events() >= seen + 4 * nodes).then_some(());
        until(PATIENCE, sent).context("every watch receives both slices")?;
        times.push(begun.elapsed().as_secs_f64());
    }
    let (took, used) = (
        start.elapsed().as_secs_f64(),
        (used()? - before).as_secs_f64(),
    );
    let events = watches.events() - first;
    ensure!(watches.ended() == 0, "{} watches ended", watches.ended());
    let busy = (used - calm * took).max(0.0);
    let every = interval(INTERVAL, u32::try_from(nodes)?).as_secs_f64();
    let share = |seconds: f64| seconds / ROTATIONS as f64 / every * 100.0;

    println!(
        "\n{ROTATIONS} rotations, {events} events; the server took {:.1} % while nothing was written",
        calm * 100.0
    );
    head(Missed::FIGURE);
    missed.figure("time between two rotations", "s", &[every], None, None);
    let rate = events as f64 / ROTATIONS as f64 / every;
    missed.figure("watch events", "1/s", &[rate], Some(PROMISED), None);
    missed.figure(
        "API server, an event",
        "µs",
        &[busy * 1e6 / events as f64],
        None,
        None,
    );
    missed.figure(
        "API server, a rotation",
        "ms of a processor",
        &[busy * 1e3 / ROTATIONS as f64],
        None,
        None,
    );
    missed.figure(
        "API server, all rotations",
        "% of a processor",
        &[share(busy)],
        None,
        None,
    );
    let name = "write until every watch has it";
    missed.figure(name, "ms", &[median(times) * 1e3], None, None);
    Ok(())
}

/// Waits until no event comes for two seconds.
fn settle(watches: &Watches) {
    let mut before = usize::MAX;
    while watches.events() != before {
        before = watches.events();
        thread::sleep(Duration::from_secs(2));
    }
}
