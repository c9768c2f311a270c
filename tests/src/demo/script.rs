//! What happens in the demo, what is expected each time, and how fast.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::stage::Stage;
use super::summary::{self, Outcome, Row};
use super::teller::{Teller, seconds};
use super::timeline::{Kind, Timeline};
use crate::manifests::AUTOSCALER_TAINT;

mod overlay;

/// The Service whose endpoint is swapped, as the verdict names it.
const SWAPPED: &str = "demo/web";

/// What an unambiguous cause may take to 503.
const ONE_AND_A_HALF: Duration = Duration::from_millis(1_500);

type Play<'a> = Teller<'a, Stage>;

/// Plays the whole script.
pub(super) fn play(stage: &mut Stage, timeline: &mut Timeline) -> Result<Outcome> {
    let mut play = Play::new(stage, timeline);
    play.comes_up()?;
    let doubted = play.flushed()?;
    play.doubted(&doubted)?;
    play.forwarding_off()?;
    play.overlay_dead()?;
    play.dropped()?;
    play.swapped()?;
    play.tainted()?;
    play.killed()?;
    let tally = play.stage.tally();
    Ok(summary::tell(&play.rows, tally, play.timeline))
}

impl Play<'_> {
    fn comes_up(&mut self) -> Result<()> {
        self.timeline.tell(
            Kind::Act,
            "start the agent: it observes every interface, and probes its own Service, the \
             sentinel, through the node's rules, because the node is idle",
        );
        let start = Instant::now();
        self.await_row(
            (
                "agent started, idle node",
                "proven, /healthz 200",
                seconds(10),
            ),
            start,
            |view, _| view.is(200, 200) && view.verdict.state == "proven",
        )?;
        // A sentinel that just appeared accuses nobody: its rules may lag behind.
        self.timeline.tell(
            Kind::Note,
            "wait 10 s: failing probes of a new sentinel do not count yet, because its rules may \
             lag",
        );
        self.linger(seconds(11))
    }

    /// Gives a time at which it was 503, as a load balancer's log has it.
    fn flushed(&mut self) -> Result<String> {
        self.timeline.tell(
            Kind::Fault,
            "flush the Service chain (nft flush chain ip kube-proxy services): the datapath is \
             gone, all processes still run, and there is no traffic",
        );
        let start = Instant::now();
        self.stage.rules.flush_services()?;
        self.await_row(
            (
                "idle: Service chain flushed",
                "503 with the cause",
                ONE_AND_A_HALF,
            ),
            start,
            |view, _| view.is(503, 503) && view.verdict.state == "broken",
        )?;
        self.linger(seconds(1))?;
        let failing = jiff::Timestamp::now();
        self.timeline.tell(Kind::Act, "put the rules back");
        let start = Instant::now();
        self.stage.rules.install()?;
        self.await_row(
            ("rules repaired", "200 again", seconds(3)),
            start,
            |view, _| view.is(200, 200) && view.verdict.state == "proven",
        )?;
        self.linger(seconds(1))?;
        Ok(failing.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
    }

    /// The node works again, and somebody doubts that it did not.
    fn doubted(&mut self, time: &str) -> Result<()> {
        self.timeline.tell(
            Kind::Act,
            &format!("the node works again; explain the 503 afterwards: pathproof why --at {time}"),
        );
        let agent = self.stage.agent.as_ref().context("the agent runs")?;
        let state = agent.dir().join("state");
        let printed = |args: &[&str]| -> Result<(bool, String)> {
            let output = agent.command(args).output().context("run the agent")?;
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            Ok((output.status.success(), text))
        };
        let state_dir = state.to_string_lossy();
        let (found, page) = printed(&["why", "--at", time, "--state-dir", &state_dir])?;
        let mut parts = page.split("\n\n");
        for line in parts.next().unwrap_or_default().lines() {
            self.timeline.quote_as_is(line);
        }
        self.timeline.quote(parts.next().unwrap_or_default());
        let folder = state.join("recordings");
        let files = fs::read_dir(&folder).with_context(|| format!("read {}", folder.display()))?;
        let mut files: Vec<_> = files.flatten().map(|file| file.path()).collect();
        files.sort();
        let file = files.last().context("a recording")?;
        self.timeline.tell(
            Kind::Act,
            "pathproof replay judges the recorded events again",
        );
        let (same, timeline) = printed(&["replay", &file.to_string_lossy()])?;
        let mut before = None;
        for line in timeline.lines().filter(|line| line.contains("/healthz")) {
            // The verdict changes more often than what a load balancer sees.
            let code = line.split_whitespace().nth(2);
            if before != code {
                self.timeline.quote_as_is(line);
            }
            before = code;
        }
        self.timeline
            .quote_as_is(timeline.lines().last().unwrap_or_default());
        // As in "node-1, pathproof 0.1.0, 501 events from ... to ...".
        let head = timeline.split(" from ").next().unwrap_or_default();
        let events = head.rsplit(", ").next().unwrap_or_default();
        self.row(Row {
            what: "past 503",
            expected: "explained, same verdicts replayed",
            seen: events.to_owned(),
            took: None,
            limit: seconds(0),
            sound: found && same && page.contains("leaked"),
        });
        self.linger(seconds(1))
    }

    fn forwarding_off(&mut self) -> Result<()> {
        self.timeline.tell(
            Kind::Fault,
            "sysctl net.ipv4.ip_forward=0 and the same for IPv6: the rules are intact, and nothing \
             is forwarded",
        );
        let start = Instant::now();
        self.stage.world.set_forwarding(false)?;
        self.await_row(
            ("idle: forwarding off", "503, names it", ONE_AND_A_HALF),
            start,
            |view, _| view.is(503, 503) && view.verdict.cause.as_deref() == Some("forwarding_off"),
        )?;
        self.linger(seconds(1))?;
        self.timeline.tell(Kind::Act, "forwarding on again");
        let start = Instant::now();
        self.stage.world.set_forwarding(true)?;
        self.timeline.tell(
            Kind::Note,
            "broken twice within 30 s: the 503 lasts a little longer each time (from 10 s on; here \
             from 1 s on), so that load balancers don't flap",
        );
        self.await_row(
            ("forwarding on", "200 again", seconds(6)),
            start,
            |view, _| view.is(200, 200) && view.verdict.state == "proven",
        )?;
        self.linger(seconds(1))
    }

    fn dropped(&mut self) -> Result<()> {
        self.timeline
            .tell(Kind::Fault, "a firewall drops all forwarded packets");
        let start = Instant::now();
        self.stage.world.block_forwarding(true)?;
        self.await_row(
            ("idle: FORWARD drops", "suspect, still 200", seconds(2)),
            start,
            |view, _| view.is(200, 200) && view.verdict.state == "suspect",
        )?;
        self.timeline.tell(
            Kind::Note,
            "a filter on the probes' own addresses would look the same: not a reason for 503 yet",
        );
        self.linger(seconds(2))?;
        self.timeline.tell(
            Kind::Act,
            "remove the firewall rule, and start clients: 20 connections a second to each of web, \
             api and db, IPv4 and IPv6, from pods and from outside",
        );
        self.stage.world.block_forwarding(false)?;
        self.stage.start_traffic()?;
        self.linger(seconds(3))?;
        self.timeline.tell(
            Kind::Fault,
            "the firewall drops everything again, and connections that worked are lost",
        );
        let start = Instant::now();
        self.stage.world.block_forwarding(true)?;
        self.await_row(
            ("busy: FORWARD drops", "broken, 503", seconds(4)),
            start,
            |view, _| view.is(503, 503) && view.verdict.state == "broken",
        )?;
        self.timeline.tell(Kind::Act, "remove the firewall rule");
        let start = Instant::now();
        self.stage.world.block_forwarding(false)?;
        self.await_row(
            ("filter removed", "200 again", seconds(8)),
            start,
            |view, _| view.is(200, 200) && view.verdict.state == "proven",
        )?;
        self.linger(seconds(2))
    }

    fn swapped(&mut self) -> Result<()> {
        self.timeline.tell(
            Kind::Fault,
            "pod web-2 is replaced by web-4 in the API, but not in the rules, which still send a \
             third of web's connections to web-2",
        );
        let start = Instant::now();
        let replacement = self.stage.world.pod("web-4").clone();
        self.stage
            .manifests
            .swap_endpoint("web", "web-2", &replacement)?;
        self.stage.stop_server("web-2");
        self.await_row(
            (
                "endpoint swapped, rules not",
                "degraded, names demo/web, still 200",
                seconds(10),
            ),
            start,
            |view, _| {
                view.is(200, 200)
                    && view.verdict.state == "degraded"
                    && view.verdict.blames(SWAPPED)
            },
        )?;
        self.timeline.tell(
            Kind::Note,
            "one failing Service is not a reason to remove the node; rules that lag for 15 s are",
        );
        self.await_row(
            ("rules 15 s behind", "stale, 503", seconds(22)),
            start,
            |view, _| view.is(503, 503) && view.verdict.state == "stale",
        )?;
        self.timeline.tell(Kind::Act, "update the rules");
        let start = Instant::now();
        self.stage.rules.install()?;
        self.await_row(
            ("rules repaired", "200 again", seconds(18)),
            start,
            |view, _| view.is(200, 200) && view.verdict.state == "proven",
        )?;
        self.linger(seconds(1))
    }

    fn tainted(&mut self) -> Result<()> {
        self.timeline.tell(
            Kind::Act,
            "the cluster autoscaler marks the node for removal (taint \
             ToBeDeletedByClusterAutoscaler)",
        );
        let start = Instant::now();
        self.stage.manifests.taint(AUTOSCALER_TAINT)?;
        self.await_row(
            (
                "node tainted",
                "/healthz 503, /livez 200",
                Duration::from_millis(200),
            ),
            start,
            |view, _| view.is(503, 200),
        )?;
        self.linger(seconds(1))?;
        self.timeline.tell(Kind::Act, "remove the taint");
        let start = Instant::now();
        self.stage.manifests.untaint()?;
        self.await_row(
            ("taint removed", "200 again", seconds(1)),
            start,
            |view, _| view.is(200, 200),
        )?;
        self.linger(seconds(1))
    }

    fn killed(&mut self) -> Result<()> {
        self.timeline.tell(Kind::Fault, "kill -9 the agent");
        let before = self.stage.tally();
        let start = Instant::now();
        self.stage.agent.take().context("the agent runs")?.kill()?;
        self.linger(seconds(2))?;
        let felt = self.stage.tally() - before;
        let pinned = self.stage.world.pin_dir().exists();
        self.row(Row {
            what: "agent killed",
            expected: "clients unaffected, programs stay",
            seen: format!(
                "{} answered, {} failed; programs {}",
                felt.ok,
                felt.failed(),
                if pinned { "still watch" } else { "gone" }
            ),
            took: None,
            limit: seconds(0),
            sound: felt.ok > 0 && felt.failed() == 0 && pinned,
        });
        self.timeline.tell(
            Kind::Act,
            "start it again: it takes over programs, counts and verdict",
        );
        let told = self.codes_told;
        let again = Instant::now();
        self.stage.start_agent()?;
        self.await_row(
            ("agent restarted", "200 from its first answer", seconds(3)),
            again,
            |view, _| view.is(200, 200),
        )?;
        let wrong = self.stage.watch.changes().into_iter().skip(told);
        let wrong = wrong
            .filter(|change| change.at > start && change.codes.healthz == 503)
            .count();
        if wrong > 0 {
            self.timeline
                .tell(Kind::Bad, "the restarted agent answered 503 at first");
            if let Some(row) = self.rows.last_mut() {
                (row.sound, row.took) = (false, None);
            }
        }
        self.linger(seconds(1))
    }
}
