//! Values of options that are one of a few words.

use clap::ValueEnum;

/// What is answered while the verdict is Unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum UnknownPolicy {
    /// 200: pathproof's own blindness takes no node out of service
    Open,
    /// 503: only proven nodes are in service
    Closed,
}

/// How connections to the healthz port come to the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PortTakeover {
    /// Steer those from outside to a listener aside, and leave the port to whoever holds it (kernel
    /// 5.9 and newer)
    Steer,
    /// Hold the port
    Bind,
}

/// Whether the verdict has consequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Enforcement {
    /// A broken datapath answers 503
    Enforce,
    /// The datapath part always answers 200; metrics tell what would have been said
    Audit,
}

/// How much of the cluster is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum View {
    /// This Node, all Services and EndpointSlices: every Service is judged
    Full,
    /// This Node and the sentinel alone: for very large clusters
    Sentinel,
}

/// Whether the datapath is probed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Sentinel {
    /// Probe, where the sentinel's Service is there
    On,
    /// Judge by real traffic alone
    Off,
}

/// Whether something is written to the API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Publish {
    /// It is
    On,
    /// It is not
    Off,
}

/// How programs are attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Attach {
    /// TCX, and clsact where the kernel has no TCX
    Auto,
    /// TCX only (kernel 6.6 and newer)
    Tcx,
    /// clsact filters only
    Clsact,
}

/// Whether the process gives up what it does not need.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Hardening {
    /// It does, as far as the kernel allows
    On,
    /// It keeps all that it was started with
    Off,
}

/// Format of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Lines for people
    Text,
    /// One JSON object a line
    Json,
}

/// Format of what a command prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people
    Text,
    /// For programs
    Json,
}

impl From<UnknownPolicy> for agent_core::answer::UnknownPolicy {
    fn from(said: UnknownPolicy) -> Self {
        match said {
            UnknownPolicy::Open => Self::Open,
            UnknownPolicy::Closed => Self::Closed,
        }
    }
}

impl From<Enforcement> for agent_core::answer::Enforcement {
    fn from(said: Enforcement) -> Self {
        match said {
            Enforcement::Enforce => Self::Enforce,
            Enforcement::Audit => Self::Audit,
        }
    }
}

impl From<LogFormat> for crate::telemetry::Format {
    fn from(said: LogFormat) -> Self {
        match said {
            LogFormat::Text => Self::Text,
            LogFormat::Json => Self::Json,
        }
    }
}
