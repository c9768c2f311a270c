//! Which agents are asked: each is a connection through the API server and a kubelet, so in a large
//! cluster only those whose answer says more than the condition does.

use super::row::{Group, row};
use super::{AgentSeen, NodeFacts, NodeSeen};
use crate::time::Wall;

/// Agents that are asked at most where nobody said how many.
pub const MOST: usize = 100;

/// Which agents are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// All in a cluster of up to [`MOST`] nodes; in a larger one those of [`Ask::Sick`], the sickest
    /// [`MOST`] of them.
    Auto,
    /// All.
    All,
    /// Those whose condition does not say that the node is proven and stays.
    Sick,
    /// None.
    None,
}

/// Places in `nodes` of those whose agents are asked, the sickest first.
pub fn to_ask(ask: Ask, nodes: &[NodeSeen], now: Wall) -> Vec<usize> {
    let mut places: Vec<(Group, usize)> = nodes
        .iter()
        .enumerate()
        .map(|(place, node)| (group(node, now), place))
        .collect();
    places.sort();
    let all = match ask {
        Ask::None => return Vec::new(),
        Ask::All => true,
        Ask::Sick => false,
        Ask::Auto => nodes.len() <= MOST,
    };
    let most = match ask {
        Ask::Auto => MOST,
        _ => usize::MAX,
    };
    places
        .into_iter()
        .filter(|(group, _)| all || *group != Group::Sound)
        .map(|(_, place)| place)
        .take(most)
        .collect()
}

fn group(node: &NodeSeen, now: Wall) -> Group {
    let facts = NodeFacts {
        node: node.clone(),
        agent: AgentSeen::Unsought,
    };
    row(&facts, now).group
}
