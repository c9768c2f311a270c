//! `pathproof fleet`, or `kubectl pathproof`: prints what was found of a cluster's nodes, and one
//! node's own page as `why` and `status` print it.

use std::ffi::OsStr;
use std::io::{self, IsTerminal as _, Write as _};
use std::path::Path;

use super::{Exit, colours};
use crate::args::Output;
use agent_core::fleet::{NodeFacts, Row, Tally, rows};
use agent_core::time::Wall;

mod document;
mod render;

pub use document::Document;
pub use render::render;

/// How the list is looked at.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// Whether colours are used.
    pub colour: bool,
    /// The wall clock.
    pub now: Wall,
    /// Nodes that are proven and stay are left out.
    pub sick_alone: bool,
    /// How the command is called: `kubectl pathproof`.
    pub program: &'a str,
}

/// The whole list, in the order of the page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fleet {
    /// By node.
    pub rows: Vec<Row>,
    /// How many of which kind.
    pub tally: Tally,
    /// What is not known, why, and what would help.
    pub notes: Vec<String>,
}

impl Fleet {
    /// Of what was found, as of `now`.
    pub fn of(nodes: &[NodeFacts], notes: Vec<String>, now: Wall) -> Self {
        let rows = rows(nodes, now);
        Self {
            tally: Tally::of(&rows),
            rows,
            notes,
        }
    }
}

/// Prints the list.
pub fn show(fleet: &Fleet, output: Output, view: &View<'_>) -> Exit {
    match output {
        Output::Text => super::print(&render(fleet, view)),
        Output::Json => super::print_json(&Document::of(fleet, view)),
    }
}

/// How the list is looked at here.
pub fn view(program: &str, sick_alone: bool, now: Wall) -> View<'_> {
    View {
        colour: colours(),
        now,
        sick_alone,
        program,
    }
}

/// Whether the program is called as kubectl calls a plugin: `kubectl-pathproof`, or with an
/// underscore, as names with dashes are written.
pub fn is_plugin(called: &OsStr) -> bool {
    let name = Path::new(called).file_name().and_then(OsStr::to_str);
    matches!(name, Some("kubectl-pathproof" | "kubectl_pathproof"))
}

/// How the command is called.
pub fn program() -> &'static str {
    match std::env::args_os().next() {
        Some(called) if is_plugin(&called) => "kubectl pathproof",
        _ => "pathproof fleet",
    }
}

/// Says how far it is, in place, where somebody looks; an empty text takes it away.
pub fn tell(text: &str) {
    let mut err = io::stderr().lock();
    if err.is_terminal() {
        // Nothing is lost where it cannot be written.
        let _ = write!(err, "\r\x1b[K{text}");
        let _ = err.flush();
    }
}

#[cfg(test)]
mod tests;
