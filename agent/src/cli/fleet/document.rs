//! The list as JSON.

use serde::Serialize;

use super::{Fleet, View};
use agent_core::fleet::{Row, Tally};

/// Version of the document: fields are added within it, never renamed.
const SCHEMA: u32 = 1;

#[derive(Serialize)]
pub(super) struct Document<'a> {
    schema: u32,
    /// When it was written.
    written: String,
    /// How many nodes of which kind, also of those that are left out.
    summary: Tally,
    /// In the order of the page.
    nodes: Vec<&'a Row>,
}

impl<'a> Document<'a> {
    pub(super) fn of(fleet: &'a Fleet, view: &View<'_>) -> Self {
        Self {
            schema: SCHEMA,
            written: view.now.to_string(),
            summary: fleet.tally,
            nodes: fleet.shown(view),
        }
    }
}
