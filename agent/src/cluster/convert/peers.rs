//! Numbers for other nodes, by which the observer's programs and the ledger know them.

use std::collections::HashMap;
use std::sync::Arc;

use agent_core::peers::PEERS;

/// Numbers of other nodes, from 1 to [`PEERS`]. Names come and go, and whoever writes slices can
/// invent some: after the last number the first is given again. Two nodes of one number pass for one,
/// which accuses nobody.
#[derive(Debug, Default)]
pub(super) struct PeerNumbers {
    of: HashMap<Arc<str>, u16>,
    /// By number, from 1 on.
    names: Vec<Arc<str>>,
    /// Where the next name goes.
    next: usize,
    /// Not delivered yet.
    new: Vec<(u16, Arc<str>)>,
}

impl PeerNumbers {
    pub(super) fn number(&mut self, name: &str) -> u16 {
        if let Some(known) = self.of.get(name) {
            return *known;
        }
        let name: Arc<str> = name.into();
        let number = self.next as u16 + 1;
        match self.names.get_mut(self.next) {
            Some(place) => {
                self.of.remove(place);
                *place = Arc::clone(&name);
            }
            None => self.names.push(Arc::clone(&name)),
        }
        self.next = (self.next + 1) % PEERS;
        self.of.insert(Arc::clone(&name), number);
        self.new.push((number, name));
        number
    }

    /// Numbers given since the last call.
    pub(super) fn take_new(&mut self) -> Vec<(u16, Arc<str>)> {
        std::mem::take(&mut self.new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_and_come_again_when_all_are_given() {
        let mut peers = PeerNumbers::default();
        assert_eq!(
            [peers.number("a"), peers.number("b"), peers.number("a")],
            [1, 2, 1]
        );
        for other in 0..PEERS - 1 {
            peers.number(&other.to_string());
        }
        assert_eq!(peers.number("b"), 2);
        assert_eq!(peers.number("a"), 2, "its number is another node's by now");
        assert_eq!((peers.of.len(), peers.names.len()), (PEERS, PEERS));
        assert_eq!(peers.take_new().len(), PEERS + 2);
        assert!(peers.take_new().is_empty());
    }
}
