//! A report as a page for a person: what matters first, and no more than fits one glance.

use jiff::Timestamp;

use super::super::paper::{Ink, Paper, counted, grouped, sentence};
use agent_core::answer::{Enforcement, UnknownPolicy};
use agent_core::cause::State;
use agent_core::eligibility::Eligibility;
use agent_core::names;
use agent_core::report::Report;
use agent_core::time::{Mono, Spoken};
use agent_core::verdict::{FamilyVerdict, PathState, PathView};

mod datapath;
mod hardening;
mod lanes;
mod observer;
mod port;
mod services;
mod udp;

/// Lines of anything that may repeat: problems, losses, devices.
const LINES_SHOWN: usize = 6;
/// A report this old was not renewed: the agent writes two a second at least.
const OLD_AFTER_S: f64 = 3.0;

/// How a report is looked at.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    pub colour: bool,
    pub now: Timestamp,
    /// The report shown before, for rates.
    pub previous: Option<&'a Report>,
}

pub fn render(report: &Report, view: &View<'_>) -> String {
    let mut page = Page {
        paper: Paper::new(view.colour),
        report,
        view,
    };
    page.head();
    page.answers();
    page.port();
    page.eligible();
    page.drain();
    page.paper.line();
    page.families();
    page.probes();
    page.services();
    page.udp();
    page.observer();
    page.datapath();
    page.expectations();
    page.publishing();
    page.paper.finish()
}

struct Page<'a> {
    paper: Paper,
    report: &'a Report,
    view: &'a View<'a>,
}

/// Where the text of a section begins.
const TEXT: usize = 16;

impl Page<'_> {
    fn head(&mut self) {
        let verdict = &self.report.verdict;
        let since = Spoken(verdict.at.since(verdict.since));
        self.paper
            .badge(Ink::of(verdict.state), &verdict.state.name().to_uppercase())
            .put(Ink::Plain, "  ")
            .put(Ink::Heading, &self.report.node)
            .put(Ink::Faint, &format!("  for {since}"))
            .line();
        self.paper
            .wrapped(Ink::Plain, 0, &sentence(&verdict.reason()));
        let age = self
            .view
            .now
            .duration_since(self.report.written)
            .as_secs_f64();
        if age > OLD_AFTER_S {
            let said = format!(
                "This is {} old: the agent has stopped judging, see its log and /agent/livez.",
                Spoken(std::time::Duration::from_secs_f64(age))
            );
            self.paper.wrapped(Ink::Bad, 0, &said);
        }
        self.paper.line();
    }

    fn answers(&mut self) {
        let report = self.report;
        self.paper.put(Ink::Heading, "answers").to(TEXT);
        for (path, answer) in [
            ("/healthz", report.answers.healthz),
            ("/livez", report.answers.livez),
        ] {
            let ink = if answer.status == 200 {
                Ink::Good
            } else {
                Ink::Bad
            };
            self.paper.put(Ink::Plain, path).put(Ink::Plain, " ");
            self.paper.put(ink, &answer.status.to_string());
            if answer.would_fail && answer.status == 200 {
                self.paper.put(Ink::Warn, " (would be 503)");
            }
            self.paper.put(Ink::Plain, "   ");
        }
        let audit = report.agent.enforcement == Enforcement::Audit;
        if audit {
            self.paper.put(Ink::Warn, "audit only   ");
        }
        if report.verdict.state == State::Unknown {
            let policy = match report.agent.unknown_policy {
                UnknownPolicy::Open => "unknown is answered 200",
                UnknownPolicy::Closed => "unknown is answered 503",
            };
            self.paper.put(Ink::Faint, policy);
        }
        self.paper.line();
    }

    fn eligible(&mut self) {
        let eligibility = &self.report.verdict.eligibility;
        let (ink, word) = match eligibility {
            Eligibility::Eligible => (Ink::Good, "yes"),
            Eligibility::NeverSeen => (Ink::Unsure, "unknown"),
            Eligibility::Deleting | Eligibility::Tainted { .. } => (Ink::Warn, "no"),
        };
        self.paper
            .put(Ink::Heading, "eligible")
            .to(TEXT)
            .put(ink, word)
            .put(Ink::Plain, ", ");
        self.paper
            .wrapped(Ink::Plain, TEXT, &eligibility.to_string());
    }

    fn families(&mut self) {
        if self.report.verdict.families.is_empty() {
            return;
        }
        self.paper
            .put(Ink::Heading, "paths")
            .to(TEXT)
            .put(Ink::Faint, "from");
        for (column, title) in [
            (LOOKS, "now"),
            (PROOF, "last proof"),
            (FAILURE, "last failure"),
        ] {
            self.paper.to(column).put(Ink::Faint, title);
        }
        self.paper.line();
        for family in &self.report.verdict.families {
            self.family(family);
        }
        self.paper.line();
    }

    fn family(&mut self, family: &FamilyVerdict) {
        for (index, path) in family.paths.iter().enumerate() {
            if index == 0 {
                self.paper
                    .put(Ink::Plain, names::of_family(family.family))
                    .put(Ink::Plain, " ");
                self.paper.put(Ink::of(family.state), family.state.name());
            }
            self.path(path);
            self.paper.line();
        }
        // The head has said it already where one family speaks for the node.
        let verdict = &self.report.verdict;
        if family.state != State::Proven && family.finding != verdict.finding {
            self.paper.to(TEXT);
            let reason = sentence(&verdict.reason_of(family));
            self.paper.wrapped(Ink::Plain, TEXT, &reason);
        }
    }

    fn path(&mut self, path: &PathView) {
        let (mark, ink, word) = match path.state {
            PathState::Proven => ("●", Ink::Good, "proven"),
            PathState::Failing => ("✗", Ink::Bad, "failing"),
            PathState::Quiet => ("○", Ink::Faint, "quiet"),
        };
        self.paper.to(TEXT).put(ink, mark).put(Ink::Plain, " ");
        self.paper
            .put(Ink::Plain, names::of_path(path.path))
            .to(LOOKS)
            .put(ink, word);
        for (column, at) in [(PROOF, path.last_proof), (FAILURE, path.last_failure)] {
            let ink = if at.is_some() { Ink::Plain } else { Ink::Faint };
            let ago = self.ago(at);
            self.paper.to(column).put(ink, &ago);
        }
    }

    fn ago(&self, at: Option<Mono>) -> String {
        match at {
            Some(at) => format!("{} ago", Spoken(self.report.verdict.at.since(at))),
            None => "never".to_owned(),
        }
    }

    /// Only what goes wrong: that it goes well is seen where it is written.
    fn publishing(&mut self) {
        let problems: Vec<String> = self.report.publish.problems().map(sentence).collect();
        if problems.is_empty() {
            return;
        }
        self.paper
            .put(Ink::Heading, "publishing")
            .to(TEXT)
            .put(Ink::Warn, "the API server does not have the newest state")
            .line();
        self.list(Ink::Warn, &problems, "more problems");
    }

    fn expectations(&mut self) {
        let expected = &self.report.expectations;
        let said = format!(
            "{}, {}, {}",
            counted(expected.services, "Service"),
            counted(expected.frontends, "frontend"),
            counted(expected.endpoints, "endpoint"),
        );
        self.paper
            .put(Ink::Heading, "expected")
            .to(TEXT)
            .put(Ink::Plain, &said);
        if expected.missing > 0 {
            let missing = format!(", {} not watched: a map is full", grouped(expected.missing));
            self.paper.put(Ink::Bad, &missing);
        }
        self.paper.line();
        let view = &self.report.cluster;
        self.paper
            .put(Ink::Heading, "view")
            .to(TEXT)
            .put(Ink::Plain, &view.source);
        match (view.synced, view.changed) {
            (false, _) => self.paper.put(Ink::Warn, ", not complete yet"),
            (true, Some(at)) => {
                let ago = format!(", changed {} ago", Spoken(self.report.verdict.at.since(at)));
                self.paper.put(Ink::Faint, &ago)
            }
            (true, None) => &mut self.paper,
        };
        if view.ignored > 0 {
            let ignored = format!(", {} of no use here", counted(view.ignored, "object"));
            self.paper.put(Ink::Faint, &ignored);
        }
        self.paper.line();
        self.list(Ink::Warn, &view.problems, "more problems");
        let agent = &self.report.agent;
        let up = self
            .report
            .written
            .duration_since(agent.started)
            .unsigned_abs();
        let said = format!("pathproof {}, running for {}", agent.version, Spoken(up));
        self.paper
            .put(Ink::Heading, "agent")
            .to(TEXT)
            .put(Ink::Faint, &said)
            .line();
        self.hardening();
    }

    fn list(&mut self, ink: Ink, lines: &[String], more: &str) {
        for line in lines.iter().take(LINES_SHOWN) {
            self.paper.to(TEXT).put(ink, "! ");
            self.paper.wrapped(ink, TEXT + 2, line);
        }
        if lines.len() > LINES_SHOWN {
            let rest = format!("and {} {more}", lines.len() - LINES_SHOWN);
            self.paper.to(TEXT).put(ink, &rest).line();
        }
    }
}

// Columns of the paths.
const LOOKS: usize = 30;
const PROOF: usize = 42;
const FAILURE: usize = 56;
