//! Tells what is seen at a node while a script plays, and keeps a row for each thing that is expected.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::signals;
use super::summary::Row;
use super::timeline::{Kind, Style, Timeline, span};
use super::verdict::Seen;
use super::words::{codes_line, described, shown, verdict_line};
use crate::traffic::Tally;
use crate::watch::{Codes, Poll, Watch};

/// Time between two looks.
const PAUSE: Duration = Duration::from_millis(10);
/// Time beyond a limit, at least, to tell late from never.
const LATE: Duration = Duration::from_secs(4);

/// An expectation: the event, in words what should follow, and within which time.
pub(super) type Wanted = (&'static str, &'static str, Duration);

pub(super) const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// The node that a script plays on.
pub(super) trait Node {
    fn watch(&self) -> &Watch;

    fn verdicts(&self) -> &Poll<Seen>;

    /// Fails where the script cannot go on.
    fn check(&mut self) -> Result<()> {
        Ok(())
    }

    /// Results of clients within the last second or so.
    fn recent(&mut self) -> Tally {
        Tally::default()
    }
}

/// State of the node as it shows now.
#[derive(Debug)]
pub(super) struct View {
    pub(super) codes: Codes,
    pub(super) verdict: Seen,
}

impl View {
    pub(super) fn is(&self, healthz: u16, livez: u16) -> bool {
        self.codes == Codes { healthz, livez }
    }
}

pub(super) struct Teller<'a, N> {
    pub(super) stage: &'a mut N,
    pub(super) timeline: &'a mut Timeline,
    pub(super) rows: Vec<Row>,
    pub(super) codes_told: usize,
    verdicts_told: usize,
}

impl<'a, N: Node> Teller<'a, N> {
    pub(super) fn new(stage: &'a mut N, timeline: &'a mut Timeline) -> Self {
        Self {
            stage,
            timeline,
            rows: Vec::new(),
            codes_told: 0,
            verdicts_told: 0,
        }
    }

    /// Waits for what is expected, telling what is seen meanwhile, and notes a row. Goes on after a
    /// disappointment: the later steps are worth seeing.
    pub(super) fn await_row(
        &mut self,
        (what, expected, limit): Wanted,
        start: Instant,
        wanted: impl Fn(&View, &N) -> bool,
    ) -> Result<()> {
        let patience = limit + LATE.max(limit / 2);
        loop {
            let view = self.pump()?;
            let took = wanted(&view, self.stage).then(|| start.elapsed());
            if took.is_none() && start.elapsed() < patience {
                continue;
            }
            self.row(Row {
                what,
                expected,
                seen: format!("{} {}", shown(view.codes), described(&view.verdict)),
                took,
                limit,
                sound: took.is_some_and(|took| took <= limit),
            });
            return Ok(());
        }
    }

    /// Notes a row, and tells how clients fare.
    pub(super) fn row(&mut self, row: Row) {
        let (kind, text) = row.sentence();
        self.timeline.tell(kind, &text);
        self.rows.push(row);
        let recent = self.stage.recent();
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
    }

    /// Goes on telling for a while.
    pub(super) fn linger(&mut self, time: Duration) -> Result<()> {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.pump()?;
        }
        Ok(())
    }

    /// Tells what has changed, and gives what is now.
    fn pump(&mut self) -> Result<View> {
        signals::check()?;
        thread::sleep(PAUSE);
        self.stage.check()?;
        let mut news = Vec::new();
        let codes = self.stage.watch().changes();
        for change in &codes[self.codes_told..] {
            news.push((change.at, codes_line(change.codes), None));
        }
        self.codes_told = codes.len();
        let verdicts = self.stage.verdicts().changes();
        for (at, seen) in &verdicts[self.verdicts_told..] {
            news.push((*at, verdict_line(seen), Some(&seen.reason)));
        }
        self.verdicts_told = verdicts.len();
        news.sort_by_key(|(at, ..)| *at);
        for (at, line, reason) in news {
            self.timeline.tell_at(at, Kind::Seen, line);
            if let Some(reason) = reason {
                self.timeline.quote(reason);
            }
        }
        Ok(View {
            codes: self.stage.watch().now(),
            verdict: self.stage.verdicts().now().unwrap_or_default(),
        })
    }
}
