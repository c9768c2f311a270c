//! Faults that the agent must tell with certainty, and harmless things that must cost nothing.

use std::fmt;

use anyhow::Result;

use super::Stage;
use crate::traffic::Server;

/// A fault of the datapath with an unambiguous cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The chain of all Services is emptied.
    ChainFlushed,
    /// The kernel forwards nothing.
    ForwardingOff,
    /// Every rule is gone.
    TableGone,
    /// Handshakes complete, what follows is dropped.
    DataDropped,
}

impl Fault {
    /// Every one.
    pub const ALL: [Self; 4] = [
        Self::ChainFlushed,
        Self::ForwardingOff,
        Self::TableGone,
        Self::DataDropped,
    ];

    /// Breaks the node. It is broken when this returns.
    pub fn inject(self, stage: &Stage) -> Result<()> {
        match self {
            Self::ChainFlushed => stage.rules.flush_services(),
            Self::TableGone => stage.rules.remove(),
            Self::ForwardingOff => stage.world.set_forwarding(false),
            Self::DataDropped => stage.filter(
                "type filter hook forward priority -10; tcp flags & (psh | ack) == psh | ack drop;",
            ),
        }
    }

    /// Takes it back.
    pub fn mend(self, stage: &Stage) -> Result<()> {
        match self {
            Self::ChainFlushed | Self::TableGone => stage.rules.install(),
            Self::ForwardingOff => stage.world.set_forwarding(true),
            Self::DataDropped => stage.unfilter(),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::ChainFlushed => "Service chain flushed",
            Self::ForwardingOff => "forwarding off",
            Self::TableGone => "all rules gone",
            Self::DataDropped => "data dropped after the handshake",
        })
    }
}

/// What is no fault of the datapath.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Harmless {
    BackendKilled,
    /// A filter drops the sentinel's ranges and nothing else.
    RangeDropped,
}

impl Harmless {
    /// Every one.
    pub const ALL: [Self; 2] = [Self::BackendKilled, Self::RangeDropped];

    /// Makes it happen.
    pub fn happen(self, stage: &mut Stage) -> Result<()> {
        match self {
            Self::BackendKilled => {
                stage.servers.remove(Stage::VICTIM);
                Ok(())
            }
            Self::RangeDropped => stage.filter(
                "type filter hook forward priority -10; \
                 ip saddr 198.18.0.0/15 drop; ip daddr 198.18.0.0/15 drop; \
                 ip6 saddr 2001:2::/48 drop; ip6 daddr 2001:2::/48 drop;",
            ),
        }
    }

    /// Takes it back.
    pub fn mend(self, stage: &mut Stage) -> Result<()> {
        match self {
            Self::BackendKilled => {
                let server = Server::start(stage.world.pod(Stage::VICTIM), Stage::PORT)?;
                stage.servers.insert(Stage::VICTIM.to_owned(), server);
                Ok(())
            }
            Self::RangeDropped => stage.unfilter(),
        }
    }
}

impl fmt::Display for Harmless {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::BackendKilled => "backend killed",
            Self::RangeDropped => "sentinel's range dropped",
        })
    }
}
