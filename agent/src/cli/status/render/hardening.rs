//! What the agent has given up, and what it could not.

use super::{Page, TEXT};
use crate::cli::paper::{Ink, sentence};
use agent_core::report::hardening::FilesReport;

impl Page<'_> {
    /// Agents before it was reported say nothing of it, as those that keep everything.
    pub(super) fn hardening(&mut self) {
        let hardening = &self.report.hardening;
        self.paper.put(Ink::Heading, "confined").to(TEXT);
        if !hardening.wanted {
            self.paper.put(Ink::Warn, "no, by --hardening").line();
            return;
        }
        let rights = match hardening.capabilities.join(", ") {
            none if none.is_empty() => "no capabilities".to_owned(),
            some => format!("to {some}"),
        };
        let calls = match hardening.seccomp_filters {
            0 => "any system call",
            _ => "system calls filtered",
        };
        let files = match hardening.files {
            FilesReport::Confined => "its own files",
            FilesReport::WritesConfined => "writes its own files",
            FilesReport::Open => "any file",
        };
        let said = format!("{rights}; {calls}; {files}");
        self.paper.wrapped(Ink::Faint, TEXT, &said);
        let missing: Vec<_> = hardening.missing.iter().map(|why| sentence(why)).collect();
        self.list(Ink::Warn, &missing, "more");
    }
}
