//! A real Prometheus in a namespace of a test's world. It scrapes real agents and answers queries for
//! expressions, label values and alerts.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::cluster::{Relay, read_documents};
use crate::deploy::{self, Tool};
use crate::http;
use crate::prelude::*;
use crate::process::Process;
use crate::world::ADMIN_PORT;

/// Port inside the namespace.
const PORT: u16 = 9090;
/// Timeout of a query on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);
/// Name of the job, as in the chart's PodMonitor.
pub const JOB: &str = "pathproof";

/// A running Prometheus; ends when dropped.
#[derive(Debug)]
pub struct Prometheus {
    _process: Process,
    namespace: Namespace,
    /// Relays to the agents, which listen on loopback addresses of their nodes.
    _relays: Vec<Relay>,
}

/// A time range with its resolution, in seconds of Unix time.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    pub start: f64,
    pub end: f64,
    /// Time between two values.
    pub step: f64,
}

/// An expression, ready to be evaluated.
#[derive(Clone, Debug)]
pub struct Expression {
    /// Its place in the dashboard or rules, for people.
    pub place: String,
    /// PromQL, without variables.
    pub text: String,
    /// Whether it is evaluated only at the end of the time range, as for tables and alerts.
    pub instant: bool,
}

impl Prometheus {
    /// Starts a Prometheus in a namespace with the chart's rules, with its files in `dir`, and waits until it
    /// is ready. It scrapes the agents of these nodes every second; the names become the label `node`.
    pub fn start(ns: &Namespace, dir: &Path, nodes: &[(&str, &Namespace)]) -> Result<Self> {
        let near = SocketAddr::from(([127, 0, 0, 1], 0));
        let agent = SocketAddr::from(([127, 0, 0, 1], ADMIN_PORT));
        let (mut relays, mut targets) = (Vec::new(), Vec::new());
        for (name, node) in nodes {
            let relay = Relay::start(ns, near, Some(*node), agent)?;
            targets.push(json!({ "targets": [relay.address()], "labels": { "node": name } }));
            relays.push(relay);
        }
        // Prometheus reads YAML, and JSON is also YAML.
        let configuration = json!({
            "global": { "scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s" },
            "rule_files": ["rules.yml"],
            "scrape_configs": [{ "job_name": JOB, "static_configs": targets }],
        });
        fs::create_dir_all(dir)?;
        let rules = json!({ "groups": rules()? }).to_string();
        fs::write(dir.join("rules.yml"), rules)?;
        let prometheus = Self::configured(ns, dir, &configuration)?;
        Ok(Self {
            _relays: relays,
            ..prometheus
        })
    }

    /// Starts a Prometheus with this configuration, and waits until it is ready.
    pub fn configured(namespace: &Namespace, dir: &Path, configuration: &Value) -> Result<Self> {
        fs::write(dir.join("prometheus.yml"), configuration.to_string())?;
        let program = Tool::Prometheus.find().context("there is no Prometheus")?;
        let mut command = namespace.command(program);
        command
            .current_dir(dir)
            .args(["--config.file=prometheus.yml", "--storage.tsdb.path=data"])
            .arg(format!("--web.listen-address=127.0.0.1:{PORT}"))
            .arg("--log.level=warn")
            // With blocks of 12 h, Prometheus also accepts samples of the last hours.
            .arg("--storage.tsdb.min-block-duration=12h")
            .arg("--storage.tsdb.max-block-duration=12h");
        let mut process = Process::start(command, "prometheus", dir)?;
        let ready = || get(namespace, "/-/ready").is_ok_and(|answer| answer.status == 200);
        process.wait("ready", PATIENCE, ready)?;
        Ok(Self {
            _process: process,
            namespace: namespace.clone(),
            _relays: Vec::new(),
        })
    }

    /// The result of an expression, as the API returns it.
    pub fn evaluate(&self, expression: &str, span: Span, instant: bool) -> Result<Value> {
        let Span { start, end, step } = span;
        let range = match instant {
            true => format!("query?time={end}"),
            false => format!("query_range?start={start}&end={end}&step={step}"),
        };
        let path = format!("/api/v1/{range}&query={}", encoded(expression));
        self.asked(&path).map(|mut data| data["result"].take())
    }

    /// Sorted values of a label in the selected series.
    pub fn label_values(&self, label: &str, selector: &str) -> Result<BTreeSet<String>> {
        let path = format!("/api/v1/label/{label}/values?match[]={}", encoded(selector));
        Ok(serde_json::from_value(self.asked(&path)?)?)
    }

    /// Pending and firing alerts, as the API returns them.
    pub fn alerts(&self) -> Result<Vec<Value>> {
        let mut data = self.asked("/api/v1/alerts")?;
        Ok(serde_json::from_value(data["alerts"].take())?)
    }

    fn asked(&self, path: &str) -> Result<Value> {
        let body = get(&self.namespace, path)?.body;
        let mut answer: Value = serde_json::from_str(&body).context(body)?;
        ensure!(answer["status"] == "success", "{}", answer["error"]);
        Ok(answer["data"].take())
    }
}

fn get(namespace: &Namespace, path: &str) -> Result<http::Response> {
    let address = SocketAddr::from(([127, 0, 0, 1], PORT));
    namespace.run(|| http::get(address, path, PATIENCE))
}

/// The chart's groups of rules.
pub fn rules() -> Result<Value> {
    let file = deploy::folder().join("chart/files/alerts/prometheus-rule.yaml");
    Ok(read_documents(&file)?[0]["spec"]["groups"].take())
}

/// Percent-encodes a text for a query string.
fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}
