//! `demo --cluster`: a real one-node Kubernetes, the chart, a fault, an alert in a real Prometheus, the
//! repair and the uninstall.

use std::path::Path;

use anyhow::{Context, Result};

use super::teller::{Teller, time};
use super::timeline::{ACT, NOTE, SEEN, Timeline};
use crate::cluster::flush_services;
use crate::deploy;
use crate::prelude::*;
use crate::prometheus::Prometheus;
use crate::real_node::{self, RealNode};

const NODE_PORT: u16 = 30080;
const CONDITION: &str = "ServiceDatapathReady";
const INSTALL: &str = "--namespace pathproof --create-namespace --set \
                       agent.enforcement=enforce,agent.flapDwell=1s,\
                       image.registry=docker.io/library";
const UNINSTALL: &str = "uninstall pathproof --namespace pathproof --wait --timeout 60s";
const KEPT: &str = "10256 never refused, never 503";

/// Runs the demo. Returns whether all expected results came.
pub(super) fn play(pod: &Path, timeline: &mut Timeline) -> Result<bool> {
    timeline.title(
        "pathproof on a real Kubernetes node: installed, broken, alerted, repaired, removed",
    );
    let (node, client) = built(pod, timeline)?;
    let mut play = Play {
        tell: Teller::new(&node.world, timeline)?,
        node,
    };
    play.tell.clients.push(client);
    let prometheus = play.installed()?;
    play.broken()?;
    play.alerted(&prometheus)?;
    drop(prometheus);
    play.uninstalled()?;
    let Play { tell, node } = play;
    let is_met = tell.finish();
    drop(node);
    let text = "node removed: no process, namespace, control group, program or file is left";
    timeline.tell(NOTE, text);
    Ok(is_met)
}

/// A node without pathproof, with a Service and a client.
fn built(pod: &Path, timeline: &mut Timeline) -> Result<(RealNode, Client)> {
    real_node::check().context("a program is missing")?;
    timeline.tell(
        ACT,
        "start Kubernetes: etcd, API server, controllers and scheduler on one machine, containerd, \
         kubelet and kube-proxy on another, all as namespaces",
    );
    let start = Instant::now();
    let node = RealNode::start(pod)?;
    let (object, took) = (node.node()?, time(start.elapsed()));
    let version = object["status"]["nodeInfo"]["kubeletVersion"].as_str();
    let version = version.unwrap_or_default();
    let text = format!("the node is ready after {took}: kubelet {version}");
    timeline.tell(SEEN, &text);
    timeline.tell(
        ACT,
        "a Service with a node port and two pods; a client outside connects ten times a second",
    );
    node.serve()?;
    let target = SocketAddr::new(node.world.node_address(Family::V4), NODE_PORT);
    let client = Plan::from_outside(&node.world, 0, target).start()?;
    let answered = || (client.tally().ok > 0).then_some(());
    until(Duration::from_secs(20), answered).context("the Service answers")?;
    Ok((node, client))
}

struct Play<'a> {
    // Fields are dropped in this order: observers and clients, then the node.
    tell: Teller<'a>,
    node: RealNode,
}

impl Play<'_> {
    fn installed(&mut self) -> Result<Prometheus> {
        self.tell.linger(1)?;
        self.tell
            .note("kube-proxy answered: it listens on the port, and keeps it");
        self.tell.act(
            "helm install pathproof deploy/chart --set agent.enforcement=enforce: an agent on the \
             node with four capabilities, and the sentinel's rotator",
        );
        let chart = deploy::folder().join("chart");
        self.helm(&format!("install pathproof {} {INSTALL}", chart.display()))?;
        let wanted = ("helm install", "proven, 200, condition True", 45.0);
        let node = &self.node;
        self.tell.expect(wanted, |view| {
            view.has(200, "proven") && node.condition(CONDITION) == "True"
        })?;
        self.tell.never(("10256 meanwhile", KEPT), is_not_sound);
        self.tell
            .act("Prometheus on the node scrapes the agent, with the chart's alerts");
        let world = &self.node.world;
        let nodes = [(NODE_NAME, &world.node)];
        let prometheus = Prometheus::start(&world.node, &world.dir().join("prometheus"), &nodes)?;
        self.tell.note(
            "wait 10 s: failing probes of a new sentinel do not count yet, because its rules may \
             lag",
        );
        self.tell.linger(12)?;
        Ok(prometheus)
    }

    fn broken(&mut self) -> Result<()> {
        self.tell.fault(
            "flush kube-proxy's rules (nft flush chain ip kube-proxy services); all processes \
             still run",
        );
        let node = &self.node;
        flush_services(&node.world.node)?;
        let wanted = ("rules flushed", "503 from outside", 3.0);
        self.tell.expect(wanted, |view| view.is(503))?;
        let theirs = node.proxy().ask_here("/healthz")?;
        let status = theirs.status;
        let text = format!("kube-proxy's own /healthz, requested on the node: {status}");
        self.tell.timeline.tell(SEEN, &text);
        self.tell.timeline.quote(&theirs.body);
        let wanted = ("the Node's condition", "ServiceDatapathReady=False", 10.0);
        self.tell
            .expect(wanted, |_| node.condition(CONDITION) == "False")
    }

    fn alerted(&mut self, prometheus: &Prometheus) -> Result<()> {
        self.tell.note(
            "a load balancer has removed the node by now; a single node opens a ticket after 2 \
             minutes, and pages after 10",
        );
        let wanted = ("still broken", "an alert fires", 150.0);
        self.tell
            .expect(wanted, |_| !firing(prometheus).is_empty())?;
        for alert in firing(prometheus) {
            let text = |path| alert.pointer(path).and_then(Value::as_str).unwrap_or("?");
            let (name, severity) = (text("/labels/alertname"), text("/labels/severity"));
            let line = format!("{name} ({severity})");
            self.tell.timeline.tell(SEEN, &line);
            self.tell.timeline.quote(text("/annotations/summary"));
        }
        self.tell
            .act("restart kube-proxy, which writes all of its rules");
        self.node.start_proxy()?;
        let wanted = ("rules repaired", "200 again", 20.0);
        self.tell.expect(wanted, |view| view.is(200))?;
        let wanted = ("Prometheus", "the alert is resolved", 20.0);
        self.tell.expect(wanted, |_| firing(prometheus).is_empty())
    }

    fn uninstalled(&mut self) -> Result<()> {
        self.tell.linger(1)?;
        self.tell.act("helm uninstall pathproof");
        self.helm(UNINSTALL)?;
        self.tell.linger(2)?;
        self.tell.never(("helm uninstall", KEPT), is_not_sound);
        self.tell
            .unharmed(("the client meanwhile", "feels nothing"));
        Ok(())
    }

    fn helm(&self, words: &str) -> Result<()> {
        let words: Vec<&str> = words.split(' ').collect();
        self.node.desk.helm(&words).map(drop)
    }
}

fn is_not_sound(codes: Codes) -> bool {
    codes.healthz != 200 || codes.livez != 200
}

/// Firing alerts about the node's datapath, of any severity.
fn firing(prometheus: &Prometheus) -> Vec<Value> {
    let mut alerts = prometheus.alerts().unwrap_or_default();
    alerts.retain(|alert| {
        let name = alert["labels"]["alertname"].as_str().unwrap_or_default();
        alert["state"] == "firing" && name.starts_with("PathproofDatapath")
    });
    alerts
}
