//! `cargo xtask bench detect`: time from a datapath fault to the metrics and to 503 at /healthz, and from a
//! repair to 200, over many faults at random moments. A promise is missed if a change was late or never came.
//! The peer, kube-proxy's healthz, detects none of these faults: it reports only whether rules were synced.

use std::net::Ipv4Addr;

use anyhow::Result;
use node_tests::detect::{Fault, Figure, Load, Stage, failed_probes, health, ms};
use node_tests::http;
use node_tests::prelude::*;
use node_tests::promises::{Missed, head};
use node_tests::watch::Poll;
use node_tests::world::{ADMIN_PORT, HEALTHZ_PORT};

use crate::stage;

/// Measured times, and the design's promise for p99 of each. The promise for 503 applies to faults with an
/// unambiguous cause, the promise for 200 to a first repair.
const TIMES: [(&str, Duration); 3] = [
    ("fault to metrics", Duration::from_millis(1000)),
    ("fault to 503", Duration::from_millis(1500)),
    ("repair to 200", Duration::from_millis(3000)),
];
/// Time after which a change counts as missing.
const NEVER: Duration = Duration::from_secs(30);
/// Maximum random pause before a fault. It exceeds the period of each of the agent's loops except its checks,
/// so that faults occur in every phase of a loop.
const PAUSE: Duration = Duration::from_secs(1);
/// Poll intervals of /healthz and of /metrics.
const HEALTHZ_EVERY: Duration = Duration::from_millis(10);
const METRICS_EVERY: Duration = Duration::from_millis(20);

pub(crate) fn run(injections: usize, missed: &mut Missed) -> Result<()> {
    for load in [Load::Idle, Load::Busy] {
        measure(load, injections, missed)?;
    }
    Ok(())
}

fn measure(load: Load, injections: usize, missed: &mut Missed) -> Result<()> {
    // Without the hold-down, 200 after a second or later repair comes as soon as after the first one.
    let mut stage = stage(load, true, &["--flap-dwell", "0"])?;
    let admin = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), ADMIN_PORT);
    let failures = move || {
        let page = http::get(admin, "/metrics", Duration::from_millis(500)).ok()?;
        Some((Instant::now(), failed_probes(&page.body)))
    };
    let failures = Poll::start(&stage.world.node, "metrics", METRICS_EVERY, failures)?;
    let healthz = health(&stage.world, HEALTHZ_PORT, HEALTHZ_EVERY)?;
    let mut figures = <[Figure; 3]>::default();
    head("node | injection | fault | to metrics, ms | to 503, ms | repair to 200, ms");
    for (number, fault) in (1..=injections).zip(Fault::CERTAIN.into_iter().cycle()) {
        let times = inject(&mut stage, &healthz, &failures, fault)?;
        let row = times.map(ms).join(" | ");
        println!("| {load:?} | {number} | {fault:?} | {row} |");
        for (figure, time) in figures.iter_mut().zip(times) {
            figure.note(time);
        }
    }
    head(&format!("node, from, to | {}", Figure::COLUMNS));
    for ((what, promise), figure) in TIMES.into_iter().zip(figures) {
        figure.print(&format!("{load:?}, {what}"), promise, missed);
    }
    Ok(())
}

/// Injects one fault into a healthy node and repairs it. Returns the times of [`TIMES`].
fn inject(
    stage: &mut Stage,
    healthz: &Poll<u16>,
    failures: &Poll<u64>,
    fault: Fault,
) -> Result<[Option<Duration>; 3]> {
    stage.settle()?;
    thread::sleep(PAUSE.mul_f64(fastrand::f64()));
    let failed = failures.now().unwrap_or_default();
    let start = Instant::now();
    let mend = fault.inject(stage)?;
    let unhealthy = healthz.first(start, NEVER, |status| *status == 503);
    let metrics = failures.first(start, NEVER, |count| *count > failed);
    // Pause for a random time, so that the repair does not always follow right after the verdict.
    thread::sleep(PAUSE.mul_f64(fastrand::f64()));
    let repair = Instant::now();
    mend(stage)?;
    let healthy = healthz.first(repair, NEVER, |status| *status == 200);
    let since = |start: Instant| move |at: Instant| at.duration_since(start);
    Ok([
        metrics.map(since(start)),
        unhealthy.map(since(start)),
        // If 503 never came, the 200 is no return to health and is not counted.
        healthy.map(since(repair)).filter(|_| unhealthy.is_some()),
    ])
}
