//! Turns the kernel's reports about connections into their outcomes.
//!
//! The kernel reports a failure as soon as it sees one. But the packet may have been a copy, or another
//! program may carry the connection further. The connection failed only if the loss window ends without an
//! answer ([`failed`](pathproof_wire::transition::failed)). Until then the report waits here.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use pathproof_facts::cause::Failure;
use pathproof_facts::time::Mono;
use pathproof_wire::abi::LOSS_WINDOW_NS;
use pathproof_wire::evidence::{
    Anomaly, OUTCOMES, Outcome, Pending, PendingKey, anomaly_flag, state,
};
use pathproof_wire::service::{Address, Family, Port, SourceClass, frontend_flag};
use pathproof_wire::transition::Failed;

use super::{CountDelta, FailedConnection};

/// Time after which a report is forgotten: the outcome of its connection is known by then, or never will
/// be.
const KEPT: Duration = Duration::from_nanos(3 * LOSS_WINDOW_NS);

/// Reports of connections whose loss window is still open.
#[derive(Clone, Debug, Default)]
pub struct PendingReports(BTreeMap<PendingKey, FailedConnection>);

impl PendingReports {
    /// Stores a report. The report of an answer that was not delivered needs no confirmation, and is returned
    /// instead.
    pub fn report(&mut self, anomaly: &Anomaly) -> Option<FailedConnection> {
        let failed_connection = failed_connection(anomaly)?;
        if failed_connection.failure == Failure::AnswerNotDelivered {
            return Some(failed_connection);
        }
        let key = PendingKey {
            isn: anomaly.isn,
            family: Family::of(&anomaly.client) as u32,
        };
        self.0.insert(key, failed_connection);
        None
    }

    /// Returns the details of a failed connection, from its report if there is one: only a report contains
    /// the address to which the node translated the SYN.
    pub fn failed(
        &mut self,
        key: &PendingKey,
        pending: &Pending,
        failed: Failed,
    ) -> FailedConnection {
        let failure = Failure::from(failed);
        let reported = self.0.remove(key).filter(|known| known.failure == failure);
        let mut failed_connection = reported.unwrap_or_else(|| {
            let (destination, destination_port) = match pending.is_direct() {
                true => (pending.frontend, pending.frontend_port),
                false => Default::default(),
            };
            let unreported = Anomaly {
                at_ns: pending.arrived_ns,
                arrived_ns: pending.arrived_ns,
                service: pending.service,
                device: pending.device,
                class: pending.class,
                client: pending.client,
                client_port: pending.client_port,
                frontend: pending.frontend,
                frontend_port: pending.frontend_port,
                destination,
                destination_port,
                ..Anomaly::default()
            };
            of_failure(failure, &unreported)
        });
        const ON_ITS_WAY: u32 = state::PROVEN | state::ANSWER_IN;
        let seen = pending.state & (ON_ITS_WAY | state::ANSWER_OUT | state::SLOW);
        failed_connection.answer_lost = failure == Failure::Lost && seen == ON_ITS_WAY;
        failed_connection
    }

    /// The endpoint of this node to which an answered connection left by an uplink. The answer shows that the
    /// uplink is the right device for this endpoint.
    pub fn answered_by_uplink(&self, key: &PendingKey) -> Option<IpAddr> {
        self.0.get(key)?.misdelivered_endpoint()
    }

    /// Forgets old reports, whose connections were answered.
    pub fn forget(&mut self, now: Mono) {
        self.0.retain(|_, known| now.since(known.arrived) <= KEPT);
    }
}

/// Whether a misrouted connection was answered all the same. If its SYN was retransmitted, it does not count,
/// since the later SYN may have taken the right route.
pub fn came_back(pending: &Pending) -> bool {
    const BACK: u32 = state::MISROUTED | state::ANSWER_OUT;
    const AGAIN: u32 = state::FORWARDED | state::RETRANSMITTED;
    pending.state & (BACK | AGAIN) == BACK && pending.flags & frontend_flag::SENTINEL == 0
}

pub fn count(deltas: &mut Vec<CountDelta>, pending: &Pending, failed: Failed) {
    let class = SourceClass::from_index(u32::from(pending.class));
    let known = |delta: &CountDelta| delta.service == pending.service && delta.class == class;
    let place = deltas.iter().position(known).unwrap_or_else(|| {
        deltas.push(CountDelta {
            service: pending.service,
            class,
            counts: [0; OUTCOMES],
            lost: 0,
        });
        deltas.len() - 1
    });
    let delta = &mut deltas[place];
    let outcome = match failed {
        Failed::Lost => return delta.lost += 1,
        Failed::Refused => Outcome::Refused,
        Failed::Leaked => Outcome::Leaked,
        Failed::Misrouted => Outcome::Misrouted,
        Failed::Stale => Outcome::Stale,
    };
    delta.counts[outcome as usize] += 1;
}

fn failed_connection(anomaly: &Anomaly) -> Option<FailedConnection> {
    let failure = match Outcome::from_byte(anomaly.outcome)? {
        Outcome::Refused => Failure::Refused,
        Outcome::Leaked => Failure::Leaked,
        Outcome::Misrouted => Failure::Misrouted,
        Outcome::Stale => Failure::Stale,
        Outcome::AnswerNotDelivered => Failure::AnswerNotDelivered,
        _ => return None,
    };
    Some(of_failure(failure, anomaly))
}

/// Converts a report. `pathproof-node` adds when the endpoint of a stale connection left its slice.
fn of_failure(failure: Failure, anomaly: &Anomaly) -> FailedConnection {
    let destination = (anomaly.destination != [0; 16])
        .then(|| socket_of(&anomaly.destination, anomaly.destination_port));
    FailedConnection {
        at: Mono(anomaly.at_ns),
        arrived: Mono(anomaly.arrived_ns),
        service: anomaly.service,
        class: SourceClass::from_index(u32::from(anomaly.class)),
        failure,
        client: ip_of(&anomaly.client),
        client_port: u16::from_be_bytes(anomaly.client_port),
        frontend: socket_of(&anomaly.frontend, anomaly.frontend_port),
        destination,
        device: anomaly.device,
        misdelivered: anomaly.flags & anomaly_flag::MISDELIVERED != 0,
        icmp: anomaly.flags & anomaly_flag::ICMP != 0,
        answer_lost: false,
        left_since: None,
    }
}

/// Converts 16 mapped bytes to an address of either family.
pub fn ip_of(address: &Address) -> IpAddr {
    Ipv6Addr::from(*address).to_canonical()
}

pub fn socket_of(address: &Address, port: Port) -> SocketAddr {
    SocketAddr::new(ip_of(address), u16::from_be_bytes(port))
}

#[cfg(test)]
mod tests {
    use pathproof_wire::service::mapped;

    use super::*;

    const KEY: PendingKey = PendingKey {
        isn: 7,
        family: Family::V4 as u32,
    };

    fn anomaly(outcome: Outcome) -> Anomaly {
        Anomaly {
            at_ns: 2_000,
            arrived_ns: 1_000,
            isn: KEY.isn,
            service: 3,
            outcome: outcome as u8,
            client: mapped([10, 244, 0, 5]),
            destination: mapped([10, 244, 1, 9]),
            ..Anomaly::default()
        }
    }

    fn pending() -> Pending {
        Pending {
            arrived_ns: 1_000,
            service: 3,
            client: mapped([10, 244, 0, 5]),
            ..Pending::default()
        }
    }

    #[test]
    fn a_report_waits_for_what_becomes_of_its_connection() {
        let mut pending_reports = PendingReports::default();
        assert!(
            pending_reports
                .report(&anomaly(Outcome::Misrouted))
                .is_none()
        );
        let known = pending_reports.failed(&KEY, &pending(), Failed::Misrouted);
        assert_eq!(known.at, Mono(2_000));
        assert_eq!(
            known.destination.map(|at| at.ip().to_string()).as_deref(),
            Some("10.244.1.9")
        );
        let again = pending_reports.failed(&KEY, &pending(), Failed::Misrouted);
        assert_eq!(
            (again.at, again.destination),
            (Mono(1_000), None),
            "returned once"
        );
    }

    #[test]
    fn a_report_of_something_else_says_nothing_of_it() {
        let mut pending_reports = PendingReports::default();
        pending_reports.report(&anomaly(Outcome::Leaked));
        let known = pending_reports.failed(&KEY, &pending(), Failed::Lost);
        assert_eq!((known.failure, known.destination), (Failure::Lost, None));
    }

    #[test]
    fn an_answer_that_came_in_for_a_proven_connection_was_lost() {
        let lost = |state| {
            let pending = Pending { state, ..pending() };
            let known = PendingReports::default().failed(&KEY, &pending, Failed::Lost);
            known.answer_lost
        };
        let proven = state::FORWARDED | state::PROVEN;
        assert!(lost(proven | state::ANSWER_IN));
        assert!(!lost(proven), "its endpoint is silent");
        assert!(
            !lost(proven | state::ANSWER_IN | state::SLOW),
            "the answer came too late"
        );
        assert!(!lost(state::ANSWER_IN), "it was no proof");
    }

    #[test]
    fn an_answer_that_was_not_heard_is_no_doubt() {
        let told = PendingReports::default().report(&anomaly(Outcome::AnswerNotDelivered));
        assert_eq!(
            told.map(|known| known.failure),
            Some(Failure::AnswerNotDelivered)
        );
    }

    /// The route returned before the SYN was retransmitted, so the answer shows nothing about the uplink.
    #[test]
    fn a_syn_that_came_again_was_not_answered_by_the_uplink() {
        let back = |state| {
            let pending = Pending { state, ..pending() };
            came_back(&pending)
        };
        let astray = state::MISROUTED | state::ANSWER_IN | state::ANSWER_OUT | state::PROVEN;
        assert!(back(astray));
        assert!(!back(astray | state::RETRANSMITTED));
        assert!(!back(astray | state::FORWARDED));
        assert!(!back(state::MISROUTED), "no answer");
        let mut pending_reports = PendingReports::default();
        pending_reports.report(&Anomaly {
            flags: anomaly_flag::MISDELIVERED,
            ..anomaly(Outcome::Misrouted)
        });
        let endpoint = pending_reports.answered_by_uplink(&KEY);
        assert_eq!(endpoint, Some([10, 244, 1, 9].into()));
    }

    #[test]
    fn reports_of_answered_connections_are_forgotten() {
        let mut pending_reports = PendingReports::default();
        pending_reports.report(&anomaly(Outcome::Leaked));
        pending_reports.forget(Mono(1_000).plus(KEPT));
        assert_eq!(pending_reports.0.len(), 1);
        pending_reports.forget(Mono(1_001).plus(KEPT));
        assert_eq!(pending_reports.0.len(), 0);
    }

    #[test]
    fn each_failure_is_counted_under_its_name() {
        let mut deltas = Vec::new();
        for failed in [Failed::Leaked, Failed::Leaked, Failed::Lost, Failed::Stale] {
            count(&mut deltas, &pending(), failed);
        }
        let [delta] = &deltas[..] else {
            panic!("one Service and class: {deltas:?}");
        };
        assert_eq!(delta.counts[Outcome::Leaked as usize], 2);
        assert_eq!(delta.counts[Outcome::Stale as usize], 1);
        assert_eq!(delta.lost, 1);
    }
}
