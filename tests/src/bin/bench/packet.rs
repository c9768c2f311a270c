//! `cargo xtask bench packet`: nanoseconds per packet that the observer adds, by BPF_PROG_TEST_RUN, compared
//! with an empty program on the same packets.
//!
//! A packet that is no SYN runs 1e6 times in one call. For SYNs to a frontend, a small program
//! ([`generator`]) makes each one different: it chooses initial sequence number, client and frontend at
//! random, and then tail-calls the measured program.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Result, ensure};
use generator::Generator;
use nix::time::ClockId;
use node_tests::observer::{LO, Observer, Sandbox, in_sandbox};
use node_tests::packet;
use node_tests::promises::{Missed, head, median};
use pathproof_wire::abi::{FOLLOW_ALL, map, program};
use pathproof_wire::evidence::Outcome;
use pathproof_wire::service::{
    ExpectedHandling, FrontendKind, FrontendValue, SourceClass, device_flag, endpoint_flag,
};

mod generator;

/// Runs of a repeated packet in a round.
const REPEAT: u32 = 1_000_000;
/// Connections in a round. These rounds are short, so there are `MORE` times as many of them.
const CONNECTIONS: u32 = 2_000;
const MORE: usize = 10;
/// Frontends in the map, each of another Service with three endpoints.
const FRONTENDS: u32 = 30_000;
/// Frontends that clients use at a time.
const IN_USE: u32 = 100;
const ENDPOINTS: u32 = 3;
/// 100.64.0.0/10.
const CLIENTS: u32 = 0x6440_0000;
/// 10.96.0.0.
const FIRST_FRONTEND: u32 = 0x0a60_0000;
/// 10.244.1.0.
const FIRST_ENDPOINT: u32 = 0x0af4_0100;
const PODS: u32 = 10_000;
/// Port of every frontend and endpoint: the generator changes addresses only.
const PORT: u16 = 80;
/// Promises in nanoseconds. `OF_NO_SYN` and `OF_DATAGRAM` are compared with the difference of the best
/// rounds: a repeated packet meets the same caches each time, and noise only adds. `OF_SIGHTING` is compared
/// with the median of the rounds' differences, which includes the state of the machine.
const OF_NO_SYN: f64 = 3.0;
const OF_DATAGRAM: f64 = 15.0;
const OF_SIGHTING: f64 = 500.0;

pub(crate) fn run(rounds: usize, missed: &mut Missed) -> Result<()> {
    ensure!(rounds >= 1, "nothing to measure");
    head(
        "ns per packet | rounds' | with the observer | empty program | added | ratio | promise | met",
    );
    // Follow all connections: the gate would skip most connections of such a burst.
    let observer = Observer::load(&[(FOLLOW_ALL, 1)]);
    in_sandbox(|sandbox| {
        let mut bench = Bench {
            observer,
            sandbox,
            rounds,
            missed,
        };
        bench.fill();
        bench.repeated()?;
        bench.observer.reset(8);
        bench.connections()?;
        bench.check()
    })?
}

struct Bench<'a> {
    observer: Observer,
    sandbox: Sandbox,
    rounds: usize,
    missed: &'a mut Missed,
}

impl Bench<'_> {
    fn fill(&mut self) {
        let observer = &mut self.observer;
        for service in 0..FRONTENDS {
            let value = FrontendValue {
                service,
                kind: FrontendKind::ClusterIp as u8,
                owed: [ExpectedHandling::Forward as u8; 3],
                ..FrontendValue::default()
            };
            observer.put_frontend(frontend(service), value);
            for index in 0..ENDPOINTS {
                let at = endpoint(service, index);
                observer.put_endpoint(service, at, endpoint_flag::LOCAL);
            }
        }
        observer.put_device(self.sandbox.uplink, device_flag::UPLINK);
        observer.put_source([10, 244, 1, 0].into(), 120, SourceClass::Pod);
        observer.put_source([192, 0, 2, 2].into(), 128, SourceClass::Host);
    }

    /// Repeats one packet of each frequent kind.
    fn repeated(&mut self) -> Result<()> {
        let quic = SocketAddr::from(([10, 96, 255, 1], 443));
        let udp = |to, byte: u8| packet::udp(client(7), to, &[byte; 1_200]).bytes();
        let data = |from, to| packet::data(from, to, &[0x55; 512]).bytes();
        let v6 = |last| SocketAddr::from((Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last), PORT));
        self.observer
            .put_udp_frontend(quic, FrontendValue::default());
        self.observer.run(program::INGRESS, &udp(quic, 1), LO);
        let stranger = "203.0.113.80:443".parse()?;
        for (name, most, packet) in [
            ("no SYN, IPv4", OF_NO_SYN, data(client(7), frontend(7))),
            ("no SYN, IPv6", OF_NO_SYN, data(v6(1), v6(2))),
            (
                "datagram at a UDP Service's port",
                OF_DATAGRAM,
                udp(stranger, 2),
            ),
            (
                "datagram to a UDP Service: bulk of a flow",
                OF_DATAGRAM,
                udp(quic, 2),
            ),
        ] {
            let mut best = [f64::INFINITY; 2];
            for _ in 0..self.rounds {
                for (best, program) in best.iter_mut().zip([program::INGRESS, program::EMPTY]) {
                    *best = best.min(self.repeat(program, &packet)?);
                }
            }
            self.print(name, "best", best, best[0] - best[1], most);
        }
        Ok(())
    }

    /// Nanoseconds of one run, measured as the thread's processor time of the whole call. The kernel reports
    /// whole nanoseconds, too coarse for a promise of three. The thread's time excludes other load, and the
    /// system call itself is negligible beside a million runs.
    fn repeat(&self, program: &str, packet: &[u8]) -> Result<f64> {
        let now = || ClockId::CLOCK_THREAD_CPUTIME_ID.now().map(Duration::from);
        let start = now()?;
        self.observer.repeat(program, packet, LO, REPEAT);
        let took = now()? - start;
        Ok(took.as_secs_f64() * 1e9 / f64::from(REPEAT))
    }

    /// New connections, at each of the four hooks that they pass.
    fn connections(&mut self) -> Result<()> {
        let pods = self.sandbox.pods;
        let mut sightings = Vec::new();
        for (name, program, device, is_answer, of_endpoint) in [
            ("SYN arriving", program::INGRESS, LO, false, false),
            ("SYN leaving", program::EGRESS, pods, false, true),
            ("SYN-ACK coming in", program::INGRESS, pods, true, true),
            ("SYN-ACK leaving", program::EGRESS, LO, true, false),
        ] {
            let generator = |program| {
                let target = self.observer.program(program);
                Generator::new(target, device, is_answer, of_endpoint)
            };
            let both = [generator(program)?, generator(program::EMPTY)?];
            sightings.push((name, both, Vec::new()));
        }
        for _ in 0..self.rounds * MORE {
            let first = fastrand::u32(..);
            for (_, [ours, empty], rounds) in &mut sightings {
                let empty = empty.run(first, CONNECTIONS)?;
                rounds.push([ours.run(first, CONNECTIONS)?, empty].map(f64::from));
            }
            self.observer.forget_pending(map::PENDING);
        }
        for (name, _, rounds) in sightings {
            let of = |index: usize| median(rounds.iter().map(|round| round[index]));
            let added = median(rounds.iter().map(|[ours, empty]| ours - empty));
            self.print(name, "median", [of(0), of(1)], added, OF_SIGHTING);
        }
        Ok(())
    }

    fn print(&mut self, name: &str, unit: &str, [ours, empty]: [f64; 2], added: f64, most: f64) {
        let met = self.missed.record(name, added <= most);
        let ratio = ours / empty;
        println!(
            "| {name} | {unit} | {ours:.1} | {empty:.1} | {added:.1} | {ratio:.1} | at most {most} | {met} |"
        );
    }

    /// Checks that the figures belong to the paths that they name: nearly every connection must have been
    /// followed to its answer. (A few random initial sequence numbers collide.)
    fn check(&self) -> Result<()> {
        let mut sums = BTreeMap::<Outcome, u64>::new();
        for service in 0..FRONTENDS {
            for class in SourceClass::ALL {
                for (outcome, count) in self.observer.outcomes(service, class) {
                    *sums.entry(outcome).or_default() += u64::from(count);
                }
            }
        }
        let wanted = (self.rounds * MORE) as u64 * u64::from(CONNECTIONS);
        for outcome in [
            Outcome::Arrived,
            Outcome::Forwarded,
            Outcome::Proven,
            Outcome::Answered,
        ] {
            let count = sums.get(&outcome).copied().unwrap_or(0);
            ensure!(
                count * 1000 >= wanted * 999 && count <= wanted,
                "{outcome:?} was counted {count} times for {wanted} connections ({sums:?}, faults {:?})",
                self.observer.faults(),
            );
        }
        Ok(())
    }
}

fn frontend(service: u32) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::from(FIRST_FRONTEND + service), PORT))
}

fn endpoint(service: u32, index: u32) -> SocketAddr {
    let pod = (service * ENDPOINTS + index) % PODS;
    SocketAddr::from((Ipv4Addr::from(FIRST_ENDPOINT + pod), PORT))
}

fn client(number: u32) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::from(CLIENTS | number), 40_001))
}
