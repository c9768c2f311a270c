//! `cargo xtask bench dashboard`: time that a real Prometheus takes for each panel of the Grafana dashboard
//! and for each rule, over an hour of series of a large fleet.
//!
//! The series are copies of those of a real agent, once on a healthy node and once on a broken one. Every
//! node of the fleet has them under its name; every tenth node is broken.

use std::fmt::Write;
use std::io::{Read, Write as _};
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::time::SystemTime;

use anyhow::{Context, Result, ensure};
use node_tests::dashboard::Dashboard;
use node_tests::deploy::{Tool, said};
use node_tests::prelude::*;
use node_tests::prometheus::{self, Expression, JOB, Prometheus, Span};
use node_tests::promises::{Missed, head, median};

/// Runs of each query.
const ROUNDS: usize = 5;
/// Promise for the median of a query, in seconds.
const PROMISED: f64 = 2.0;
/// Scrape interval in seconds; the chart's default.
const SCRAPE: u64 = 30;
/// Time range of the dashboard, in seconds.
const HISTORY: u64 = 3600;
/// Suffixes of counters and of the series of histograms.
const GROWING: [&str; 4] = ["_total", "_bucket", "_count", "_sum"];
/// Time for one target's first scrape, which loads an hour of samples. Prometheus spreads the first scrapes
/// of all targets over the sum of these times.
const LOADING: Duration = Duration::from_millis(100);
/// The rule whose block promtool writes last, because promtool writes one block for each rule in order.
const LAST_RECORD: &str = "cluster_service_outcome:pathproof_service_connections:rate5m";
/// Timeout of each wait: Prometheus rereads the blocks on disk only once a minute.
const PATIENCE: Duration = Duration::from_secs(180);

pub(crate) fn run(nodes: usize, missed: &mut Missed) -> Result<()> {
    let mut scene = Scene::bare(Backend::Nftables);
    let pages = expositions(&mut scene)?;
    let [sound, broken] = pages.each_ref().map(|page| samples(page).count());
    println!("{nodes} nodes with {sound} series each, {broken} while broken");

    let end = SystemTime::UNIX_EPOCH.elapsed()?.as_secs() / SCRAPE * SCRAPE;
    let span = Span {
        start: (end - HISTORY) as f64,
        end: end as f64,
        step: SCRAPE as f64,
    };
    let outside = &scene.world.outside;
    let listener = outside.run(|| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))?;
    let configuration = configuration(listener.local_addr()?, nodes);
    let histories = pages.map(|page| history(&page, end));
    std::thread::spawn(move || serve(&listener, nodes, &histories));
    let dir = scene.world.dir().join("prometheus");
    std::fs::create_dir_all(&dir)?;
    let prometheus = Prometheus::configured(outside, &dir, &configuration)?;
    let all = format!("count(pathproof_build_info) == {nodes}");
    wait_for(&prometheus, &all, span, PATIENCE + LOADING * nodes as u32)?;
    record(&scene, &dir, span)?;
    wait_for(&prometheus, LAST_RECORD, span, PATIENCE)?;

    let dashboard = Dashboard::read()?;
    let panels = dashboard.expressions(&prometheus, "node-0", span, SCRAPE as f64)?;
    for (kind, expressions) in [("panel", panels), ("rule", rules()?)] {
        measure(&prometheus, kind, &expressions, span, missed)?;
    }
    Ok(())
}

/// `/metrics` of an agent on a healthy node with traffic, and after its Service chain was flushed.
fn expositions(scene: &mut Scene) -> Result<[String; 2]> {
    scene.add_sentinel(&Sentinel::default());
    // Without this option, agents in tests export the metrics of all Services.
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

fn samples(page: &str) -> impl Iterator<Item = (&str, f64)> {
    page.lines().filter_map(|line| {
        // An exemplar may follow the value.
        let line = line.split(" # ").next()?;
        let (series, value) = line.rsplit_once(' ')?;
        Some((series, value.parse().ok()?)).filter(|_| !series.starts_with('#'))
    })
}

/// An exposition with all past samples. Counters increase over time.
fn history(page: &str, end: u64) -> String {
    let mut text = String::new();
    for since in (0..=HISTORY).step_by(SCRAPE as usize) {
        let moment = end - HISTORY + since;
        for (series, value) in samples(page) {
            let name = series.split('{').next().unwrap_or_default();
            let grows = GROWING.iter().any(|end| name.ends_with(end));
            let value = if grows { value * since as f64 } else { value };
            let _ = writeln!(text, "{series} {value} {moment}000");
        }
        let _ = writeln!(text, "up 1 {moment}000");
    }
    text
}

/// Answers one scrape of each node. Later scrapes are refused: they add no samples and take time.
fn serve(listener: &TcpListener, nodes: usize, [sound, broken]: &[String; 2]) {
    for mut stream in listener.incoming().flatten().take(nodes) {
        let mut request = [0; 2048];
        let _ = stream.read(&mut request);
        let page = match request.starts_with(b"GET /broken") {
            true => broken,
            false => sound,
        };
        let _ = write!(stream, "HTTP/1.0 200 OK\r\n\r\n{page}");
    }
}

fn configuration(address: SocketAddr, nodes: usize) -> Value {
    let target = |node: usize| {
        let path = if node.is_multiple_of(10) {
            "/broken"
        } else {
            "/sound"
        };
        let labels = json!({
            "__metrics_path__": path, "node": format!("node-{node}"),
            "instance": format!("10.0.{}.{}:19256", node / 250, node % 250),
            "pod": format!("pathproof-agent-{node}"), "namespace": "pathproof",
        });
        json!({"targets": [address], "labels": labels})
    };
    let interval = format!("{}ms", (LOADING * nodes as u32).as_millis());
    json!({"scrape_configs": [{
        "job_name": JOB, "scrape_interval": interval, "scrape_timeout": interval,
        "static_configs": (0..nodes).map(target).collect::<Vec<_>>(),
    }]})
}

/// Waits until an expression has a result at the end of the span.
fn wait_for(prometheus: &Prometheus, expression: &str, span: Span, time: Duration) -> Result<()> {
    let found = || {
        let result = prometheus.evaluate(expression, span, true).ok()?;
        (!result.as_array()?.is_empty()).then_some(())
    };
    until(time, found).with_context(|| format!("no result: {expression}"))
}

/// Runs promtool, which writes the results of the recording rules for this span.
fn record(scene: &Scene, dir: &Path, span: Span) -> Result<()> {
    let mut groups = prometheus::rules()?;
    for group in groups.as_array_mut().into_iter().flatten() {
        let rules = group["rules"].as_array_mut().context("a group of rules")?;
        rules.retain(|rule| rule["record"].is_string());
    }
    std::fs::write(
        dir.join("rules.yml"),
        json!({ "groups": groups }).to_string(),
    )?;
    let promtool = Tool::Promtool.find().context("there is no promtool")?;
    let Span { start, end, step } = span;
    let words = format!(
        "tsdb create-blocks-from rules --start={start} --end={end} --eval-interval={step}s \
         --output-dir=data rules.yml"
    );
    let mut command = scene.world.outside.command(promtool);
    said(command.current_dir(dir).args(words.split(' '))).map(drop)
}

/// The expression of each rule, evaluated at the end of the span.
fn rules() -> Result<Vec<Expression>> {
    let groups = prometheus::rules()?;
    let groups = groups.as_array().into_iter().flatten();
    let rules = groups.flat_map(|group| group["rules"].as_array()).flatten();
    let expression = |rule: &Value| {
        let name = rule["record"].as_str().or(rule["alert"].as_str());
        Some(Expression {
            place: name?.to_owned(),
            text: rule["expr"].as_str()?.to_owned(),
            instant: true,
        })
    };
    Ok(rules.filter_map(expression).collect())
}

/// Measures the expressions in seconds. The median of each is judged against the promise.
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
    for one in all {
        let (mut series, mut times) = (0, Vec::new());
        for _ in 0..ROUNDS {
            let start = Instant::now();
            let result = prometheus.evaluate(&one.text, span, one.instant);
            times.push(start.elapsed().as_secs_f64());
            let result = result.with_context(|| format!("{}: {}", one.place, one.text))?;
            series = result.as_array().map_or(0, Vec::len);
        }
        let name = format!("{kind} {}, {series} series", one.place);
        missed.figure(&name, "s", &times, Some(PROMISED), None);
        total += median(times);
    }
    println!("\nevery {kind}, one after another: {total:.1} s");
    Ok(())
}
