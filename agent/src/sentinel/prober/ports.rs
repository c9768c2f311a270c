//! Source ports of probes: in sequence, so that a connection-tracking entry of an earlier probe is
//! long gone when its port is used again.

use std::ops::Range;

use agent_common::service::Family;

use agent_core::trace::{Lane, PROBE_PATHS, ProbePath, Transport};

/// Behind translation, probes of the two paths that share a source have the same two ends: their
/// ports must differ. A range lasts for more than an hour.
const OFF_CLUSTER: Range<u16> = 20_000..40_000;
const NODE_PORT: Range<u16> = 40_000..60_000;
/// A source of its own.
const POD: Range<u16> = 20_000..60_000;
/// Never tracked.
const CONTROL: Range<u16> = 60_000..61_000;

/// The next port of each lane.
#[derive(Debug)]
pub(super) struct Ports {
    lanes: [[[u16; 2]; 2]; PROBE_PATHS],
    control: [u16; 2],
}

impl Ports {
    /// Each sequence begins somewhere else in its range: a former agent's entries may still be
    /// there.
    pub(super) fn new(mut random: impl FnMut() -> u16) -> Self {
        let mut lanes = [[[0; 2]; 2]; PROBE_PATHS];
        for path in ProbePath::ALL {
            for port in lanes[path as usize].as_flattened_mut() {
                *port = begin(&range(path), random());
            }
        }
        Self {
            lanes,
            control: [CONTROL.start; 2],
        }
    }

    /// The next port of a lane.
    pub(super) fn next(&mut self, lane: Lane) -> u16 {
        let transport = match lane.transport {
            Transport::Tcp => 0,
            Transport::Udp => 1,
        };
        let port = &mut self.lanes[lane.path as usize][lane.family as usize][transport];
        step(port, &range(lane.path))
    }

    /// The next port of a family's control probes.
    pub(super) fn next_control(&mut self, family: Family) -> u16 {
        step(&mut self.control[family as usize], &CONTROL)
    }
}

fn range(path: ProbePath) -> Range<u16> {
    match path {
        ProbePath::OffCluster => OFF_CLUSTER,
        ProbePath::NodePort => NODE_PORT,
        // The kernel takes the host's own.
        ProbePath::Pod | ProbePath::Host => POD,
    }
}

fn begin(range: &Range<u16>, random: u16) -> u16 {
    range.start + random % (range.end - range.start)
}

fn step(port: &mut u16, range: &Range<u16>) -> u16 {
    let now = *port;
    *port = if now + 1 < range.end {
        now + 1
    } else {
        range.start
    };
    now
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn lane(path: ProbePath, transport: Transport) -> Lane {
        Lane {
            path,
            family: Family::V6,
            transport,
        }
    }

    #[test]
    fn a_port_comes_again_when_all_others_were_used() {
        let mut ports = Ports::new(|| u16::MAX);
        let mut drawn = Vec::new();
        for path in [ProbePath::OffCluster, ProbePath::NodePort] {
            let range = range(path);
            let seen: HashSet<u16> = range
                .clone()
                .map(|_| ports.next(lane(path, Transport::Tcp)))
                .collect();
            assert_eq!(seen.len(), range.len());
            assert!(seen.iter().all(|port| range.contains(port)));
            drawn.push(seen);
        }
        assert!(drawn[0].is_disjoint(&drawn[1]));
    }

    #[test]
    fn lanes_do_not_use_up_each_others_ports() {
        let mut ports = Ports::new(|| 0);
        let first = ports.next(lane(ProbePath::Pod, Transport::Tcp));
        assert_eq!(ports.next(lane(ProbePath::Pod, Transport::Udp)), first);
        assert_eq!(ports.next(lane(ProbePath::Pod, Transport::Tcp)), first + 1);
        assert_eq!(ports.next_control(Family::V4), 60_000);
        assert_eq!(ports.next_control(Family::V4), 60_001);
    }
}
