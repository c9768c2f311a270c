//! Source ports that dialled endpoints which had left. conntrack sends a client that uses its port again to the
//! endpoint of the first time, whatever the rules say by now.
//!
//! Nothing here decides; a port that is forgotten counts as a new one.

use std::collections::VecDeque;
use std::net::IpAddr;

/// Ports kept. A client that goes through more of them within one loss of an endpoint looks like new ones.
const KEPT: usize = 64;

/// Clients with their ports, the latest last.
#[derive(Clone, Debug, Default)]
pub(super) struct SourcePorts(VecDeque<(IpAddr, u16)>);

impl SourcePorts {
    /// Takes in a connection, and says whether the same client used the same port before. Port 0 is not known.
    pub(super) fn met_before(&mut self, client: IpAddr, port: u16) -> bool {
        if port == 0 {
            return false;
        }
        let ends = (client, port);
        let known = self.0.iter().position(|of| *of == ends);
        match known {
            Some(place) => drop(self.0.remove(place)),
            None if self.0.len() == KEPT => drop(self.0.pop_front()),
            None => {}
        }
        self.0.push_back(ends);
        known.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
    const OTHER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2));

    #[test]
    fn a_port_is_met_again_by_its_own_client_alone() {
        let mut ports = SourcePorts::default();
        assert!(!ports.met_before(CLIENT, 40_000));
        assert!(!ports.met_before(OTHER, 40_000));
        assert!(!ports.met_before(CLIENT, 40_001));
        assert!(ports.met_before(CLIENT, 40_000));
    }

    #[test]
    fn a_port_that_is_not_known_is_never_met_again() {
        let mut ports = SourcePorts::default();
        assert!(!ports.met_before(CLIENT, 0));
        assert!(!ports.met_before(CLIENT, 0));
    }

    #[test]
    fn the_port_that_was_used_longest_ago_is_forgotten() {
        let mut ports = SourcePorts::default();
        for port in 1..=64 {
            ports.met_before(CLIENT, port);
        }
        assert!(ports.met_before(CLIENT, 1));
        assert!(!ports.met_before(CLIENT, 65), "takes the place of 2");
        assert!(ports.met_before(CLIENT, 1));
        assert!(!ports.met_before(CLIENT, 2));
    }
}
