//! The table at the demo's end: what was expected, and what came.

use std::time::Duration;

use super::timeline::{Kind, Style, Timeline, span};
use crate::traffic::Tally;

/// One row of the summary.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) what: &'static str,
    pub(super) expected: &'static str,
    pub(super) seen: String,
    pub(super) took: Option<Duration>,
    pub(super) limit: Duration,
    pub(super) sound: bool,
}

/// Outcome of the whole script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// All of it happened in time.
    Met,
    /// All of it happened, some of it late: on a busy machine that says nothing of the agent.
    Late,
    /// Something did not happen.
    Missed,
}

impl Row {
    /// It happened, but not in time.
    fn is_late(&self) -> bool {
        !self.sound && self.took.is_some()
    }

    /// The row as a sentence of the timeline.
    pub(super) fn sentence(&self) -> (Kind, String) {
        let kind = if self.sound { Kind::Good } else { Kind::Bad };
        let Self { expected, seen, .. } = self;
        let text = match self.took {
            Some(took) if self.sound && self.limit.is_zero() => {
                format!("{expected} after {}", time(took))
            }
            Some(took) if self.sound => {
                format!(
                    "{expected} after {} (allowed: {})",
                    time(took),
                    time(self.limit)
                )
            }
            Some(took) => {
                format!(
                    "{expected}, but only after {} ({})",
                    time(took),
                    time(self.limit)
                )
            }
            None if self.sound => format!("{expected}: {seen}"),
            None => format!("not seen: {expected}; seen: {seen}"),
        };
        (kind, text)
    }
}

/// The table at the end.
pub(super) fn tell(rows: &[Row], tally: Tally, timeline: &mut Timeline) -> Outcome {
    timeline.title("Expected and observed results");
    let heading = format!(
        "   {:28} {:36} {:>8}  {:>8}",
        "what happened", "expected", "took", "allowed"
    );
    timeline.raw(vec![span(Style::Dim, heading)]);
    for row in rows {
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
        if !row.sound && !row.is_late() {
            line.push(span(Style::Bad, format!("  seen: {}", row.seen)));
        }
        timeline.raw(line);
    }
    let outcome = match rows.iter().find(|row| !row.sound) {
        None => Outcome::Met,
        Some(_) if rows.iter().all(|row| row.sound || row.is_late()) => Outcome::Late,
        Some(_) => Outcome::Missed,
    };
    timeline.title(&format!(
        "{} ({} connections, {} answered)",
        match outcome {
            Outcome::Met => "all results as expected",
            Outcome::Late => "all results as expected, some late",
            Outcome::Missed => "NOT all results as expected",
        },
        tally.started,
        tally.ok
    ));
    outcome
}

/// As a person writes it.
pub(super) fn time(time: Duration) -> String {
    if time < Duration::from_secs(1) {
        format!("{} ms", time.as_millis())
    } else {
        format!("{:.1} s", time.as_secs_f64())
    }
}
