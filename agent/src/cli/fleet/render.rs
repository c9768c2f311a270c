//! The list as a page: a sentence that says it all, then the nodes, the sick first.

use std::time::Duration;

use super::super::paper::{Ink, Paper, counted, grouped, sentence};
use super::{Fleet, View};
use crate::domain::fleet::{Eligible, Group, Judged, Row, Tally};
use crate::domain::node::PRESETS;
use crate::domain::time::{Spoken, Wall};

/// Sentences beneath rows, so that a cluster in flames still fits a screen or two.
const SENTENCES: usize = 20;
/// From so many rows on, the first line is said again as the last: it has scrolled away.
const LONG: usize = 30;
/// Between two columns.
const GAP: usize = 2;
/// Where a row's own text begins.
const INDENT: usize = 2;

/// The page.
pub(super) fn render(fleet: &Fleet, view: &View<'_>) -> String {
    let shown: Vec<&Row> = fleet
        .rows
        .iter()
        .filter(|row| !view.sick_alone || row.group != Group::Sound)
        .collect();
    let mut page = Page {
        paper: Paper::new(view.colour),
        columns: Columns::of(&shown, view.now),
        view,
        sentences: 0,
    };
    page.head(&fleet.tally);
    if !shown.is_empty() {
        page.titles();
        for group in [Group::Sick, Group::Doubtful, Group::Leaving, Group::Sound] {
            page.group(group, &shown);
        }
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
    columns: Columns,
    view: &'a View<'a>,
    sentences: usize,
}

/// Where each column begins: as wide as what stands in it, so that no name is cut.
struct Columns {
    verdict: usize,
    why: usize,
    since: usize,
    eligible: usize,
}

impl Columns {
    fn of(rows: &[&Row], now: Wall) -> Self {
        let width = |title: &str, text: &dyn Fn(&Row) -> String| {
            let longest = rows.iter().map(|row| text(row).chars().count()).max();
            longest.unwrap_or(0).max(title.len()) + GAP
        };
        let verdict = INDENT + width("node", &|row| row.node.clone());
        let why = verdict + width("verdict", &|row| row.judged.name().to_owned());
        let since = why + width("why", &|row| row.reason.clone());
        let eligible = since + width("since", &|row| since_of(row, now));
        Self {
            verdict,
            why,
            since,
            eligible,
        }
    }
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

    fn titles(&mut self) {
        self.paper.line();
        self.paper.to(INDENT).put(Ink::Faint, "node");
        let columns = &self.columns;
        for (column, title) in [
            (columns.verdict, "verdict"),
            (columns.why, "why"),
            (columns.since, "since"),
            (columns.eligible, "eligible"),
        ] {
            self.paper.to(column).put(Ink::Faint, title);
        }
        self.paper.line();
    }

    fn group(&mut self, group: Group, rows: &[&Row]) {
        let rows: Vec<&&Row> = rows.iter().filter(|row| row.group == group).collect();
        if rows.is_empty() {
            return;
        }
        let title = match group {
            Group::Sick => "sick",
            Group::Doubtful => "in doubt",
            Group::Leaving => "leaving, as expected",
            Group::Sound => "sound",
        };
        self.paper.line();
        self.paper.put(Ink::Heading, title).line();
        for row in rows {
            self.row(row);
        }
    }

    fn row(&mut self, row: &Row) {
        let ink = ink(row);
        let columns = &self.columns;
        let paper = &mut self.paper;
        paper.put(ink, mark(row.group)).put(Ink::Plain, " ");
        paper.put(Ink::Plain, &row.node);
        paper.to(columns.verdict).put(ink, row.judged.name());
        paper.to(columns.why).put(Ink::Plain, &row.reason);
        let since = since_of(row, self.view.now);
        paper.to(columns.since).put(faint(&since), &since);
        paper.to(columns.eligible);
        match &row.eligible {
            Eligible::Yes => paper.put(Ink::Plain, "yes"),
            Eligible::No(why) => paper.put(Ink::Warn, &format!("no, {}", leaving(why))),
        };
        paper.line();
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
        Judged::State(state) => Ink::of(state),
        Judged::Recovering | Judged::NotReady => Ink::Bad,
        Judged::Ready => Ink::Good,
        Judged::OutOfDate => Ink::Warn,
        Judged::NoAgent => Ink::Faint,
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

fn faint(text: &str) -> Ink {
    if text == "-" { Ink::Faint } else { Ink::Plain }
}

fn since_of(row: &Row, now: Wall) -> String {
    let Some(since) = row.since else {
        return "-".to_owned();
    };
    let age = u64::try_from(now.0.saturating_sub(since.0)).unwrap_or(0);
    let age = Duration::from_nanos(age);
    match age.as_secs() / 86_400 {
        0 | 1 => Spoken(Duration::from_secs(age.as_secs())).to_string(),
        days => format!("{days} d"),
    }
}
