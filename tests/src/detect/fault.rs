//! Faults that the agent must tell with certainty, and harmless things that must cost nothing.

use std::fmt;

use anyhow::{Context, Result};

use super::Stage;

/// A fault of the datapath that no new connection survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// The chain of all Services is emptied.
    ChainFlushed,
    /// The kernel forwards nothing.
    ForwardingOff,
    /// Every rule is gone.
    TableGone,
    /// Handshakes complete, what follows is dropped.
    DataDropped,
    /// A filter drops everything that would be forwarded.
    ForwardDropped,
    /// The routes to all pods are cut; the default route stays.
    RoutesGone,
}

impl Fault {
    /// Every one.
    pub const ALL: [Self; 6] = [
        Self::ChainFlushed,
        Self::ForwardingOff,
        Self::TableGone,
        Self::DataDropped,
        Self::ForwardDropped,
        Self::RoutesGone,
    ];
    /// Those with an unambiguous cause.
    pub const CERTAIN: [Self; 4] = [
        Self::ChainFlushed,
        Self::ForwardingOff,
        Self::TableGone,
        Self::DataDropped,
    ];

    /// Breaks the node. It is broken when this returns.
    pub fn inject(self, stage: &mut Stage) -> Result<()> {
        match self {
            Self::ChainFlushed => stage.rules.flush_services(),
            Self::TableGone => stage.rules.remove(),
            Self::ForwardingOff => stage.world.set_forwarding(false),
            Self::DataDropped => stage.filter(
                "data",
                "type filter hook forward priority -10; tcp flags & (psh | ack) == psh | ack drop;",
            ),
            Self::ForwardDropped => stage.filter(
                "forward",
                "type filter hook forward priority -10; policy drop;",
            ),
            Self::RoutesGone => {
                stage.cut = Some(stage.world.cut_pod_routes()?);
                Ok(())
            }
        }
    }

    /// Takes it back.
    pub fn mend(self, stage: &mut Stage) -> Result<()> {
        match self {
            Self::ChainFlushed | Self::TableGone => stage.rules.install(),
            Self::ForwardingOff => stage.world.set_forwarding(true),
            Self::DataDropped => stage.unfilter("data"),
            Self::ForwardDropped => stage.unfilter("forward"),
            Self::RoutesGone => {
                let cut = stage.cut.take().context("routes that were cut")?;
                stage.world.mend_pod_routes(&cut)
            }
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
            Self::ForwardDropped => "forwarded packets dropped",
            Self::RoutesGone => "routes to all pods gone",
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
                stage.kill_backend();
                Ok(())
            }
            Self::RangeDropped => stage.drop_range(),
        }
    }

    /// Takes it back.
    pub fn mend(self, stage: &mut Stage) -> Result<()> {
        match self {
            Self::BackendKilled => stage.revive_backend(),
            Self::RangeDropped => stage.unfilter("range"),
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
