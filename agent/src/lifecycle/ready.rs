//! Readiness by named guards: the agent is ready when every part that said it would need time has
//! dropped its guard. Who asks is told which parts are still missing.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What is still missing. Cheap to clone; all clones are one.
#[derive(Debug, Clone, Default)]
pub struct Readiness(Arc<Mutex<BTreeMap<&'static str, usize>>>);

impl Readiness {
    /// Nothing is missing yet: take the guards before anyone can ask.
    pub fn new() -> Self {
        Self::default()
    }

    /// The part of this name is missing until the guard is dropped. Several guards may share a
    /// name.
    #[must_use = "dropping the guard says that the part is ready"]
    pub fn guard(&self, part: &'static str) -> Guard {
        *self.lock().entry(part).or_default() += 1;
        Guard {
            readiness: self.clone(),
            part,
        }
    }

    /// Names of what is missing, sorted; empty is ready.
    pub fn pending(&self) -> Vec<&'static str> {
        self.lock().keys().copied().collect()
    }

    /// A holder that panicked left the counts as they were: every change is one call.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<&'static str, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A part that is missing.
#[derive(Debug)]
pub struct Guard {
    readiness: Readiness,
    part: &'static str,
}

impl Drop for Guard {
    fn drop(&mut self) {
        let mut pending = self.readiness.lock();
        if let Some(count) = pending.get_mut(self.part) {
            *count -= 1;
            if *count == 0 {
                pending.remove(self.part);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_when_every_guard_is_dropped() {
        let readiness = Readiness::new();
        let view = readiness.guard("cluster view");
        let first = readiness.guard("attachment");
        let second = readiness.guard("attachment");
        assert_eq!(readiness.pending(), ["attachment", "cluster view"]);
        drop(first);
        assert_eq!(readiness.pending(), ["attachment", "cluster view"]);
        drop(second);
        drop(view);
        assert!(readiness.pending().is_empty());
    }
}
