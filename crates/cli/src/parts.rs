//! Parts that several pages share: the sentinel's lanes, failing Services, losses of coverage, and remedies.

use std::collections::BTreeMap;
use std::time::Duration;

use pathproof_facts::cause::{Cause, Failure};
use pathproof_facts::names;
use pathproof_facts::time::{HumanDuration, Mono};
use pathproof_judge::explain::{self, Interfaces, Remedy, label};
use pathproof_judge::verdict::{LaneState, LaneView, ServiceTrouble, Verdict};
use pathproof_report::{PortWay, Report};
use pathproof_shared::docs::address;
use pathproof_witness::drops::{DropWatch, meaning as drop_meaning};

use super::page::{Style, TEXT, Text, counted, grouped, sentence};

const SERVICES_SHOWN: usize = 8;
/// Fill level in percent from which the connection table is shown.
const NEARLY_FULL: u64 = 80;
// Columns of the table of lanes: where a text begins, or where a number ends. The two million probes of a
// week fit.
const LANE: usize = 7;
const PATH: usize = 9;
const TRANSPORT: usize = 21;
const NOW: usize = 25;
const PASSED: usize = 60;
const RTT: usize = 68;
const LAST_PASS: usize = 70;

impl Text {
    /// The verdict in a few words: its state, the node, and since when.
    pub(super) fn verdict(&mut self, report: &Report) {
        let (node, verdict) = (&report.node, &report.verdict);
        let since = format!("  for {}", HumanDuration(verdict.at.since(verdict.since)));
        self.head(Style::of(verdict.state), verdict.state.name(), node, &since);
    }

    /// The answers of both endpoints; for a leaving node, a note that its 503 is intended.
    pub(super) fn answers(&mut self, report: &Report) {
        let answers = &report.answers;
        let (healthz, livez) = (answers.healthz.status, answers.livez.status);
        let would = match report.port.way {
            PortWay::Off => "would answer",
            PortWay::Bound | PortWay::Steered => "answers",
        };
        let held_back = answers
            .lenience()
            .map_or(String::new(), |why| format!("; 503 is held back: {why}"));
        let text = format!("/healthz {would} {healthz}, /livez {livez}{held_back}");
        self.wrapped(Style::Plain, 0, &sentence(&text));
        if !answers.broken_services.is_empty() {
            let text = format!(
                "Connections from outside to {} worked before and now fail on this node; their \
                 health check node ports answer 503, unless the 503 is held back.",
                answers.broken_services.join(", ")
            );
            self.wrapped(Style::Warn, 0, &text);
        }
        if !answers.refused_by_owner.is_empty() {
            let more = answers.refused_by_owner_omitted;
            let more = more.map_or_else(String::new, |more| format!("; and {more} more"));
            let text = format!(
                "Health check node ports answer 503 because kube-proxy or Cilium, which own them, do \
                 not answer 200: {}{more}.",
                answers.refused_by_owner.join("; ")
            );
            self.wrapped(Style::Warn, 0, &text);
        }
        self.gap();
        let eligibility = &report.verdict.eligibility;
        if eligibility.is_leaving() {
            let effect = match (answers.healthz.status, answers.held) {
                (200, Some(held)) => format!("/healthz stays at 200: {held}"),
                _ => "therefore /healthz answers 503, as intended. This does not change /livez"
                    .into(),
            };
            let text = format!("{eligibility}; {effect}");
            self.section("leaving", Style::Warn, &sentence(&text));
            self.gap();
        }
    }

    /// The sentinel's lanes: which paths through the datapath work, and how far probes get on the others.
    pub(super) fn lanes(&mut self, verdict: &Verdict) {
        let mut families = verdict.families.iter();
        if families.all(|family| family.lanes.is_empty()) {
            return;
        }
        self.put(Style::Heading, "probes");
        self.to(PATH).put(Style::Faint, "path");
        self.to(NOW).put(Style::Faint, "now");
        self.right(Style::Faint, PASSED, "passed");
        self.right(Style::Faint, RTT, "RTT");
        self.to(LAST_PASS).put(Style::Faint, "last pass").line();
        let mut shown: Vec<String> = Vec::new();
        for family in &verdict.families {
            for (index, lane) in family.lanes.iter().enumerate() {
                if index == 0 {
                    self.put(Style::Plain, names::of_family(family.family));
                }
                self.lane(lane, verdict.at);
                let meaning = explain::meaning(family.family, lane)
                    .filter(|text| !shown.contains(text))
                    .filter(|_| !explain::is_explained(lane, &family.lanes));
                if let Some(text) = meaning {
                    self.to(PATH).wrapped(Style::Faint, PATH, &sentence(&text));
                    shown.push(text);
                }
            }
        }
        self.gap();
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

    /// Services whose real connections fail, the worst first.
    pub(super) fn services(&mut self, verdict: &Verdict) {
        for service in verdict.services.iter().take(SERVICES_SHOWN) {
            self.service(service, verdict.at);
        }
        let hidden = verdict.services.len().saturating_sub(SERVICES_SHOWN);
        let more = hidden as u64 + u64::from(verdict.services_omitted);
        if more > 0 {
            let text = format!("and {} more in trouble", grouped(more));
            self.more(Style::Faint, &text);
        }
        self.gap();
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
        self.begin("services").put(style, &trouble.service);
        self.put(Style::Plain, " ");
        self.wrapped(Style::Plain, TEXT + 2, &text);
    }

    /// Remedies to try next. Commands shown before are not repeated.
    pub(super) fn remedies(&mut self, remedies: &[Remedy]) {
        let mut shown: Vec<&str> = Vec::new();
        for remedy in remedies {
            self.begin("next");
            if remedies.len() > 1 {
                self.put(Style::Heading, &format!("{}: ", label(&remedy.subject)));
            }
            self.wrapped(Style::Plain, TEXT, &remedy.advice);
            for command in &remedy.commands {
                if !shown.contains(&&**command) {
                    shown.push(command);
                    // A command is never wrapped, so that it can be copied.
                    self.to(TEXT).put(Style::Faint, "$ ");
                    self.put(Style::Unsure, command).line();
                }
            }
            self.more(Style::Faint, &address(&remedy.page));
        }
    }

    /// The connection table, if it is nearly full or was full since the agent started.
    pub(super) fn conntrack(&mut self, verdict: &Verdict) {
        let conntrack = &verdict.conntrack;
        let Some(table) = conntrack.table else { return };
        let dropped = match conntrack.full {
            Some(at) => format!(
                "{} dropped because the table was full, the last {}",
                counted(conntrack.dropped, "packet"),
                ago(Some(at), verdict.at)
            ),
            None if table.percent() < NEARLY_FULL => return,
            None => "none dropped because the table was full".to_owned(),
        };
        let text = format!(
            "{} of {} entries in use ({} %); {dropped}",
            grouped(table.entries),
            grouped(table.limit),
            table.percent()
        );
        self.section("conntrack", Style::Warn, &text);
    }

    /// The kernel's reasons for dropping packets, or why they cannot be read.
    pub(super) fn drops(&mut self, verdict: &Verdict) {
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
        self.list("dropped", Style::Warn, &lines);
    }

    /// Losses of coverage, except one that is the reason of the verdict.
    pub(super) fn unseen(&mut self, verdict: &Verdict) {
        let reason = verdict.reason();
        let losses = verdict.coverage.losses.iter();
        let more = losses.map(ToString::to_string);
        let more: Vec<String> = more
            .filter(|loss| !reason.ends_with(loss.as_str()))
            .collect();
        self.list("not observed", Style::Warn, &more);
    }
}

/// Mark after a probe's stage: whether the probe reached it.
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

/// Formats a short time in nanoseconds; probes often take less than a millisecond.
pub(super) fn fine(ns: u64) -> String {
    match ns / 1_000 {
        us @ 0..1_000 => format!("{us} µs"),
        us @ 1_000..10_000 => format!("{}.{} ms", us / 1_000, us % 1_000 / 100),
        _ => HumanDuration(Duration::from_nanos(ns)).to_string(),
    }
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
