//! What is kept of one IP family.

use std::net::IpAddr;
use std::time::Duration;

use agent_common::service::{SOURCE_CLASSES, SourceClass};
use serde::{Deserialize, Serialize};

use super::streak::{Entry, SOURCES_KEPT, Streak};
use crate::time::Mono;

/// What is known of a family. Serialisable: it outlives the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FamilyLedger {
    /// By path.
    pub(crate) proofs: [Option<Mono>; SOURCE_CLASSES],
    /// By path; unheard ones do not count.
    pub(crate) failures: [Option<Mono>; SOURCE_CLASSES],
    /// When a new connection last arrived.
    pub(crate) arrival: Option<Mono>,
    /// Failures since the last proof.
    pub(crate) streak: Option<Streak>,
    /// Clients that did not hear their answer, and when last.
    pub(crate) unheard: Vec<(IpAddr, Mono)>,
}

impl FamilyLedger {
    /// Whether anything was ever seen.
    pub(crate) fn is_known(&self) -> bool {
        *self != Self::default()
    }

    /// The last proof of any path.
    pub(crate) fn last_proof(&self) -> Option<Mono> {
        self.proofs.iter().flatten().max().copied()
    }

    /// The last failure of any path.
    pub(crate) fn last_failure(&self) -> Option<Mono> {
        self.failures.iter().flatten().max().copied()
    }

    /// A connection was proven. Failures before it accuse no more; those after it will come again.
    pub(crate) fn prove(&mut self, class: SourceClass, at: Mono) {
        let proof = &mut self.proofs[class as usize];
        *proof = (*proof).max(Some(at));
        if self
            .streak
            .as_ref()
            .is_some_and(|streak| streak.since <= at)
        {
            self.streak = None;
        }
    }

    /// A connection of that path failed.
    pub(crate) fn fail(&mut self, class: SourceClass, at: Mono) {
        let failure = &mut self.failures[class as usize];
        *failure = (*failure).max(Some(at));
    }

    /// Adds to the run of failures. A run with nothing in it for longer than `proof_age` is over.
    pub(crate) fn run(&mut self, entry: &Entry<'_>, proof_age: Duration) {
        match &mut self.streak {
            Some(streak) if entry.last.since(streak.last) <= proof_age => streak.enter(entry),
            streak => *streak = Some(Streak::begin(entry)),
        }
    }

    /// A client did not hear its answer.
    pub(crate) fn unhear(&mut self, client: IpAddr, at: Mono) {
        if let Some((_, last)) = self.unheard.iter_mut().find(|(known, _)| *known == client) {
            *last = at.max(*last);
            return;
        }
        if self.unheard.len() >= SOURCES_KEPT {
            let oldest = self
                .unheard
                .iter()
                .enumerate()
                .min_by_key(|(_, (_, at))| *at);
            if let Some((index, _)) = oldest {
                self.unheard.swap_remove(index);
            }
        }
        self.unheard.push((client, at));
    }
}
