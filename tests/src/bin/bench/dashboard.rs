//! `cargo xtask bench dashboard`: how long a real Prometheus takes for each panel of the Grafana
//! dashboard and for each rule, with an hour of the series of a large fleet.
//!
//! The series are those of a real agent, once on a sound node and once on a broken one. All nodes have
//! them, under names of their own: every tenth node is broken in the last twenty minutes.

use std::fmt::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, ensure};
use axum::Router;
use axum::extract::Path as Route;
use axum::routing::get;
use node_tests::dashboard::Dashboard;
use node_tests::deploy::{Tool, said};
use node_tests::manifests::Sentinel;
use node_tests::prometheus::check::Expression;
use node_tests::prometheus::{self, JOB, Prometheus, Span};
use node_tests::promises::{Missed, head, median};
use node_tests::rules::Backend;
use node_tests::scene::{Scene, until};
use serde_json::{Value, json};

/// Of each query.
const ROUNDS: usize = 5;
/// Seconds.
const PROMISED: f64 = 2.0;
/// The chart's default, in seconds.
const SCRAPE: u64 = 30;
/// The dashboard's time range.
const HISTORY: u64 = 3600;
/// Fault of every tenth node, before the end.
const BROKEN: u64 = 1200;
/// Ends of the names of counters, and of what histograms consist of.
const GROWING: [&str; 4] = ["_total", "_bucket", "_count", "_sum"];
/// Prometheus distributes the first scrapes over this time for each target: an hour of a node's
/// samples at once.
const LOADING: Duration = Duration::from_millis(100);
/// promtool writes a block for each rule, in their order.
const LAST_RECORD: &str = "cluster_service_outcome:pathproof_service_connections:rate5m";
/// Blocks on disk are read again once a minute.
const PATIENCE: Duration = Duration::from_secs(180);
/// Samples of the last hours are not too old for it.
const LONG_BLOCKS: [&str; 2] = [
    "--storage.tsdb.min-block-duration=12h",
    "--storage.tsdb.max-block-duration=12h",
];

pub(crate) fn run(nodes: usize, missed: &mut Missed) -> Result<()> {
    let mut scene = Scene::bare(Backend::Nftables);
    let [sound, broken] = expositions(&mut scene)?;
    let series = [&sound, &broken].map(|page| samples(page).count());
    println!(
        "{nodes} nodes with {} series each, {} while broken; {} minutes at {SCRAPE} s",
        series[0],
        series[1],
        HISTORY / 60
    );

    let end = SystemTime::UNIX_EPOCH.elapsed()?.as_secs() / SCRAPE * SCRAPE;
    let loaded = Arc::new(AtomicBool::new(false));
    let outside = &scene.world.outside;
    let listener = outside.run(|| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))?;
    let address = listener.local_addr()?;
    let histories = [
        history([&sound, &sound], end),
        history([&sound, &broken], end),
    ];
    serve(listener, histories, Arc::clone(&loaded))?;
    let dir = scene.world.dir().join("prometheus");
    std::fs::create_dir_all(&dir)?;
    let configuration = configuration(address, nodes);
    let prometheus = Prometheus::configured(outside, &dir, &configuration, &LONG_BLOCKS)?;
    let start = Instant::now();
    let span = Span {
        start: (end - HISTORY) as f64,
        end: end as f64,
        step: SCRAPE as f64,
    };
    let all = format!("count(pathproof_build_info) == {nodes}");
    let patience = PATIENCE + LOADING * nodes as u32;
    wait_for(&prometheus, &all, span.end, patience)?;
    loaded.store(true, Relaxed);
    println!("loaded in {:.0?}", start.elapsed());
    record(&scene, &dir, span)?;
    wait_for(&prometheus, LAST_RECORD, span.end, PATIENCE)?;

    let dashboard = Dashboard::read()?;
    let variables = dashboard.variables(&prometheus, "node-0", span, SCRAPE as f64)?;
    let panels = dashboard.expressions(&variables);
    for (kind, expressions) in [("panel", panels), ("rule", rules()?)] {
        measure(&prometheus, kind, &expressions, span, missed)?;
    }
    Ok(())
}

/// `/metrics` of an agent on a sound node with traffic, and after its Service chain was flushed.
fn expositions(scene: &mut Scene) -> Result<[String; 2]> {
    scene.add_sentinel(&Sentinel::default());
    // Agents of tests show all Services.
    scene.start(&["--service-metrics", "trouble"]);
    scene.traffic();
    scene.wait_probed();
    scene.add_sentinel(&Sentinel {
        generation: 20_002,
        ..Sentinel::default()
    });
    let lag = || Some(scene.metrics()).filter(|page| page.contains("lag_seconds{"));
    let sound = until(PATIENCE, lag).context("the rules' lag")?;
    scene.rules.flush_services()?;
    scene.wait("broken", |report| report["verdict"]["state"] == "broken");
    Ok([sound, scene.metrics()])
}

/// Series and values of an exposition.
fn samples(page: &str) -> impl Iterator<Item = (&str, f64)> {
    page.lines().filter_map(|line| {
        // An exemplar stands behind the value.
        let line = line.split(" # ").next()?;
        let (series, value) = line.rsplit_once(' ')?;
        Some((series, value.parse().ok()?)).filter(|_| !series.starts_with('#'))
    })
}

/// A scrape with all samples of the past: the first page's, and the second one's of the time of the
/// fault. Counters grow.
fn history(pages: [&str; 2], end: u64) -> String {
    let mut text = String::new();
    for moment in (end - HISTORY..=end).step_by(SCRAPE as usize) {
        let page = pages[usize::from(moment > end - BROKEN)];
        for (series, value) in samples(page) {
            let name = series.split('{').next().unwrap_or_default();
            let grows = GROWING.iter().any(|end| name.ends_with(end));
            let since = (moment + HISTORY - end) as f64;
            let value = if grows { value * since } else { value };
            let _ = writeln!(text, "{series} {value} {moment}000");
        }
        let _ = writeln!(text, "up 1 {moment}000");
    }
    text
}

/// Gives each node its history until all are loaded, then empty pages.
fn serve(listener: TcpListener, histories: [String; 2], loaded: Arc<AtomicBool>) -> Result<()> {
    let histories = histories.map(axum::body::Bytes::from);
    let page = move |Route(kind): Route<usize>| {
        let page = match loaded.load(Relaxed) {
            true => Default::default(),
            false => histories[kind.min(1)].clone(),
        };
        async move { page }
    };
    listener.set_nonblocking(true)?;
    std::thread::spawn(move || -> Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener)?;
            Ok(axum::serve(listener, Router::new().route("/{kind}", get(page))).await?)
        })
    });
    Ok(())
}

fn configuration(address: SocketAddr, nodes: usize) -> Value {
    let targets: Vec<Value> = (0..nodes)
        .map(|node| {
            let path = format!("/{}", u8::from(node % 10 == 0));
            let labels = json!({
                "__metrics_path__": path, "node": format!("node-{node}"),
                "instance": format!("10.0.{}.{}:19256", node / 250, node % 250),
                "pod": format!("pathproof-agent-{node}"), "namespace": "pathproof",
            });
            json!({"targets": [address], "labels": labels})
        })
        .collect();
    let interval = format!("{}ms", (LOADING * nodes as u32).as_millis());
    json!({"scrape_configs": [{
        "job_name": JOB, "scrape_interval": interval, "scrape_timeout": interval,
        "static_configs": targets,
    }]})
}

/// Waits until an expression has a result.
fn wait_for(prometheus: &Prometheus, expression: &str, moment: f64, time: Duration) -> Result<()> {
    let found = || {
        let result = prometheus.at(expression, moment).ok()?;
        (!result.as_array()?.is_empty()).then_some(())
    };
    until(time, found).with_context(|| format!("no result: {expression}"))
}

/// Has promtool write what the recording rules would have recorded.
fn record(scene: &Scene, dir: &Path, span: Span) -> Result<()> {
    let file = dir.join("rules.yml");
    std::fs::write(&file, prometheus::records()?)?;
    let promtool = Tool::Promtool.find().context("there is no promtool")?;
    let mut command = scene.world.outside.command(promtool);
    command
        .args(["tsdb", "create-blocks-from", "rules"])
        .arg(format!("--start={}", span.start))
        .arg(format!("--end={}", span.end))
        .arg(format!("--eval-interval={SCRAPE}s"))
        .arg(format!("--output-dir={}", dir.join("data").display()))
        .arg(file);
    said(&mut command).map(drop)
}

/// Each rule's expression, at the end.
fn rules() -> Result<Vec<Expression>> {
    let groups = prometheus::rules()?;
    let groups = groups.as_array().context("no groups")?;
    let rules = groups.iter().flat_map(|group| group["rules"].as_array());
    let expression = |rule: &Value| {
        let name = rule["record"].as_str().or(rule["alert"].as_str());
        Some(Expression {
            place: name?.to_owned(),
            text: rule["expr"].as_str()?.to_owned(),
            instant: true,
        })
    };
    Ok(rules.flatten().filter_map(expression).collect())
}

/// Times of expressions, in seconds; the promise is judged by the median of each.
fn measure(
    prometheus: &Prometheus,
    kind: &str,
    all: &[Expression],
    span: Span,
    missed: &mut Missed,
) -> Result<()> {
    ensure!(!all.is_empty(), "there is no {kind}");
    head(Missed::FIGURE);
    let mut total = 0.0;
    for expression in all {
        let Expression { place, text, .. } = expression;
        let (mut series, mut times) = (0, Vec::new());
        for _ in 0..ROUNDS {
            let start = Instant::now();
            let result = match expression.instant {
                true => prometheus.at(text, span.end),
                false => prometheus.over(text, span),
            };
            times.push(start.elapsed().as_secs_f64());
            let result = result.with_context(|| format!("{place}: {text}"))?;
            series = result.as_array().map_or(0, Vec::len);
        }
        let name = format!("{kind} {place}, {series} series");
        missed.figure(&name, "s", &times, Some(PROMISED), None);
        total += median(times);
    }
    let name = format!("every {kind}, one after another");
    missed.figure(&name, "s", &[total], None, None);
    Ok(())
}
