//! The list as JSON. Names are stable within a [`SCHEMA`]: fields are added, never renamed.

use serde::Serialize;

use super::{Fleet, View};
use crate::domain::fleet::{Eligible, Group, Row, Tally};

/// Version of the document.
const SCHEMA: u32 = 1;

/// The whole document.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Document {
    /// Version of this layout.
    schema: u32,
    /// When it was written.
    written: String,
    /// How many nodes of which kind, also of those that are left out.
    summary: Tally,
    /// The nodes, in the order of the page.
    nodes: Vec<Node>,
}

/// One node.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Node {
    /// Its name.
    node: String,
    /// Where it belongs.
    group: Group,
    /// What is said of it.
    verdict: &'static str,
    /// Why, in a word or two.
    reason: String,
    /// Why, in a sentence.
    sentence: Option<String>,
    /// Since when.
    since: Option<String>,
    /// Whether the node may be sent new connections, apart from its datapath.
    eligible: bool,
    /// Why it may not.
    leaving: Option<String>,
}

impl Document {
    /// Of a list.
    pub(super) fn of(fleet: &Fleet, view: &View<'_>) -> Self {
        let shown = |row: &&Row| !view.sick_alone || row.group != Group::Sound;
        Self {
            schema: SCHEMA,
            written: view.now.to_string(),
            summary: fleet.tally,
            nodes: fleet.rows.iter().filter(shown).map(Node::of).collect(),
        }
    }
}

impl Node {
    fn of(row: &Row) -> Self {
        let leaving = match &row.eligible {
            Eligible::Yes => None,
            Eligible::No(why) => Some(why.clone()),
        };
        Self {
            node: row.node.clone(),
            group: row.group,
            verdict: row.judged.name(),
            reason: row.reason.clone(),
            sentence: row.sentence.clone(),
            since: row.since.map(|at| at.to_string()),
            eligible: leaving.is_none(),
            leaving,
        }
    }
}
