//! A real Prometheus on the node, which scrapes the agent and evaluates the rules of the chart.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::cluster::Process;
use crate::http;
use crate::world::{ADMIN_PORT, NODE_NAME, Namespace, World};

/// Where it listens, on the node's loopback.
const PORT: u16 = 19090;
/// How often it scrapes and evaluates: a demo has less patience than a cluster.
const EVERY: &str = "2s";
const PATIENCE: Duration = Duration::from_secs(30);

/// A running Prometheus; ends when dropped.
#[derive(Debug)]
pub(super) struct Prometheus {
    _process: Process,
    ns: Namespace,
}

impl Prometheus {
    /// Starts it with these groups of rules, beside the agent: its metrics are the loopback's alone.
    pub(super) fn start(world: &World, program: &Path, groups: &Value) -> Result<Self> {
        let folder: PathBuf = world.dir().join("prometheus");
        fs::create_dir_all(&folder)?;
        let config = json!({
            "global": { "scrape_interval": EVERY, "evaluation_interval": EVERY },
            "rule_files": [folder.join("rules.yml")],
            "scrape_configs": [{
                // As the chart's PodMonitor has it.
                "job_name": "pathproof",
                "static_configs": [{
                    "targets": [format!("{}:{ADMIN_PORT}", Ipv4Addr::LOCALHOST)],
                    "labels": { "node": NODE_NAME },
                }],
            }],
        });
        // JSON is YAML as well.
        fs::write(folder.join("prometheus.yml"), config.to_string())?;
        fs::write(
            folder.join("rules.yml"),
            json!({ "groups": groups }).to_string(),
        )?;
        let mut command = world.node.command(program);
        command
            .arg(format!(
                "--config.file={}",
                folder.join("prometheus.yml").display()
            ))
            .arg(format!(
                "--storage.tsdb.path={}",
                folder.join("data").display()
            ))
            .arg(format!("--web.listen-address=127.0.0.1:{PORT}"));
        let mut process = Process::start(command, "prometheus", &folder)?;
        let ns = world.node.clone();
        process.wait("ready", PATIENCE, || {
            ask(&ns, "/-/ready").is_ok_and(|answer| answer.status == 200)
        })?;
        Ok(Self {
            _process: process,
            ns,
        })
    }

    /// Alerts that are pending or firing: name, state and annotations of each.
    pub(super) fn alerts(&self) -> Result<Vec<Value>> {
        let answer = ask(&self.ns, "/api/v1/alerts")?;
        let answer: Value = serde_json::from_str(&answer.body)?;
        let alerts = answer["data"]["alerts"].as_array();
        alerts.cloned().context("a list of alerts")
    }
}

fn ask(ns: &Namespace, path: &str) -> Result<http::Response> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, PORT));
    ns.run(|| http::get(address, path, Duration::from_secs(2)))
}
