//! Who holds which frontend: the first who claims it, until it lets go.

use agent_common::service::FrontendKey;

use super::Planner;
use super::diff::{Claim, Draft};
use crate::view::ClusterView;

impl Planner {
    /// Lets go of a frontend, or of the claim to it.
    pub(super) fn release(&mut self, id: u32, key: FrontendKey, draft: &mut Draft) {
        self.shortage.remove_frontend(&key, id);
        self.stop_waiting(id, &key);
        if self.owners.get(&key) == Some(&id) {
            self.owners.remove(&key);
            draft.release(key);
        }
    }

    fn stop_waiting(&mut self, id: u32, key: &FrontendKey) {
        if let Some(waiting) = self.contested.get_mut(key) {
            waiting.remove(&id);
            if waiting.is_empty() {
                self.contested.remove(key);
            }
        }
    }

    /// Gives every claimed frontend to its first claimant, after everything that is let go of is
    /// free: a frontend may move between Services in one batch.
    pub(super) fn settle_claims(&mut self, view: &ClusterView, draft: &mut Draft) {
        for claim in draft.take_claims() {
            self.settle(claim, draft);
        }
        for key in draft.released() {
            self.hand_over(view, key, draft);
        }
    }

    pub(super) fn settle(&mut self, claim: Claim, draft: &mut Draft) {
        match self.owners.get(&claim.key) {
            Some(owner) if *owner == claim.id => {
                if claim.stands != Some(claim.value) {
                    draft.put_frontend(claim.key, claim.value);
                }
            }
            Some(_) => {
                self.contested
                    .entry(claim.key)
                    .or_default()
                    .insert(claim.id);
            }
            None if self.shortage.is_blocked(claim.id) => {
                self.shortage.frontends.insert((claim.key, claim.id));
            }
            None => {
                self.shortage.remove_frontend(&claim.key, claim.id);
                self.stop_waiting(claim.id, &claim.key);
                self.owners.insert(claim.key, claim.id);
                draft.put_frontend(claim.key, claim.value);
            }
        }
    }

    /// Gives a frontend that nobody holds any more to the first who waits for it.
    pub(super) fn hand_over(&mut self, view: &ClusterView, key: FrontendKey, draft: &mut Draft) {
        if self.owners.contains_key(&key) {
            return;
        }
        let Some(waiting) = self.contested.get_mut(&key) else {
            return;
        };
        let heir = waiting.pop_first();
        if waiting.is_empty() {
            self.contested.remove(&key);
        }
        let claim = heir.and_then(|id| {
            let value = self.expected_frontend(view, id, &key)?;
            Some(Claim {
                id,
                key,
                value,
                stands: None,
            })
        });
        if let Some(claim) = claim {
            self.settle(claim, draft);
        }
    }
}
