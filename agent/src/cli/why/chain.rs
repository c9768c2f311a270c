//! The chain of evidence: from what is answered back to what was seen, and on to what to look at.
//! Made of a report alone; `--output json` prints it as it is.

use agent_common::service::Family;
use serde::Serialize;

use super::stages::{self, LaneStep};
use agent_core::cause::{Cause, State, Why};
use agent_core::eligibility::Eligibility;
use agent_core::explain::{self, Remedy};
use agent_core::names;
use agent_core::report::{AnswerReport, Answers, Report, SentinelReport, SentinelState};
use agent_core::verdict::{FamilyVerdict, ServiceTrouble};

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
    /// Which.
    #[serde(with = "names::FamilyName")]
    pub family: Family,
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
        Self {
            schema: SCHEMA,
            node: report.node.clone(),
            written: report.written,
            state: verdict.state,
            for_s: seconds(verdict.since),
            reason: verdict.reason(),
            answers: report.answers,
            answered: answered(report),
            eligible: verdict.eligibility == Eligibility::Eligible,
            eligibility: eligibility(report),
            families: families(report),
            next: next(report),
            lanes: stages::lanes(report),
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
    let verdict = &report.verdict;
    let step = |family: &FamilyVerdict| FamilyStep {
        family: family.family,
        state: family.state,
        cause: family.cause,
        why: family.why,
        reason: verdict.reason_of(family),
        rule: explain::rule(&family.finding, &verdict.limits),
    };
    verdict.families.iter().map(step).collect()
}

fn coverage(report: &Report) -> Vec<String> {
    let losses = &report.verdict.coverage.losses;
    losses.iter().map(|loss| loss.sentence.clone()).collect()
}

/// Where to look for what the report says.
fn next(report: &Report) -> Vec<Remedy> {
    let mut next = explain::next(&report.verdict);
    let altered = Why::SentinelAltered;
    if report.sentinel.state == SentinelState::Altered && report.verdict.why != Some(altered) {
        next.push(explain::of_why(altered));
    }
    next
}
