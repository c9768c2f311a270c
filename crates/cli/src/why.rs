//! `pathproof why`: explains a running agent's verdict on one page, or as JSON. It starts from the
//! answers, goes back to the evidence, and lists what to check next.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use pathproof_facts::cause::{ProbeCause, State, Why};
use pathproof_facts::names;
use pathproof_facts::time::{HumanDuration, Mono};
use pathproof_facts::trace::{Lane, ProbePath, Transport};
use pathproof_judge::explain::{self, Interfaces, Remedy, Step};
use pathproof_judge::verdict::{LaneState, LaneView, Verdict};
use pathproof_report::{AnswersReport, Report, SentinelCondition, SentinelReport};
use pathproof_shared::docs::address;
use pathproof_wire::service::Family;
use serde::Serialize;

use super::page::{Style, TEXT, Text, grouped, sentence};
use super::{Exit, fetch, parts, recording};
use crate::args::WhyArgs;

/// Version of the document; fields are added, never renamed.
const SCHEMA: u32 = 2;
/// Column where the sentence of a stage begins.
const STAGE: usize = 30;

pub fn run(args: &WhyArgs) -> Exit {
    let report = match args.at {
        Some(at) => recording::report_at(at, args),
        None => fetch::report(&args.admin.address)
            .map(|(report, _)| report)
            .map_err(recording::Problem::from),
    };
    super::end(report.map(|report| {
        super::show(args.output, &Chain::of(&report), |colour| {
            render(&report, colour)
        })
    }))
}

#[derive(Debug, Serialize)]
struct Chain<'a> {
    schema: u32,
    node: &'a str,
    /// Time of the explained report.
    written: jiff::Timestamp,
    #[serde(flatten, serialize_with = "pathproof_report::serialize_verdict")]
    verdict: &'a Verdict,
    answers: &'a AnswersReport,
    sentinel: &'a SentinelReport,
    /// The sentinel's lanes that do not pass.
    lanes: Vec<LaneStep<'a>>,
    next: Vec<Remedy>,
}

/// A lane that does not pass.
#[derive(Debug, Serialize)]
struct LaneStep<'a> {
    family: Family,
    #[serde(flatten)]
    view: &'a LaneView,
    /// Whether the lane's failures count against the node.
    counts: bool,
    /// Whether the explanation of the TCP lane on the same path also covers this lane.
    explained: bool,
    to: Option<SocketAddr>,
    /// Stages of the last probe, and whether it reached each.
    steps: Vec<Step>,
    sentence: String,
    /// Explanation of this lane, regardless of other lanes.
    meaning: Option<String>,
}

impl<'a> Chain<'a> {
    fn of(report: &'a Report) -> Self {
        let verdict = &report.verdict;
        let mut next = explain::next(verdict);
        let altered = Why::SentinelAltered;
        if report.sentinel.state == SentinelCondition::Altered && verdict.why != Some(altered) {
            next.push(explain::of_why(altered));
        }
        Self {
            schema: SCHEMA,
            node: &report.node,
            written: report.written,
            verdict,
            answers: &report.answers,
            sentinel: &report.sentinel,
            lanes: lanes(report),
            next,
        }
    }
}

/// Every lane that does not pass, those that count against the node first.
fn lanes(report: &Report) -> Vec<LaneStep<'_>> {
    let uplinks = report.devices.iter().filter(|device| device.uplink);
    let interfaces = Interfaces {
        sentinel: report.sentinel.devices.as_ref().map(|devices| {
            [
                &*devices.client_far,
                &*devices.client_near,
                &*devices.server_near,
                &*devices.server_far,
            ]
        }),
        uplinks: uplinks.map(|device| &*device.name).collect(),
    };
    let mut found = Vec::new();
    for family in &report.verdict.families {
        let lanes = family.lanes.iter();
        let troubled =
            lanes.filter(|lane| !matches!(lane.state, LaneState::Passing | LaneState::Off));
        found.extend(troubled.map(|view| LaneStep {
            family: family.family,
            view,
            counts: view.state == LaneState::Failing && view.armed,
            explained: explain::is_explained(view, &family.lanes),
            to: dialled(report, family.family, view),
            steps: explain::steps(view, &interfaces),
            sentence: explain::sentence(family.family, view, report.verdict.at),
            meaning: explain::meaning(family.family, view),
        }));
    }
    // The sort is stable: families and lanes keep their order among equals.
    found.sort_by_key(|lane| (!lane.counts, lane.view.cause.is_none()));
    found
}

fn dialled(report: &Report, family: Family, lane: &LaneView) -> Option<SocketAddr> {
    let mut families = report.sentinel.families.iter();
    let known = families.find(|known| known.family == family)?;
    match (lane.path, lane.transport) {
        (ProbePath::NodePort, Transport::Tcp) => known.node_port,
        (ProbePath::NodePort, Transport::Udp) => known.node_port_udp,
        (_, Transport::Tcp) => Some(known.cluster_ip),
        (_, Transport::Udp) => known.cluster_ip_udp,
    }
}

impl LaneStep<'_> {
    /// `IPv4 node port udp`.
    fn label(&self) -> String {
        explain::lane_label(Lane {
            path: self.view.path,
            family: self.family,
            transport: self.view.transport,
        })
    }

    /// Whether this lane is shown together with `other`, because both fail in the same way.
    fn is_like(&self, other: &Self) -> bool {
        let stopped = |lane: &Self| lane.steps.last().map(|step| step.stage);
        let alike = match self.explained {
            true => (other.family, other.view.path) == (self.family, self.view.path),
            false => {
                other.view.cause.is_some()
                    && (other.view.cause, other.counts) == (self.view.cause, self.counts)
                    && stopped(other) == stopped(self)
            }
        };
        alike && !other.explained && other.view.state == self.view.state
    }

    /// The probes that were sent: source, destination, number and time.
    fn sent(&self, now: Mono) -> String {
        let view = self.view;
        let ago = |at| HumanDuration(now.since(at));
        let mut text = format!("Probes of {}", self.label());
        if view.client.is_some() || self.to.is_some() {
            text.push(',');
        }
        text.extend(view.client.map(|from| format!(" from {from}")));
        text.extend(self.to.map(|to| format!(" to {to}")));
        // With a full connection table the failures need not be in a row: probes pass while the table has
        // space.
        let row = match view.cause {
            Some(ProbeCause::ConntrackFull) => "",
            _ => " in a row",
        };
        text.push_str(&match (view.failures, view.failing_since) {
            (1, _) => ": the last one failed".to_owned(),
            (2.., Some(since)) => format!(
                ": {}{row} failed, the first {} ago",
                grouped(u64::from(view.failures)),
                ago(since),
            ),
            _ => ": none passed yet".to_owned(),
        });
        let last = view
            .last_failure
            .map(|at| format!(", the last {} ago", ago(at)));
        text.extend(last);
        text + "."
    }
}

pub fn render(report: &Report, colour: bool) -> String {
    let (chain, verdict) = (Chain::of(report), &report.verdict);
    let mut out = Text::new(colour);
    out.verdict(report);
    out.answers(report);
    because(&mut out, verdict);
    let families = verdict.families.iter();
    let reasons: Vec<String> = families.map(|family| verdict.reason_of(family)).collect();
    let mut also = verdict.also();
    also.retain(|reason| !reasons.contains(reason));
    out.list("also", Style::Plain, &also);
    out.gap();
    let mut groups: Vec<Vec<&LaneStep<'_>>> = Vec::new();
    for lane in &chain.lanes {
        let like = |group: &&mut Vec<&LaneStep<'_>>| group.iter().any(|other| lane.is_like(other));
        match groups.iter_mut().find(like) {
            Some(group) => group.push(lane),
            None => groups.push(vec![lane]),
        }
    }
    for group in groups {
        lane(&mut out, group[0], &group[1..], verdict.at);
        out.gap();
    }
    out.services(verdict);
    out.conntrack(verdict);
    out.gap();
    out.drops(verdict);
    out.gap();
    sentinel(&mut out, &report.sentinel);
    out.gap();
    if chain.next.is_empty() {
        let text = match verdict.state {
            State::Proven => "Nothing to do.",
            _ => "No further information.",
        };
        out.section("next", Style::Faint, text);
    }
    out.remedies(&chain.next);
    out.gap();
    out.unseen(verdict);
    out.finish()
}

/// The state of each family, and the rule that determined it.
fn because(out: &mut Text, verdict: &Verdict) {
    if verdict.families.is_empty() {
        out.section("because", Style::Plain, &sentence(&verdict.reason()));
    }
    let mut printed: BTreeSet<String> = BTreeSet::new();
    let mut is_new = |text: &String| printed.insert(text.clone());
    for family in &verdict.families {
        let (state, reason) = (family.state.name(), verdict.reason_of(family));
        out.begin("because");
        out.put(Style::Plain, names::of_family(family.family));
        out.put(Style::Plain, " is ");
        out.put(Style::of(family.state), state);
        if !is_new(&format!("{state}: {reason}")) {
            out.put(Style::Plain, ", likewise.").line();
            continue;
        }
        out.put(Style::Plain, ". ");
        out.wrapped(Style::Plain, TEXT, &sentence(&reason));
        if let Some(rule) = explain::rule(&family.finding, &verdict.limits).filter(&mut is_new) {
            out.more(Style::Faint, &rule);
        }
        let eliminated = explain::eliminated(&family.finding);
        let eliminated = eliminated.map(|text| format!("Ruled out: {text}."));
        if let Some(text) = eliminated.filter(&mut is_new) {
            out.more(Style::Plain, &text);
        }
    }
    out.gap();
}

/// Explains one lane, and lists the others that fail in the same way.
fn lane(out: &mut Text, lane: &LaneStep<'_>, others: &[&LaneStep<'_>], now: Mono) {
    let Some(cause) = lane.view.cause else {
        out.put(Style::Warn, "inconclusive");
        return out.more(Style::Plain, &sentence(&lane.sentence));
    };
    let cause = explain::label(cause.name());
    let (style, title, means) = match lane.view.state {
        LaneState::NeverWorked => (Style::Warn, "never worked", "Most likely "),
        _ => (Style::Bad, &*cause, "Meaning: "),
    };
    out.put(style, title);
    out.more(Style::Plain, &lane.sent(now));
    for step in &lane.steps {
        let (mark_style, mark) = parts::mark(step.reached);
        out.to(TEXT).put(mark_style, mark.trim_start());
        out.put(Style::Plain, step.stage.name()).to(STAGE);
        let after = step.after_ns.map(parts::fine);
        let after = after.map_or(String::new(), |time| format!(", after {time}"));
        let style = match step.reached {
            true => Style::Faint,
            false => Style::Bad,
        };
        out.wrapped(style, STAGE, &format!("{}{after}", step.sentence));
    }
    let meaning = lane.meaning.as_deref().unwrap_or_default();
    out.more(Style::Heading, &format!("{means}{meaning}."));
    if !others.is_empty() {
        let others: Vec<String> = others.iter().map(|lane| lane.label()).collect();
        let text = format!("The same on {}.", others.join(", "));
        out.more(Style::Plain, &text);
    }
    if !lane.counts {
        let text = "This path has never worked since boot, so it is not counted as a fault.";
        out.more(Style::Faint, text);
    }
}

/// Shows why there are no probes; nothing if the sentinel is probing.
fn sentinel(out: &mut Text, sentinel: &SentinelReport) {
    if sentinel.state == SentinelCondition::Probing {
        return;
    }
    let text = format!(
        "There are no probes, because the sentinel is {} ({})",
        sentinel.state.name(),
        sentinel.sentence
    );
    let style = Style::of_sentinel(sentinel.state);
    out.section("sentinel", style, &sentence(&text));
    let page = match sentinel.state {
        SentinelCondition::Absent => "docs/operations.md#install-the-sentinel",
        _ => "docs/operations.md#the-sentinel-is-off",
    };
    out.more(Style::Faint, &address(page));
}

#[cfg(test)]
mod tests;
