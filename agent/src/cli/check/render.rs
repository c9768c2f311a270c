//! The check as a page.

use std::time::Duration;

use super::super::lanes;
use super::super::paper::{Ink, Paper, counted, sentence};
use super::super::why::Remedy;
use super::judge::{Checked, CheckedPath, PathResult, Result, Source};
use agent_core::time::Spoken;

/// Where text begins that belongs to a path, or to a section.
const TEXT: usize = 16;
// Columns of the paths; those of numbers are where they end.
const MARK: usize = 6;
const PATH: usize = 8;
const TRANSPORT: usize = 21;
const RESULT: usize = 26;
const PASSED: usize = 44;
const ROUND_TRIP: usize = 56;
const CAUSE: usize = 59;
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
    page.next();
    page.coverage();
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
                "Read for {time} from the agent at {address} (pathproof {version}), which probes."
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
        let mut family = "";
        let mut said: Vec<&str> = Vec::new();
        for path in &checked.paths {
            if path.family != family {
                self.paper.put(Ink::Plain, path.family);
                family = path.family;
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
        paper.put(Ink::Plain, lanes::path(path.path)).to(TRANSPORT);
        paper.put(Ink::Faint, path.transport.name()).to(RESULT);
        paper.put(ink, word);
        let passed = format!("{} of {}", path.passed, path.passed + path.failed);
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
                paper.put(ink, &cause.name().replace('_', " ")).line();
                let steps = lanes::steps_of(path.path, path.cause, &path.delays, path.failed);
                if !steps.is_empty() {
                    paper.to(PATH);
                    lanes::chain(paper, &steps);
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
            let failed: u64 = trouble.failures.iter().map(|(_, count)| count).sum();
            let text = format!(
                "{}: {} of pods and others failed ({})",
                trouble.service,
                counted(failed, "connection"),
                trouble.cause.name().replace('_', " ")
            );
            self.paper.put(Ink::Heading, title).to(TEXT);
            self.paper.wrapped(Ink::Warn, TEXT, &text);
        }
        if !services.is_empty() {
            self.paper.line();
        }
    }

    fn next(&mut self) {
        let next = &self.checked.next;
        Remedy::write_all(next, &mut self.paper, TEXT);
        if !next.is_empty() && !self.checked.coverage.is_empty() {
            self.paper.line();
        }
    }

    fn coverage(&mut self) {
        let losses = &self.checked.coverage;
        for (index, loss) in losses.iter().take(LINES_SHOWN).enumerate() {
            let title = if index == 0 { "not seen" } else { "" };
            self.paper.put(Ink::Heading, title).to(TEXT);
            self.paper.wrapped(Ink::Warn, TEXT, &sentence(loss));
        }
    }
}
