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

impl Row {
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

/// The table at the end; gives whether everything is as expected.
pub(super) fn tell(rows: &[Row], tally: Tally, timeline: &mut Timeline) -> bool {
    timeline.title("What was expected, and what came");
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
        if !row.sound {
            line.push(span(Style::Bad, format!("  seen: {}", row.seen)));
        }
        timeline.raw(line);
    }
    let sound = rows.iter().all(|row| row.sound);
    timeline.title(&format!(
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

/// As a person writes it.
pub(super) fn time(time: Duration) -> String {
    if time < Duration::from_secs(1) {
        format!("{} ms", time.as_millis())
    } else {
        format!("{:.1} s", time.as_secs_f64())
    }
}
