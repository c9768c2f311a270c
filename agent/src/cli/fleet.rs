//! `pathproof fleet`, or `kubectl pathproof`: lists the nodes of a cluster by their conditions, and
//! runs `why` and `status` in the pod of one node's agent. kubectl carries every request.

use std::ffi::OsStr;
use std::path::Path;

use super::{Exit, colours};
use crate::args::{FleetArgs, FleetCommand, Output};
use agent_core::fleet::{Group, NodeSeen, Row, Tally, rows};
use agent_core::time::Wall;

mod document;
mod kubectl;
mod render;

use document::Document;
use kubectl::KubectlError;
use render::render;

/// How the list is looked at.
#[derive(Clone, Copy, Debug)]
struct View<'a> {
    colour: bool,
    /// The wall clock.
    now: Wall,
    /// Nodes that are proven and stay are left out.
    sick_alone: bool,
    /// How the command is called: `kubectl pathproof`.
    program: &'a str,
}

/// The whole list, in the order of the page.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Fleet {
    rows: Vec<Row>,
    tally: Tally,
}

impl Fleet {
    /// As of `now`.
    fn of(nodes: &[NodeSeen], now: Wall) -> Self {
        let rows = rows(nodes, now);
        Self {
            tally: Tally::of(&rows),
            rows,
        }
    }

    fn shown(&self, view: &View<'_>) -> Vec<&Row> {
        let rows = self.rows.iter();
        rows.filter(|row| !view.sick_alone || row.group != Group::Sound)
            .collect()
    }
}

/// Runs the command. Where kubectl takes this process over, it does not return.
pub fn run(said: &FleetArgs, now: Wall) -> Exit {
    let (command, of) = match &said.command {
        None => return list(said, now).unwrap_or_else(|error| super::fail(&error)),
        Some(FleetCommand::Why(of)) => ("why", of),
        Some(FleetCommand::Status(of)) => ("status", of),
    };
    let error = match kubectl::agent_pod(said, &of.node) {
        Ok(pod) => kubectl::exec(said, &pod, command, &of.options),
        Err(error) => error,
    };
    super::fail(&error)
}

fn list(said: &FleetArgs, now: Wall) -> Result<Exit, KubectlError> {
    let fleet = Fleet::of(&kubectl::nodes(said)?, now);
    let view = View {
        colour: colours(),
        now,
        sick_alone: said.sick,
        program: program(),
    };
    Ok(match said.output {
        Output::Text => super::print(&render(&fleet, &view)),
        Output::Json => super::print_json(&Document::of(&fleet, &view)),
    })
}

/// Whether the program is called as kubectl calls a plugin: `kubectl-pathproof`, or with an
/// underscore, as names with dashes are written.
pub(super) fn is_plugin(called: &OsStr) -> bool {
    let name = Path::new(called).file_name().and_then(OsStr::to_str);
    matches!(name, Some("kubectl-pathproof" | "kubectl_pathproof"))
}

/// How the command is called.
fn program() -> &'static str {
    match std::env::args_os().next() {
        Some(called) if is_plugin(&called) => "kubectl pathproof",
        _ => "pathproof fleet",
    }
}

#[cfg(test)]
mod tests;
