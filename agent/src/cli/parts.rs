//! Parts that several pages share: the sentinel's lanes, failing Services, losses of coverage, and remedies.

use std::collections::BTreeMap;
use std::time::Duration;

use pathproof_facts::cause::{Cause, Failure};
use pathproof_facts::names;
use pathproof_facts::time::{HumanDuration, Mono};
use pathproof_judge::eligibility::Eligibility;
use pathproof_judge::explain::{self, Interfaces, Remedy, label};
use pathproof_judge::verdict::{LaneState, LaneView, ServiceTrouble, Verdict};
use pathproof_report::{AnswersReport, PortWay, Report};
use pathproof_witness::drops::{DropWatch, meaning as drop_meaning};

use super::page::{Style, TEXT, Text, counted, grouped, sentence};

const SERVICES_SHOWN: usize = 8;
/// Fill level in percent from which the connection table is shown.
const NEARLY_FULL: u64 = 80;
// Columns of the lanes; for numbers, the column where they end. Millions of probes fit: a week has two.
const LANE: usize = 7;
const PATH: usize = 9;
const TRANSPORT: usize = 21;
const NOW: usize = 25;
const PASSED: usize = 60;
const RTT: usize = 68;
const LAST_PASS: usize = 70;

impl Text {
    /// The answers of both endpoints; for a leaving node, a note that its 503 is intended.
    pub(super) fn answers(&mut self, report: &Report) {
        let AnswersReport { healthz, livez, .. } = &report.answers;
        let answers = match report.port.way {
            PortWay::Off => "would answer",
            PortWay::Bound | PortWay::Steered => "answers",
        };
        let mut text = format!(
            "/healthz {answers} {}, /livez {}",
            healthz.status, livez.status
        );
        if let Some(why) = report.answers.lenience() {
            text.push_str(&format!("; 503 is held back: {why}"));
        }
        self.wrapped(Style::Plain, 0, &sentence(&text));
        if !report.answers.broken_services.is_empty() {
            let text = format!(
                "connections from outside to {} worked before and now fail on this node; their \
                 health check node ports answer 503, unless the 503 is held back",
                report.answers.broken_services.join(", ")
            );
            self.wrapped(Style::Warn, 0, &sentence(&text));
        }
        self.line();
        let eligibility = &report.verdict.eligibility;
        if matches!(
            eligibility,
            Eligibility::Deleting | Eligibility::Tainted { .. }
        ) {
            let text = format!(
                "{eligibility}; therefore /healthz answers 503, as intended. This does not change /livez"
            );
            self.section("leaving", Style::Warn, &sentence(&text));
            self.line();
        }
    }

    /// The sentinel's lanes: which paths through the datapath work, and how far probes get on the others.
    pub(super) fn lanes(&mut self, verdict: &Verdict) {
        if verdict
            .families
            .iter()
            .all(|family| family.lanes.is_empty())
        {
            return;
        }
        self.put(Style::Heading, "probes");
        self.to(PATH).put(Style::Faint, "path");
        self.to(NOW).put(Style::Faint, "now");
        self.right(Style::Faint, PASSED, "passed");
        self.right(Style::Faint, RTT, "RTT");
        self.to(LAST_PASS).put(Style::Faint, "last pass").line();
        let mut said: Vec<String> = Vec::new();
        for family in &verdict.families {
            for (index, lane) in family.lanes.iter().enumerate() {
                if index == 0 {
                    self.put(Style::Plain, names::of_family(family.family));
                }
                self.lane(lane, verdict.at);
                let meaning = explain::meaning(family.family, lane)
                    .filter(|text| !said.contains(text))
                    .filter(|_| !explain::is_explained(lane, &family.lanes));
                if let Some(text) = meaning {
                    self.to(PATH).wrapped(Style::Faint, PATH, &sentence(&text));
                    said.push(text);
                }
            }
        }
        self.line();
    }

    fn lane(&mut self, lane: &LaneView, now: Mono) {
        let (sign, style) = match lane.state {
            LaneState::Passing => ("●", Style::Good),
            LaneState::Failing => ("✗", Style::Bad),
            LaneState::NeverWorked => ("✗", Style::Warn),
            LaneState::Void => ("!", Style::Warn),
            LaneState::Off => ("○", Style::Faint),
        };
        let (path, transport) = (explain::path_label(lane.path), lane.transport.name());
        self.to(LANE).put(style, sign);
        self.to(PATH).put(Style::Plain, path);
        self.to(TRANSPORT).put(Style::Faint, transport);
        self.to(NOW).put(style, &label(lane.state.name()));
        let probes = grouped(lane.passed + lane.failed);
        let passed = format!("{} of {probes}", grouped(lane.passed));
        self.right(Style::Plain, PASSED, &passed);
        let round_trip = lane.delays.round_trip.map_or("-".to_owned(), fine);
        self.right(Style::Plain, RTT, &round_trip);
        self.to(LAST_PASS)
            .put(Style::Plain, &ago(lane.last_pass, now));
        self.line();
        let Some(cause) = lane.cause else { return };
        self.to(PATH);
        for step in explain::steps(lane, &Interfaces::default()) {
            let (style, mark) = mark(step.reached);
            self.put(Style::Faint, step.stage.name()).put(style, mark);
        }
        self.put(style, &label(cause.name())).line();
    }

    /// Services in trouble by real connections, the worst first.
    pub(super) fn services(&mut self, verdict: &Verdict) {
        for (index, service) in verdict.services.iter().take(SERVICES_SHOWN).enumerate() {
            let title = if index == 0 { "services" } else { "" };
            self.put(Style::Heading, title).to(TEXT);
            self.service(service, verdict.at);
        }
        let hidden = verdict.services.len().saturating_sub(SERVICES_SHOWN);
        let more = hidden as u64 + u64::from(verdict.services_omitted);
        if more > 0 {
            let text = format!("and {} more in trouble", grouped(more));
            self.section("", Style::Faint, &text);
        }
        if !verdict.services.is_empty() {
            self.line();
        }
    }

    fn service(&mut self, trouble: &ServiceTrouble, now: Mono) {
        let (style, confirmed) = match trouble.confirmed {
            true => (Style::Bad, ""),
            false => (
                Style::Warn,
                "; too few failures, or over too short a time, to count",
            ),
        };
        let text = format!(
            "on {}: {} in {}, the last {} ago; {}{confirmed}",
            names::of_family(trouble.family),
            counts(&trouble.failures),
            HumanDuration(now.since(trouble.since)),
            HumanDuration(now.since(trouble.last_failure)),
            counted(u64::from(trouble.endpoints), "endpoint"),
        );
        self.put(style, &trouble.service).put(Style::Plain, " ");
        self.wrapped(Style::Plain, TEXT + 2, &text);
        if let Some(example) = &trouble.example {
            self.to(TEXT + 2).wrapped(Style::Faint, TEXT + 2, example);
        }
    }

    /// Remedies to try next. Commands shown before are not repeated.
    pub(super) fn remedies(&mut self, remedies: &[Remedy]) {
        let mut shown: Vec<&str> = Vec::new();
        for (index, remedy) in remedies.iter().enumerate() {
            let title = if index == 0 { "next" } else { "" };
            self.put(Style::Heading, title).to(TEXT);
            if remedies.len() > 1 {
                self.put(Style::Heading, &format!("{}: ", label(&remedy.subject)));
            }
            self.wrapped(Style::Plain, TEXT, &remedy.advice);
            for command in &remedy.commands {
                if !shown.contains(&&**command) {
                    shown.push(command);
                    // Never wrapped, so that it can be copied.
                    self.to(TEXT).put(Style::Faint, "$ ");
                    self.put(Style::Unsure, command).line();
                }
            }
            self.section("", Style::Faint, &remedy.page);
        }
    }
}

/// Mark behind a stage.
pub(super) fn mark(reached: bool) -> (Style, &'static str) {
    match reached {
        true => (Style::Good, " ✔ "),
        false => (Style::Bad, " ✘ "),
    }
}

/// `4 refused, 160 leaked`.
pub(super) fn counts(failures: &BTreeMap<Failure, u64>) -> String {
    let counts: Vec<String> = failures
        .iter()
        .map(|(failure, count)| format!("{} {}", grouped(*count), Cause::of(*failure).name()))
        .collect();
    counts.join(", ")
}

/// `3 s ago`.
pub(super) fn ago(at: Option<Mono>, now: Mono) -> String {
    match at {
        Some(at) => format!("{} ago", HumanDuration(now.since(at))),
        None => "never".to_owned(),
    }
}

/// Formats a short time; probes often take less than a millisecond.
pub(super) fn fine(ns: u64) -> String {
    match ns / 1_000 {
        us @ 0..1_000 => format!("{us} µs"),
        us @ 1_000..10_000 => format!("{}.{} ms", us / 1_000, us % 1_000 / 100),
        _ => HumanDuration(Duration::from_nanos(ns)).to_string(),
    }
}

/// The connection table, if it is nearly full or was full since the agent started.
pub(super) fn conntrack(verdict: &Verdict) -> Option<String> {
    let conntrack = &verdict.conntrack;
    let table = conntrack.table?;
    if table.percent() < NEARLY_FULL && conntrack.full.is_none() {
        return None;
    }
    let (entries, limit) = (grouped(table.entries), grouped(table.limit));
    let dropped = match conntrack.full {
        Some(at) => format!(
            "{} dropped because the table was full, the last {}",
            counted(conntrack.dropped, "packet"),
            ago(Some(at), verdict.at)
        ),
        None => "none dropped because the table was full".to_owned(),
    };
    let percent = table.percent();
    Some(format!(
        "{entries} of {limit} entries in use ({percent} %); {dropped}"
    ))
}

/// The kernel's reasons for dropping packets, or why they cannot be read.
pub(super) fn drops(out: &mut Text, verdict: &Verdict) {
    let drops = &verdict.drops;
    let mut lines: Vec<String> = Vec::new();
    if let DropWatch::Denied(why) = &drops.watch {
        lines.push(format!("the kernel's drop reasons cannot be read: {why}"));
    }
    lines.extend(drops.dropped.iter().map(|dropped| {
        let meaning = drop_meaning(&dropped.reason);
        let meaning = meaning.map_or_else(String::new, |text| format!(": {text}"));
        format!(
            "{} {} {}, {}, the last {}{meaning}",
            dropped.service,
            names::of_family(dropped.family),
            dropped.reason,
            counted(dropped.packets, "packet"),
            ago(Some(dropped.last), verdict.at),
        )
    }));
    out.list("dropped", Style::Warn, &lines);
    if !lines.is_empty() {
        out.line();
    }
}

/// Losses of coverage, in sentences, except one that is the reason of the verdict.
pub(super) fn unseen(verdict: &Verdict) -> Vec<String> {
    let reason = verdict.reason();
    let losses = verdict.coverage.losses.iter();
    let more = losses.filter(|loss| !reason.ends_with(&*loss.sentence));
    more.map(|loss| loss.sentence.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        assert_eq!(fine(118_400), "118 µs");
        assert_eq!(fine(1_250_000), "1.2 ms");
        assert_eq!(fine(42_000_000), "42 ms");
    }
}
