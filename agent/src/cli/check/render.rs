//! The check as a page.

use std::time::Duration;

use super::super::lanes;
use super::super::paper::{Ink, Paper, counted, grouped, sentence};
use super::checked::{Checked, CheckedPath, PathResult, Result, Source};
use agent_core::explain;
use agent_core::names;
use agent_core::time::Spoken;

/// Where text begins that belongs to a path, or to a section.
const TEXT: usize = 16;
// Columns of the paths; those of numbers are where they end.
const MARK: usize = 6;
const PATH: usize = 8;
const TRANSPORT: usize = 21;
const RESULT: usize = 26;
const PASSED: usize = 54;
const ROUND_TRIP: usize = 66;
const CAUSE: usize = 69;
/// Lines of anything that may repeat.
const LINES_SHOWN: usize = 6;

/// The page.
pub fn render(checked: &Checked, colour: bool) -> String {
    let mut page = Page {
        paper: Paper::new(colour),
        checked,
    };
    page.head();
    page.paths();
    page.services();
    page.paper.remedies(&checked.next, TEXT);
    if !checked.next.is_empty() && !checked.coverage.is_empty() {
        page.paper.line();
    }
    page.paper.losses(&checked.coverage, TEXT, LINES_SHOWN);
    page.paper.finish()
}

struct Page<'a> {
    paper: Paper,
    checked: &'a Checked,
}

impl Page<'_> {
    fn head(&mut self) {
        let checked = self.checked;
        let ink = match checked.result {
            Result::Sound => Ink::Good,
            Result::Broken => Ink::Bad,
            Result::Unknown => Ink::Unsure,
        };
        self.paper
            .badge(ink, &checked.result.name().to_uppercase())
            .put(Ink::Plain, "  ")
            .put(Ink::Heading, &checked.node)
            .line();
        self.paper
            .wrapped(Ink::Plain, 0, &sentence(&checked.sentence));
        let time = Spoken(Duration::try_from_secs_f64(checked.seconds).unwrap_or_default());
        let said = match (&checked.source, checked.paths.is_empty()) {
            (Source::Itself, true) => return self.paper.line(),
            (Source::Itself, false) => format!("Probed for {time}; nothing is left behind."),
            (Source::Agent { address, version }, true) => {
                format!("Read from the agent at {address} (pathproof {version}).")
            }
            (Source::Agent { address, version }, false) => format!(
                "Read from the agent at {address} (pathproof {version}), which has run for {time}."
            ),
        };
        self.paper.wrapped(Ink::Faint, 0, &said);
        self.paper.line();
    }

    fn paths(&mut self) {
        let checked = self.checked;
        if checked.paths.is_empty() {
            return;
        }
        self.paper
            .put(Ink::Heading, "paths")
            .right(Ink::Faint, PASSED, "passed")
            .right(Ink::Faint, ROUND_TRIP, "round trip")
            .line();
        let mut family = None;
        let mut said: Vec<&str> = Vec::new();
        for path in &checked.paths {
            if family.replace(path.family) != Some(path.family) {
                self.paper.put(Ink::Plain, names::of_family(path.family));
            }
            self.path(path);
            // What was said of a path before is not said again.
            if let Some(text) = path.sentence.as_deref().filter(|text| !said.contains(text)) {
                said.push(text);
                self.paper.to(PATH);
                self.paper.wrapped(Ink::Faint, PATH, &sentence(text));
            }
        }
        self.paper.line();
    }

    fn path(&mut self, path: &CheckedPath) {
        let (mark, ink, word) = match path.result {
            PathResult::Pass => ("●", Ink::Good, "pass"),
            PathResult::Fail => ("✗", Ink::Bad, "FAIL"),
            PathResult::Unsure => ("!", Ink::Warn, "unsure"),
        };
        let paper = &mut self.paper;
        paper.to(MARK).put(ink, mark).to(PATH);
        paper
            .put(Ink::Plain, explain::path_label(path.path))
            .to(TRANSPORT);
        paper.put(Ink::Faint, path.transport.name()).to(RESULT);
        paper.put(ink, word);
        let probes = grouped(path.passed + path.failed);
        let passed = format!("{} of {probes}", grouped(path.passed));
        paper.right(Ink::Plain, PASSED, &passed);
        if let (Some(ns), PathResult::Pass) = (path.delays.round_trip, path.result) {
            paper.right(
                Ink::Plain,
                ROUND_TRIP,
                &lanes::fine(Duration::from_nanos(ns)),
            );
        }
        match path.cause {
            None => paper.line(),
            Some(cause) => {
                paper.to(CAUSE);
                paper.put(ink, &explain::cause_label(cause)).line();
                if !path.steps.is_empty() {
                    paper.to(PATH);
                    lanes::chain(paper, &path.steps);
                    paper.line();
                }
            }
        }
    }

    /// Real connections that fail are worth knowing, whatever probes say.
    fn services(&mut self) {
        let services = &self.checked.services;
        for (index, trouble) in services.iter().take(LINES_SHOWN).enumerate() {
            let title = if index == 0 { "services" } else { "" };
            let failed: u64 = trouble.failures.values().sum();
            let text = format!(
                "{}: {} of pods and others failed ({})",
                trouble.service,
                counted(failed, "connection"),
                explain::label(trouble.cause.name())
            );
            self.paper.section(TEXT, title, Ink::Warn, &text);
        }
        if !services.is_empty() {
            self.paper.line();
        }
    }
}
