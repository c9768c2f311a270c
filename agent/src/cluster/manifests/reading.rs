//! One file while it is read.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use super::{Key, Problem, Reason};
use crate::cluster::facts::Facts;
use crate::cluster::yaml::Place;

/// A file while it is read.
pub(super) struct Reading {
    pub(super) id: u32,
    pub(super) path: PathBuf,
    /// Objects of this file, with the line each stands at.
    pub(super) seen: HashMap<Key, u64>,
    pub(super) problems: Vec<Problem>,
    pub(super) ignored: BTreeMap<String, u64>,
    pub(super) has_duplicates: bool,
    /// Whether everything in it was understood.
    pub(super) whole: bool,
}

impl Reading {
    pub(super) fn ignore(&mut self, what: String) {
        *self.ignored.entry(what).or_default() += 1;
    }

    pub(super) fn complain(&mut self, place: Place, reason: Reason) {
        self.problems.push(Problem {
            path: self.path.clone(),
            place: Some(place),
            reason,
        });
    }

    pub(super) fn duplicate(&mut self, place: Place, facts: &Facts, first: String) {
        let reason = Reason::Duplicate {
            kind: facts.kind(),
            name: facts.name(),
            first,
        };
        self.complain(place, reason);
    }
}
