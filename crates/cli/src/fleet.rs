//! `pathproof fleet`, or `kubectl pathproof`: lists the nodes of a cluster by their conditions, and
//! runs `why`, `status`, `report` and `record` in the pods of agents. Every request goes through kubectl.

use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use pathproof_facts::time::{HumanDuration, Wall};
use pathproof_judge::eligibility::PRESETS;
use pathproof_report::condition::AgentSeen;
use pathproof_rotator::{Group, Row, Tally, age, rows};
use serde::Serialize;

use super::page::{Style, Text, counted, grouped, sentence};
use super::{Exit, report};
use crate::args::{FleetArgs, FleetCommand};

mod bundle;
pub(super) mod kubectl;

/// Version of the document; fields are added, never renamed.
const SCHEMA: u32 = 1;
/// Maximum number of sentences below rows, so that a failing cluster still fits a screen or two.
const SENTENCES: usize = 20;
/// Column where the text of a row begins.
const INDENT: usize = 2;
const TITLES: [&str; 6] = ["node", "verdict", "why", "since", "agent", "eligible"];
/// Index of the verdict among the titles.
const VERDICT: usize = 1;

type Cells = [String; TITLES.len()];

/// Runs the command. It does not return if kubectl replaces this process.
pub fn run(args: &FleetArgs, now: Wall) -> Exit {
    let (command, target) = match &args.command {
        None => {
            let nodes = kubectl::nodes(args);
            return super::end(nodes.map(|nodes| {
                let rows = rows(&nodes, now);
                let list = List::of(&rows, args.unhealthy, now);
                super::show(args.output, &list, |colour| list.page(program(), colour))
            }));
        }
        Some(FleetCommand::Report(page)) => {
            return match kubectl::journals(args) {
                Ok((read, unread)) => super::end(report::show(read, &unread, page, args.output)),
                Err(error) => super::fail(&error),
            };
        }
        Some(FleetCommand::Bundle(wanted)) => return super::end(bundle::run(args, wanted, now)),
        Some(FleetCommand::Why(why)) => ("why", why),
        Some(FleetCommand::Status(status)) => ("status", status),
    };
    let error = match kubectl::agent_pod(args, &target.node) {
        Ok(pod) => kubectl::exec(args, &pod, command, &target.options),
        Err(error) => error,
    };
    super::fail(&error)
}

/// Whether the program was called as a kubectl plugin: `kubectl-pathproof`, or with an underscore,
/// which replaces a dash in plugin names. Windows adds an extension.
pub fn is_plugin(called: &OsStr) -> bool {
    let name = Path::new(called).file_stem().and_then(OsStr::to_str);
    matches!(name, Some("kubectl-pathproof" | "kubectl_pathproof"))
}

/// Name by which the program was called.
fn program() -> &'static str {
    match std::env::args_os().next() {
        Some(called) if is_plugin(&called) => "kubectl pathproof",
        _ => "pathproof fleet",
    }
}

#[derive(Serialize)]
struct List<'a> {
    schema: u32,
    written: Timestamp,
    /// Number of nodes of each kind, including omitted ones.
    summary: Tally,
    /// In the order of the page.
    nodes: Vec<&'a Row>,
    #[serde(skip)]
    now: Wall,
}

impl<'a> List<'a> {
    /// `unhealthy_alone` omits nodes that are proven and not leaving, and nodes that have no agent by design.
    fn of(rows: &'a [Row], unhealthy_alone: bool, now: Wall) -> Self {
        let is_well = |row: &&Row| matches!(row.group, Group::Healthy | Group::NotLinux);
        let shown = rows.iter().filter(|row| !(unhealthy_alone && is_well(row)));
        Self {
            schema: SCHEMA,
            written: now.timestamp(),
            summary: Tally::of(rows),
            nodes: shown.collect(),
            now,
        }
    }

    /// The list as a page: a summary, then the nodes, the worst first. `program` is the name by
    /// which the program was called.
    fn page(&self, program: &str, colour: bool) -> String {
        let mut out = Text::new(colour);
        head(&mut out, &self.summary);
        out.gap();
        self.table(&mut out);
        out.gap();
        self.notes(&mut out, program);
        out.finish()
    }

    fn table(&self, out: &mut Text) {
        if self.nodes.is_empty() {
            return;
        }
        let table: Vec<Cells> = self.nodes.iter().map(|row| cells(row, self.now)).collect();
        let columns = columns(&table);
        for (column, title) in columns.into_iter().zip(TITLES) {
            out.to(column).put(Style::Faint, title);
        }
        out.line();
        let mut group = None;
        let mut sentences = 0;
        for (row, cells) in self.nodes.iter().zip(&table) {
            let (title, mark, style) = of_group(row.group);
            if group.replace(row.group) != Some(row.group) {
                out.gap();
                out.put(Style::Heading, title).line();
            }
            out.put(style, mark);
            for (index, (column, cell)) in columns.into_iter().zip(cells).enumerate() {
                let style = if index == VERDICT {
                    style
                } else {
                    Style::Plain
                };
                out.to(column).put(style, cell);
            }
            out.line();
            sentences += usize::from(row.sentence.is_some());
            if let Some(text) = row.sentence.as_ref().filter(|_| sentences <= SENTENCES) {
                out.to(INDENT + 4);
                out.wrapped(Style::Faint, INDENT + 4, &sentence(text));
            }
        }
    }

    fn notes(&self, out: &mut Text, program: &str) {
        let mut note = |text: &str| out.to(INDENT).wrapped(Style::Faint, INDENT, text);
        let hidden = self.summary.nodes - self.nodes.len();
        if hidden > 0 {
            let nodes = counted(hidden as u64, "other node");
            note(&format!("{nodes} hidden (--unhealthy)"));
        }
        match self.nodes.first() {
            None if hidden == 0 => note("no node matches: check --selector and --context"),
            Some(worst) if matches!(worst.group, Group::NotReady | Group::Uncertain) => {
                note(&format!(
                    "{program} why {} explains its verdict",
                    worst.node
                ));
            }
            _ => {}
        }
    }
}

fn head(out: &mut Text, tally: &Tally) {
    let (style, badge) = match tally {
        Tally { nodes: 0, .. } => (Style::Unsure, "NO NODES"),
        Tally { not_ready: 1.., .. } => (Style::Bad, "NOT READY"),
        Tally { uncertain: 1.., .. } => (Style::Warn, "UNCERTAIN"),
        _ => (Style::Good, "HEALTHY"),
    };
    let parts = [
        (tally.not_ready, "not ready"),
        (tally.uncertain, "uncertain"),
        (tally.leaving, "leaving"),
        (tally.healthy, "healthy"),
        (tally.not_linux, "not Linux"),
    ];
    let mut rest = String::new();
    for (number, word) in parts.into_iter().filter(|(number, _)| *number > 0) {
        let before = if rest.is_empty() { ": " } else { ", " };
        rest.push_str(&format!("{before}{} {word}", grouped(number as u64)));
    }
    out.head(style, badge, &counted(tally.nodes as u64, "node"), &rest);
}

/// First character of each column. A column is as wide as its longest cell, so no name is cut.
fn columns(table: &[Cells]) -> [usize; TITLES.len()] {
    let mut next = INDENT;
    std::array::from_fn(|index| {
        let column = next;
        let widths = table.iter().map(|cells| cells[index].chars().count());
        next += widths.max().unwrap_or(0).max(TITLES[index].len()) + 2;
        column
    })
}

fn cells(row: &Row, now: Wall) -> Cells {
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
        row.agent.as_ref().map_or("-".to_owned(), agent),
        match &row.leaving {
            None => "yes".to_owned(),
            Some(why) => format!("no, {}", leaving(why)),
        },
    ]
}

/// Version and mode. In audit mode the brake holds nothing back.
fn agent(agent: &AgentSeen) -> String {
    match agent.mode() {
        (version, "enforce") if agent.braked => format!("{version} braked"),
        (version, enforcement) => format!("{version} {enforcement}"),
    }
}

fn of_group(group: Group) -> (&'static str, &'static str, Style) {
    match group {
        Group::NotReady => ("not ready", "✗", Style::Bad),
        Group::Uncertain => ("uncertain", "!", Style::Warn),
        Group::Leaving => ("leaving (being removed)", "○", Style::Plain),
        Group::Healthy => ("healthy", "●", Style::Good),
        Group::NotLinux => ("not Linux", "-", Style::Faint),
    }
}

/// Reason why a node is leaving. A taint's key is replaced by the name of its preset, which is shorter.
fn leaving(why: &str) -> &str {
    let preset = PRESETS.iter().find(|preset| preset.keys.contains(&why));
    preset.map_or(why, |preset| preset.name)
}

#[cfg(test)]
mod tests;
