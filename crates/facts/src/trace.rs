//! Facts about one probe of the sentinel, as plain values. `sentinel` (the I/O) makes a
//! [`ProbeTrace`]; `pathproof_witness::probes` judges it.

use std::net::SocketAddr;

use pathproof_wire::probe::STAGES;
use pathproof_wire::service::Family;
use serde::{Deserialize, Serialize};

use crate::cluster::ObjectName;
use crate::named;
use crate::time::Mono;

named! {
    /// Path of a probe through the datapath.
    pub enum ProbePath {
        /// From an address of this node's podCIDR to the cluster IP; only if an address is reserved.
        Pod = "pod",
        /// From outside the cluster's ranges to the cluster IP. Such a probe is masqueraded, and a filter
        /// for pods may accept it, so this path never represents pods.
        OffCluster = "off_cluster",
        /// From outside to a node port on an address of this node.
        NodePort = "node_port",
        /// From the node itself to the cluster IP. This path does not test forwarding.
        Host = "host",
    }
}

pub const PROBE_PATHS: usize = ProbePath::ALL.len();

named! {
    pub enum Transport {
        /// A handshake, then data.
        Tcp = "tcp",
        /// One datagram each way.
        Udp = "udp",
    }
}

/// Combination of path, family and transport. Each lane is probed separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Lane {
    pub path: ProbePath,
    pub family: Family,
    pub transport: Transport,
}

/// Time when each stage was passed, indexed by [`Stage`](pathproof_wire::probe::Stage).
pub type Stamps = [Option<Mono>; STAGES];

/// All facts about one probe that passed, failed or timed out. It contains no judgement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeTrace {
    pub lane: Lane,
    pub due: Mono,
    pub sent: Mono,
    /// When the probe was complete or abandoned.
    pub ended: Mono,
    /// The probe's source when it was sent.
    pub client: SocketAddr,
    pub frontend: SocketAddr,
    /// Stages of SYN and SYN-ACK; all `None` for UDP. On [`ProbePath::Host`] there is no `Arrived`, and
    /// `Collected` is when `connect` returned.
    pub handshake: Stamps,
    /// Stages of the data and its echo.
    pub data: Stamps,
    /// Source address in the packet that the echo received.
    pub echo_saw: Option<SocketAddr>,
    /// Port at which the echo was dialled: the generation on the wire.
    pub generation: Option<u16>,
    /// Sightings by the observer on any device, and refusals received by the client.
    pub sightings: ProbeSightings,
    /// Result of the control probe of the same interval.
    pub control: Control,
    /// Why the probe could not be sent.
    pub unsent: Option<String>,
}

impl ProbeTrace {
    /// A probe that was just sent from `client` to `frontend`, without any sighting. Its control
    /// probe counts as failed until it comes back.
    pub fn sent(
        lane: Lane,
        (client, frontend): (SocketAddr, SocketAddr),
        due: Mono,
        sent: Mono,
    ) -> ProbeTrace {
        ProbeTrace {
            lane,
            due,
            sent,
            ended: sent,
            client,
            frontend,
            handshake: [None; STAGES],
            data: [None; STAGES],
            echo_saw: None,
            generation: None,
            sightings: ProbeSightings::default(),
            control: Control::Failed,
            unsent: None,
        }
    }

    /// Stages of the first packet (SYN or datagram) and its answer.
    pub fn first_packet(&self) -> &Stamps {
        match self.lane.transport {
            Transport::Tcp => &self.handshake,
            Transport::Udp => &self.data,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeSightings {
    /// Left by an uplink untranslated.
    pub leaked: bool,
    /// Left for an address that is no endpoint of the sentinel.
    pub misrouted: bool,
    /// Left for a removed endpoint of the sentinel: an old generation.
    pub stale: bool,
    pub refused: bool,
    /// Refused by an ICMP error.
    pub unreachable: bool,
}

/// Result of a probe that goes to the echo and bypasses the datapath.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Control {
    /// Came back.
    Passed,
    /// Did not come back: the sentinel's devices are damaged, or the agent is starved. The probe of the
    /// same interval is then void.
    Failed,
}

/// A lane whose frontend another Service uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneConflict {
    pub lane: Lane,
    /// The first such Service by name.
    #[serde(rename = "rival")]
    pub service: ObjectName,
    /// Whether the frontend's address is also an endpoint of such a Service. If so, that Service's rules
    /// leave the destination of probes unchanged, as if there were no rule.
    pub loops: bool,
}
