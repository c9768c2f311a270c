//! What happens on the real node, what is expected each time, and how fast.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::Value;

use super::stage::Stage;
use crate::cluster::flush_services;
use crate::demo::summary::Row;
use crate::demo::teller::{Teller, seconds};
use crate::demo::timeline::Kind;
use crate::demo::words::shown;
use crate::traffic::Tally;
use crate::watch::{Change, Codes};

const SOUND: Codes = Codes {
    healthz: 200,
    livez: 200,
};
const BROKEN: Codes = Codes {
    healthz: 503,
    livez: 503,
};

pub(super) type Script<'a> = Teller<'a, Stage>;

impl Script<'_> {
    /// Plays all of it.
    pub(super) fn play(mut self) -> Result<Vec<Row>> {
        self.installed()?;
        self.broken()?;
        self.alerted()?;
        self.repaired()?;
        self.uninstalled()?;
        Ok(self.rows)
    }

    fn installed(&mut self) -> Result<()> {
        self.linger(seconds(1))?;
        self.timeline.tell(
            Kind::Note,
            "kube-proxy answered: it listens on the port, and keeps it",
        );
        self.act("helm install pathproof deploy/chart --set agent.enforcement=enforce: an agent on the node with four capabilities, and the sentinel's rotator");
        let start = Instant::now();
        self.stage.install()?;
        let wanted = ("helm install", "proven, 200, condition True", seconds(45));
        self.await_row(wanted, start, |view, stage| {
            view.codes == SOUND
                && view.verdict.state == "proven"
                && stage.node.condition("ServiceDatapathReady") == "True"
        })?;
        let gaps = self.gaps(0);
        self.note_row(("10256 meanwhile", "10256 never refused, never 503"), gaps);
        self.act("Prometheus on the node scrapes the agent, with the chart's alerts");
        let alerts = self.stage.start_prometheus()?;
        self.timeline
            .tell(Kind::Seen, &format!("{alerts} alerts loaded"));
        self.timeline.tell(
            Kind::Note,
            "wait 10 s: failing probes of a new sentinel do not count yet, because its rules may \
             lag",
        );
        self.linger(seconds(12))
    }

    fn broken(&mut self) -> Result<()> {
        self.timeline.tell(
            Kind::Fault,
            "flush kube-proxy's rules (nft flush chain ip kube-proxy services); all processes \
             still run",
        );
        let start = Instant::now();
        flush_services(&self.stage.node.world.node)?;
        let wanted = ("rules flushed", "503 from outside", seconds(3));
        self.await_row(wanted, start, |view, _| view.codes == BROKEN)?;
        let theirs = self.stage.node.proxy().ask_here("/healthz")?;
        self.timeline.tell(
            Kind::Seen,
            &format!(
                "kube-proxy's own /healthz, requested on the node: {}",
                theirs.status
            ),
        );
        self.timeline.quote(&theirs.body);
        let wanted = (
            "the Node's condition",
            "ServiceDatapathReady=False",
            seconds(10),
        );
        self.await_row(wanted, start, |_, stage| {
            stage.node.condition("ServiceDatapathReady") == "False"
        })?;
        let before = self.stage.tally();
        self.linger(seconds(2))?;
        let felt = self.stage.tally() - before;
        let seen = format!("{} answered, {} failed", felt.ok, felt.failed());
        self.timeline
            .tell(Kind::Seen, &format!("the client meanwhile: {seen}"));
        Ok(())
    }

    fn alerted(&mut self) -> Result<()> {
        self.timeline.tell(
            Kind::Note,
            "a load balancer has removed the node by now; a single node opens a ticket after 2 \
             minutes, and pages after 10",
        );
        let wanted = ("still broken", "an alert fires", seconds(150));
        self.await_row(wanted, Instant::now(), |_, stage| is_alerted(stage))?;
        for alert in self.stage.firing() {
            let text = |of: &Value| of.as_str().unwrap_or_default().to_owned();
            let labels = &alert["labels"];
            let line = format!(
                "{} ({})",
                text(&labels["alertname"]),
                text(&labels["severity"])
            );
            self.timeline.tell(Kind::Seen, &line);
            self.timeline.quote(&text(&alert["annotations"]["summary"]));
        }
        Ok(())
    }

    fn repaired(&mut self) -> Result<()> {
        self.act("restart kube-proxy, which writes all of its rules");
        let start = Instant::now();
        self.stage.node.start_proxy()?;
        let wanted = ("rules repaired", "200 again", seconds(20));
        self.await_row(wanted, start, |view, _| view.codes == SOUND)?;
        let wanted = ("Prometheus", "the alert is resolved", seconds(20));
        self.await_row(wanted, start, |_, stage| !is_alerted(stage))
    }

    fn uninstalled(&mut self) -> Result<()> {
        self.linger(seconds(2))?;
        self.stage.prometheus = None;
        self.act("helm uninstall pathproof");
        let told = self.stage.watch.changes().len();
        let before = self.stage.tally();
        self.stage.uninstall()?;
        self.linger(seconds(2))?;
        let gaps = self.gaps(told);
        self.note_row(("helm uninstall", "10256 never refused, never 503"), gaps);
        let felt = self.stage.tally() - before;
        self.note_row(("the client meanwhile", "feels nothing"), lost(felt));
        Ok(())
    }

    fn act(&mut self, text: &str) {
        self.timeline.tell(Kind::Act, text);
    }

    /// What outsiders saw at 10256 that was not 200, since so many changes.
    fn gaps(&self, since: usize) -> Option<String> {
        let changes = self.stage.watch.changes();
        let bad = |change: &&Change| change.codes != SOUND;
        let gap = changes.iter().skip(since).find(bad)?;
        Some(shown(gap.codes))
    }

    /// A row about something that must not have come.
    fn note_row(&mut self, (what, expected): (&'static str, &'static str), wrong: Option<String>) {
        self.row(Row {
            what,
            expected,
            sound: wrong.is_none(),
            seen: wrong.unwrap_or_else(|| "so it was".to_owned()),
            took: None,
            limit: Duration::ZERO,
        });
    }
}

/// An alert about the node's datapath fires, whatever its severity.
fn is_alerted(stage: &Stage) -> bool {
    let of_datapath = |alert: &Value| {
        let name = alert["labels"]["alertname"].as_str();
        name.is_some_and(|name| name.starts_with("PathproofDatapath"))
    };
    stage.firing().iter().any(of_datapath)
}

fn lost(felt: Tally) -> Option<String> {
    (felt.ok == 0 || felt.failed() > 0)
        .then(|| format!("{} answered, {} failed", felt.ok, felt.failed()))
}
