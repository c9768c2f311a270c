//! From what the kernel holds of a probe to a [`ProbeTrace`].

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use agent_common::evidence::state;
use agent_common::probe::{PHASES, Phase, Probe, STAGES, probe_flag};

use agent_core::time::Mono;
use agent_core::trace::{Control, Lane, ProbeSightings, ProbeTrace, Stamps};

/// What was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sent {
    pub(super) lane: Lane,
    pub(super) client: SocketAddr,
    pub(super) frontend: SocketAddr,
    pub(super) due: Mono,
    pub(super) sent: Mono,
}

impl Sent {
    /// What came of it. The control's result is put in when it is known.
    pub(super) fn trace(&self, ended: Mono, probe: &Probe, seen: u32) -> ProbeTrace {
        let port = |port: [u8; 2]| Some(u16::from_be_bytes(port)).filter(|port| *port != 0);
        let echo_saw = port(probe.echo_source_port).map(|port| {
            let address = IpAddr::V6(Ipv6Addr::from(probe.echo_source)).to_canonical();
            SocketAddr::new(address, port)
        });
        ProbeTrace {
            lane: self.lane,
            due: self.due,
            sent: self.sent,
            ended,
            client: self.client,
            frontend: self.frontend,
            handshake: stamps(probe, Phase::Handshake),
            data: stamps(probe, Phase::Data),
            echo_saw,
            generation: port(probe.echo_port),
            sightings: sightings(probe.flags, seen),
            control: Control::Failed,
            unsent: None,
        }
    }

    /// It could not be sent, or nothing can be known of it.
    pub(super) fn unsent(&self, ended: Mono, why: String) -> ProbeTrace {
        ProbeTrace {
            unsent: Some(why),
            ..self.trace(ended, &Probe::default(), 0)
        }
    }
}

fn stamps(probe: &Probe, phase: Phase) -> Stamps {
    const { assert!(PHASES == 2 && STAGES == 5) };
    probe.stamps[phase as usize].map(|ns| (ns != 0).then_some(Mono(ns)))
}

/// Outcomes of the observer that end a probe before its time.
pub(super) const TOLD: u32 = state::LEAKED | state::MISROUTED | state::STALE | state::REFUSED;
/// Those of a probe that went where the endpoint is not, as far as we have heard: the echo answers
/// all generations, so one that reached it may come back.
pub(super) const ELSEWHERE: u32 = state::MISROUTED | state::STALE;

/// What the observer's state says beyond doubt: nothing where another connection shares the
/// number.
pub(super) fn beyond_doubt(seen: Option<u32>) -> u32 {
    seen.filter(|seen| seen & state::AMBIGUOUS == 0)
        .unwrap_or(0)
}

fn sightings(flags: u32, seen: u32) -> ProbeSightings {
    let unreachable = flags & probe_flag::UNREACHABLE != 0;
    ProbeSightings {
        leaked: seen & state::LEAKED != 0,
        misrouted: seen & state::MISROUTED != 0,
        stale: seen & state::STALE != 0,
        // The observer does not tell RST from ICMP.
        refused: flags & probe_flag::REFUSED != 0 || (seen & state::REFUSED != 0 && !unreachable),
        unreachable,
    }
}

#[cfg(test)]
mod tests {
    use agent_common::probe::Stage;
    use agent_common::service::{Family, mapped};
    use rstest::rstest;

    use super::*;
    use agent_core::trace::{ProbePath, Transport};

    fn sent() -> Sent {
        Sent {
            lane: Lane {
                path: ProbePath::OffCluster,
                family: Family::V4,
                transport: Transport::Tcp,
            },
            client: "198.18.0.1:20000".parse().unwrap(),
            frontend: "10.96.0.10:7".parse().unwrap(),
            due: Mono(1),
            sent: Mono(2),
        }
    }

    #[test]
    fn stamps_and_what_the_echo_saw() {
        let mut probe = Probe {
            echo_source: mapped([10, 0, 0, 1]),
            echo_source_port: 1_234_u16.to_be_bytes(),
            echo_port: 9_001_u16.to_be_bytes(),
            ..Probe::default()
        };
        probe.stamps[Phase::Handshake as usize][Stage::Arrived as usize] = 7;
        probe.stamps[Phase::Data as usize][Stage::Collected as usize] = 9;
        let trace = sent().trace(Mono(10), &probe, 0);
        assert_eq!(trace.handshake, [Some(Mono(7)), None, None, None, None]);
        assert_eq!(trace.data, [None, None, None, None, Some(Mono(9))]);
        assert_eq!(trace.echo_saw, Some("10.0.0.1:1234".parse().unwrap()));
        assert_eq!(trace.generation, Some(9_001));
        assert_eq!(
            (trace.due, trace.sent, trace.ended),
            (Mono(1), Mono(2), Mono(10))
        );
        assert_eq!(trace.sightings, ProbeSightings::default());
        assert_eq!(trace.unsent, None);
    }

    #[test]
    fn what_was_not_sent_says_why() {
        let trace = sent().unsent(Mono(3), "the wire is cut".to_owned());
        assert_eq!(trace.unsent.as_deref(), Some("the wire is cut"));
        assert_eq!((trace.echo_saw, trace.generation), (None, None));
    }

    #[rstest]
    #[case(0, 0, [false; 5])]
    #[case(0, state::LEAKED, [true, false, false, false, false])]
    #[case(0, state::MISROUTED, [false, true, false, false, false])]
    #[case(0, state::STALE | state::PROVEN, [false, false, true, false, false])]
    #[case(0, state::REFUSED, [false, false, false, true, false])]
    #[case(probe_flag::REFUSED, 0, [false, false, false, true, false])]
    #[case(probe_flag::UNREACHABLE, state::REFUSED, [false, false, false, false, true])]
    fn sightings_come_from_flags_and_state(
        #[case] flags: u32,
        #[case] seen: u32,
        #[case] expected: [bool; 5],
    ) {
        let s = sightings(flags, seen);
        let found = [s.leaked, s.misrouted, s.stale, s.refused, s.unreachable];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_shared_number_says_nothing() {
        assert_eq!(beyond_doubt(Some(state::LEAKED)), state::LEAKED);
        assert_eq!(beyond_doubt(Some(state::LEAKED | state::AMBIGUOUS)), 0);
        assert_eq!(beyond_doubt(None), 0);
    }
}
