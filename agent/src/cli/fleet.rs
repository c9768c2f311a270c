//! `pathproof fleet`, or `kubectl pathproof`: lists the nodes of a cluster by their conditions, and
//! runs `why` and `status` in the pod of a node's agent. Every request goes through kubectl.

use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;

use pathproof_facts::time::{HumanDuration, Wall};
use pathproof_judge::eligibility::PRESETS;
use pathproof_rotator::{Group, Row, Tally, age, rows};
use serde::Serialize;

use super::page::{Style, Text, counted, grouped, sentence};
use super::{Exit, colours};
use crate::args::{FleetArgs, FleetCommand, Output};

mod kubectl;

/// Version of the document; fields are added, never renamed.
const SCHEMA: u32 = 1;
/// Maximum number of sentences below rows, so that a failing cluster still fits a screen or two.
const SENTENCES: usize = 20;
/// Number of rows from which the first line is repeated as the last: it has scrolled away.
const LONG: usize = 30;
/// Column where the text of a row begins.
const INDENT: usize = 2;
const TITLES: [&str; 5] = ["node", "verdict", "why", "since", "eligible"];

/// Runs the command. It does not return if kubectl replaces this process.
pub fn run(said: &FleetArgs, now: Wall) -> Exit {
    let (command, target) = match &said.command {
        None => {
            let nodes = kubectl::nodes(said);
            return super::end(nodes.map(|nodes| list(said, &rows(&nodes, now), now)));
        }
        Some(FleetCommand::Why(why)) => ("why", why),
        Some(FleetCommand::Status(status)) => ("status", status),
    };
    let error = match kubectl::agent_pod(said, &target.node) {
        Ok(pod) => kubectl::exec(said, &pod, command, &target.options),
        Err(error) => error,
    };
    super::fail(&error)
}

fn list(said: &FleetArgs, rows: &[Row], now: Wall) -> Exit {
    let view = View {
        colour: colours(),
        now,
        sick_alone: said.sick,
        program: program(),
    };
    match said.output {
        Output::Text => super::print(&render(rows, &view)),
        Output::Json => super::print_json(&Document::of(rows, &view)),
    }
}

/// Whether the program was called as a kubectl plugin: `kubectl-pathproof`, or with an underscore,
/// which replaces a dash in plugin names.
pub(super) fn is_plugin(called: &OsStr) -> bool {
    let name = Path::new(called).file_name().and_then(OsStr::to_str);
    matches!(name, Some("kubectl-pathproof" | "kubectl_pathproof"))
}

/// Name by which the program was called.
fn program() -> &'static str {
    match std::env::args_os().next() {
        Some(called) if is_plugin(&called) => "kubectl pathproof",
        _ => "pathproof fleet",
    }
}

#[derive(Clone, Copy, Debug)]
struct View<'a> {
    colour: bool,
    now: Wall,
    /// Whether to omit nodes that are proven and stay, and nodes that have no agent by design.
    sick_alone: bool,
    /// Name by which the program was called, such as `kubectl pathproof`.
    program: &'a str,
}

impl View<'_> {
    fn shown<'r>(&self, rows: &'r [Row]) -> Vec<&'r Row> {
        let shown =
            |row: &&Row| !self.sick_alone || !matches!(row.group, Group::Sound | Group::NotLinux);
        rows.iter().filter(shown).collect()
    }
}

#[derive(Serialize)]
struct Document<'a> {
    schema: u32,
    written: String,
    /// Number of nodes of each kind, including omitted ones.
    summary: Tally,
    /// In the order of the page.
    nodes: Vec<&'a Row>,
}

impl<'a> Document<'a> {
    fn of(rows: &'a [Row], view: &View<'_>) -> Self {
        Self {
            schema: SCHEMA,
            written: view.now.to_string(),
            summary: Tally::of(rows),
            nodes: view.shown(rows),
        }
    }
}

/// The list as a page: a summary, then the nodes, the sick ones first.
fn render(rows: &[Row], view: &View<'_>) -> String {
    let shown = view.shown(rows);
    let tally = Tally::of(rows);
    let mut out = Text::new(view.colour);
    head(&mut out, &tally);
    let columns = columns(&shown, view.now);
    if !shown.is_empty() {
        out.line();
        for (column, title) in columns.into_iter().zip(TITLES) {
            out.to(column).put(Style::Faint, title);
        }
        out.line();
    }
    let mut group = None;
    let mut sentences = 0;
    for row in &shown {
        let (title, mark, style) = of_group(row.group);
        if group.replace(row.group) != Some(row.group) {
            out.line();
            out.put(Style::Heading, title).line();
        }
        out.put(style, mark);
        let styles = [
            Style::Plain,
            style,
            Style::Plain,
            Style::Plain,
            Style::Plain,
        ];
        for ((column, style), cell) in columns.into_iter().zip(styles).zip(cells(row, view.now)) {
            out.to(column).put(style, &cell);
        }
        out.line();
        sentences += usize::from(row.sentence.is_some());
        if let Some(text) = row.sentence.as_ref().filter(|_| sentences <= SENTENCES) {
            out.to(INDENT + 4);
            out.wrapped(Style::Faint, INDENT + 4, &sentence(text));
        }
    }
    notes(&mut out, rows.len() - shown.len(), &shown, view.program);
    if shown.len() >= LONG {
        out.line();
        head(&mut out, &tally);
    }
    out.finish()
}

fn head(out: &mut Text, tally: &Tally) {
    let (style, badge) = match tally {
        Tally { nodes: 0, .. } => (Style::Unsure, "NO NODES"),
        Tally { sick: 1.., .. } => (Style::Bad, "SICK"),
        Tally { doubtful: 1.., .. } => (Style::Warn, "IN DOUBT"),
        _ => (Style::Good, "SOUND"),
    };
    let parts = [
        (tally.sick, "sick"),
        (tally.doubtful, "in doubt"),
        (tally.leaving, "leaving"),
        (tally.sound, "sound"),
        (tally.not_linux, "not Linux"),
    ];
    let parts = parts.into_iter().filter(|(number, _)| *number > 0);
    let parts: Vec<String> = parts
        .map(|(number, word)| format!("{} {word}", grouped(number as u64)))
        .collect();
    let rest = match parts.is_empty() {
        true => String::new(),
        false => format!(": {}", parts.join(", ")),
    };
    out.head(style, badge, &counted(tally.nodes as u64, "node"), &rest);
}

/// First character of each column. A column is as wide as its longest cell, so no name is cut.
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
        next += width + 2;
        column
    })
}

fn cells(row: &Row, now: Wall) -> [String; TITLES.len()] {
    let since = row.since.map(|since| age(since, now).as_secs());
    [
        row.node.clone(),
        row.verdict.to_owned(),
        row.reason.clone(),
        match since {
            None => "-".to_owned(),
            Some(seconds @ 172_800..) => format!("{} d", seconds / 86_400),
            Some(seconds) => HumanDuration(Duration::from_secs(seconds)).to_string(),
        },
        match &row.leaving {
            None => "yes".to_owned(),
            Some(why) => format!("no, {}", leaving(why)),
        },
    ]
}

fn notes(out: &mut Text, left_out: usize, shown: &[&Row], program: &str) {
    let mut lines = Vec::new();
    if left_out > 0 {
        let nodes = counted(left_out as u64, "other node");
        lines.push(format!("{nodes} hidden (--sick)"));
    }
    if shown.is_empty() && left_out == 0 {
        lines.push("no node matches: check --selector and --context".to_owned());
    }
    let worst = shown.first().filter(|row| !is_well(row.group));
    if let Some(Row { node, .. }) = worst {
        lines.push(format!("{program} why {node} explains its verdict"));
    }
    if !lines.is_empty() {
        out.line();
    }
    for line in lines {
        out.to(INDENT).wrapped(Style::Faint, INDENT, &line);
    }
}

/// Whether these nodes need no attention.
fn is_well(group: Group) -> bool {
    matches!(group, Group::Leaving | Group::Sound | Group::NotLinux)
}

fn of_group(group: Group) -> (&'static str, &'static str, Style) {
    match group {
        Group::Sick => ("sick", "✗", Style::Bad),
        Group::Doubtful => ("in doubt", "!", Style::Warn),
        Group::Leaving => ("leaving (being removed)", "○", Style::Plain),
        Group::Sound => ("sound", "●", Style::Good),
        Group::NotLinux => ("not Linux", "-", Style::Faint),
    }
}

/// The preset of a taint, which is shorter than its key.
fn leaving(why: &str) -> &str {
    let preset = PRESETS.iter().find(|preset| preset.keys.contains(&why));
    preset.map_or(why, |preset| preset.name)
}

#[cfg(test)]
mod tests;
