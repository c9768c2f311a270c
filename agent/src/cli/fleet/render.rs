//! The list as a page: a sentence that says it all, then the nodes, the sick first.

use std::time::Duration;

use super::super::paper::{Ink, Paper, counted, grouped, sentence};
use super::{Fleet, View};
use agent_core::eligibility::PRESETS;
use agent_core::fleet::{Group, Judged, Row, Tally, age};
use agent_core::time::{Spoken, Wall};

/// Sentences beneath rows, so that a cluster in flames still fits a screen or two.
const SENTENCES: usize = 20;
/// From so many rows on, the first line is said again as the last: it has scrolled away.
const LONG: usize = 30;
/// Between two columns.
const GAP: usize = 2;
/// Where a row's own text begins.
const INDENT: usize = 2;

/// Titles of the columns.
const TITLES: [&str; 5] = ["node", "verdict", "why", "since", "eligible"];

/// The page.
pub(super) fn render(fleet: &Fleet, view: &View<'_>) -> String {
    let shown = fleet.shown(view);
    let mut page = Page {
        paper: Paper::new(view.colour),
        columns: columns(&shown, view.now),
        view,
        sentences: 0,
    };
    page.head(&fleet.tally);
    if !shown.is_empty() {
        page.paper.line();
        for (column, title) in page.columns.into_iter().zip(TITLES) {
            page.paper.to(column).put(Ink::Faint, title);
        }
        page.paper.line();
    }
    let mut group = None;
    for row in &shown {
        if group.replace(row.group) != Some(row.group) {
            page.paper.line();
            page.paper.put(Ink::Heading, title(row.group)).line();
        }
        page.row(row);
    }
    page.notes(fleet, &shown);
    if shown.len() >= LONG {
        page.paper.line();
        page.head(&fleet.tally);
    }
    page.paper.finish()
}

struct Page<'a> {
    paper: Paper,
    columns: [usize; TITLES.len()],
    view: &'a View<'a>,
    sentences: usize,
}

/// Where each column begins: as wide as what stands in it, so that no name is cut.
fn columns(rows: &[&Row], now: Wall) -> [usize; TITLES.len()] {
    let mut widths = TITLES.map(str::len);
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(cells(row, now)) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut next = INDENT;
    widths.map(|width| {
        let column = next;
        next += width + GAP;
        column
    })
}

/// What stands in a row's columns.
fn cells(row: &Row, now: Wall) -> [String; TITLES.len()] {
    [
        row.node.clone(),
        row.judged.name().to_owned(),
        row.reason.clone(),
        since_of(row, now),
        match &row.leaving {
            None => "yes".to_owned(),
            Some(why) => format!("no, {}", leaving(why)),
        },
    ]
}

impl Page<'_> {
    fn head(&mut self, tally: &Tally) {
        let (ink, badge) = match tally {
            Tally { nodes: 0, .. } => (Ink::Unsure, "NOTHING"),
            Tally { sick: 1.., .. } => (Ink::Bad, "SICK"),
            Tally { doubtful: 1.., .. } => (Ink::Warn, "IN DOUBT"),
            _ => (Ink::Good, "SOUND"),
        };
        self.paper.badge(ink, badge).put(Ink::Plain, "  ");
        let mut parts = vec![counted(tally.nodes as u64, "node")];
        for (number, word) in [
            (tally.sick, "sick"),
            (tally.doubtful, "in doubt"),
            (tally.leaving, "leaving"),
            (tally.sound, "sound"),
        ] {
            if number > 0 {
                parts.push(format!("{} {word}", grouped(number as u64)));
            }
        }
        self.paper.put(Ink::Heading, &parts.remove(0));
        if !parts.is_empty() {
            let rest = format!(": {}", parts.join(", "));
            self.paper.put(Ink::Plain, &rest);
        }
        self.paper.line();
    }

    fn row(&mut self, row: &Row) {
        let ink = ink(row);
        self.paper.put(ink, mark(row.group));
        let eligible = row.leaving.as_ref().map_or(Ink::Plain, |_| Ink::Warn);
        let since = row.since.map_or(Ink::Faint, |_| Ink::Plain);
        let inks = [Ink::Plain, ink, Ink::Plain, since, eligible];
        let cells = cells(row, self.view.now);
        for ((column, ink), cell) in self.columns.into_iter().zip(inks).zip(&cells) {
            self.paper.to(column).put(ink, cell);
        }
        self.paper.line();
        self.sentence(row);
    }

    fn sentence(&mut self, row: &Row) {
        let Some(text) = &row.sentence else { return };
        self.sentences += 1;
        if self.sentences > SENTENCES {
            return;
        }
        self.paper.to(INDENT + 4);
        self.paper.wrapped(Ink::Faint, INDENT + 4, &sentence(text));
    }

    fn notes(&mut self, fleet: &Fleet, shown: &[&Row]) {
        let left_out = fleet.rows.len() - shown.len();
        let mut lines = Vec::new();
        if left_out > 0 {
            let nodes = counted(left_out as u64, "sound node");
            lines.push(format!("{nodes} left out (--sick)"));
        }
        if let Some(first) = shown.first().filter(|row| row.group == Group::Sick) {
            let (program, node) = (self.view.program, &first.node);
            lines.push(format!(
                "{program} why {node} tells how its verdict came about"
            ));
        }
        if !lines.is_empty() {
            self.paper.line();
        }
        for line in lines {
            self.paper.to(INDENT);
            self.paper.wrapped(Ink::Faint, INDENT, &line);
        }
    }
}

fn ink(row: &Row) -> Ink {
    match row.judged {
        Judged::Broken | Judged::Stale | Judged::NotReady | Judged::Recovering => Ink::Bad,
        Judged::Degraded | Judged::Suspect | Judged::OutOfDate => Ink::Warn,
        Judged::Unknown | Judged::Starting => Ink::Unsure,
        Judged::NoAgent => Ink::Faint,
        Judged::Ready | Judged::Proven => Ink::Good,
    }
}

fn title(group: Group) -> &'static str {
    match group {
        Group::Sick => "sick",
        Group::Doubtful => "in doubt",
        Group::Leaving => "leaving, as expected",
        Group::Sound => "sound",
    }
}

fn mark(group: Group) -> &'static str {
    match group {
        Group::Sick => "✗",
        Group::Doubtful => "!",
        Group::Leaving => "○",
        Group::Sound => "●",
    }
}

/// A taint by the name of its preset, which is shorter.
fn leaving(why: &str) -> &str {
    let preset = PRESETS.iter().find(|preset| preset.keys.contains(&why));
    preset.map_or(why, |preset| preset.name)
}

fn since_of(row: &Row, now: Wall) -> String {
    let Some(since) = row.since else {
        return "-".to_owned();
    };
    let seconds = age(since, now).as_secs();
    match seconds / 86_400 {
        0 | 1 => Spoken(Duration::from_secs(seconds)).to_string(),
        days => format!("{days} d"),
    }
}
