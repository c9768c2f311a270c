//! Who translates which path, where that is not kube-proxy alone, and what of it is not seen.

use super::{Page, TEXT};
use crate::cli::paper::{Ink, sentence};
use agent_core::names;
use agent_core::shape::Seen;

impl Page<'_> {
    /// Nothing where there is nothing unusual about it.
    pub(super) fn datapath(&mut self) {
        let shape = &self.report.datapath;
        let said: Vec<String> = shape.notes.iter().map(|note| sentence(note)).collect();
        let unusual = shape.cilium.is_some() || shape.netkit > 0 || !shape.accelerated.is_empty();
        if said.is_empty() && !unusual {
            return;
        }
        self.paper.put(Ink::Heading, "datapath");
        for note in &said {
            self.paper.to(TEXT).wrapped(Ink::Plain, TEXT, note);
        }
        let mut known: Vec<String> = Vec::new();
        for path in shape.paths.iter().filter(|_| unusual) {
            // The families differ where kube-proxy serves one of them alone.
            let line = format!("{}: {}", names::of_path(path.path), path.sentence);
            if known.contains(&line) {
                continue;
            }
            let ink = match path.seen {
                Seen::Full => Ink::Plain,
                Seen::Partial | Seen::Hidden => Ink::Faint,
            };
            self.paper.to(TEXT).wrapped(ink, TEXT + 2, &line);
            known.push(line);
        }
        self.paper.line();
    }
}
