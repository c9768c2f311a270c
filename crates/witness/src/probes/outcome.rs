//! Outcome of one probe: passed, failed with a cause, or void.
//!
//! The cause follows from the first missing stage and from the observer's failed_connections. A failure
//! between pathproof's devices, or of a starved agent, is void: it accuses no node.

use pathproof_facts::cause::ProbeCause;
use pathproof_facts::limits::Limits;
use pathproof_facts::named;
use pathproof_facts::trace::{Control, ProbePath, ProbeTrace, Stamps, Transport};
use pathproof_wire::probe::Stage;
use pathproof_wire::service::FAMILIES;
use serde::{Deserialize, Serialize};

/// Facts about the kernel, read while probes run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelFacts {
    /// Whether the kernel forwards, by [`Family`](pathproof_wire::service::Family); `None` if reading failed.
    pub forwarding: [Option<bool>; FAMILIES],
    /// Whether the kernel drops connections because its connection table is full.
    pub table_full: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProbeOutcome {
    /// The client received the answers to handshake and data, or to the datagram.
    Passed {
        /// The echo received another source address than the client's.
        masqueraded: bool,
    },
    /// The datapath did not deliver the probe to the echo and its answer to the client.
    Failed(ProbeCause),
    /// The probe is no evidence.
    Void(VoidReason),
}

impl ProbeOutcome {
    /// Label in metrics.
    pub fn name(self) -> &'static str {
        match self {
            ProbeOutcome::Passed { .. } => "passed",
            ProbeOutcome::Failed(cause) => cause.name(),
            ProbeOutcome::Void(_) => "void",
        }
    }
}

named! {
    pub enum VoidReason {
        NotSent = "not_sent",
        /// It was sent long after it was due: the agent was starved.
        SentLate = "sent_late",
        /// It was abandoned long after its timeout: the agent was starved.
        EndedLate = "ended_late",
        /// Its control probe did not come back.
        ControlFailed = "control_failed",
        /// It did not enter the node: the client's devices are damaged.
        NotArrived = "not_arrived",
        /// It left for the echo and was not answered, though the control probe was: the devices are
        /// damaged, or the echo is starved.
        NotEchoed = "not_echoed",
        /// The sentinel's devices were recently found damaged.
        Damaged = "damaged",
        /// The sentinel changed recently, does not exist, or is altered.
        Unsettled = "unsettled",
        /// Another Service uses its frontend.
        FrontendConflict = "contested",
        /// It dialled an address of the Node object, but left the node, which packets to a local
        /// address never do. The address moved to another node (a VIP), or was withdrawn.
        NotLocal = "not_local",
    }
}

/// Classifies a probe on its own. [`SentinelLedger::absorb`](super::SentinelLedger::absorb) handles
/// the cases that need memory: earlier masquerade, a sentinel that just changed.
pub fn classify(trace: &ProbeTrace, facts: &KernelFacts, limits: &Limits) -> ProbeOutcome {
    if trace.unsent.is_some() {
        return ProbeOutcome::Void(VoidReason::NotSent);
    }
    // A probe that came back passed, however late that was noticed.
    if is_complete(trace) {
        let masqueraded = trace
            .echo_saw
            .is_some_and(|saw| saw.ip().to_canonical() != trace.client.ip().to_canonical());
        return ProbeOutcome::Passed { masqueraded };
    }
    if let Some(reason) = void(trace, limits) {
        return ProbeOutcome::Void(reason);
    }
    if trace.lane.transport == Transport::Tcp && has(&trace.handshake, Stage::Collected) {
        return data(trace);
    }
    first_packet(trace, facts)
}

fn has(stamps: &Stamps, stage: Stage) -> bool {
    stamps[stage as usize].is_some()
}

fn is_complete(trace: &ProbeTrace) -> bool {
    has(&trace.data, Stage::Collected)
        && (trace.lane.transport == Transport::Udp || has(&trace.handshake, Stage::Collected))
}

/// Reason that makes a failed probe void.
fn void(trace: &ProbeTrace, limits: &Limits) -> Option<VoidReason> {
    if trace.control == Control::Failed {
        Some(VoidReason::ControlFailed)
    } else if trace.sent.since(trace.due) > limits.probe_late {
        Some(VoidReason::SentLate)
    } else if trace.ended.since(trace.sent) > limits.probe_overdue {
        Some(VoidReason::EndedLate)
    } else {
        None
    }
}

/// The handshake of a TCP probe, or the one datagram of a UDP probe, did not come back.
fn first_packet(trace: &ProbeTrace, facts: &KernelFacts) -> ProbeOutcome {
    let stamps = trace.first_packet();
    let seen = &trace.sightings;
    let left = has(stamps, Stage::Translated) || has(stamps, Stage::Echoed);
    let off = facts.forwarding[trace.lane.family as usize] == Some(false)
        && trace.lane.path != ProbePath::Host;
    let arrived = has(stamps, Stage::Arrived) || trace.lane.path == ProbePath::Host;
    let cause = if seen.leaked && trace.lane.path == ProbePath::NodePort {
        return ProbeOutcome::Void(VoidReason::NotLocal);
    } else if seen.leaked {
        ProbeCause::Leaked
    } else if seen.misrouted && !left {
        // A probe that left for the echo was not misrouted: it went to a generation that this node has not
        // received yet.
        ProbeCause::Misrouted
    } else if seen.refused {
        ProbeCause::Refused
    } else if has(stamps, Stage::Returned) {
        ProbeCause::AnswerLost
    } else if off && arrived && !left {
        ProbeCause::ForwardingOff
    } else if seen.unreachable {
        ProbeCause::Unreachable
    } else if left {
        return ProbeOutcome::Void(VoidReason::NotEchoed);
    } else if seen.stale {
        ProbeCause::Stale
    } else if arrived && facts.table_full {
        ProbeCause::ConntrackFull
    } else if arrived {
        ProbeCause::LostBeforeLeaving
    } else {
        return ProbeOutcome::Void(VoidReason::NotArrived);
    };
    ProbeOutcome::Failed(cause)
}

/// The handshake completed, but the data did not come back.
fn data(trace: &ProbeTrace) -> ProbeOutcome {
    let stamps = &trace.data;
    // Another endpoint took the connection: no SYN of it left for the echo.
    if !has(&trace.handshake, Stage::Translated) {
        return ProbeOutcome::Failed(ProbeCause::Misrouted);
    }
    if has(stamps, Stage::Returned) {
        ProbeOutcome::Failed(ProbeCause::NoData)
    } else if has(stamps, Stage::Translated) || has(stamps, Stage::Echoed) {
        ProbeOutcome::Void(VoidReason::NotEchoed)
    } else if has(stamps, Stage::Arrived) || trace.lane.path == ProbePath::Host {
        ProbeOutcome::Failed(ProbeCause::NoData)
    } else {
        // The agent did not send the data in time.
        ProbeOutcome::Void(VoidReason::NotArrived)
    }
}
