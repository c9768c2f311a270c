//! A real Prometheus that scrapes real agents, in a namespace of a test's world; and what is asked
//! of it: single expressions, label values, and whether a page of expressions is sound ([`check`]).

pub mod check;

use std::collections::BTreeSet;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::cluster::Relay;
use crate::http;
use crate::process::Process;
use crate::world::{ADMIN_PORT, Namespace};

/// Names the program; `cargo xtask test` sets it.
pub const VARIABLE: &str = "PATHPROOF_PROMETHEUS";
/// Inside the namespace.
const PORT: u16 = 9090;
/// How long one question may take, on a machine that does much else.
const PATIENCE: Duration = Duration::from_secs(20);
/// The job, as the chart's PodMonitor names it.
pub const JOB: &str = "pathproof";

/// The program, if the machine has one: [`VARIABLE`], else `prometheus` in PATH. Says loudly that a
/// test is skipped for want of it.
pub fn program(test: &str) -> Option<PathBuf> {
    let named = std::env::var_os(VARIABLE).map(PathBuf::from);
    let found = named.or_else(|| crate::world::tool("prometheus"));
    if found.is_none() {
        eprintln!(
            "SKIPPED: {test} needs Prometheus: `cargo xtask setup-cluster --all` unpacks it, \
             {VARIABLE} names another one"
        );
    }
    found
}

/// A running Prometheus. Dropping it ends it.
#[derive(Debug)]
pub struct Prometheus {
    _process: Process,
    namespace: Namespace,
    /// Ways to the agents: they listen on loopback addresses of their own nodes.
    _relays: Vec<Relay>,
}

/// A time range with its resolution, in seconds of Unix time.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// First moment.
    pub start: f64,
    /// Last moment.
    pub end: f64,
    /// Between two values.
    pub step: f64,
}

impl Prometheus {
    /// Starts it in a namespace, with its files in `dir`. It scrapes the agents of these nodes,
    /// given by the names that the label `node` shall have, every second. Waits until it is ready.
    pub fn start(
        program: &Path,
        namespace: &Namespace,
        dir: &Path,
        nodes: &[(&str, &Namespace)],
    ) -> Result<Self> {
        let agent = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), ADMIN_PORT);
        let near = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0);
        let relays = nodes
            .iter()
            .map(|(_, node)| Relay::start(namespace, near, Some(*node), agent))
            .collect::<Result<Vec<_>>>()?;
        let names = nodes.iter().map(|(name, _)| *name);
        let targets: Vec<_> = names.zip(relays.iter().map(Relay::address)).collect();
        fs::create_dir_all(dir)?;
        fs::write(dir.join("rules.yml"), records()?)?;
        let configuration = configuration(&targets);
        let mut prometheus = Self::configured(program, namespace, dir, &configuration, &[])?;
        prometheus._relays = relays;
        Ok(prometheus)
    }

    /// Starts it with this configuration and more arguments, and waits until it is ready.
    pub fn configured(
        program: &Path,
        namespace: &Namespace,
        dir: &Path,
        configuration: &str,
        arguments: &[&str],
    ) -> Result<Self> {
        let file = dir.join("prometheus.yml");
        fs::write(&file, configuration)?;
        let mut command = namespace.command(program);
        command
            .arg(format!("--config.file={}", file.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                dir.join("data").display()
            ))
            .arg(format!("--web.listen-address=127.0.0.1:{PORT}"))
            .arg("--log.level=warn")
            .args(arguments);
        let mut process = Process::start(command, "prometheus", dir)?;
        process.wait("ready", PATIENCE, || get(namespace, "/-/ready").is_ok())?;
        Ok(Self {
            _process: process,
            namespace: namespace.clone(),
            _relays: Vec::new(),
        })
    }

    /// The result of an expression at a moment (Unix time), as the API gives it.
    pub fn at(&self, expression: &str, moment: f64) -> Result<Value> {
        let path = format!("/api/v1/query?time={moment}&query={}", encoded(expression));
        self.asked(&path).map(|mut data| data["result"].take())
    }

    /// The result of an expression over time, as the API gives it.
    pub fn over(&self, expression: &str, span: Span) -> Result<Value> {
        let Span { start, end, step } = span;
        let query = encoded(expression);
        let path = format!("/api/v1/query_range?start={start}&end={end}&step={step}&query={query}");
        self.asked(&path).map(|mut data| data["result"].take())
    }

    /// Values of a label, of the series that a selector names or of all; sorted.
    pub fn label_values(&self, label: &str, selector: Option<&str>) -> Result<BTreeSet<String>> {
        let matching = selector.map(|selector| format!("?match[]={}", encoded(selector)));
        let path = format!(
            "/api/v1/label/{label}/values{}",
            matching.unwrap_or_default()
        );
        Ok(serde_json::from_value(self.asked(&path)?)?)
    }

    /// Alerts that are pending or firing, as the API gives them.
    pub fn alerts(&self) -> Result<Vec<Value>> {
        let data = self.asked("/api/v1/alerts")?;
        data["alerts"]
            .as_array()
            .cloned()
            .context("a list of alerts")
    }

    fn asked(&self, path: &str) -> Result<Value> {
        let body = get(&self.namespace, path)?;
        let mut answer: Value = serde_json::from_str(&body).context(body)?;
        if answer["status"] != "success" {
            bail!("{}", answer["error"].as_str().unwrap_or("no success"));
        }
        Ok(answer["data"].take())
    }
}

/// An API page; one that reports an error in JSON is an answer too.
fn get(namespace: &Namespace, path: &str) -> Result<String> {
    let address = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), PORT);
    let response = namespace.run(|| http::get(address, path, PATIENCE))?;
    let said = response.body.starts_with('{');
    if response.status != 200 && !said {
        bail!("{path}: {} {}", response.status, response.body);
    }
    Ok(response.body)
}

fn configuration(targets: &[(&str, SocketAddr)]) -> String {
    let mut text = format!(
        "global:\n  scrape_interval: 1s\n  scrape_timeout: 1s\n  evaluation_interval: 1s\n\
         rule_files: [rules.yml]\nscrape_configs:\n- job_name: {JOB}\n  static_configs:\n"
    );
    for (node, address) in targets {
        text += &format!("  - targets: [\"{address}\"]\n    labels: {{node: {node}}}\n");
    }
    text
}

/// The chart's recording rules, which the dashboard reads, as a file of rules.
pub fn records() -> Result<String> {
    let mut groups = rules()?;
    for group in groups.as_array_mut().into_iter().flatten() {
        if let Some(rules) = group["rules"].as_array_mut() {
            rules.retain(|rule| rule["record"].is_string());
        }
    }
    // JSON is YAML as well.
    Ok(json!({ "groups": groups }).to_string())
}

/// The chart's groups of rules.
pub fn rules() -> Result<Value> {
    let file = crate::deploy::folder().join("chart/files/alerts/prometheus-rule.yaml");
    let text = fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
    let mut objects = crate::cluster::documents(&text)?;
    let rule = objects.first_mut().context("the file has no object")?;
    Ok(rule["spec"]["groups"].take())
}

/// For a query string.
fn encoded(text: &str) -> String {
    let escape = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'-' | b'.' => {
            char::from(byte).to_string()
        }
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(escape).collect()
}
