//! Explores all states of a model breadth first, so that the first history to a wrong state is a shortest one.
//!
//! Only a hash of 64 bits is kept of each state. In an exploration of ten million states the probability is
//! one in 370,000 that two of them have the same hash.

use std::collections::{HashSet, VecDeque};
use std::fmt::Display;
use std::hash::{DefaultHasher, Hash, Hasher as _};

/// A model with a bounded number of states.
pub trait Model {
    type State;
    type Action: Display;

    fn begin(&self) -> Self::State;

    /// All actions that are possible in a state, each with the state after it.
    fn next(&self, state: &Self::State) -> Vec<(Self::Action, Self::State)>;

    /// A hash that is equal for states with the same future.
    fn fingerprint(&self, state: &Self::State) -> u64;
}

/// Explores all states, and returns their number.
///
/// # Errors
/// The actions of a shortest history to a wrong state, if there is one.
pub fn explore<M: Model>(
    model: &M,
    is_wrong: impl Fn(&M::State) -> bool,
) -> Result<usize, Vec<String>> {
    let begin = model.begin();
    let mut seen = HashSet::from([model.fingerprint(&begin)]);
    // Of each state the number of the state before it, and the action between them.
    let mut trail: Vec<Option<(usize, M::Action)>> = vec![None];
    let mut queue = VecDeque::from([(0, begin)]);
    while let Some((number, state)) = queue.pop_front() {
        if is_wrong(&state) {
            return Err(history(&trail, number));
        }
        for (action, next) in model.next(&state) {
            if seen.insert(model.fingerprint(&next)) {
                queue.push_back((trail.len(), next));
                trail.push(Some((number, action)));
            }
        }
    }
    Ok(seen.len())
}

fn history<A: Display>(trail: &[Option<(usize, A)>], mut number: usize) -> Vec<String> {
    let mut actions = Vec::new();
    while let Some((before, action)) = &trail[number] {
        actions.push(action.to_string());
        number = *before;
    }
    actions.reverse();
    actions
}

pub(super) fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// Letter of a node or a rotator in a history.
pub(super) fn letter(number: usize) -> char {
    char::from(b'A' + u8::try_from(number).unwrap_or(25))
}
