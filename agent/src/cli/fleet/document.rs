//! The list as JSON. Names are stable within a [`SCHEMA`]: fields are added, never renamed.

use serde::Serialize;

use super::{Fleet, View};
use agent_core::fleet::{CoverageSeen, Eligible, Group, Row, Source, Tally};

/// Version of the document.
const SCHEMA: u32 = 1;

/// The whole document.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Document {
    /// Version of this layout.
    pub schema: u32,
    /// When it was written.
    pub written: String,
    /// How many nodes of which kind, also of those that are left out.
    pub summary: Tally,
    /// The nodes, in the order of the page.
    pub nodes: Vec<Node>,
    /// What is not known, why, and what would help.
    pub notes: Vec<String>,
}

/// One node.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Node {
    /// Its name.
    pub node: String,
    /// Where it belongs.
    pub group: Group,
    /// What is said of it.
    pub verdict: &'static str,
    /// Why, in a word or two.
    pub reason: String,
    /// Why, in a sentence.
    pub sentence: Option<String>,
    /// Since when.
    pub since: Option<String>,
    /// How far the rules lag behind the API, in seconds.
    pub lag: Option<f64>,
    /// How well the agent sees.
    pub coverage: Option<CoverageSeen>,
    /// Whether the node may be sent new connections, apart from its datapath.
    pub eligible: bool,
    /// Why it may not.
    pub leaving: Option<String>,
    /// The verdict has no consequences.
    pub audit: bool,
    /// Who says the verdict.
    pub source: Source,
}

impl Document {
    /// Of a list.
    pub fn of(fleet: &Fleet, view: &View<'_>) -> Self {
        let shown = |row: &&Row| !view.sick_alone || row.group != Group::Sound;
        Self {
            schema: SCHEMA,
            written: view.now.to_string(),
            summary: fleet.tally,
            nodes: fleet.rows.iter().filter(shown).map(Node::of).collect(),
            notes: fleet.notes.clone(),
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
            lag: row.lag.map(|lag| lag.as_secs_f64()),
            coverage: row.coverage.clone(),
            eligible: leaving.is_none(),
            leaving,
            audit: row.audit,
            source: row.source,
        }
    }
}
