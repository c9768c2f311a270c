//! Source ports that dialled endpoints that left. If a client reuses its port, conntrack sends the connection
//! to the same endpoint as before, whatever the current rules are.
//!
//! Nothing here decides. A forgotten port counts as a new one.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use pathproof_facts::time::Mono;
use serde::{Deserialize, Serialize};

/// Maximum number of ports. A client that uses more ports before it repeats one looks like several new
/// clients.
const KEPT: usize = 64;
/// Time for which conntrack may remember a port: it forgets unanswered and closed connections after two
/// minutes.
const REMEMBERED: Duration = Duration::from_secs(130);

/// Client with port, endpoint, and time of the connection; the latest last.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct SourcePorts(VecDeque<(SocketAddr, Option<SocketAddr>, Mono)>);

impl SourcePorts {
    /// Records a connection. Returns whether conntrack may have sent it to the endpoint of an earlier
    /// connection from the same port. Port 0 means unknown.
    pub(super) fn met_before(
        &mut self,
        client: SocketAddr,
        endpoint: Option<SocketAddr>,
        at: Mono,
    ) -> bool {
        if client.port() == 0 {
            return false;
        }
        let same = |connection: &(SocketAddr, Option<SocketAddr>, Mono)| {
            (connection.0, connection.1) == (client, endpoint)
        };
        let place = self.0.iter().position(same);
        let known = place.and_then(|place| self.0.remove(place));
        if self.0.len() >= KEPT {
            self.0.pop_front();
        }
        self.0.push_back((client, endpoint, at));
        known.is_some_and(|(_, _, before)| at.since(before) <= REMEMBERED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENDPOINT: &str = "10.244.0.5:8080";
    const S: u64 = 1_000_000_000;

    fn met(ports: &mut SourcePorts, client: &str, endpoint: &str, at: u64) -> bool {
        let endpoint = Some(endpoint.parse().unwrap());
        ports.met_before(client.parse().unwrap(), endpoint, Mono(at * S))
    }

    #[test]
    fn a_port_is_met_again_by_its_own_client_alone() {
        let mut ports = SourcePorts::default();
        assert!(!met(&mut ports, "192.0.2.1:40000", ENDPOINT, 1));
        assert!(!met(&mut ports, "192.0.2.2:40000", ENDPOINT, 2));
        assert!(!met(&mut ports, "192.0.2.1:40001", ENDPOINT, 3));
        assert!(met(&mut ports, "192.0.2.1:40000", ENDPOINT, 4));
    }

    #[test]
    fn conntrack_leads_to_the_same_endpoint_and_forgets() {
        let mut ports = SourcePorts::default();
        assert!(!met(&mut ports, "192.0.2.1:40000", ENDPOINT, 0));
        assert!(!met(&mut ports, "192.0.2.1:40000", "10.244.0.6:8080", 1));
        assert!(met(&mut ports, "192.0.2.1:40000", ENDPOINT, 130));
        assert!(!met(&mut ports, "192.0.2.1:40000", ENDPOINT, 261));
    }

    #[test]
    fn a_port_that_is_not_known_is_never_met_again() {
        let mut ports = SourcePorts::default();
        assert!(!met(&mut ports, "192.0.2.1:0", ENDPOINT, 1));
        assert!(!met(&mut ports, "192.0.2.1:0", ENDPOINT, 1));
    }

    #[test]
    fn the_port_that_was_used_longest_ago_is_forgotten() {
        let mut ports = SourcePorts::default();
        let mut met = |port: u16| met(&mut ports, &format!("192.0.2.1:{port}"), ENDPOINT, 1);
        for port in 1..=64 {
            met(port);
        }
        assert!(met(1));
        assert!(!met(65), "takes the place of 2");
        assert!(met(1));
        assert!(!met(2));
    }
}
