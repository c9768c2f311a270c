//! A report as a page for a person: what matters first, and no more than fits one glance.

use jiff::Timestamp;

use super::paper::{Ink, Paper, counted, fitted, grouped};
use crate::domain::answer::{Enforcement, UnknownPolicy};
use crate::domain::node::Eligibility;
use crate::domain::time::{Mono, Spoken};
use crate::domain::verdict::report::names;
use crate::domain::verdict::{FamilyVerdict, PathState, PathView, ServiceTrouble, State};
use crate::report::{Attached, DeviceReport, Report, ServiceReport};

/// Services in trouble that are shown.
const TROUBLED_SHOWN: usize = 12;
/// Sound Services that are shown.
const SOUND_SHOWN: usize = 8;
/// Lines of anything that may repeat: problems, losses, devices.
const LINES_SHOWN: usize = 6;
/// A report this old was not renewed: the agent writes four a second.
const OLD_AFTER_S: f64 = 3.0;

/// How a report is looked at.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// Whether colours are used.
    pub colour: bool,
    /// The wall clock.
    pub now: Timestamp,
    /// The report shown before, for rates.
    pub previous: Option<&'a Report>,
}

/// The page.
pub fn render(report: &Report, view: &View<'_>) -> String {
    let mut page = Page {
        paper: Paper::new(view.colour),
        report,
        view,
    };
    page.head();
    page.answers();
    page.families();
    page.services();
    page.observer();
    page.expectations();
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
            .wrapped(Ink::Plain, 0, &sentence(&verdict.reason));
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
            if answer.would_fail {
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
        let eligibility = &report.verdict.eligibility;
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
        self.paper.line();
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
        if family.state != State::Proven && family.reason != self.report.verdict.reason {
            self.paper.to(TEXT);
            self.paper
                .wrapped(Ink::Plain, TEXT, &sentence(&family.reason));
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

    fn services(&mut self) {
        let report = self.report;
        let troubles = &report.verdict.services;
        if report.services.is_empty() && troubles.is_empty() {
            self.paper.put(Ink::Heading, "services").to(TEXT);
            self.paper
                .put(Ink::Faint, "no new connection seen yet")
                .line();
            self.paper.line();
            return;
        }
        self.services_head();
        for trouble in troubles.iter().take(TROUBLED_SHOWN) {
            self.trouble(trouble);
        }
        let sound: Vec<&ServiceReport> = report
            .services
            .iter()
            .filter(|service| trouble_of(report, service).is_none())
            .collect();
        for service in sound.iter().take(SOUND_SHOWN) {
            self.paper.put(Ink::Good, "  ●").to(NAME);
            self.service(&service.service, &service.family, Some(service));
            let failures: u64 = service
                .outcomes
                .failures()
                .iter()
                .map(|(_, count)| count)
                .sum();
            if failures > 0 {
                self.paper.right(Ink::Faint, FAILED, &grouped(failures));
                self.paper.put(Ink::Faint, "  earlier");
            }
            self.paper.line();
        }
        let hidden_trouble = troubles.len().saturating_sub(TROUBLED_SHOWN) as u64
            + u64::from(report.verdict.services_omitted);
        let hidden =
            sound.len().saturating_sub(SOUND_SHOWN) as u64 + u64::from(report.services_omitted);
        if hidden_trouble + hidden > 0 {
            let said = format!(
                "and {} in trouble, {} sound",
                grouped(hidden_trouble),
                grouped(hidden)
            );
            self.paper.to(NAME).put(Ink::Faint, &said).line();
        }
        self.paper.line();
    }

    fn services_head(&mut self) {
        self.paper.put(Ink::Heading, "services");
        let new = if self.view.previous.is_some() {
            "new/s"
        } else {
            "new"
        };
        for (column, title) in [
            (ENDPOINTS, "endpoints"),
            (NEW, new),
            (PROVEN, "proven"),
            (FAILED, "failed"),
        ] {
            self.paper.right(Ink::Faint, column, title);
        }
        if !self.report.verdict.services.is_empty() {
            self.paper.put(Ink::Faint, "  how, for");
        }
        self.paper.line();
    }

    fn trouble(&mut self, trouble: &ServiceTrouble) {
        let ink = if trouble.confirmed {
            Ink::Bad
        } else {
            Ink::Warn
        };
        let family = names::of_family(trouble.family);
        let report = self.report;
        let counts = report
            .services
            .iter()
            .find(|service| service.service == trouble.service && service.family == family);
        self.paper
            .put(ink, if trouble.confirmed { "  ✗" } else { "  !" })
            .to(NAME);
        self.service(&trouble.service, family, counts);
        let failed: u64 = trouble.failures.iter().map(|(_, count)| count).sum();
        self.paper.right(ink, FAILED, &grouped(failed));
        let since = Spoken(report.verdict.at.since(trouble.since));
        self.paper
            .put(Ink::Plain, "  ")
            .put(ink, trouble.cause.name());
        self.paper.put(Ink::Faint, &format!(" {since}")).line();
        if let Some(example) = &trouble.example {
            self.paper
                .to(NAME + 2)
                .wrapped(Ink::Faint, NAME + 2, example);
        }
    }

    /// Name, family and counts, without failures.
    fn service(&mut self, name: &str, family: &str, counts: Option<&ServiceReport>) {
        self.paper.put(Ink::Plain, &fitted(name, FAMILY - NAME - 1));
        self.paper.to(FAMILY).put(Ink::Faint, family);
        let Some(counts) = counts else { return };
        let new = match self.view.previous {
            Some(previous) => self.rate(previous, counts),
            None => grouped(counts.outcomes.arrived),
        };
        self.paper
            .right(Ink::Plain, ENDPOINTS, &grouped(u64::from(counts.endpoints)));
        self.paper.right(Ink::Plain, NEW, &new);
        self.paper
            .right(Ink::Plain, PROVEN, &grouped(counts.outcomes.proven));
    }

    /// New connections a second since the report before; a dash where that says nothing.
    fn rate(&self, previous: &Report, service: &ServiceReport) -> String {
        let before = previous
            .services
            .iter()
            .find(|s| s.service == service.service && s.family == service.family);
        let apart = self
            .report
            .verdict
            .at
            .since(previous.verdict.at)
            .as_secs_f64();
        let new = before.and_then(|before| {
            service
                .outcomes
                .arrived
                .checked_sub(before.outcomes.arrived)
        });
        match new {
            Some(new) if apart > 0.0 => format!("{:.1}", new as f64 / apart),
            _ => "-".to_owned(),
        }
    }

    fn observer(&mut self) {
        let report = self.report;
        let coverage = &report.verdict.coverage;
        let all = coverage.attached >= coverage.wanted && coverage.wanted > 0;
        let ink = if all { Ink::Plain } else { Ink::Warn };
        let watched = format!(
            "{} of {} watched in both directions",
            coverage.attached,
            counted(u64::from(coverage.wanted), "interface")
        );
        self.paper
            .put(Ink::Heading, "observer")
            .to(TEXT)
            .put(ink, &watched)
            .line();
        for (how, title) in [(Attached::Tcx, "tcx"), (Attached::Clsact, "clsact")] {
            self.attached(how, title);
        }
        // What a device lacks is said with the device.
        let losses: Vec<String> = coverage
            .losses
            .iter()
            .filter(|loss| !matches!(loss.loss.name(), "detached" | "not_first"))
            .map(|loss| loss.sentence.clone())
            .collect();
        self.list(Ink::Warn, &losses, "more losses");
        let unwatched: Vec<String> = report
            .devices
            .iter()
            .filter(|device| device.attached == Attached::None && device.problem.is_none())
            .map(device_name)
            .collect();
        self.devices(Ink::Warn, "! not watched:", &unwatched);
        let troubled: Vec<String> = report.devices.iter().filter_map(device_trouble).collect();
        self.list(Ink::Warn, &troubled, "more interfaces");
        let faults: Vec<String> = report
            .faults
            .iter()
            .filter(|(_, count)| **count > 0)
            .map(|(fault, count)| format!("{} {}", fault.replace('_', " "), grouped(*count)))
            .collect();
        if !faults.is_empty() {
            self.paper.to(TEXT).put(Ink::Faint, "passed unjudged:");
            self.paper.wrapped(Ink::Faint, TEXT, &faults.join(", "));
        }
        self.paper.line();
    }

    fn attached(&mut self, how: Attached, title: &str) {
        let sound: Vec<String> = self
            .report
            .devices
            .iter()
            .filter(|device| device.attached == how && device_trouble(device).is_none())
            .map(device_name)
            .collect();
        self.devices(Ink::Plain, title, &sound);
    }

    fn devices(&mut self, ink: Ink, title: &str, devices: &[String]) {
        if devices.is_empty() {
            return;
        }
        let shown = devices
            .iter()
            .take(DEVICES_SHOWN)
            .cloned()
            .collect::<Vec<_>>()
            .join(", ");
        let more = match devices.len().saturating_sub(DEVICES_SHOWN) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        self.paper
            .to(TEXT)
            .wrapped(ink, TEXT + 2, &format!("{title} {shown}{more}"));
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

/// Interfaces named in a line.
const DEVICES_SHOWN: usize = 12;

// Columns of the paths.
const LOOKS: usize = 30;
const PROOF: usize = 42;
const FAILURE: usize = 56;

// Columns of the Services; those of numbers are where they end.
const NAME: usize = 4;
const FAMILY: usize = 38;
const ENDPOINTS: usize = 53;
const NEW: usize = 62;
const PROVEN: usize = 71;
const FAILED: usize = 79;

fn trouble_of<'a>(report: &'a Report, service: &ServiceReport) -> Option<&'a ServiceTrouble> {
    report.verdict.services.iter().find(|trouble| {
        trouble.service == service.service && names::of_family(trouble.family) == service.family
    })
}

fn device_name(device: &DeviceReport) -> String {
    if device.uplink {
        format!("{} (uplink)", device.name)
    } else {
        device.name.clone()
    }
}

/// What is wrong with a device, unless it is that it is not watched for no reason that is known.
fn device_trouble(device: &DeviceReport) -> Option<String> {
    let behind = [
        (device.ingress_head, "ingress"),
        (device.egress_head, "egress"),
    ];
    let behind: Vec<&str> = behind
        .iter()
        .filter(|(head, _)| *head == Some(false))
        .map(|(_, way)| *way)
        .collect();
    let name = &device.name;
    match (&device.problem, device.attached) {
        (Some(problem), _) => Some(format!("{name}: {problem}")),
        (None, Attached::None) => None,
        (None, _) if !behind.is_empty() => Some(format!(
            "{name}: another program runs first at {}",
            behind.join(" and ")
        )),
        (None, _) => None,
    }
}

/// As a sentence begins and ends; a name at its beginning stays as it is.
fn sentence(reason: &str) -> String {
    let word = reason.split_whitespace().next().unwrap_or_default();
    let is_name = !word.chars().all(|c| c.is_ascii_lowercase() || c == ',');
    let mut letters = reason.chars();
    let first = match letters.next() {
        Some(c) if !is_name => c.to_ascii_uppercase().to_string(),
        Some(c) => c.to_string(),
        None => String::new(),
    };
    let end = if reason.ends_with('.') { "" } else { "." };
    format!("{first}{}{end}", letters.as_str())
}
