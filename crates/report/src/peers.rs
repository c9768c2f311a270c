//! Connections to other nodes, for `/verdict` and `status`.

use std::cmp::Reverse;

use pathproof_facts::time::Mono;
use pathproof_node::Node;
use serde::{Deserialize, Serialize};

/// Maximum number of nodes in the list, those with the most unanswered connections first.
const SHOWN: usize = 20;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeersReport {
    /// Number of nodes that received connections to Services since the agent started.
    pub dialled: usize,
    /// How many of them answered at some time and are not silent now.
    pub answering: usize,
    /// Names of the nodes that answered before and are silent now.
    pub silent: Vec<String>,
    /// By node, most unanswered connections first.
    pub nodes: Vec<PeerReport>,
}

/// Connections to the endpoints of one node, since the agent started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerReport {
    pub node: String,
    pub answered: u64,
    /// Forwarded and not answered within the loss window.
    pub unanswered: u64,
    pub last_answer: Option<Mono>,
}

impl PeersReport {
    /// The ledger's state now.
    pub fn of(node: &Node) -> Self {
        let peers = node.judge().peers();
        let known = peers.known();
        let mut shown: Vec<_> = known.iter().collect();
        shown.sort_by_key(|(peer, totals)| (Reverse(totals.unanswered), **peer));
        let name = |peer: u16| match node.view().peer(peer) {
            Some(name) => name.to_string(),
            None => format!("node number {peer}"),
        };
        let nodes = shown.into_iter().take(SHOWN);
        let nodes = nodes.map(|(peer, totals)| PeerReport {
            node: name(*peer),
            answered: totals.answered,
            unanswered: totals.unanswered,
            last_answer: totals.last_answer,
        });
        let silent = peers.silent();
        let answered = known.values().filter(|peer| peer.last_answer.is_some());
        Self {
            dialled: known.len(),
            answering: answered.count().saturating_sub(silent.len()),
            silent: silent.into_iter().map(str::to_owned).collect(),
            nodes: nodes.collect(),
        }
    }
}
