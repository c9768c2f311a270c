//! Scripted probes: how far each phase got, and what was observed beside it.

use std::net::SocketAddr;
use std::time::Duration;

use pathproof_facts::time::Mono;
use pathproof_facts::trace::{
    Control, Lane, ProbePath, ProbeSightings, ProbeTrace, Stamps, Transport,
};
use pathproof_wire::probe::{STAGES, Stage};
use pathproof_wire::service::Family;

/// Duration of a probe that comes back.
const QUICK: Duration = Duration::from_micros(80);
/// Timeout of a probe that does not come back.
pub const TIMEOUT: Duration = Duration::from_millis(200);

/// A lane over TCP and IPv4.
pub fn tcp(path: ProbePath) -> Lane {
    Lane {
        path,
        family: Family::V4,
        transport: Transport::Tcp,
    }
}

/// A lane over UDP and IPv4.
pub fn udp(path: ProbePath) -> Lane {
    Lane {
        transport: Transport::Udp,
        ..tcp(path)
    }
}

/// The stages up to this one, 10 us apart.
pub fn until(sent: Mono, last: Option<Stage>) -> Stamps {
    let mut stamps = [None; STAGES];
    for stage in Stage::ALL.into_iter().filter(|stage| Some(*stage) <= last) {
        let after = Duration::from_micros(10 * (stage as u64 + 1));
        stamps[stage as usize] = Some(sent.plus(after));
    }
    stamps
}

/// A probe that was sent when it was due and passed; masqueraded if probes of its path are.
pub fn passed(lane: Lane, sent: Mono) -> ProbeTrace {
    let masqueraded = matches!(lane.path, ProbePath::OffCluster | ProbePath::NodePort);
    let saw: [u8; 4] = if masqueraded {
        [10, 0, 0, 5]
    } else {
        [198, 18, 0, 1]
    };
    let whole = until(sent, Some(Stage::Collected));
    ProbeTrace {
        lane,
        due: sent,
        sent,
        ended: sent.plus(QUICK),
        client: SocketAddr::from(([198, 18, 0, 1], 40_000)),
        frontend: SocketAddr::from(([10, 96, 0, 9], 80)),
        handshake: match lane.transport {
            Transport::Tcp => whole,
            Transport::Udp => [None; STAGES],
        },
        data: whole,
        echo_saw: Some(SocketAddr::from((saw, 40_000))),
        generation: Some(7_001),
        sightings: ProbeSightings::default(),
        control: Control::Passed,
        unsent: None,
    }
}

/// A probe whose first packet got to this stage and no further.
pub fn stuck(lane: Lane, sent: Mono, last: Option<Stage>) -> ProbeTrace {
    let mut trace = passed(lane, sent);
    trace.ended = sent.plus(TIMEOUT);
    trace.echo_saw = None;
    let stamps = until(sent, last);
    match lane.transport {
        Transport::Tcp => (trace.handshake, trace.data) = (stamps, [None; STAGES]),
        Transport::Udp => trace.data = stamps,
    }
    trace
}
