//! Numbers of other nodes, used by the observer's programs and the ledger.

use std::collections::HashMap;
use std::sync::Arc;

use pathproof_witness::peers::PEERS;

/// Numbers of other nodes, from 1 to [`PEERS`].
///
/// A number is never reused, although anybody who can write slices can invent names of nodes. If a new node
/// got an old number, the ledger would treat it as a node that has answered before, and report it as silent.
/// Nodes beyond the last number get none until the agent restarts, and are not reported on.
#[derive(Debug, Default)]
pub(super) struct PeerNumbers {
    numbers: HashMap<Arc<str>, u16>,
    /// Numbers not delivered yet.
    pub(super) new: Vec<(u16, Arc<str>)>,
}

impl PeerNumbers {
    /// Number of the node; zero if it has none.
    pub(super) fn number(&mut self, name: &str) -> u16 {
        if let Some(known) = self.numbers.get(name) {
            return *known;
        }
        if self.numbers.len() == PEERS {
            return 0;
        }
        let name: Arc<str> = name.into();
        let number = self.numbers.len() as u16 + 1;
        self.numbers.insert(Arc::clone(&name), number);
        self.new.push((number, name));
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_and_are_given_once() {
        let mut peers = PeerNumbers::default();
        assert_eq!(
            [peers.number("a"), peers.number("b"), peers.number("a")],
            [1, 2, 1]
        );
        for other in 0..PEERS - 2 {
            peers.number(&other.to_string());
        }
        assert_eq!(peers.number("one too many"), 0);
        assert_eq!([peers.number("b"), peers.number("a")], [2, 1]);
        assert_eq!(std::mem::take(&mut peers.new).len(), PEERS);
        assert!(peers.new.is_empty());
    }
}
