//! Faults that the agent must detect, and harmless events that it must ignore.

use anyhow::Result;
use clap::ValueEnum;

use super::stage::{Stage, Undo};

/// A datapath fault that breaks every new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Fault {
    /// The chain of all Services is emptied.
    ChainFlushed,
    /// The kernel forwards nothing.
    ForwardingOff,
    /// All Service rules are removed.
    TableGone,
    /// Handshakes complete, but all data is dropped.
    DataDropped,
    /// A filter drops every packet that would be forwarded.
    ForwardDropped,
    /// The routes to all pods are cut; the default route stays.
    RoutesGone,
}

impl Fault {
    /// Faults with a cause that nothing else explains.
    pub const CERTAIN: [Self; 4] = [
        Self::ChainFlushed,
        Self::ForwardingOff,
        Self::TableGone,
        Self::DataDropped,
    ];

    /// Breaks the node. The fault is in force when this returns.
    pub fn inject(self, stage: &mut Stage) -> Result<Undo> {
        match self {
            Self::ChainFlushed => stage.rules.flush_services()?,
            Self::TableGone => stage.rules.remove()?,
            Self::ForwardingOff => {
                stage.world.set_forwarding(false)?;
                return Ok(Box::new(|stage| stage.world.set_forwarding(true)));
            }
            Self::DataDropped => {
                let drop_data = "tcp flags & (psh | ack) == psh | ack drop;";
                return stage.filter("data", &format!("{FORWARDED} {drop_data}"));
            }
            Self::ForwardDropped => {
                return stage.filter("forward", &format!("{FORWARDED} policy drop;"));
            }
            Self::RoutesGone => {
                let cut = stage.world.cut_pod_routes()?;
                return Ok(Box::new(move |stage| stage.world.mend_pod_routes(&cut)));
            }
        }
        Ok(Box::new(|stage| stage.rules.install()))
    }
}

/// Beginning of an nft chain on the forward hook that runs before all other chains.
const FORWARDED: &str = "type filter hook forward priority -10;";

/// Kills one of three backends of a Service.
pub fn kill_backend(stage: &mut Stage) -> Result<Undo> {
    stage.servers.remove("web-1");
    Ok(Box::new(|stage| {
        stage.serve("web-1");
        Ok(())
    }))
}

/// Drops the sentinel's address ranges and nothing else.
pub fn drop_range(stage: &mut Stage) -> Result<Undo> {
    let v4 = "ip saddr 198.18.0.0/15 drop; ip daddr 198.18.0.0/15 drop;";
    let v6 = "ip6 saddr 2001:2::/48 drop; ip6 daddr 2001:2::/48 drop;";
    stage.filter("range", &format!("{FORWARDED} {v4} {v6}"))
}
