//! Options with a fixed set of values. clap shows the doc comment of each value in `--help`.

use clap::ValueEnum;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    On,
    #[default]
    Off,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum PortTakeover {
    /// Redirect connections from outside to the agent; the process that listens on the port keeps
    /// it
    Steer,
    /// Listen on the port itself
    #[default]
    Bind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum View {
    /// Watch this Node, all Services and all EndpointSlices: every Service is judged
    Full,
    /// Watch only this Node and the sentinel's Service, for very large clusters: real connections
    /// are not judged
    Sentinel,
}
