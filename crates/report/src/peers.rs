//! Connections to other nodes, for `/verdict` and `status`.

use pathproof_node::Node;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeersReport {
    /// Number of nodes that received connections to Services since the agent started.
    pub dialled: usize,
    /// How many of them answered at some time and are not silent now.
    pub answering: usize,
    /// Names of the nodes that answered before and are silent now.
    pub silent: Vec<String>,
}

impl PeersReport {
    /// The ledger's state now.
    pub fn of(node: &Node) -> Self {
        let peers = node.judge().peers();
        let (known, silent) = (peers.known(), peers.silent());
        let answered = known.values().filter(|peer| peer.last_answer.is_some());
        Self {
            dialled: known.len(),
            answering: answered.count().saturating_sub(silent.len()),
            silent: silent.into_iter().map(str::to_owned).collect(),
        }
    }
}
