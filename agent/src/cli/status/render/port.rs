//! Who answers at the healthz port, and what a node that leaves still gets.

use super::{Page, TEXT};
use crate::cli::paper::{Ink, grouped};
use agent_core::report::PortWay;
use agent_core::time::Spoken;

impl Page<'_> {
    /// How the load balancer's questions come here.
    pub(super) fn port(&mut self) {
        let port = &self.report.port;
        let (ink, said) = match (port.way, port.owner) {
            _ if port.succeeded => (Ink::Warn, "another agent has taken over"),
            _ if port.waits => (
                Ink::Unsure,
                "outsiders are still answered by who did before; ours soon",
            ),
            (PortWay::Bound, _) => (Ink::Plain, "bound by the agent"),
            (PortWay::Steered, Some(true)) => (
                Ink::Good,
                "outsiders are answered here, the node by the port's owner",
            ),
            (PortWay::Steered, Some(false)) => (Ink::Good, "steered here; nobody else listens"),
            (PortWay::Steered, None) => (Ink::Unsure, "steered here; who else listens is unknown"),
        };
        self.paper
            .put(Ink::Heading, "port")
            .to(TEXT)
            .put(ink, said)
            .line();
        if let Some(problem) = &port.problem {
            let said = format!("not steered: {problem}");
            self.paper.to(TEXT).wrapped(Ink::Warn, TEXT, &said);
        }
    }

    /// Of a node that leaves: whether load balancers still send new connections.
    pub(super) fn drain(&mut self) {
        let drain = &self.report.drain;
        let Some(since) = drain.since else {
            return;
        };
        let now = self.report.verdict.at;
        let mut said = format!(
            "leaving for {}, {} new connections from outside since",
            Spoken(now.since(since)),
            grouped(drain.connections)
        );
        if let Some(last) = drain.last {
            said.push_str(&format!(", the last {} ago", Spoken(now.since(last))));
        }
        self.paper
            .put(Ink::Heading, "drain")
            .to(TEXT)
            .wrapped(Ink::Warn, TEXT, &said);
        if let Some(blind) = &drain.blind {
            let said = format!("not all are seen: {blind}");
            self.paper.to(TEXT).wrapped(Ink::Warn, TEXT, &said);
        }
    }
}
