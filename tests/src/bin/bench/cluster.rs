//! `cargo xtask bench scale --cluster`: the agent in a real cluster of the size that the design
//! promises. kube-proxy and the API server are the peers, in the same run: what they use while
//! endpoints change, the API server also before there is an agent.

use std::net::Ipv4Addr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use node_tests::cluster::{Api, ControlPlane, Crowd, KubeProxy, MapEye, Mode};
use node_tests::detect::Figure;
use node_tests::manifests::AUTOSCALER_TAINT;
use node_tests::promises::{Missed, head};
use node_tests::scale::{ENDPOINTS, SERVICES};
use node_tests::usage;
use node_tests::wait::until;
use node_tests::watch::Watch;
use node_tests::world::{Agent, NODE_NAME};
use serde_json::{Value, json};

use crate::mib;
use crate::site::Site;

mod lag;

/// Changes of endpoints, a second.
const RATE: f64 = 100.0;
/// The part of that rate which has to be reached.
const REACHED: f64 = 0.95;
/// Taints of the Node, one after another.
const TAINTS: usize = 100;
/// Far longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(180);
/// Memory that start allocated is freed, and the first looks are over.
const CALM: Duration = Duration::from_secs(5);
const CROWD: Crowd = Crowd {
    services: SERVICES,
    endpoints: ENDPOINTS / SERVICES,
};

/// Promises: MiB of RSS and of maps.
const RSS: Option<f64> = Some(40.0);
const MAPS: Option<f64> = Some(32.0);
/// From the write of an endpoint to the map, and of a taint to 503.
const WRITTEN: Duration = Duration::from_secs(1);
const TAINTED: Duration = Duration::from_millis(200);
/// As captured.
const LAG: Duration = Duration::from_secs(30);
/// For so long after a move every path is probed in haste, and its lag told as exactly as this...
const IN_HASTE: Duration = Duration::from_secs(3);
const EXACT: Duration = Duration::from_millis(100);
/// ...and after that one path of each family alone; the others are as exact as their probes are far
/// apart.
const ROUND: Duration = Duration::from_millis(600);

pub(crate) fn run(seconds: u64, missed: &mut Missed) -> Result<()> {
    let site = Site::build()?;
    println!("{SERVICES} Services, {ENDPOINTS} endpoints");
    let start = Instant::now();
    CROWD.bring(&site.apis)?;
    println!("brought to the API in {:.0?}", start.elapsed());
    let proxy = start_proxy(&site)?;
    println!("{seconds} s of {RATE} changes a second, without the agent");
    let before = churn(&site, &proxy, None, seconds)?;
    let (agent, start) = (site.agent(&["--flap-dwell", "0"])?, Instant::now());
    let first = judged(&agent, start)?.as_secs_f64();
    thread::sleep(CALM);
    let maps = mib(usage::maps_kib(agent.pid())?);
    let proxy_rss = mib(usage::memory(proxy.process.pid())?.rss_kib);
    println!("the same with the agent");
    let with = churn(&site, &proxy, Some(&agent), seconds)?;
    println!("{TAINTS} taints");
    let tainted = taint(&site)?;
    println!("moves of the sentinel's endpoint");
    let [lags, held] = lag::measure(&site, &agent, &proxy)?;
    agent.terminate()?;

    let reached = before.rate.min(with.rate) >= RATE * REACHED;
    missed.judge(format!("{RATE} changes a second"), reached);
    head(Missed::FIGURE);
    let name = "start to a verdict on all Services";
    missed.figure(name, "s", &[first], None, None);
    for (when, rss) in [
        ("before the changes", with.rss_before),
        ("at most during them", with.rss_most),
        ("after them", with.rss_after),
    ] {
        let peer = Some(("kube-proxy", proxy_rss));
        missed.figure(&format!("RSS {when}"), "MiB", &[mib(rss)], RSS, peer);
    }
    missed.figure("maps", "MiB", &[maps], MAPS, None);
    let unit = "% of a processor";
    let peer = Some(("kube-proxy", with.proxy));
    missed.figure("agent during the changes", unit, &[with.agent], None, peer);
    let name = "API server during the changes";
    let peer = Some(("without the agent", before.apiserver));
    missed.figure(name, unit, &[with.apiserver], None, peer);

    head(&format!("time | {}", Figure::COLUMNS));
    let mut time = |name: &str, figure: &Figure, promise: Duration| {
        println!("| {name} | {} |", figure.row(promise));
        missed.judge(name, figure.keeps(promise));
    };
    time("write of an endpoint to the map", &with.written, WRITTEN);
    time("write of a taint to 503", &tainted, TAINTED);
    for (name, lags) in [("lag", lags), ("lag, kube-proxy stopped for 6 s", held)] {
        let short = lags.captured.rank(100).is_some_and(|lag| lag < IN_HASTE);
        let exact = if short { EXACT } else { ROUND };
        time(&format!("{name}: hasty path off"), &lags.hasty, EXACT);
        time(&format!("{name}: farthest off"), &lags.farthest, exact);
        time(&format!("{name}: as captured"), &lags.captured, LAG);
    }
    Ok(())
}

fn start_proxy(site: &Site) -> Result<KubeProxy> {
    let start = Instant::now();
    let config = site.control.proxy_kubeconfig(ControlPlane::address());
    let proxy = KubeProxy::start(&site.world, &site.servers, Mode::Nftables, &config)?;
    // Its health server says 200 before that. One sync for each family.
    until(PATIENCE, || {
        let log = proxy.process.log();
        (log.matches("SyncProxyRules complete").count() >= 2).then_some(())
    })
    .context("kube-proxy's first sync")?;
    println!("kube-proxy's first sync took {:.1?}", start.elapsed());
    Ok(proxy)
}

/// Time until the agent has judged with all Services in view. Waits until the node is proven.
fn judged(agent: &Agent, start: Instant) -> Result<Duration> {
    let mut last = Value::Null;
    let mut wait = |wanted: fn(&Value) -> bool| {
        let seen = until(PATIENCE, || {
            last = agent.verdict().ok()?;
            wanted(&last).then(|| start.elapsed())
        });
        seen.with_context(|| format!("no such verdict: {last:#}\n{}", agent.log()))
    };
    let first = wait(|report| {
        let services = report["expectations"]["services"].as_u64();
        report["cluster"]["synced"] == true
            && services >= Some(SERVICES as u64)
            && report["verdict"]["state"].is_string()
    })?;
    wait(|report| report["verdict"]["state"] == "proven")?;
    Ok(first)
}

/// Figures of the processes while endpoints changed.
#[derive(Default)]
struct Spell {
    /// Changes a second that were made.
    rate: f64,
    /// Percent of one processor.
    apiserver: f64,
    proxy: f64,
    agent: f64,
    /// Resident memory of the agent, KiB.
    rss_before: u64,
    rss_most: u64,
    rss_after: u64,
    /// From the write to the map.
    written: Figure,
}

fn churn(site: &Site, proxy: &KubeProxy, agent: Option<&Agent>, seconds: u64) -> Result<Spell> {
    let apiserver = site.control.apiserver.as_ref().context("an API server")?;
    let pids = [
        Some(apiserver.pid()),
        Some(proxy.process.pid()),
        agent.map(Agent::pid),
    ];
    let used = || {
        let used = pids.map(|pid| pid.map_or(Ok(Duration::ZERO), usage::processor));
        used.into_iter().collect::<Result<Vec<_>>>()
    };
    let (start, before) = (Instant::now(), used()?);
    let (spare, writers) = site.apis.split_first().context("clients")?;
    let mut spell = Spell::default();
    let changes = (RATE * seconds as f64) as usize;
    let took = thread::scope(|scope| -> Result<Duration> {
        let writing = scope.spawn(move || {
            CROWD.churn(writers, RATE, changes)?;
            anyhow::Ok(start.elapsed())
        });
        if let Some(agent) = agent {
            look_on(spare, agent, Duration::from_secs(seconds), &mut spell)?;
        }
        writing.join().map_err(|_| anyhow!("a writer panicked"))?
    })?;
    let (after, lasted) = (used()?, start.elapsed().as_secs_f64());
    [spell.apiserver, spell.proxy, spell.agent] = [0, 1, 2]
        .map(|process: usize| (after[process] - before[process]).as_secs_f64() / lasted * 100.0);
    if let Some(agent) = agent {
        spell.rss_after = usage::memory(agent.pid())?.rss_kib;
    }
    spell.rate = changes as f64 / took.as_secs_f64();
    println!("{:.0} changes a second were made", spell.rate);
    Ok(spell)
}

/// Samples while endpoints change: memory, and how soon a change of our own is in the map.
fn look_on(api: &Api, agent: &Agent, time: Duration, spell: &mut Spell) -> Result<()> {
    let eye = MapEye::open(agent.pid())?;
    let start = Instant::now();
    let rss = || anyhow::Ok(usage::memory(agent.pid())?.rss_kib);
    spell.rss_before = rss()?;
    for (index, turn) in (CROWD.churned()..SERVICES).cycle().zip(0..) {
        if start.elapsed() >= time {
            break;
        }
        let service = eye.service(CROWD.cluster_ip(api, index)?)?;
        let address = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 72, 0, 1)) + turn);
        let written = Instant::now();
        CROWD.change(api, index, address)?;
        let seen = eye.wait(service, address, Duration::from_secs(10));
        spell.written.note(seen.map(|at| at - written));
        spell.rss_most = spell.rss_most.max(rss()?);
        thread::sleep(Duration::from_millis(250));
    }
    Ok(())
}

/// From the write of a taint to 503, as an outside poller sees it.
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
