//! What can be wrong with the configuration. Each is a sentence that names the setting, what was
//! said and the remedy.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use agent_core::eligibility::TaintError;

/// A setting that is unsound.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// Nothing to take expectations from.
    #[error(
        "nothing says what this node must route: give --kubeconfig FILE or --server URL of an API server, run in a pod with a ServiceAccount, or give --manifests DIR, a folder of Kubernetes YAML with its Node, Services and EndpointSlices"
    )]
    NoClusterView,
    /// Two sources for one view.
    #[error("--manifests and {option} are two sources of one cluster view: give one of them")]
    TwoClusterViews { option: &'static str },
    /// Not the URL of an API server.
    #[error(
        "--server: {value:?} is no URL of an API server: give http://HOST:PORT or https://HOST:PORT"
    )]
    Server { value: String },
    /// A view of the sentinel alone, without the sentinel.
    #[error(
        "--view: \"sentinel\" watches the sentinel alone, and --sentinel is off: give --view=full"
    )]
    ViewOfNothing,
    /// A file that cannot be read.
    #[error("{option}: the file {path} cannot be read; create it, or let the agent's user read it", path = path.display())]
    File {
        option: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    /// The node's name could not be found.
    #[error("this node's name is not known: give --node-name, or set NODE_NAME from spec.nodeName")]
    NoNodeName,
    /// Not a name of a Node.
    #[error(
        "--node-name: {value:?} is no name of a Node: lower-case letters, digits, '-' and '.', at most 253"
    )]
    NodeName { value: String },
    #[error(
        "{option}: {value:?} is no address: give IP:PORT, IP, :PORT or none, for example {example} (names are not looked up)"
    )]
    Address {
        option: &'static str,
        value: String,
        /// One that works.
        example: String,
    },
    /// Not a range of addresses.
    #[error(
        "{option}: {value:?} is no range of addresses: give a CIDR such as 10.0.0.0/8 or 2001:db8::/32, or an IP"
    )]
    Cidr { option: &'static str, value: String },
    /// Not a pattern that an interface can match.
    #[error("{option}: {value:?} is no pattern for interfaces: {reason}")]
    Pattern {
        option: &'static str,
        value: String,
        reason: &'static str,
    },
    /// Neither a taint's key nor a preset.
    #[error("--terminating-taint: {0}")]
    Taint(TaintError),
    /// Nearly a preset.
    #[error("--terminating-taint: {value:?} is no preset: did you mean {preset:?}?")]
    Misspelt {
        value: String,
        /// What was probably meant.
        preset: &'static str,
    },
    /// Not a duration, or out of range.
    #[error(
        "{option}: {value:?} is no duration between 0 and {max}: give a number with a unit, for example 10s, 1m30s or 250ms"
    )]
    Duration {
        option: &'static str,
        value: String,
        /// The most there may be.
        max: &'static str,
    },
    /// Not a folder that pathproof can keep things in.
    #[error("{option}: {value:?} is no absolute path: give one that begins with '/', or none")]
    RelativePath { option: &'static str, value: String },
    /// A folder that cannot be read.
    #[error("{option}: the folder {path} cannot be read; {remedy}", path = path.display())]
    Directory {
        option: &'static str,
        path: PathBuf,
        remedy: &'static str,
        source: io::Error,
    },
    /// Not the name of a namespaced object.
    #[error("{option}: {value:?} is no name of a Service: give NAMESPACE/NAME")]
    ObjectName { option: &'static str, value: String },
    /// Addresses that do not do for what they are for.
    #[error("{option}: {value:?}: {reason}")]
    SentinelAddress {
        option: &'static str,
        value: String,
        /// What is wanted.
        reason: &'static str,
    },
    /// Not the beginning of interface names.
    #[error(
        "--sentinel-devices: {value:?} is no beginning of interface names: give 1 to 12 letters, digits, '-' or '_'"
    )]
    DevicePrefix { value: String },
    /// Something is to be written, and there is no API server.
    #[error(
        "{option}: there is no API server to write to where --manifests gives the cluster view: leave it out, or give --kubeconfig or --server instead of --manifests"
    )]
    NowhereToPublish { option: &'static str },
}
