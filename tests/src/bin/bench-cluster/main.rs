//! `cargo xtask bench scale --cluster`: the agent in a real cluster of the size that the design
//! promises. kube-proxy and the API server are the peers, in the same run: what they use while
//! endpoints change, the API server also before there is an agent. Exits 1 if a promise is not met.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Parser;
use node_tests::cluster::{
    Api, ControlPlane, Crowd, KubeProxy, MapEye, Mode, Servers, base, install,
};
use node_tests::detect::Figure;
use node_tests::manifests::{AUTOSCALER_TAINT, Manifests};
use node_tests::promises::Missed;
use node_tests::scale::Size;
use node_tests::usage;
use node_tests::wait::until;
use node_tests::watch::Watch;
use node_tests::world::{Agent, NODE_NAME, World, agent_binary};
use serde_json::{Value, json};

mod lag;

/// Clients of the API that bring and change objects at once.
const CLIENTS: usize = 4;
/// Far longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(180);
/// What start allocated is freed, and the first looks are over.
const CALM: Duration = Duration::from_secs(5);

/// For so long after a move every path is probed in haste, and its lag told as exactly as this...
const IN_HASTE: Duration = Duration::from_secs(3);
const EXACT: Duration = Duration::from_millis(100);
/// ...and after that one path of each family alone; the others are as exact as their probes are far
/// apart.
const ROUND: Duration = Duration::from_millis(600);

/// The agent beside kube-proxy in a real cluster, at size
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    size: Size,
    /// Changes of endpoints, a second
    #[arg(long, default_value_t = 100.0)]
    rate: f64,
    /// Seconds of changes, without the agent and with it
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Taints of the Node
    #[arg(long, default_value_t = 100)]
    taints: usize,
    /// Moves of the sentinel's endpoint
    #[arg(long, default_value_t = 6)]
    rotations: usize,
    /// The agent's binary; default: built beside this one
    #[arg(long)]
    agent: Option<PathBuf>,
}

/// Everything that is up. Dropped in this order.
struct Site {
    proxy: KubeProxy,
    apis: Vec<Api>,
    crowd: Crowd,
    control: ControlPlane,
    _manifests: Manifests,
    world: World,
}

/// What processes used while endpoints changed.
#[derive(Default)]
struct Spell {
    /// Changes that were made.
    changes: usize,
    /// Percent of one processor.
    apiserver: f64,
    proxy: f64,
    agent: f64,
    /// Resident memory of the agent, KiB: before, at most, after.
    rss: [u64; 3],
    /// From the write to the map.
    written: Figure,
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    let binary = args.agent.clone().map_or_else(agent_binary, Ok)?;
    let servers = Servers::find()?;
    let site = build(&args, &servers)?;
    let time = Duration::from_secs(args.seconds);

    println!(
        "{} s of {} changes a second, without the agent",
        args.seconds, args.rate
    );
    let before = site.churn(None, args.rate, time)?;
    let (agent, first) = site.start_agent(&binary)?;
    thread::sleep(CALM);
    let maps = usage::maps_kib(agent.pid())?;
    let proxy_rss = usage::memory(site.proxy.process.pid())?.rss_kib;
    println!("the same with the agent");
    let with = site.churn(Some(&agent), args.rate, time)?;
    println!("{} taints", args.taints);
    let taints = site.taints(args.taints)?;
    println!("{} moves of the sentinel's endpoint", args.rotations);
    let [lags, held] = lag::measure(
        &site.world,
        &site.control,
        &agent,
        &binary,
        &site.proxy,
        args.rotations,
    )?;
    agent.terminate()?;

    println!();
    println!("| figure | value | unit | promise | met | peer | ratio |");
    println!("|---|---:|---|---:|---|---:|---:|");
    let mib = |kib: u64| kib as f64 / 1024.0;
    let proxy = |kib: u64| Some(("kube-proxy", mib(kib)));
    let mut missed = Missed::default();
    let mut row = |name: &str, value, unit: &str, promise, peer| {
        print_row([name, unit], value, promise, peer, &mut missed);
    };
    row(
        "start to a verdict on all Services",
        first.as_secs_f64(),
        "s",
        None,
        None,
    );
    row(
        "RSS before the changes",
        mib(with.rss[0]),
        "MiB",
        Some(40.0),
        proxy(proxy_rss),
    );
    row(
        "RSS at most during them",
        mib(with.rss[1]),
        "MiB",
        Some(40.0),
        proxy(proxy_rss),
    );
    row(
        "RSS after them",
        mib(with.rss[2]),
        "MiB",
        Some(40.0),
        proxy(proxy_rss),
    );
    row("maps", mib(maps), "MiB", Some(32.0), None);
    let unit = "% of a processor";
    let peer = Some(("kube-proxy", with.proxy));
    row("agent during the changes", with.agent, unit, None, peer);
    let peer = Some(("without the agent", before.apiserver));
    row(
        "API server during the changes",
        with.apiserver,
        unit,
        None,
        peer,
    );
    println!();
    println!(
        "{} changes without the agent, {} with it",
        before.changes, with.changes
    );
    println!();
    println!("| time | n | median | p99 | max | never | unit | promise | met | p99 over promise |");
    println!("|---|---:|---:|---:|---:|---:|---|---:|---|---:|");
    let second = Duration::from_secs(1);
    let mut time = |name: String, figure: &Figure, promise: Duration| {
        println!("| {name} | {} |", figure.row(promise));
        missed.judge(name, figure.keeps(promise));
    };
    time(
        "write of an endpoint to the map".to_owned(),
        &with.written,
        second,
    );
    let promise = Duration::from_millis(200);
    time("write of a taint to 503".to_owned(), &taints, promise);
    let half_a_minute = Duration::from_secs(30);
    for (name, lags) in [("lag", lags), ("lag, kube-proxy stopped for 6 s", held)] {
        let short = lags.captured.longest().is_some_and(|lag| lag < IN_HASTE);
        let farthest = if short { EXACT } else { ROUND };
        time(format!("{name}: path in haste off by"), &lags.hasty, EXACT);
        time(
            format!("{name}: farthest path off by"),
            &lags.farthest,
            farthest,
        );
        time(
            format!("{name}: as captured"),
            &lags.captured,
            half_a_minute,
        );
    }
    Ok(missed.close())
}

fn print_row(
    [name, unit]: [&str; 2],
    value: f64,
    promise: Option<f64>,
    peer: Option<(&str, f64)>,
    missed: &mut Missed,
) {
    let (promised, met) = missed.at_most(name, "of one run", promise, value);
    let (peer, ratio) = peer.map_or_else(Default::default, |(name, peer)| {
        (format!("{name}: {peer:.2}"), format!("{:.2}", value / peer))
    });
    println!("| {name} | {value:.2} | {unit} | {promised} | {met} | {peer} | {ratio} |");
}

fn build(args: &Args, servers: &Servers) -> Result<Site> {
    let world = World::builder().pods(&["web", "client"]).build()?;
    let manifests = Manifests::write(&world, Vec::new())?;
    let control = ControlPlane::start(&world, servers)?;
    let apis = (0..CLIENTS)
        .map(|_| control.api())
        .collect::<Result<Vec<_>>>()?;
    install(&apis[0], &manifests)?;
    let crowd = Crowd {
        services: args.size.services,
        endpoints: args.size.endpoints / args.size.services.max(1),
    };
    let start = Instant::now();
    println!(
        "{} Services with {} endpoints each",
        crowd.services, crowd.endpoints
    );
    crowd.bring(&apis)?;
    println!(
        "brought to the API in {:.0} s",
        start.elapsed().as_secs_f64()
    );
    let start = Instant::now();
    let config = control.proxy_kubeconfig(ControlPlane::address());
    let proxy = KubeProxy::start(&world, servers, Mode::Nftables, &config)?;
    // Its health server says 200 before that. One sync for each family.
    until(PATIENCE, || {
        let log = proxy.process.log();
        (log.matches("SyncProxyRules complete").count() >= 2).then_some(())
    })
    .context("kube-proxy's first sync")?;
    println!(
        "kube-proxy's first sync took {:.1} s",
        start.elapsed().as_secs_f64()
    );
    Ok(Site {
        proxy,
        apis,
        crowd,
        control,
        _manifests: manifests,
        world,
    })
}

impl Site {
    /// Starts the agent; how long until it has judged with all Services in view.
    fn start_agent(&self, binary: &std::path::Path) -> Result<(Agent, Duration)> {
        let server = ControlPlane::address();
        let file = self
            .control
            .account_kubeconfig(&self.world, server, base::AGENT)?;
        let file = file.to_str().context("a path in UTF-8")?;
        let options = [
            "--kubeconfig",
            file,
            "--log-filter",
            "warn",
            "--flap-dwell",
            "0",
        ];
        let start = Instant::now();
        let agent = self.world.spawn_agent(binary, self.world.dir(), &options)?;
        let mut last = Value::Null;
        let judged = until(PATIENCE, || {
            last = agent.verdict().ok()?;
            let services = last["expectations"]["services"].as_u64()?;
            let whole = last["cluster"]["synced"] == true
                && services >= self.crowd.services as u64
                && last["verdict"]["state"].is_string();
            whole.then(|| start.elapsed())
        });
        let first = judged.with_context(|| format!("no verdict: {last:#}\n{}", agent.log()))?;
        until(PATIENCE, || {
            last = agent.verdict().ok()?;
            (last["verdict"]["state"] == "proven").then_some(())
        })
        .with_context(|| format!("not proven: {last:#}"))?;
        Ok((agent, first))
    }

    fn churn(&self, agent: Option<&Agent>, rate: f64, time: Duration) -> Result<Spell> {
        let (start, before) = (Instant::now(), self.processors(agent)?);
        let (spare, writers) = self.apis.split_first().context("clients")?;
        let mut spell = Spell::default();
        thread::scope(|scope| -> Result<()> {
            let writing = scope.spawn(|| self.crowd.churn(writers, rate, time));
            if let Some(agent) = agent {
                self.look_on(spare, agent, time, &mut spell)?;
            }
            let changes = writing
                .join()
                .map_err(|_| anyhow::anyhow!("a writer panicked"))?;
            spell.changes = changes?;
            Ok(())
        })?;
        let (after, seconds) = (self.processors(agent)?, start.elapsed().as_secs_f64());
        let percent = |at: usize| (after[at] - before[at]).as_secs_f64() / seconds * 100.0;
        (spell.apiserver, spell.proxy, spell.agent) = (percent(0), percent(1), percent(2));
        Ok(spell)
    }

    /// Samples while endpoints change: memory, and how soon a change of our own is in the map.
    fn look_on(&self, api: &Api, agent: &Agent, time: Duration, spell: &mut Spell) -> Result<()> {
        let eye = MapEye::open(agent.pid())?;
        let start = Instant::now();
        let rss = || anyhow::Ok(usage::memory(agent.pid())?.rss_kib);
        spell.rss = [rss()?; 3];
        for turn in 0.. {
            if start.elapsed() >= time {
                break;
            }
            let own = self.crowd.churned()..self.crowd.services;
            let index = own.start + turn % own.len().max(1);
            let service = eye.service(self.crowd.cluster_ip(api, index)?)?;
            let address = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 72, 0, 1)) + turn as u32);
            let written = Instant::now();
            self.crowd.change(api, index, address)?;
            let seen = eye.wait(service, address, Duration::from_secs(10));
            spell.written.note(seen.map(|at| at - written));
            spell.rss[1] = spell.rss[1].max(rss()?);
            thread::sleep(Duration::from_millis(250));
        }
        spell.rss[2] = rss()?;
        Ok(())
    }

    /// Processor time so far: the API server's, kube-proxy's, the agent's.
    fn processors(&self, agent: Option<&Agent>) -> Result<[Duration; 3]> {
        let of = |pid: u32| usage::processor(pid).map(|(user, system)| user + system);
        let apiserver = self.control.apiserver.as_ref().context("an API server")?;
        Ok([
            of(apiserver.pid())?,
            of(self.proxy.process.pid())?,
            agent.map_or(Ok(Duration::ZERO), |agent| of(agent.pid()))?,
        ])
    }

    /// From the write of a taint to 503, as an outside poller sees it.
    fn taints(&self, times: usize) -> Result<Figure> {
        let watch = Watch::start(&self.world, Duration::from_millis(5))?;
        let api = &self.apis[0];
        let path = format!("/api/v1/nodes/{NODE_NAME}");
        let mut figure = Figure::default();
        for _ in 0..times {
            watch.wait(PATIENCE, |codes| codes.healthz == 200)?;
            let taint = json!([{ "key": AUTOSCALER_TAINT, "value": "1", "effect": "NoSchedule" }]);
            let start = Instant::now();
            api.patch(&path, &json!({ "spec": { "taints": taint } }))?;
            let seen = watch.wait(Duration::from_secs(10), |codes| codes.healthz == 503);
            figure.note(seen.ok().map(|at| at.saturating_duration_since(start)));
            api.patch(&path, &json!({ "spec": { "taints": null } }))?;
        }
        Ok(figure)
    }
}
