//! What happens in the demo, what is expected each time, and how fast.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::signals;
use super::stage::Stage;
use super::timeline::{Kind, Span, Style, Timeline, span};
use super::verdict::Seen;
use crate::manifests::AUTOSCALER_TAINT;
use crate::watch::Codes;

/// The Service whose endpoint is swapped, as the verdict names it.
const SWAPPED: &str = "demo/web";

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// One row of the summary.
#[derive(Debug)]
struct Row {
    what: &'static str,
    expected: &'static str,
    seen: String,
    took: Option<Duration>,
    limit: Duration,
    sound: bool,
}

/// What the script looks at while it waits.
#[derive(Debug)]
struct View {
    codes: Codes,
    verdict: Seen,
}

impl View {
    fn is(&self, healthz: u16, livez: u16) -> bool {
        self.codes == Codes { healthz, livez }
    }
}

/// Plays the whole script; gives whether all of it happened.
pub(super) fn play(stage: &mut Stage, timeline: &mut Timeline) -> Result<bool> {
    let mut play = Play {
        stage,
        timeline,
        rows: Vec::new(),
        codes_told: 0,
        verdicts_told: 0,
    };
    play.comes_up()?;
    play.flushed()?;
    play.swapped()?;
    play.tainted()?;
    play.killed()?;
    Ok(play.summary())
}

struct Play<'a> {
    stage: &'a mut Stage,
    timeline: &'a mut Timeline,
    rows: Vec<Row>,
    codes_told: usize,
    verdicts_told: usize,
}

impl Play<'_> {
    fn comes_up(&mut self) -> Result<()> {
        self.timeline.tell(
            Kind::Act,
            "start the agent: it attaches to every device and watches",
        );
        let start = Instant::now();
        self.await_row(
            ("agent started", "proven, /healthz 200", seconds(10)),
            start,
            |view| view.is(200, 200) && view.verdict.state == "proven",
        )?;
        self.linger(seconds(2))
    }

    fn flushed(&mut self) -> Result<()> {
        self.timeline.tell(
            Kind::Fault,
            "flush the Service chain (nft flush chain ip kube-proxy services): the datapath is \
             gone, every process is alive",
        );
        let start = Instant::now();
        self.stage.rules.flush_services()?;
        self.await_row(
            (
                "Service chain flushed",
                "/healthz and /livez 503",
                seconds(4),
            ),
            start,
            |view| view.is(503, 503) && view.verdict.state == "broken",
        )?;
        self.linger(seconds(1))?;
        self.timeline.tell(Kind::Act, "put the rules back");
        let start = Instant::now();
        self.stage.rules.install()?;
        self.await_row(("rules repaired", "200 again", seconds(5)), start, |view| {
            view.is(200, 200) && view.verdict.state == "proven"
        })?;
        self.linger(seconds(2))
    }

    fn swapped(&mut self) -> Result<()> {
        self.timeline.tell(
            Kind::Fault,
            "pod web-2 is replaced by web-4, in the API alone: the rules still send a third of \
             web's connections to web-2",
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
            |view| {
                view.is(200, 200)
                    && view.verdict.state == "degraded"
                    && view.verdict.blames(SWAPPED)
            },
        )?;
        self.timeline.tell(
            Kind::Note,
            "a Service in trouble is no reason to take the node out; rules that stay behind for \
             15 s are",
        );
        self.await_row(
            ("rules 15 s behind", "stale, 503", seconds(22)),
            start,
            |view| view.is(503, 503) && view.verdict.state == "stale",
        )?;
        self.timeline.tell(Kind::Act, "the rules follow at last");
        let start = Instant::now();
        self.stage.rules.install()?;
        self.timeline.tell(
            Kind::Note,
            "broken twice within 30 s: the 503 is held for 10 s, so that load balancers don't flap",
        );
        self.await_row(
            ("rules repaired", "200 again", seconds(18)),
            start,
            |view| view.is(200, 200) && view.verdict.state == "proven",
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
            |view| view.is(503, 200),
        )?;
        self.linger(seconds(1))?;
        self.timeline.tell(Kind::Act, "the taint is taken away");
        let start = Instant::now();
        self.stage.manifests.untaint()?;
        self.await_row(("taint removed", "200 again", seconds(1)), start, |view| {
            view.is(200, 200)
        })?;
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
            expected: "clients feel nothing, programs stay",
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
            |view| view.is(200, 200),
        )?;
        let wrong = self.stage.watch.changes().into_iter().skip(told);
        let wrong = wrong
            .filter(|change| change.at > start && change.codes.healthz == 503)
            .count();
        if wrong > 0 {
            self.timeline
                .tell(Kind::Bad, "the restarted agent answered 503 at first");
            if let Some(row) = self.rows.last_mut() {
                row.sound = false;
            }
        }
        self.linger(seconds(1))
    }

    /// Waits for what is expected, telling what is seen meanwhile, and notes a row. Goes on after
    /// a disappointment: the later steps are worth seeing.
    fn await_row(
        &mut self,
        (what, expected, limit): (&'static str, &'static str, Duration),
        start: Instant,
        wanted: impl Fn(&View) -> bool,
    ) -> Result<()> {
        // Beyond the limit, to tell late from never.
        let patience = limit + seconds(4).max(limit / 2);
        loop {
            let view = self.pump()?;
            if wanted(&view) {
                // The later of the two moments: codes as seen outside, and the verdict's.
                let codes = self
                    .stage
                    .watch
                    .changes()
                    .last()
                    .map_or(start, |change| change.at);
                let took = codes.max(self.last_verdict_change(start)).max(start) - start;
                let sound = took <= limit;
                let seen = format!("{} {}", shown(view.codes), described(&view.verdict));
                self.row(Row {
                    what,
                    expected,
                    seen,
                    took: Some(took),
                    limit,
                    sound,
                });
                return Ok(());
            }
            if start.elapsed() > patience {
                let seen = format!("{} {}", shown(view.codes), described(&view.verdict));
                self.row(Row {
                    what,
                    expected,
                    seen,
                    took: None,
                    limit,
                    sound: false,
                });
                return Ok(());
            }
        }
    }

    fn last_verdict_change(&self, or: Instant) -> Instant {
        self.stage
            .verdicts
            .changes(0)
            .last()
            .map_or(or, |(at, _)| *at)
    }

    /// Goes on telling for a while.
    fn linger(&mut self, time: Duration) -> Result<()> {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.pump()?;
        }
        Ok(())
    }

    /// Tells what has changed, and gives what is now.
    fn pump(&mut self) -> Result<View> {
        signals::check()?;
        std::thread::sleep(Duration::from_millis(10));
        if let Some(agent) = &mut self.stage.agent
            && let Some(status) = agent.exited()?
        {
            bail!(
                "the agent ended with {status}; the end of its log:\n{}",
                tail(&agent.log())
            );
        }
        self.stage.recent();
        let mut news: Vec<(Instant, Vec<Span>, Option<String>)> = Vec::new();
        let changes = self.stage.watch.changes();
        for change in changes.iter().skip(self.codes_told) {
            news.push((change.at, codes_line(change.codes), None));
        }
        self.codes_told = changes.len();
        let verdicts = self.stage.verdicts.changes(self.verdicts_told);
        self.verdicts_told += verdicts.len();
        for (at, seen) in verdicts {
            news.push((at, verdict_line(&seen), Some(seen.reason)));
        }
        news.sort_by_key(|(at, ..)| *at);
        for (at, line, reason) in news {
            self.timeline.tell_at(at, Kind::Seen, line);
            if let Some(reason) = reason {
                self.timeline.quote(&reason);
            }
        }
        Ok(View {
            codes: self.stage.watch.now(),
            verdict: self.stage.verdicts.now(),
        })
    }

    fn row(&mut self, row: Row) {
        let recent = self.stage.recent();
        let kind = if row.sound { Kind::Good } else { Kind::Bad };
        let text = match row.took {
            Some(took) if row.sound => {
                format!(
                    "{} after {} (allowed: {})",
                    row.expected,
                    time(took),
                    time(row.limit)
                )
            }
            Some(took) => {
                format!(
                    "{}, but only after {} ({})",
                    row.expected,
                    time(took),
                    time(row.limit)
                )
            }
            None if row.sound => format!("{}: {}", row.expected, row.seen),
            None => format!("not seen: {}; seen: {}", row.expected, row.seen),
        };
        self.timeline.tell(kind, &text);
        let ended = recent.ok + recent.failed();
        if let Some(share) = (recent.ok * 100).checked_div(ended) {
            let filled = usize::try_from(share / 5).unwrap_or(0);
            self.timeline.tell_at(
                Instant::now(),
                Kind::Note,
                vec![
                    span(Style::Dim, "clients "),
                    span(Style::Good, "█".repeat(filled)),
                    span(Style::Bad, "░".repeat(20 - filled)),
                    span(
                        Style::Dim,
                        format!(" {share} % of the last {ended} connections answered"),
                    ),
                ],
            );
        }
        self.rows.push(row);
    }

    /// The table at the end; gives whether everything is as expected.
    fn summary(&mut self) -> bool {
        self.timeline.title("What was expected, and what came");
        let heading = format!(
            "   {:28} {:36} {:>8}  {:>8}",
            "what happened", "expected", "took", "allowed"
        );
        self.timeline.raw(vec![span(Style::Dim, heading)]);
        for row in &self.rows {
            let mark = if row.sound {
                span(Style::Good, " ✔ ")
            } else {
                span(Style::Bad, " ✘ ")
            };
            let took = row.took.map_or("-".to_owned(), time);
            let limit = if row.limit.is_zero() {
                "-".to_owned()
            } else {
                time(row.limit)
            };
            let style = if row.sound { Style::Good } else { Style::Bad };
            let mut line = vec![
                mark,
                span(
                    Style::Plain,
                    format!("{:28} {:36} ", row.what, row.expected),
                ),
                span(style, format!("{took:>8}")),
                span(Style::Dim, format!("  {limit:>8}")),
            ];
            if !row.sound {
                line.push(span(Style::Bad, format!("  seen: {}", row.seen)));
            }
            self.timeline.raw(line);
        }
        let sound = self.rows.iter().all(|row| row.sound);
        let tally = self.stage.tally();
        self.timeline.title(&format!(
            "{} ({} connections, {} answered)",
            if sound {
                "all of it happened"
            } else {
                "NOT all of it happened"
            },
            tally.started,
            tally.ok
        ));
        sound
    }
}

/// The last lines of a log, none longer than a terminal shows: a verifier's log is megabytes.
fn tail(log: &str) -> String {
    let lines: Vec<String> = log
        .lines()
        .map(|line| line.chars().take(300).collect())
        .collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

fn time(time: Duration) -> String {
    if time < seconds(1) {
        format!("{} ms", time.as_millis())
    } else {
        format!("{:.1} s", time.as_secs_f64())
    }
}

fn shown(codes: Codes) -> String {
    let word = |code: u16| {
        if code == 0 {
            "none".to_owned()
        } else {
            code.to_string()
        }
    };
    format!(
        "/healthz {}, /livez {}",
        word(codes.healthz),
        word(codes.livez)
    )
}

fn described(verdict: &Seen) -> String {
    match &verdict.cause {
        Some(cause) => format!("{} ({cause})", verdict.state),
        None => verdict.state.clone(),
    }
}

fn codes_line(codes: Codes) -> Vec<Span> {
    let code = |code: u16| match code {
        0 => span(Style::Warn, "no answer"),
        200 => span(Style::Good, "200"),
        code => span(Style::Bad, code.to_string()),
    };
    vec![
        span(Style::Plain, "/healthz "),
        code(codes.healthz),
        span(Style::Plain, "   /livez "),
        code(codes.livez),
    ]
}

fn verdict_line(verdict: &Seen) -> Vec<Span> {
    let style = match verdict.state.as_str() {
        "proven" => Style::Good,
        "broken" | "stale" => Style::Bad,
        _ => Style::Warn,
    };
    vec![
        span(Style::Plain, "verdict "),
        span(style, described(verdict)),
    ]
}
