//! `pathproof report`: one page on weeks of audit, to decide whether to enforce. It has every episode in which
//! nodes were, or would have been, answered with 503, the operator's verdict on each, and one headline.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use jiff::civil::Date;
use pathproof_facts::time::HumanDuration;
use pathproof_report::episodes::{EPISODES_KEPT, End, Episode, Journal, SCHEMA, day};
use pathproof_shared::input;
use thiserror::Error;
use verdicts::{Judged, OperatorVerdict};

use super::page::{Style, Text, counted, grouped, sentence};
use super::{Exit, FetchError, fetch};
use crate::args::{Output, PageArgs, ReportArgs};

mod html;
mod verdicts;

/// Maximum size of a file that is read: the longest journals of 200 nodes.
pub(super) const MAX_FILE: u64 = 100 << 20;
const TITLES: &str = "begin                   lasted  cause             answer  verdict  node";
const NOTES: &str = "An episode is a time in which the node was, or would have been, answered with 503 for its \
                     datapath. `+` means that its end was not observed. The answer is that of /livez when it \
                     began: 200 means that audit mode or the fleet brake held the 503 back. Only what audit mode \
                     held back and the verdict right approves counts as what enforcing would have saved, and \
                     of its connections only those of clients outside, whom load balancers send elsewhere. \
                     What the fleet brake would have held back in audit is not subtracted. What kube-proxy's \
                     own /healthz answered is not known: the agent does not request it.";

#[derive(Debug, Error)]
pub(super) enum Problem {
    #[error(transparent)]
    Agent(#[from] FetchError),
    #[error("{}: {}", .0.display(), .1)]
    File(PathBuf, #[source] io::Error),
    #[error(
        "{0}: not a journal that this version reads: give what /episodes or `pathproof report \
         --output json` prints"
    )]
    Journal(String, #[source] serde_json::Error),
    #[error("{}:{}: {}", .0.display(), .1, .2)]
    Verdict(PathBuf, usize, String),
}

pub fn run(args: &ReportArgs) -> Exit {
    let journals = gather(args);
    super::end(journals.and_then(|journals| show(journals, &[], &args.page, args.output)))
}

fn gather(args: &ReportArgs) -> Result<Vec<Journal>, Problem> {
    if args.from.is_empty() {
        let address = &args.admin.address;
        return parse(address, fetch::episodes(address)?.as_bytes());
    }
    let of_file = |path: &PathBuf| {
        let document = input::read(path, MAX_FILE);
        let document = document.map_err(|source| Problem::File(path.clone(), source))?;
        parse(&path.display().to_string(), &document)
    };
    let journals: Result<Vec<_>, Problem> = args.from.iter().map(of_file).collect();
    Ok(journals?.concat())
}

/// Parses a journal, or a list of them. `from` names the source for an error.
pub(super) fn parse(from: &str, document: &[u8]) -> Result<Vec<Journal>, Problem> {
    let parsed = || -> serde_json::Result<Vec<Journal>> {
        let journals: Vec<Journal> = match document.trim_ascii_start().starts_with(b"[") {
            true => serde_json::from_slice(document)?,
            false => vec![serde_json::from_slice(document)?],
        };
        match journals.iter().all(|journal| journal.schema == SCHEMA) {
            true => Ok(journals),
            false => Err(serde::de::Error::custom("it has another schema")),
        }
    };
    parsed().map_err(|source| Problem::Journal(from.to_owned(), source))
}

/// Prints the page, and writes it as HTML if that is wanted. `unread` has the nodes whose journal could not be
/// read, with the reason.
pub(super) fn show(
    journals: Vec<Journal>,
    unread: &[String],
    page: &PageArgs,
    output: Output,
) -> Result<Exit, Problem> {
    let by_node = |journal: Journal| (journal.node.clone(), journal);
    let audit = Audit {
        journals: journals.into_iter().map(by_node).collect(),
        unread,
        verdicts: page.verdicts.as_deref().map_or(Ok(Vec::new()), read)?,
    };
    if let Some(path) = &page.html {
        let written = fs::write(path, html::page(&audit));
        written.map_err(|source| Problem::File(path.clone(), source))?;
    }
    let journals: Vec<&Journal> = audit.journals.values().collect();
    let shown = super::show(output, &journals, |colour| audit.page(colour));
    Ok(match unread {
        [] => shown,
        _ => shown.then(Exit::Failure),
    })
}

fn read(path: &Path) -> Result<Vec<OperatorVerdict>, Problem> {
    let text = fs::read_to_string(path);
    let text = text.map_err(|source| Problem::File(path.to_owned(), source))?;
    let verdicts = verdicts::parse(&text);
    verdicts.map_err(|(line, why)| Problem::Verdict(path.to_owned(), line, why))
}

struct Audit<'a> {
    /// By node. Of several journals of a node, the last one counts.
    journals: BTreeMap<String, Journal>,
    unread: &'a [String],
    verdicts: Vec<OperatorVerdict>,
}

/// An episode, and the operator's last verdict on it.
struct Row<'a> {
    node: &'a str,
    episode: &'a Episode,
    judged: Judged,
    note: &'a str,
}

impl Audit<'_> {
    /// All episodes by time.
    fn rows(&self) -> Vec<Row<'_>> {
        let mut rows = Vec::new();
        for journal in self.journals.values() {
            for episode in &journal.episodes {
                let mut verdicts = self.verdicts.iter().rev();
                let verdict = verdicts.find(|verdict| verdict.is_on(journal, episode));
                let (judged, note) = verdict.map_or((Judged::Unknown, ""), |verdict| {
                    (verdict.judged, &*verdict.note)
                });
                rows.push(Row {
                    node: &journal.node,
                    episode,
                    judged,
                    note,
                });
            }
        }
        rows.sort_by_key(|row| row.episode.begin);
        rows
    }

    /// Days on which a node was observed or had an episode.
    fn days(&self) -> BTreeSet<Date> {
        let mut days: BTreeSet<Date> = BTreeSet::new();
        for journal in self.journals.values() {
            days.extend(journal.observed_ns.keys());
            days.extend(journal.episodes.iter().map(|episode| day(episode.begin)));
        }
        days
    }

    fn headline(&self, rows: &[Row<'_>]) -> String {
        let journals = self.journals.values();
        let observed = journals.flat_map(|journal| journal.observed_ns.values());
        let observed = observed.fold(0_u64, |sum, ns| sum.saturating_add(*ns));
        let (mut lasted, mut failed) = (Duration::ZERO, 0_u64);
        let is_saved = |row: &&Row<'_>| {
            let by_audit = row.episode.answered == 200 && !row.episode.held;
            row.judged == Judged::Right && by_audit
        };
        for Row { episode, .. } in rows.iter().filter(is_saved) {
            lasted = lasted.saturating_add(episode.lasted);
            failed = failed.saturating_add(episode.failed_outside);
        }
        let count = |judged: Judged| rows.iter().filter(|row| row.judged == judged).count();
        let text = format!(
            "{} wrong in {} node-hours, would have saved {:.1} node-minutes and {} of clients \
             outside",
            count(Judged::Wrong),
            grouped(Duration::from_nanos(observed).as_secs() / 3_600),
            lasted.as_secs_f64() / 60.0,
            counted(failed, "failed connection")
        );
        let all = counted(rows.len() as u64, "episode");
        match count(Judged::Unknown) {
            0 => text,
            unknown => format!("{unknown} of {all} not judged yet; so far {text}"),
        }
    }

    fn page(&self, colour: bool) -> String {
        let rows = self.rows();
        let mut out = Text::new(colour);
        let days = self.days();
        let period = match (days.first(), days.last()) {
            (Some(from), Some(to)) => format!(", {from} to {to}"),
            _ => ", nothing observed".to_owned(),
        };
        let nodes = counted(self.journals.len() as u64, "node");
        out.head(Style::Unsure, "report", &nodes, &period);
        out.wrapped(Style::Heading, 0, &sentence(&self.headline(&rows)));
        out.gap();
        if !rows.is_empty() {
            out.put(Style::Faint, TITLES).line();
        }
        rows.iter().for_each(|row| row.put(&mut out));
        out.gap();
        out.list("not read", Style::Warn, self.unread);
        for Journal { node, deleted, .. } in self.journals.values().filter(|one| one.deleted > 0) {
            let text = format!("{deleted} earlier ones of {node}; it keeps {EPISODES_KEPT}");
            out.section("not shown", Style::Warn, &text);
        }
        out.gap();
        out.wrapped(Style::Faint, 0, NOTES);
        out.finish()
    }
}

impl Row<'_> {
    fn put(&self, out: &mut Text) {
        let (episode, verdict, node) = (self.episode, self.judged.name(), self.node);
        let Episode {
            begin,
            cause,
            answered,
            ..
        } = episode;
        let lasted = self.lasted();
        let cells = format!("{begin}{lasted:>10}  {cause:<17} {answered:<8}{verdict:<9}{node}");
        out.put(Style::Plain, &cells).line();
        out.to(6).wrapped(Style::Faint, 6, &self.details());
    }

    fn lasted(&self) -> String {
        let is_known = self.episode.end == End::Recovered;
        let more = if is_known { "" } else { "+" };
        format!("{}{more}", HumanDuration(self.episode.lasted))
    }

    /// Failed connections by Service, the recording, and the operator's note.
    fn details(&self) -> String {
        let episode = self.episode;
        let mut details = counted(episode.connections(), "failed connection");
        if episode.failed_outside > 0 {
            let outside = grouped(episode.failed_outside);
            details = format!("{details} ({outside} of clients outside)");
        }
        for (service, failed) in &episode.failed {
            details = format!("{details}, {service} {}", grouped(*failed));
        }
        if episode.failed_others > 0 {
            details = format!("{details}, others {}", grouped(episode.failed_others));
        }
        if let Some(recording) = &episode.recording {
            details = format!("{details}; recording {recording}");
        }
        if !self.note.is_empty() {
            details = format!("{details}; {}", self.note);
        }
        details
    }
}

#[cfg(test)]
mod tests;
