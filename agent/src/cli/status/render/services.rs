//! Services by outcome: those in trouble with what is known of it, then the busiest.

use agent_common::service::Family;

use super::super::super::paper::{Ink, fitted, grouped};
use super::{Page, TEXT};
use agent_core::names;
use agent_core::report::{Report, ServiceReport};
use agent_core::time::Spoken;
use agent_core::verdict::ServiceTrouble;

/// Services in trouble that are shown.
const TROUBLED_SHOWN: usize = 12;
/// Sound Services that are shown.
const SOUND_SHOWN: usize = 8;
// Columns of the Services; those of numbers are where they end.
const NAME: usize = 4;
const FAMILY: usize = 38;
const ENDPOINTS: usize = 53;
const NEW: usize = 62;
const PROVEN: usize = 71;
const FAILED: usize = 79;

impl Page<'_> {
    pub(super) fn services(&mut self) {
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
            self.service(&service.service, service.family, Some(service));
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
        let family = trouble.family;
        let report = self.report;
        let counts = report
            .services
            .iter()
            .find(|service| service.service == trouble.service && service.family == family);
        self.paper
            .put(ink, if trouble.confirmed { "  ✗" } else { "  !" })
            .to(NAME);
        self.service(&trouble.service, family, counts);
        let failed: u64 = trouble.failures.values().sum();
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
    fn service(&mut self, name: &str, family: Family, counts: Option<&ServiceReport>) {
        self.paper.put(Ink::Plain, &fitted(name, FAMILY - NAME - 1));
        self.paper
            .to(FAMILY)
            .put(Ink::Faint, names::of_family(family));
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
}

fn trouble_of<'a>(report: &'a Report, service: &ServiceReport) -> Option<&'a ServiceTrouble> {
    report
        .verdict
        .services
        .iter()
        .find(|trouble| trouble.service == service.service && trouble.family == service.family)
}
