//! How many values each label may have. Whoever stores the series pays for every combination, so
//! a label without a bound has no place here.

use agent_common::evidence::{FAULTS, OUTCOMES};
use agent_common::probe::STAGES;
use agent_common::service::{FAMILIES, SOURCE_CLASSES};

use super::connections::MAX_SERVICES_SHOWN;
use super::publish::{Published, WriteResult};
use agent_core::cause::PROBE_CAUSES;
use agent_core::cause::{Cause, State, Why};
use agent_core::trace::{PROBE_PATHS, Transport};

/// A label.
#[derive(Debug)]
pub(super) struct Label {
    pub(super) name: &'static str,
    /// Most values of one agent, for any one metric.
    pub(super) most: usize,
    /// What they are, without a period.
    pub(super) values: &'static str,
}

const fn label(name: &'static str, most: usize, values: &'static str) -> Label {
    Label { name, most, values }
}

const SERVICES: usize = MAX_SERVICES_SHOWN + 1;
/// Those of connections with lost, or those of probes with passed and void.
const MOST_OUTCOMES: usize = if OUTCOMES + 1 > PROBE_CAUSES + 2 {
    OUTCOMES + 1
} else {
    PROBE_CAUSES + 2
};
/// Where connections come from, or which way probes take.
const PATHS: usize = if SOURCE_CLASSES > PROBE_PATHS {
    SOURCE_CLASSES
} else {
    PROBE_PATHS
};

/// All of them.
pub(super) const LABELS: &[Label] = &[
    label("family", FAMILIES, "IPv4, IPv6"),
    label(
        "path",
        PATHS,
        "Where a connection comes from, or which way a probe takes",
    ),
    label("transport", Transport::ALL.len(), "tcp, udp"),
    label("state", State::ALL.len(), "The states of behaviour.md"),
    label(
        "cause",
        Cause::ALL.len() + Why::ALL.len(),
        "Causes, and reasons why nothing is known; one at a time for a family",
    ),
    label(
        "outcome",
        MOST_OUTCOMES,
        "Outcomes of connections; of probes passed, void and their causes",
    ),
    label("stage", STAGES, "Stages of a probe"),
    label(
        "namespace",
        SERVICES,
        "Of a Service; empty for service=\"other\"",
    ),
    label(
        "service",
        SERVICES,
        "1,000 Service ports (once per family) with series of their own; the rest are \"other\"",
    ),
    label("port", SERVICES, "Name of a Service's port"),
    label("confirmed", 2, "true, false"),
    label(
        "loss",
        32,
        "Kinds of traffic that is not seen or not judged in full",
    ),
    label(
        "fault",
        FAULTS,
        "What the programs in the kernel may fail to do",
    ),
    label("cilium", 2, "yes, no"),
    label("replacement", 4, "yes, no, unknown, none"),
    label("socket_lb", 4, "yes, no, unknown, none"),
    label("routing", 5, "native, vxlan, geneve, none"),
    label("xdp", 2, "yes, no"),
    label("netkit", 2, "yes, no"),
    label("sentinel_managed", 3, "yes, no, unknown"),
    label("seen", 3, "full, partial, hidden"),
    label("endpoint", 3, "healthz, livez, other"),
    label("code", 3, "200, 503, 404"),
    label("listener", 2, "healthz, admin"),
    label("event", 4, "What becomes of a connection to a listener"),
    label("kind", Published::ALL.len(), "condition, event"),
    label("result", WriteResult::ALL.len(), "What becomes of a write"),
    label("version", 1, "The agent's"),
    label("abi", 1, "The kernel layouts'"),
];
