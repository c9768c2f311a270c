//! Attackers beside a storm, for its whole time: clients that abuse the health ports, crafted packets from
//! outside, a client that reuses its five-tuple, and a tenant whose slices claim foreign addresses.
//!
//! They are bounded to 50 connections at the health ports and 200 packets a second, so that two processors
//! suffice. Clients among them have addresses and a Service that no user has, because their failures are not
//! those of users. A correct agent answers as if they were not there.

use std::net::{Ipv4Addr, Ipv6Addr};

use anyhow::Result;
use fastrand::Rng;

use super::action::Injector;
use super::judge::{Answered, Findings, Seen};
use super::plan::Users;
use super::tenants;
use crate::abuse::{Crowd, harass};
use crate::manifests::Manifests;
use crate::packet::{self, Extension, Packet};
use crate::prelude::*;
use crate::traffic::Flood;
use crate::worker::Worker;
use crate::world::{HEALTHZ_PORT, layout};

/// The attacked Service, with a health check node port.
const SERVICE: &str = "attacked";
/// Index of its addresses in the address plan.
const INDEX: u8 = 6;
/// Its only endpoint, which belongs to no other Service.
const ENDPOINT: &str = "spare";
const NODE_PORT: u16 = 30_086;
const HEALTH_PORT: u16 = 30_087;
/// Node ports of the users' Services and of the attacked one.
const NODE_PORTS: [u16; 4] = [30_080, 30_081, 30_082, NODE_PORT];
/// Node ports without a Service, for the scanner.
const CLOSED: std::ops::Range<u16> = 31_000..32_000;

/// Number of the attackers' outside client. The storm's scanner has it too; users have not.
const CLIENT: u8 = 2;
/// Silent and slow connections, half of them each.
const CROWD: usize = 24;
/// Crafted packets a second.
const PACKETS: u32 = 200;
/// Interval between polls of the health check node port.
const EVERY: Duration = Duration::from_millis(200);

/// The attackers; end when dropped.
pub(super) struct Attackers {
    /// Polls the attacked Service's health check node port.
    pub(super) health_port: Watch,
    _crowd: Crowd,
    _harass: Vec<Worker>,
    _packets: Flood,
    _clients: Vec<Client>,
}

impl Attackers {
    /// Adds the attacked Service, and starts all attackers. The tenant is one of them only with `Everybody`:
    /// otherwise its pods would be additional users.
    pub(super) fn start(injector: &mut Injector, users: Users) -> Result<Self> {
        let stage = &mut injector.stage;
        let endpoint = [stage.world.pod(ENDPOINT)];
        let service = Service::new(SERVICE, INDEX, endpoint);
        let service = service.load_balancer(NODE_PORT).health_port(HEALTH_PORT);
        stage.manifests.add(service)?;
        injector.publish(&Manifests::service_file(SERVICE))?;

        let world = &injector.stage.world;
        let outside = &world.outside;
        let [health, service] = [HEALTHZ_PORT, HEALTH_PORT]
            .map(|port| SocketAddr::new(world.node_address(Family::V4), port));
        let health_port = Watch::start_at(outside, service, EVERY)?;
        health_port.wait(PATIENCE, |codes| codes.healthz == 200)?;
        let mut clients = Vec::new();
        for family in Family::ALL {
            let target = SocketAddr::new(world.node_address(family), NODE_PORT);
            let plan = || Plan::from_outside(world, CLIENT, target);
            // This client succeeds. Otherwise 503 for the Service would be right.
            clients.push(plan().rate(5.0).start()?);
            clients.push(same_port(plan()).start()?);
        }
        if users == Users::Everybody {
            clients.push(tenants::attack(injector)?);
        }
        Ok(Self {
            health_port,
            _crowd: Crowd::gather(outside, health, CROWD)?,
            _harass: vec![harass(outside, health)?, harass(outside, service)?],
            _packets: Flood::from_outside(world, PACKETS, craft)?,
            _clients: clients,
        })
    }
}

/// Reports each 503 at the health check node port that no action justifies. Silence there is right while the
/// agent lacks the API server, because the node has no proxy to answer instead.
pub(super) fn judge_health_port(seen: &Seen, answered: Vec<Answered>, findings: &mut Findings) {
    let there = Seen {
        answered,
        ..seen.clone()
    };
    let mut wrong = Findings::default();
    for answered in &there.answered {
        there.false_alarm(answered, &mut wrong);
    }
    for (at, what) in wrong.violations {
        findings.accuse(at, format!("at the health check node port: {what}"));
    }
}

/// Connects once a second from one port: each connection has the five-tuple of the one before it, and another
/// initial sequence number.
fn same_port(mut plan: Plan) -> Plan {
    plan.ports.end = plan.ports.start + 1;
    plan.rate(1.0).patience(Duration::from_millis(700))
}

/// Sources that no host outside has: pods of both nodes, a cluster IP, both nodes, the sentinel, and loopback.
const FORGED: [(Ipv4Addr, Ipv6Addr); 7] = [
    (Ipv4Addr::new(10, 244, 0, 200), pods(0)),
    (Ipv4Addr::new(10, 244, 1, 200), pods(1)),
    (Ipv4Addr::new(10, 96, 0, 9), v6(0xfd00, 0x10, 0x96, 0, 9)),
    layout::WORKER,
    layout::NODE,
    (Ipv4Addr::new(198, 18, 0, 1), v6(0x2001, 2, 0, 0, 1)),
    (Ipv4Addr::LOCALHOST, Ipv6Addr::LOCALHOST),
];
/// An address outside that answers nothing, so that its handshakes stay half open.
const SILENT: (Ipv4Addr, Ipv6Addr) = (Ipv4Addr::new(11, 0, 0, 9), v6(0x2001, 0xdb8, 0, 0xeeee, 9));
/// The port of all SYNs that have one five-tuple.
const REUSED: u16 = 4_000;

const fn pods(segment: u16) -> Ipv6Addr {
    v6(0xfd00, 0x10, 0x244, segment, 0xc8)
}

const fn v6(first: u16, second: u16, third: u16, fourth: u16, host: u16) -> Ipv6Addr {
    Ipv6Addr::new(first, second, third, fourth, 0, 0, 0, host)
}

/// One packet of the attackers, of either family.
fn craft(rng: &mut Rng) -> Packet {
    let family = Family::ALL[rng.usize(..2)];
    let pick = |pair| layout::pick(pair, family);
    let (node, silent) = (pick(layout::NODE), pick(SILENT));
    let forged = pick(FORGED[rng.usize(..FORGED.len())]);
    let (port, sequence) = (rng.u16(1024..), rng.u32(..));
    let attacked = NODE_PORTS[rng.usize(..NODE_PORTS.len())];
    let reused = [NODE_PORT, HEALTH_PORT, HEALTHZ_PORT][rng.usize(..3)];
    let to = |port| SocketAddr::new(node, port);
    let forged = SocketAddr::new(forged, port);
    match rng.u8(..5) {
        0 => packet::syn(forged, to(attacked), sequence),
        1 => packet::syn(SocketAddr::new(silent, REUSED), to(reused), sequence),
        2 => packet::syn(SocketAddr::new(silent, port), to(rng.u16(CLOSED)), sequence),
        // Any flags, with data that belongs to no connection.
        3 => packet::tcp(
            forged,
            to(attacked),
            rng.u8(..),
            sequence,
            rng.u32(..),
            &[0; 64],
        ),
        _ => packet::syn(forged, to(attacked), sequence)
            .ip_options(2)
            .fragment(0)
            .extension(Extension::Destination(1)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::{Action, Fault, Step};
    use super::*;

    /// A packet that its builder refuses would end the attackers' thread unnoticed.
    #[test]
    fn every_packet_can_be_built() {
        let mut rng = Rng::with_seed(7);
        for _ in 0..5_000 {
            assert!(!craft(&mut rng).bytes().is_empty());
        }
    }
    #[test]
    fn a_503_of_the_health_check_node_port_needs_a_fault() {
        let [begin, alarm, end] = [9, 10, 12].map(Duration::from_secs);
        let codes = Codes {
            healthz: 503,
            livez: 503,
        };
        let wrong = |seen: &Seen| {
            let (from, to) = (alarm, end);
            let mut findings = Findings::default();
            judge_health_port(seen, vec![Answered { from, to, codes }], &mut findings);
            findings.violations.len()
        };
        assert_eq!(wrong(&Seen::default()), 1);
        let fault = Step {
            action: Action::Fault(Fault::ChainFlushed),
            from: begin,
            to: end,
        };
        let broken = Seen {
            steps: vec![fault],
            dialled: vec![(alarm, false)],
            ..Seen::default()
        };
        assert_eq!(wrong(&broken), 0);
    }
}
