//! The chain of evidence: from what is answered back to what was seen, and on to what to look at.
//! Made of a report alone; `--output json` prints it as it is.

use agent_common::service::Family;
use serde::Serialize;

use super::remedies::{self, Remedy};
use super::rules::rule;
use super::stages::{self, LaneStep};
use agent_core::cause::{Cause, State, Why};
use agent_core::eligibility::Eligibility;
use agent_core::names;
use agent_core::report::{AnswerReport, Answers, Report, SentinelReport, SentinelState};
use agent_core::verdict::{LaneState, ServiceTrouble};

/// Version of the document; fields are added, never renamed.
const SCHEMA: u32 = 1;

/// The chain.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Chain {
    /// Version of this document.
    pub schema: u32,
    /// The node.
    pub node: String,
    /// When the agent wrote what this is told from.
    pub written: jiff::Timestamp,
    /// The state of the node.
    pub state: State,
    /// For how many seconds it is in this state.
    pub for_s: f64,
    /// In a sentence.
    pub reason: String,
    /// What is answered because of it.
    pub answers: Answers,
    /// The same for a person.
    pub answered: String,
    /// Whether the node may be sent new connections, apart from its datapath.
    pub eligible: bool,
    /// The same for a person.
    pub eligibility: String,
    /// By family, which rule it is in, and why.
    pub families: Vec<FamilyStep>,
    /// The sentinel's lanes that do not pass.
    pub lanes: Vec<LaneStep>,
    /// Services in trouble, by real connections.
    pub services: Vec<ServiceStep>,
    /// Services in trouble beyond those.
    pub services_omitted: u32,
    /// The sentinel.
    pub sentinel: SentinelReport,
    /// What is not seen.
    pub coverage: Vec<String>,
    /// Where to look next, by cause.
    pub next: Vec<Remedy>,
}

/// The judgement on a family.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FamilyStep {
    /// `IPv4` or `IPv6`.
    pub family: &'static str,
    /// Its state.
    pub state: State,
    /// What goes wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<Cause>,
    /// Why nothing is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<Why>,
    /// In a sentence.
    pub reason: String,
    /// The rule that gave it this state.
    pub rule: String,
}

/// A Service in trouble.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ServiceStep {
    /// For how many seconds.
    pub for_s: f64,
    /// Seconds since its last failure.
    pub last_s: f64,
    /// What is known of it.
    #[serde(flatten)]
    pub trouble: ServiceTrouble,
}

impl Chain {
    /// Of a report.
    pub fn of(report: &Report) -> Self {
        let verdict = &report.verdict;
        let seconds = |at| verdict.at.since(at).as_secs_f64();
        let service = |trouble: &ServiceTrouble| ServiceStep {
            for_s: seconds(trouble.since),
            last_s: seconds(trouble.last_failure),
            trouble: trouble.clone(),
        };
        let lanes = stages::lanes(report);
        Self {
            schema: SCHEMA,
            node: report.node.clone(),
            written: report.written,
            state: verdict.state,
            for_s: seconds(verdict.since),
            reason: verdict.reason.clone(),
            answers: report.answers,
            answered: answered(report),
            eligible: verdict.eligibility == Eligibility::Eligible,
            eligibility: eligibility(report),
            families: families(report),
            next: next(report, &lanes),
            lanes,
            services: verdict.services.iter().map(service).collect(),
            services_omitted: verdict.services_omitted,
            sentinel: report.sentinel.clone(),
            coverage: coverage(report),
        }
    }
}

fn answered(report: &Report) -> String {
    let Answers { healthz, livez } = report.answers;
    let text = format!(
        "/healthz answers {}, /livez {}",
        healthz.status, livez.status
    );
    let held_back = |answer: AnswerReport| answer.would_fail && answer.status == 200;
    match held_back(healthz) || held_back(livez) {
        true => format!("{text}; 503 is held back, since --enforcement is audit"),
        false => text,
    }
}

fn eligibility(report: &Report) -> String {
    let eligibility = &report.verdict.eligibility;
    match eligibility {
        Eligibility::Deleting | Eligibility::Tainted { .. } => {
            format!("{eligibility}; /healthz is 503 for that, as it should be, and /livez is not")
        }
        Eligibility::Eligible | Eligibility::NeverSeen => eligibility.to_string(),
    }
}

fn families(report: &Report) -> Vec<FamilyStep> {
    let step = |family: &agent_core::verdict::FamilyVerdict| FamilyStep {
        family: names::of_family(family.family),
        state: family.state,
        cause: family.cause,
        why: family.why,
        reason: family.reason.clone(),
        rule: rule(report, family),
    };
    report.verdict.families.iter().map(step).collect()
}

fn coverage(report: &Report) -> Vec<String> {
    let losses = &report.verdict.coverage.losses;
    losses.iter().map(|loss| loss.sentence.clone()).collect()
}

/// Where to look, what accuses the node first.
fn next(report: &Report, lanes: &[LaneStep]) -> Vec<Remedy> {
    let verdict = &report.verdict;
    let mut causes: Vec<(Cause, Vec<Family>)> = Vec::new();
    let mut add =
        |cause: Cause, family: Family| match causes.iter_mut().find(|(known, _)| *known == cause) {
            Some((_, families)) if families.contains(&family) => {}
            Some((_, families)) => families.push(family),
            None => causes.push((cause, vec![family])),
        };
    let never_matters = verdict.state == State::Unknown || verdict.state == State::Starting;
    let told = |lane: &&LaneStep| (lane.counts || never_matters) && !lane.explained;
    for lane in lanes.iter().filter(told) {
        if let (Some(cause), Some(family)) = (lane.cause, family_of(lane.family)) {
            add(remedies::looked_into(cause), family);
        }
    }
    for trouble in &verdict.services {
        add(trouble.cause, trouble.family);
    }
    for family in &verdict.families {
        if let Some(cause) = family.cause {
            add(cause, family.family);
        }
    }
    let mut next: Vec<Remedy> = causes
        .into_iter()
        .map(|(cause, families)| remedies::of_cause(cause, &families))
        .collect();
    if let Some(why) = verdict.why {
        next.insert(0, remedies::of_why(why));
    }
    if report.sentinel.state == SentinelState::Altered && verdict.why != Some(Why::SentinelAltered)
    {
        next.push(remedies::of_why(Why::SentinelAltered));
    }
    next
}

fn family_of(name: &str) -> Option<Family> {
    Family::ALL
        .into_iter()
        .find(|family| names::of_family(*family) == name)
}

impl LaneStep {
    /// Whether it never worked in this boot.
    pub(super) fn never_worked(&self) -> bool {
        self.state == LaneState::NeverWorked
    }
}
