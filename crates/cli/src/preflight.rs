//! `pathproof preflight`: whether a cluster has what pathproof needs, before anything is installed.
//!
//! Each check is a function of the lists that `read` gets. `lines.txt` has every line that a check can give.

use pathproof_shared::docs::address;
use pathproof_shared::versions::{is_older, numbers};
use serde::Serialize;
use serde_json::json;

use super::Exit;
use super::page::{Style, TEXT, Text, sentence};
use crate::args::PreflightArgs;

mod balancers;
mod network;
mod platform;
mod read;

use read::Cluster;

/// Version of the document; fields are added, never renamed.
const SCHEMA: u32 = 1;
const LINES: &str = include_str!("preflight/lines.txt");
/// Maximum number of objects that one line of the page names.
const NAMED: usize = 3;
/// The verdicts, the worst first: name, style, mark, and the exit code if it is the worst one of a cluster.
const VERDICTS: [(&str, Style, &str, Exit); 4] = [
    ("refused", Style::Bad, "✗", Exit::Failure),
    ("unknown", Style::Unsure, "?", Exit::Unknown),
    ("warning", Style::Warn, "!", Exit::Success),
    ("ok", Style::Good, "●", Exit::Success),
];

#[derive(Debug, Serialize)]
struct Line {
    check: &'static str,
    verdict: &'static str,
    sentence: String,
    /// Names of the objects that the sentence is about.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    objects: Vec<String>,
    /// Absent if the verdict is ok.
    #[serde(skip_serializing_if = "String::is_empty")]
    remedy: String,
    page: String,
}

/// Runs the command.
pub fn run(args: &PreflightArgs) -> Exit {
    super::end(read::cluster(args).map(|cluster| {
        let lines = lines(cluster);
        let (result, _, _, exit) = worst(&lines);
        let document = json!({ "schema": SCHEMA, "result": result, "lines": lines });
        super::show(args.output, &document, |colour| page(&lines, colour)).then(exit)
    }))
}

fn lines(cluster: Cluster) -> Vec<Line> {
    let mut lines = platform::installation(&cluster);
    lines.extend(platform::nodes(&cluster));
    lines.extend(network::addresses(&cluster));
    lines.extend(network::proxy(&cluster));
    lines.extend(balancers::lines(&cluster));
    lines.extend(cluster.unread);
    lines
}

fn worst(lines: &[Line]) -> (&'static str, Style, &'static str, Exit) {
    let mut all = VERDICTS.into_iter();
    let found = all.find(|(name, ..)| lines.iter().any(|line| line.verdict == *name));
    found.unwrap_or(VERDICTS[1])
}

fn page(lines: &[Line], colour: bool) -> String {
    let mut out = Text::new(colour);
    let counts = VERDICTS.map(|(name, ..)| {
        let count = lines.iter().filter(|line| line.verdict == name).count();
        format!("{count} {name}")
    });
    let (name, style, ..) = worst(lines);
    let counts = format!(": {}", counts.join(", "));
    out.head(style, name, "preflight", &counts);
    out.gap();
    for line in lines {
        let (_, style, mark, _) = worst(std::slice::from_ref(line));
        out.put(style, mark).to(2);
        out.put(Style::Heading, line.check).to(TEXT);
        let shown = line.objects[..line.objects.len().min(NAMED)].join(", ");
        let text = match line.objects.len().saturating_sub(NAMED) {
            _ if shown.is_empty() => line.sentence.clone(),
            0 => format!("{}: {shown}", line.sentence),
            more => format!("{}: {shown} and {more} more", line.sentence),
        };
        out.wrapped(Style::Plain, TEXT, &sentence(&text));
        if !line.remedy.is_empty() {
            out.more(Style::Plain, &line.remedy);
            out.more(Style::Faint, &line.page);
        }
    }
    out.finish()
}

/// The line of a key in `lines.txt`; `value` replaces `{}`.
fn line(key: &str, value: &str) -> Line {
    let mut rows = LINES.lines();
    let row = rows.find_map(|row| row.strip_prefix(key)?.strip_prefix(" | "));
    let mut fields = row.unwrap_or_default().split(" | ");
    let mut next = || fields.next().unwrap_or_default();
    Line {
        verdict: next(),
        check: next(),
        page: address(next()),
        sentence: next().replace("{}", value),
        remedy: next().replace("{}", value),
        objects: Vec::new(),
    }
}

/// The keys that begin with `prefix`, without it.
fn marks(prefix: &str) -> impl Iterator<Item = &'static str> {
    let keys = LINES.lines().filter_map(|row| row.split(" | ").next());
    keys.filter_map(move |key| key.strip_prefix(prefix))
}

/// The line of a version. A key such as `kernel <6.1` is for older ones, the lowest limit first.
fn graded(kind: &str, version: &str) -> Line {
    if numbers(version).is_empty() {
        return line("no version", &format!("{kind} {version:?}"));
    }
    let below = format!("{kind} <");
    match marks(&below).find(|limit| is_older(version, limit)) {
        Some(limit) => line(&format!("{below}{limit}"), version),
        None => line(kind, version),
    }
}

/// Makes one line of all that have the same sentence. Each comes with the name of its object.
fn merged(lines: impl Iterator<Item = (String, Line)>) -> Vec<Line> {
    let mut all: Vec<Line> = Vec::new();
    for (name, mut line) in lines {
        match all.iter_mut().find(|one| one.sentence == line.sentence) {
            Some(one) => one.objects.push(name),
            None => {
                line.objects.push(name);
                all.push(line);
            }
        }
    }
    all
}

#[cfg(test)]
mod tests;
