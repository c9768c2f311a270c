//! Ends connections of clients outside to the process that answered before the agent: a client that reuses its
//! connection would get that process's answers for as long as the connection lasts
//! (docs/internal/design/shell.md#kept-connections).
//!
//! `bypassing` selects the connections, and `Schedule` spreads their ends over time; neither does I/O.
//! Connections of the node itself, unless they dialled [`CHECKS`], and those of an agent are never ended.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

use nix::ifaddrs::getifaddrs;
use pathproof_judge::health_ports::PortTable;
use pathproof_judge::health_ports::owner::PortKey;
use pathproof_report::KeptConnections;
use pathproof_wire::service::{Address, Family};
use pathproof_wire::steer::{ALIVE_NS, CHECKS, Dialled, SteerRule, mapped};
use tokio::sync::watch;
use tokio::time::Instant;

use super::{SteeredServices, steered};
use crate::config::PortRange;
use crate::datapath::listeners::{Socket, accepted, destroy};

/// Interval of reading the node's connections.
const READ: Duration = Duration::from_secs(2);
/// Interval once none was known for this long: each reading lists sockets up to four times.
const READ_IDLE: Duration = Duration::from_secs(10);
/// Time between two checks after which the port's owner got new connections: the agent was frozen.
const FROZEN: Duration = Duration::from_nanos(ALIVE_NS);
/// Bounds of the time from the first reading of a connection to its end. Another reading confirms it before,
/// and with the intervals of readings and checks a connection lasts at most 30 s.
const FIRST: Duration = Duration::from_secs(3);
const LAST: Duration = Duration::from_secs(27);

/// Symlinks to the open files of this process.
const OWN_FILES: &str = "/proc/self/fd";

/// Connections that bypass the agent.
pub(super) struct Kept {
    /// The rule of the healthz port.
    rule: SteerRule,
    /// Services by health check node port, and the range of ports that are steered.
    services: Option<(watch::Receiver<Arc<PortTable>>, PortRange)>,
    /// The health check node ports that are steered.
    ports: BTreeSet<PortKey>,
    schedule: Schedule,
    read: Option<Instant>,
    checked: Option<Instant>,
    /// Last time at which a connection was known, or the agent began to answer, at any of the ports.
    known: Option<Instant>,
    report: KeptConnections,
}

impl Kept {
    pub(super) fn new(rule: SteerRule, services: Option<&SteeredServices>, ends: bool) -> Self {
        let follow = |steered: &SteeredServices| {
            let mut table = steered.table.subscribe();
            // The present table is to be read too.
            table.mark_changed();
            (table, steered.range.clone())
        };
        Self {
            rule,
            services: services.map(follow),
            ports: BTreeSet::new(),
            schedule: Schedule::default(),
            read: None,
            checked: None,
            known: None,
            report: KeptConnections {
                left: (!ends).then(|| "--end-kept-connections=off".to_owned()),
                ..KeptConnections::default()
            },
        }
    }

    /// Counts the connections that bypass the agent, and ends those that are due. With `answers`, new
    /// connections come to this agent and to no other program.
    pub(super) fn check(&mut self, answers: bool, now: Instant) -> KeptConnections {
        if !answers {
            (self.schedule, self.report.open) = (Schedule::default(), None);
            (self.read, self.checked) = (None, None);
        } else if self.is_due(now) {
            self.read = Some(now);
            let found = self.find();
            if let Err(error) = &found {
                tracing::debug!(%error, "connections that bypass the agent cannot be read");
            }
            self.report.open = found.as_ref().ok().map(|found| found.len() as u64);
            self.schedule.follow(found.unwrap_or_default(), now);
        }
        self.end(now, destroy);
        self.report.clone()
    }

    /// Whether the connections are to be read now.
    fn is_due(&mut self, now: Instant) -> bool {
        let before = self.checked.replace(now);
        let answers_again = before.is_none_or(|before| now >= before + FROZEN);
        if self.follow_ports() || answers_again || !self.schedule.0.is_empty() {
            self.known = Some(now);
        }
        let is_idle = self.known.is_some_and(|known| now >= known + READ_IDLE);
        let interval = if is_idle { READ_IDLE } else { READ };
        self.read.is_none_or(|read| now >= read + interval)
    }

    /// Reads which ports are steered. Returns whether they changed: connections to a new one come to the agent
    /// from now on, so older ones bypass it.
    fn follow_ports(&mut self) -> bool {
        let Some((table, range)) = &mut self.services else {
            return false;
        };
        if !table.has_changed().unwrap_or(false) {
            return false;
        }
        let table = Arc::clone(&table.borrow_and_update());
        let ports = steered(&table, range).collect();
        std::mem::replace(&mut self.ports, ports) != self.ports
    }

    fn find(&self) -> io::Result<Vec<Socket>> {
        let port = self.rule.port as u16;
        let mut connections = accepted(&(port..=port))?;
        if let Some((_, range)) = &self.services
            && !self.ports.is_empty()
        {
            connections.extend(accepted(range)?);
        }
        let takes = |dialled: &Dialled| {
            let family = Family::of(&dialled.destination);
            let port = (family, dialled.port as u16);
            self.rule.names(dialled) || self.ports.contains(&port)
        };
        bypassing(connections, takes, own_sockets, local_addresses)
    }

    /// Ends the connections that are due. If the kernel never ends connections, they are only counted from
    /// then on.
    fn end(&mut self, now: Instant, end: impl Fn(&Socket) -> io::Result<()>) {
        let before = self.report.ended;
        for connection in self.schedule.due(now) {
            if self.report.left.is_some() {
                break;
            }
            match end(connection) {
                Ok(()) => self.report.ended += 1,
                Err(error) => self.report.left = refusal(&error),
            }
            if let Some(why) = &self.report.left {
                tracing::warn!(%why, "the agent cannot end connections from before it answered");
            }
        }
        let connections = self.report.ended - before;
        if connections > 0 {
            tracing::info!(
                connections,
                "ended connections of clients outside from before the agent answered: they connect to \
                 it now"
            );
        }
    }
}

/// Why the kernel ends no connection at all; `None` if only this one could not be ended, or has ended.
fn refusal(error: &io::Error) -> Option<String> {
    match error.raw_os_error()? {
        libc::EOPNOTSUPP => Some("the kernel lacks CONFIG_INET_DIAG_DESTROY".to_owned()),
        libc::EPERM | libc::EACCES => Some(format!("the kernel refuses: {error}")),
        _ => None,
    }
}

/// The connections that another process has accepted, although the agent `takes` such connections now. Excluded
/// are those that no process has accepted yet, and the node's, kubelet's probes among them. Only checks dial
/// [`CHECKS`], so such a connection is not excluded, whatever its source.
fn bypassing(
    mut connections: Vec<Socket>,
    takes: impl Fn(&Dialled) -> bool,
    own: impl FnOnce() -> io::Result<BTreeSet<u32>>,
    local: impl FnOnce() -> io::Result<BTreeSet<Address>>,
) -> io::Result<Vec<Socket>> {
    connections.retain(|connection| {
        let dialled = connection.dialled();
        takes(&dialled) && !dialled.is_for_owner() && connection.inode != 0
    });
    if !connections.is_empty() {
        // The agent's sockets are read after the connections, so that none of those is missing.
        let own = own()?;
        connections.retain(|connection| !own.contains(&connection.inode));
    }
    // Reading the addresses takes the kernel's lock of interfaces, so it is left out if nothing needs it.
    let is_check = |dialled: &Dialled| dialled.destination == CHECKS;
    if !(connections.iter()).all(|connection| is_check(&connection.dialled())) {
        let local = local()?;
        connections.retain(|connection| {
            let dialled = connection.dialled();
            is_check(&dialled) || !local.contains(&dialled.source)
        });
    }
    Ok(connections)
}

/// The connections of the last reading, with the time at which each is ended.
#[derive(Default)]
struct Schedule(BTreeMap<Socket, Instant>);

impl Schedule {
    /// Follows a reading: known connections keep their times.
    fn follow(&mut self, found: Vec<Socket>, now: Instant) {
        let timed = found.into_iter().map(|connection| {
            let due = self.0.get(&connection).copied();
            let due = due.unwrap_or_else(|| now + delay(&connection.id));
            (connection, due)
        });
        self.0 = timed.collect();
    }

    fn due(&self, now: Instant) -> impl Iterator<Item = &Socket> {
        let due = self.0.iter().filter(move |(_, due)| **due <= now);
        due.map(|(connection, _)| connection)
    }
}

/// A hash of the id, so that the clients of a node are spread, and the nodes of a client.
fn delay(id: &[u8; 48]) -> Duration {
    let mut hasher = DefaultHasher::new();
    id.hash(&mut hasher);
    FIRST + (LAST - FIRST) * (hasher.finish() % 1_000) as u32 / 1_000
}

/// Inodes of this process's sockets.
fn own_sockets() -> io::Result<BTreeSet<u32>> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(OWN_FILES)? {
        // A file that was closed meanwhile has no link.
        let target = fs::read_link(entry?.path()).unwrap_or_default();
        let inode = target
            .to_str()
            .and_then(|text| text.strip_prefix("socket:["));
        found.extend(inode.and_then(|text| text.strip_suffix(']')?.parse::<u32>().ok()));
    }
    Ok(found)
}

/// Addresses of the node's interfaces.
fn local_addresses() -> io::Result<BTreeSet<Address>> {
    let addresses = getifaddrs()?.filter_map(|interface| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in();
        v4.map(|v4| mapped(v4.ip().octets()))
            .or_else(|| Some(address.as_sockaddr_in6()?.ip().octets()))
    });
    Ok(addresses.collect())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::net::IpAddr;

    use pathproof_facts::cluster::ObjectName;
    use pathproof_facts::node_context::address;
    use pathproof_judge::health_ports::HealthPort;
    use pathproof_wire::steer::steer_flag;
    use rstest::rstest;

    use super::*;
    use crate::datapath::listeners::socket;

    /// Inodes of a socket of the agent, and of another process.
    const OWN: u32 = 7;
    const OTHER: u32 = 8;

    fn parse(text: &str) -> Address {
        address(&text.parse::<IpAddr>().unwrap())
    }

    /// A connection as the kernel describes it in `struct inet_diag_msg`.
    fn connection(client: &str, dialled: &str, port: u16, inode: u32) -> Socket {
        let mut message = [0; 72];
        message[..2].copy_from_slice(&[libc::AF_INET6 as u8, 1]);
        message[4..6].copy_from_slice(&port.to_be_bytes());
        message[8..24].copy_from_slice(&parse(dialled));
        message[24..40].copy_from_slice(&parse(client));
        message[68..].copy_from_slice(&inode.to_ne_bytes());
        socket(&message).unwrap()
    }

    #[rstest]
    #[case::outside("203.0.113.7", "192.0.2.10", 10256, OTHER, true)]
    #[case::outside_by_ipv6("2001:db8:1::7", "2001:db8::10", 10256, OTHER, true)]
    #[case::a_pod("10.244.0.11", "192.0.2.10", 10256, OTHER, true)]
    #[case::a_services_port("203.0.113.7", "192.0.2.10", 31000, OTHER, true)]
    #[case::of_the_other_family("2001:db8:1::7", "2001:db8::10", 31000, OTHER, false)]
    #[case::another_port("203.0.113.7", "192.0.2.10", 31001, OTHER, false)]
    #[case::the_node("192.0.2.10", "192.0.2.10", 10256, OTHER, false)]
    #[case::the_nodes_other_address("192.0.2.11", "192.0.2.10", 10256, OTHER, false)]
    #[case::the_node_by_ipv6("2001:db8::11", "2001:db8::10", 10256, OTHER, false)]
    #[case::loopback("127.0.0.1", "127.0.0.1", 10256, OTHER, false)]
    #[case::a_check_on_the_node("127.0.0.1", "127.10.2.56", 10256, OTHER, true)]
    #[case::a_check_by_another_address("192.0.2.10", "127.10.2.56", 10256, OTHER, true)]
    #[case::a_check_of_another_port("127.0.0.1", "127.10.2.56", 31001, OTHER, false)]
    #[case::from_the_address_of_checks("127.10.2.56", "127.0.0.1", 10256, OTHER, false)]
    #[case::the_agents_own("203.0.113.7", "192.0.2.10", 10256, OWN, false)]
    #[case::not_accepted_yet("203.0.113.7", "192.0.2.10", 10256, 0, false)]
    fn connections_that_bypass_the_agent(
        #[case] client: &str,
        #[case] dialled: &str,
        #[case] port: u16,
        #[case] inode: u32,
        #[case] expected: bool,
    ) {
        let rule = SteerRule {
            port: 10256,
            flags: steer_flag::EVERYWHERE,
            ..SteerRule::default()
        };
        let service = |dialled: &Dialled| {
            dialled.port == 31000 && Family::of(&dialled.destination) == Family::V4
        };
        let takes = |dialled: &Dialled| rule.names(dialled) || service(dialled);
        let local = ["127.0.0.1", "192.0.2.10", "192.0.2.11", "2001:db8::11"];
        let found = bypassing(
            vec![connection(client, dialled, port, inode)],
            takes,
            || Ok([OWN].into()),
            || Ok(local.into_iter().map(parse).collect()),
        );
        assert_eq!(!found.unwrap().is_empty(), expected);
    }

    fn clients(count: u8) -> Vec<Socket> {
        let client =
            |last: u8| connection(&format!("203.0.113.{last}"), "192.0.2.10", 10256, OTHER);
        (0..count).map(client).collect()
    }

    #[test]
    fn ends_are_spread_and_wait_for_a_second_reading() {
        let (start, mut schedule) = (Instant::now(), Schedule::default());
        schedule.follow(clients(200), start);
        let due = |schedule: &Schedule, after: Duration| schedule.due(start + after).count();
        assert_eq!(due(&schedule, FIRST - Duration::from_millis(1)), 0);
        // A later reading neither delays the known connections nor forgets them.
        schedule.follow(clients(200), start + READ);
        for quarter in 1..=4 {
            let ended = due(&schedule, FIRST + (LAST - FIRST) * quarter / 4);
            let even = 50 * quarter as usize;
            assert!(ended.abs_diff(even) < 25, "{ended} by quarter {quarter}");
        }
        assert_eq!(due(&schedule, LAST), 200);
        // Connections that their clients closed are not ended.
        schedule.follow(clients(3), start + 2 * READ);
        assert_eq!(due(&schedule, LAST), 3);
    }

    #[test]
    fn connections_are_read_less_often_while_none_is_known() {
        let start = Instant::now();
        let mut kept = Kept::new(SteerRule::default(), None, true);
        let (sender, table) = watch::channel(Arc::default());
        kept.services = Some((table, 30_000..=32_767));
        let mut readings = |found: u8, from: u32, to: u32| {
            let seconds = from..to;
            let times = seconds.map(|second| start + Duration::from_secs(second.into()));
            let due = times.filter(|now| {
                let is_due = kept.is_due(*now);
                if is_due {
                    kept.read = Some(*now);
                    kept.schedule.follow(clients(found), *now);
                }
                is_due
            });
            due.count()
        };
        assert_eq!(readings(0, 0, 10), 5, "they may not be accepted yet");
        assert_eq!(readings(0, 10, 70), 6);
        assert_eq!(
            readings(1, 70, 120),
            21,
            "one is known from the first of them on"
        );
        assert_eq!(readings(0, 120, 190), 11, "it has ended");
        assert_eq!(readings(0, 250, 260), 5, "the agent was frozen");
        assert_eq!(readings(0, 260, 320), 6);
        let port = |endpoints| HealthPort {
            service: ObjectName::new("shop", "web"),
            local: [Some(endpoints), None],
        };
        sender.send_replace(Arc::new(PortTable::from([(30_500, port(1))])));
        assert_eq!(readings(0, 320, 330), 5, "another port is steered");
        sender.send_replace(Arc::new(PortTable::from([(30_500, port(2))])));
        assert_eq!(readings(0, 330, 350), 2, "the ports are the same");
    }

    /// Ends three connections with this result for each. Returns the number of attempts and the report.
    fn end(ends: bool, errno: Option<i32>) -> (u32, KeptConnections) {
        let (now, attempts) = (Instant::now(), Cell::new(0));
        let mut kept = Kept::new(SteerRule::default(), None, ends);
        kept.schedule.follow(clients(3), now);
        kept.end(now + LAST, |_| {
            attempts.set(attempts.get() + 1);
            errno.map_or(Ok(()), |code| Err(io::Error::from_raw_os_error(code)))
        });
        (attempts.get(), kept.report)
    }

    #[rstest]
    #[case::ended(true, None, 3, 3, None)]
    #[case::off(false, None, 0, 0, Some("--end-kept-connections=off"))]
    #[case::closed_meanwhile(true, Some(libc::ENOENT), 3, 0, None)]
    #[case::not_built(true, Some(libc::EOPNOTSUPP), 1, 0, Some("CONFIG_INET_DIAG_DESTROY"))]
    #[case::forbidden(true, Some(libc::EPERM), 1, 0, Some("not permitted"))]
    fn a_refusal_is_final(
        #[case] ends: bool,
        #[case] errno: Option<i32>,
        #[case] attempts: u32,
        #[case] ended: u64,
        #[case] left: Option<&str>,
    ) {
        let (made, report) = end(ends, errno);
        assert_eq!((made, report.ended), (attempts, ended));
        let why = report.left.unwrap_or_default();
        assert!(why.contains(left.unwrap_or_default()), "{why}");
        assert_eq!(why.is_empty(), left.is_none());
    }

    #[test]
    fn own_sockets_and_local_addresses_are_known() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let inode = super::super::inode(&listener).unwrap();
        assert!(own_sockets().unwrap().contains(&inode));
        drop(listener);
        assert!(!own_sockets().unwrap().contains(&inode));
        assert!(local_addresses().unwrap().contains(&parse("127.0.0.1")));
        assert!(!local_addresses().unwrap().contains(&parse("203.0.113.7")));
    }
}
