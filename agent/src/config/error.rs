//! What can be wrong with the configuration. Each is a sentence that names the setting, what was
//! said and the remedy.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use crate::domain::node::TaintError;

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
    TwoClusterViews {
        /// The other option.
        option: &'static str,
    },
    /// Not the URL of an API server.
    #[error(
        "--server: {value:?} is no URL of an API server: give http://HOST:PORT or https://HOST:PORT"
    )]
    Server {
        /// What was said.
        value: String,
    },
    /// Not the URL of a health server.
    #[error(
        "--upstream: {value:?} is no URL of a proxy's health server: give http://HOST:PORT, without a path (/livez or /healthz is asked as it is there)"
    )]
    Upstream {
        /// What was said.
        value: String,
    },
    /// A view of the sentinel alone, without the sentinel.
    #[error(
        "--view: \"sentinel\" watches the sentinel alone, and --sentinel is off: give --view=full"
    )]
    ViewOfNothing,
    /// A file that cannot be read.
    #[error("{option}: the file {path} cannot be read; create it, or let the agent's user read it", path = path.display())]
    File {
        /// The option.
        option: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The node's name could not be found.
    #[error("this node's name is not known: give --node-name, or set NODE_NAME from spec.nodeName")]
    NoNodeName,
    /// Not a name of a Node.
    #[error(
        "--node-name: {value:?} is no name of a Node: lower-case letters, digits, '-' and '.', at most 253"
    )]
    NodeName {
        /// What was said.
        value: String,
    },
    /// Not an address.
    #[error(
        "{option}: {value:?} is no address: give IP:PORT, IP, :PORT or none, for example {example} (names are not looked up)"
    )]
    Address {
        /// The option.
        option: &'static str,
        /// What was said.
        value: String,
        /// One that works.
        example: String,
    },
    /// Not a range of addresses.
    #[error(
        "{option}: {value:?} is no range of addresses: give a CIDR such as 10.0.0.0/8 or 2001:db8::/32, or an IP"
    )]
    Cidr {
        /// The option.
        option: &'static str,
        /// What was said.
        value: String,
    },
    /// Not a pattern that an interface can match.
    #[error("{option}: {value:?} is no pattern for interfaces: {reason}")]
    Pattern {
        /// The option.
        option: &'static str,
        /// What was said.
        value: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Neither a taint's key nor a preset.
    #[error("--terminating-taint: {0}")]
    Taint(TaintError),
    /// Nearly a preset.
    #[error("--terminating-taint: {value:?} is no preset: did you mean {preset:?}?")]
    Misspelt {
        /// What was said.
        value: String,
        /// What was probably meant.
        preset: &'static str,
    },
    /// Not a duration, or out of range.
    #[error(
        "{option}: {value:?} is no duration between 0 and {max}: give a number with a unit, for example 10s, 1m30s or 250ms"
    )]
    Duration {
        /// The option.
        option: &'static str,
        /// What was said.
        value: String,
        /// The most there may be.
        max: &'static str,
    },
    /// Not a folder that pathproof can keep things in.
    #[error("{option}: {value:?} is no absolute path: give one that begins with '/', or none")]
    RelativePath {
        /// The option.
        option: &'static str,
        /// What was said.
        value: String,
    },
    /// A folder that cannot be read.
    #[error("{option}: the folder {path} cannot be read; {remedy}", path = path.display())]
    Directory {
        /// The option.
        option: &'static str,
        /// The folder.
        path: PathBuf,
        /// What to do.
        remedy: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// Not the name of a namespaced object.
    #[error("{option}: {value:?} is no name of a Service: give NAMESPACE/NAME")]
    ObjectName {
        /// The option.
        option: &'static str,
        /// What was said.
        value: String,
    },
    /// Addresses that do not do for what they are for.
    #[error("{option}: {value:?}: {reason}")]
    SentinelAddress {
        /// The option.
        option: &'static str,
        /// What was said.
        value: String,
        /// What is wanted.
        reason: &'static str,
    },
    /// Not the beginning of interface names.
    #[error(
        "--sentinel-devices: {value:?} is no beginning of interface names: give 1 to 12 letters, digits, '-' or '_'"
    )]
    DevicePrefix {
        /// What was said.
        value: String,
    },
    /// Something is to be written, and there is no API server.
    #[error(
        "{option}: there is no API server to write to where --manifests gives the cluster view: leave it out, or give --kubeconfig or --server instead of --manifests"
    )]
    NowhereToPublish {
        /// The option.
        option: &'static str,
    },
}
