//! The demo's node, its Service with pods, and who looks at it.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::built::{self, versions::KUBERNETES};
use crate::cluster::documents;
use crate::demo::summary::time;
use crate::demo::teller::Node;
use crate::demo::timeline::{Kind, Timeline};
use crate::demo::verdict::{self, Seen};
use crate::prometheus::{JOB, Prometheus};
use crate::real_node::{self, RealNode};
use crate::traffic::{Client, Plan, Tally};
use crate::wait::until;
use crate::watch::{Poll, Watch};
use crate::world::{ADMIN_PORT, Family, NODE_NAME};

/// Port of the Service on the node.
const NODE_PORT: u16 = 30080;
/// Interval at which Prometheus scrapes and evaluates: a demo has less patience than a cluster.
const EVERY: &str = "2s";
/// Namespace and name of the release.
pub(super) const RELEASE: &str = "pathproof";
/// What the chart is told.
const VALUES: [&str; 2] = ["--set", "agent.enforcement=enforce,agent.flapDwell=1s"];

/// Where the programs lie that the demo needs.
pub(in crate::demo) type Programs = real_node::Programs;

/// Everything that is up.
#[derive(Debug)]
pub(super) struct Stage {
    // Dropped in this order: those who ask, those who dial, the node.
    pub(super) verdicts: Poll<Seen>,
    pub(super) watch: Watch,
    pub(super) client: Client,
    pub(super) prometheus: Option<Prometheus>,
    prometheus_program: PathBuf,
    pub(super) node: RealNode,
}

impl Stage {
    /// A node with a Service, without pathproof.
    pub(super) fn build(programs: &Programs, timeline: &mut Timeline) -> Result<Self> {
        let tools = real_node::Tools::find().context("a program is missing")?;
        let missing = "prometheus is missing: run `cargo xtask setup-cluster --all`";
        let prometheus_program = built::unpacked("prometheus").context(missing)?;
        timeline.tell(
            Kind::Act,
            "start Kubernetes: etcd, API server, controllers and scheduler on one machine, containerd, \
             kubelet and kube-proxy on another, all as namespaces",
        );
        let start = Instant::now();
        let node = RealNode::start(&tools, programs)?;
        let version = node.node()?["status"]["nodeInfo"]["kubeletVersion"].clone();
        let version = version.as_str().unwrap_or_default();
        timeline.tell(
            Kind::Seen,
            &format!(
                "the node is ready after {}: kubelet {version}",
                time(start.elapsed())
            ),
        );
        timeline.tell(
            Kind::Act,
            "a Service with a node port and two pods; a client outside connects ten times a second",
        );
        node.serve()?;
        let target = SocketAddr::new(node.world.node_address(Family::V4), NODE_PORT);
        let client = Plan::from_outside(&node.world, 0, target).start()?;
        let answered = until(Duration::from_secs(20), || {
            (client.tally().ok > 0).then_some(())
        });
        answered.context("the Service answers")?;
        Ok(Self {
            verdicts: verdict::watch(&node.world)?,
            watch: node.watch()?,
            client,
            prometheus: None,
            prometheus_program,
            node,
        })
    }

    /// Installs the chart.
    pub(super) fn install(&self) -> Result<()> {
        let chart = chart()?;
        let mut words = vec!["install", RELEASE, text(&chart)?];
        words.extend(["--namespace", RELEASE, "--create-namespace"]);
        words.extend(VALUES);
        self.node.desk().helm(&words).map(drop)
    }

    pub(super) fn uninstall(&self) -> Result<()> {
        let words = [
            "uninstall",
            RELEASE,
            "--namespace",
            RELEASE,
            "--wait",
            "--timeout",
            "60s",
        ];
        self.node.desk().helm(&words).map(drop)
    }

    /// Starts Prometheus on the node, with the alerts that the chart brings: the agent serves its metrics
    /// on loopback.
    pub(super) fn start_prometheus(&mut self) -> Result<usize> {
        let chart = chart()?;
        let words = [
            "template",
            RELEASE,
            text(&chart)?,
            "--namespace",
            RELEASE,
            "--set",
            "metrics.prometheusRule.enabled=true",
            "--kube-version",
            KUBERNETES,
            "--api-versions",
            "monitoring.coreos.com/v1",
        ];
        let rendered = self.node.desk().helm(&words)?;
        let mut groups = Vec::new();
        for object in documents(&rendered)? {
            if object["kind"] == "PrometheusRule" {
                groups.extend(
                    object["spec"]["groups"]
                        .as_array()
                        .cloned()
                        .unwrap_or_default(),
                );
            }
        }
        let alerts = groups.iter().filter_map(|group| group["rules"].as_array());
        let alerts = alerts
            .flatten()
            .filter(|rule| rule["alert"].is_string())
            .count();
        if alerts == 0 {
            bail!("the chart renders no alert");
        }
        let world = &self.node.world;
        let dir = world.dir().join("prometheus");
        fs::create_dir_all(&dir)?;
        fs::write(
            dir.join("rules.yml"),
            json!({ "groups": groups }).to_string(),
        )?;
        // JSON is YAML as well.
        let configuration = json!({
            "global": { "scrape_interval": EVERY, "evaluation_interval": EVERY },
            "rule_files": ["rules.yml"],
            "scrape_configs": [{
                "job_name": JOB,
                "static_configs": [{
                    "targets": [format!("127.0.0.1:{ADMIN_PORT}")],
                    "labels": { "node": NODE_NAME },
                }],
            }],
        });
        let configuration = configuration.to_string();
        let program = &self.prometheus_program;
        let prometheus = Prometheus::configured(program, &world.node, &dir, &configuration, &[])?;
        self.prometheus = Some(prometheus);
        Ok(alerts)
    }

    /// Connections of the client so far.
    pub(super) fn tally(&self) -> Tally {
        self.client.tally()
    }

    /// Alerts that fire, by name.
    pub(super) fn firing(&self) -> Vec<Value> {
        let prometheus = self.prometheus.as_ref();
        let alerts = prometheus
            .and_then(|of| of.alerts().ok())
            .unwrap_or_default();
        alerts
            .into_iter()
            .filter(|alert| alert["state"] == "firing")
            .collect()
    }
}

impl Node for Stage {
    fn watch(&self) -> &Watch {
        &self.watch
    }

    fn verdicts(&self) -> &Poll<Seen> {
        &self.verdicts
    }
}

fn chart() -> Result<PathBuf> {
    let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/chart");
    chart.canonicalize().context("find deploy/chart")
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().context("a path in UTF-8")
}
