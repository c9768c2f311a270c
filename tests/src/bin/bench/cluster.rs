//! `cargo xtask bench scale --cluster`: the agent in a real cluster of the size that the design promises.
//! For comparison: kube-proxy's memory in this run, and the API server's processor use while endpoints
//! change without an agent.

use anyhow::{Context, Result};
use node_tests::cluster::{Api, ControlPlane, KubeProxy, MapEye, crowd};
use node_tests::detect::Figure;
use node_tests::prelude::*;
use node_tests::promises::{Missed, head};
use node_tests::scale::{ENDPOINTS, SERVICES, address};
use node_tests::usage;
use node_tests::world::Agent;

use crate::mib;
use crate::site::Site;

mod lag;

/// Endpoint changes a second.
const RATE: f64 = 100.0;
/// Minimum share of [`RATE`] that must be reached.
const REACHED: f64 = 0.95;
/// Number of taints, set one after another.
const TAINTS: usize = 100;
/// Timeout of each wait, far longer than any step takes.
const PATIENCE: Duration = Duration::from_secs(180);
/// Time until start-up memory is freed and the first checks are over.
const CALM: Duration = Duration::from_secs(5);

/// Promises: MiB of RSS and of maps.
const RSS: Option<f64> = Some(40.0);
const MAPS: Option<f64> = Some(32.0);
/// Promises: time from writing an endpoint to its entry in the map, and from writing a taint to 503.
const WRITTEN: Duration = Duration::from_secs(1);
const TAINTED: Duration = Duration::from_millis(200);

pub(crate) fn run(seconds: u64, missed: &mut Missed) -> Result<()> {
    let site = Site::build()?;
    println!("{SERVICES} Services, {ENDPOINTS} endpoints");
    let start = Instant::now();
    crowd::bring(&site.apis)?;
    println!("brought to the API in {:.0?}", start.elapsed());
    let proxy = start_proxy(&site)?;
    println!("{seconds} s of {RATE} changes a second, without the agent");
    let (before, ()) = churn(&site, seconds, missed, |_, _| Ok(()))?;
    let (agent, start) = (site.agent(&["--flap-dwell", "0"])?, Instant::now());
    wait_report(&agent, PATIENCE, "a proof beside all Services", |report| {
        let services = report["expectations"]["services"].as_u64();
        services >= Some(SERVICES as u64) && report["verdict"]["state"] == "proven"
    });
    println!("proven {:.1?} after the start", start.elapsed());
    thread::sleep(CALM);
    let maps = mib(usage::maps_kib(agent.pid())?);
    let proxy_rss = mib(usage::memory(proxy.process.pid())?.rss_kib);
    println!("the same with the agent");
    let look_on = |api: &Api, time| look_on(api, &agent, time);
    let (with, (rss, written)) = churn(&site, seconds, missed, look_on)?;
    let rss = rss.max(usage::memory(agent.pid())?.rss_kib);
    println!("{TAINTS} taints");
    let tainted = taint(&site)?;

    head(Missed::FIGURE);
    let (name, peer) = ("RSS at most, beside the changes", ("kube-proxy", proxy_rss));
    missed.figure(name, "MiB", &[mib(rss)], RSS, Some(peer));
    missed.figure("maps", "MiB", &[maps], MAPS, None);
    let (name, unit) = ("API server during the changes", "% of a processor");
    let peer = Some(("without the agent", before));
    missed.figure(name, unit, &[with], None, peer);
    head(&format!("time | {}", Figure::COLUMNS));
    written.print("write of an endpoint to the map", WRITTEN, missed);
    tainted.print("write of a taint to 503", TAINTED, missed);
    println!("\nmoves of the sentinel's endpoint");
    lag::measure(&site, &agent, &proxy, missed)?;
    agent.terminate().map(drop)
}

fn start_proxy(site: &Site) -> Result<KubeProxy> {
    let config = site.control.proxy_kubeconfig(ControlPlane::address());
    let proxy = KubeProxy::start(&site.world, &site.servers, Mode::Nftables, &config)?;
    // kube-proxy's health server answers 200 before the first syncs (one for each family), so wait for their
    // log lines.
    let synced = until(PATIENCE, || {
        let log = proxy.process.log();
        (log.matches("SyncProxyRules complete").count() >= 2).then_some(())
    });
    synced.context("kube-proxy's first sync")?;
    Ok(proxy)
}

/// Changes endpoints while `beside` runs. Returns the API server's share of a processor in percent, and
/// the result of `beside`.
fn churn<T>(
    site: &Site,
    seconds: u64,
    missed: &mut Missed,
    beside: impl FnOnce(&Api, Duration) -> Result<T>,
) -> Result<(f64, T)> {
    let apiserver = site.control.apiserver.as_ref().context("an API server")?;
    let used = || usage::processor(apiserver.pid());
    let (start, before) = (Instant::now(), used()?);
    let (spare, writers) = site.apis.split_first().context("clients")?;
    let changes = (RATE * seconds as f64) as usize;
    let (took, other) = thread::scope(|scope| {
        let writing = scope.spawn(|| crowd::churn(writers, RATE, changes));
        let other = beside(spare, Duration::from_secs(seconds))?;
        let took = writing.join().expect("no writer panics")?;
        anyhow::Ok((took, other))
    })?;
    let used = used()? - before;
    let rate = changes as f64 / took.as_secs_f64();
    println!("{rate:.0} changes a second were made");
    missed.record(format!("{RATE} changes a second"), rate >= RATE * REACHED);
    let share = used.as_secs_f64() / start.elapsed().as_secs_f64();
    Ok((share * 100.0, other))
}

/// Samples the agent while endpoints change. Returns its maximum resident memory in KiB, and the times from
/// each change made here to its entry in the map.
fn look_on(api: &Api, agent: &Agent, time: Duration) -> Result<(u64, Figure)> {
    let eye = MapEye::open(agent.pid())?;
    let start = Instant::now();
    let (mut rss, mut written) = (0, Figure::default());
    for (index, turn) in (crowd::CHURNED..SERVICES).cycle().zip(0..) {
        rss = rss.max(usage::memory(agent.pid())?.rss_kib);
        if start.elapsed() >= time {
            break;
        }
        let service = eye.service(crowd::cluster_ip(api, index)?)?;
        let address = address([10, 72, 0, 1], turn);
        let begun = Instant::now();
        crowd::change(api, index, address)?;
        let there = eye.wait(service, address, Duration::from_secs(10));
        written.note(there.map(|at| at - begun));
        thread::sleep(Duration::from_millis(250));
    }
    Ok((rss, written))
}

/// Time from the write of a taint to 503, as an outside client measures it.
fn taint(site: &Site) -> Result<Figure> {
    let watch = Watch::start(&site.world, Duration::from_millis(5))?;
    let path = format!("/api/v1/nodes/{NODE_NAME}");
    let put = |taints: Value| {
        let change = json!({ "spec": { "taints": taints } });
        site.apis[0].patch(&path, &change)
    };
    let mut figure = Figure::default();
    for _ in 0..TAINTS {
        watch.wait(PATIENCE, |codes| codes.healthz == 200)?;
        let start = Instant::now();
        put(json!([{ "key": AUTOSCALER_TAINT, "value": "1", "effect": "NoSchedule" }]))?;
        let seen = watch.wait(Duration::from_secs(10), |codes| codes.healthz == 503);
        figure.note(seen.ok().map(|at| at.saturating_duration_since(start)));
        put(Value::Null)?;
    }
    Ok(figure)
}
