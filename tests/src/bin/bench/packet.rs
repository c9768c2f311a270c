//! `cargo xtask bench packet`: nanoseconds per packet that the observer adds, by BPF_PROG_TEST_RUN,
//! over an empty program run with the same packets in the same way.
//!
//! A packet that is no SYN, and a SYN to a stranger, run 1e6 times in one call. Every SYN to a
//! frontend is another one: initial sequence number, client and frontend are taken at random by a
//! program that then calls the one that is measured ([`generator`]).

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4};

use agent_common::abi::{FOLLOW_ALL, program};
use agent_common::evidence::{Outcome, PendingKey};
use agent_common::service::{
    Family, FrontendKind, FrontendValue, Owed, SourceClass, device_flag, endpoint_flag,
};
use anyhow::{Result, ensure};
use node_tests::observer::{LO, Observer, Sandbox, in_sandbox};
use node_tests::packet;
use node_tests::promises::{Missed, head, median};

use crate::observer;
use generator::{Generator, Shape};

mod generator;

/// Runs of a repeated packet in a round.
const REPEAT: u32 = 1_000_000;
/// Connections in a round; there are ten times as many rounds of these, since they are short.
const CONNECTIONS: u32 = 2_000;
/// Frontends in the map, each of a Service of its own with three endpoints.
const FRONTENDS: u32 = 30_000;
/// Of these so many are in use: what a node's clients talk to at a time.
const IN_USE: u32 = 100;
/// Endpoints of each frontend's Service.
const ENDPOINTS: u32 = 3;
/// 100.64.0.0/10.
const CLIENTS: u32 = 0x6440_0000;
/// 10.96.0.0.
const FIRST_FRONTEND: u32 = 0x0a60_0000;
/// 10.244.1.0.
const FIRST_ENDPOINT: u32 = 0x0af4_0100;
/// Pods that are endpoints.
const PODS: u32 = 10_000;
/// Port of every frontend and of every endpoint: the generator changes addresses alone.
const PORT: u16 = 80;

/// At most so many nanoseconds are added.
#[derive(Clone, Copy)]
enum Promise {
    None,
    /// By the difference of the best rounds: a packet that runs a million times in one call meets the
    /// same caches each time, and noise only ever adds.
    Best(f64),
    /// By the median of the rounds' differences: the cost of a sighting on the machine as it is.
    Median(f64),
}

const OF_NO_SYN: Promise = Promise::Best(3.0);
const OF_DATAGRAM: Promise = Promise::Best(15.0);
const OF_SIGHTING: Promise = Promise::Median(500.0);

/// Nanoseconds of a packet in a round, with our program and with the empty one.
type Round = (f64, f64);

pub(crate) fn run(rounds: usize, missed: &mut Missed) -> Result<()> {
    ensure!(rounds >= 1, "nothing to measure");
    head(
        "ns per packet | best | median | empty program, best | added, best | added, median | ratio | promise | met",
    );
    // With no gate: a round is a rush, of which most would not be followed.
    let ungated = observer(&[(FOLLOW_ALL, 1)])?;
    in_sandbox(|sandbox| Bench::new(ungated, sandbox, rounds, missed)?.all_followed())??;
    let gated = observer(&[])?;
    in_sandbox(|sandbox| {
        let mut bench = Bench::new(gated, sandbox, rounds, missed)?;
        let name = "a busy Service, one of a hundred followed";
        bench.connections(name, 1, Promise::None)
    })?
}

struct Bench<'a> {
    observer: Observer,
    sandbox: Sandbox,
    rounds: usize,
    missed: &'a mut Missed,
}

impl<'a> Bench<'a> {
    fn new(
        mut observer: Observer,
        sandbox: Sandbox,
        rounds: usize,
        missed: &'a mut Missed,
    ) -> Result<Self> {
        for service in 0..FRONTENDS {
            let value = FrontendValue {
                service,
                kind: FrontendKind::ClusterIp as u8,
                owed: [Owed::Forward as u8; 3],
                ..FrontendValue::default()
            };
            observer.put_frontend(frontend(service).into(), value)?;
            for index in 0..ENDPOINTS {
                let at = endpoint(service, index).into();
                observer.put_endpoint(service, at, endpoint_flag::LOCAL)?;
            }
        }
        observer.put_device(sandbox.uplink, device_flag::UPLINK)?;
        observer.put_source([10, 244, 1, 0].into(), 120, SourceClass::Pod)?;
        observer.put_source([192, 0, 2, 2].into(), 128, SourceClass::Host)?;
        Ok(Self {
            observer,
            sandbox,
            rounds,
            missed,
        })
    }

    fn all_followed(&mut self) -> Result<()> {
        let payload = [0x55; 512];
        let data = packet::data(client(7), SocketAddr::V4(frontend(7)), &payload);
        self.repeated("no SYN, IPv4", OF_NO_SYN, &data.bytes())?;
        let at = |last| SocketAddr::from((Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last), 80));
        let data = packet::data(at(1), at(2), &payload);
        self.repeated("no SYN, IPv6", OF_NO_SYN, &data.bytes())?;
        let stranger = packet::syn(client(7), "203.0.113.80:80".parse()?, 1);
        self.repeated("SYN to a stranger", Promise::None, &stranger.bytes())?;
        let again = packet::syn(client(7), SocketAddr::V4(frontend(7)), 1);
        let name = "the same SYN to a frontend";
        self.repeated(name, Promise::None, &again.bytes())?;
        self.datagrams()?;
        self.observer.reset(8)?;
        self.connections("100 of 30,000 frontends in use", IN_USE, OF_SIGHTING)?;
        // No node is used so: every lookup misses the processor's caches. Told, not promised.
        let name = "30,000 frontends, all as likely";
        self.connections(name, FRONTENDS, Promise::None)?;
        self.check()
    }

    fn datagrams(&mut self) -> Result<()> {
        let quic = SocketAddr::from(([10, 96, 255, 1], 443));
        self.observer
            .put_udp_frontend(quic, FrontendValue::default())?;
        let udp = |to, byte: u8| packet::udp(client(7), to, &[byte; 1_200]).bytes();
        self.observer.run(program::INGRESS, &udp(quic, 1), LO)?;
        let to = udp("203.0.113.80:8443".parse()?, 2);
        self.repeated("datagram, no Service's port", Promise::None, &to)?;
        let to = udp("203.0.113.80:443".parse()?, 2);
        self.repeated("the same, at a UDP Service's port", OF_DATAGRAM, &to)?;
        let name = "the same, to that Service: bulk of a flow";
        self.repeated(name, OF_DATAGRAM, &udp(quic, 2))
    }

    /// One packet, again and again.
    fn repeated(&mut self, name: &str, promise: Promise, packet: &[u8]) -> Result<()> {
        let mut rounds = Vec::new();
        for _ in 0..self.rounds {
            let ours = self.repeat(program::INGRESS, packet)?;
            rounds.push((ours, self.repeat(program::EMPTY, packet)?));
        }
        self.print(name, promise, &rounds);
        Ok(())
    }

    /// Nanoseconds of one run. The kernel reports whole ones, too coarse for a promise of three, so
    /// the thread's processor time is taken around the whole call: entering and leaving it is nothing
    /// beside a million runs, and what else the machine does is left out.
    fn repeat(&self, program: &str, packet: &[u8]) -> Result<f64> {
        let start = processor_time();
        self.observer.time(program, packet, LO, REPEAT)?;
        Ok((processor_time() - start) as f64 / f64::from(REPEAT))
    }

    /// Fresh connections to so many frontends, at the four hooks that each of them passes.
    fn connections(&mut self, to: &str, frontends: u32, promise: Promise) -> Result<()> {
        let pods = self.sandbox.pods;
        let names = [
            "SYN arriving",
            "SYN leaving",
            "SYN-ACK coming in",
            "SYN-ACK leaving",
        ];
        let sightings = [
            self.sighting(program::INGRESS, LO, Shape::SYN_TO_FRONTEND, frontends)?,
            self.sighting(program::EGRESS, pods, Shape::SYN_TO_ENDPOINT, frontends)?,
            self.sighting(program::INGRESS, pods, Shape::ANSWER_OF_ENDPOINT, frontends)?,
            self.sighting(program::EGRESS, LO, Shape::ANSWER_OF_FRONTEND, frontends)?,
        ];
        let mut rounds = <[Vec<Round>; 4]>::default();
        for _ in 0..self.connection_rounds() {
            let first = fastrand::u32(..);
            for (rounds, sighting) in rounds.iter_mut().zip(&sightings) {
                let empty = sighting.run(&sighting.empty, first)?;
                rounds.push((sighting.run(&sighting.ours, first)?, empty));
            }
            let followed = self.observer.followed()?.into_iter();
            self.observer.forget(followed.map(|isn| PendingKey {
                isn,
                family: Family::V4 as u32,
            }))?;
        }
        for (name, rounds) in names.into_iter().zip(&rounds) {
            self.print(&format!("{to}: {name}"), promise, rounds);
        }
        Ok(())
    }

    fn connection_rounds(&self) -> usize {
        self.rounds * 10
    }

    fn sighting(
        &self,
        program: &str,
        device: u32,
        shape: Shape,
        frontends: u32,
    ) -> Result<Sighting> {
        let generator = |name| Generator::new(self.observer.program(name)?, shape, frontends);
        let server = match shape.endpoint {
            true => SocketAddr::V4(endpoint(7, 0)),
            false => SocketAddr::V4(frontend(7)),
        };
        let packet = match shape.answer {
            true => packet::syn_ack(server, client(7), 0),
            false => packet::syn(client(7), server, 0),
        };
        Ok(Sighting {
            device,
            packet: packet.bytes(),
            ours: generator(program)?,
            empty: generator(program::EMPTY)?,
        })
    }

    fn print(&mut self, name: &str, promise: Promise, rounds: &[Round]) {
        let (ours, empty): (Vec<f64>, Vec<f64>) = rounds.iter().copied().unzip();
        let least = |times: &[f64]| times.iter().copied().fold(f64::INFINITY, f64::min);
        let (best, empty) = (least(&ours), least(&empty));
        let added = best - empty;
        let added_median = median(rounds.iter().map(|(ours, empty)| ours - empty));
        let (statistic, most, judged) = match promise {
            Promise::None => ("", None, 0.0),
            Promise::Best(most) => ("best", Some(most), added),
            Promise::Median(most) => ("median", Some(most), added_median),
        };
        let (promise, met) = self.missed.at_most(name, statistic, most, judged);
        println!(
            "| {name} | {best:.1} | {:.1} | {empty:.1} | {added:.1} | {added_median:.1} | {:.1}x | {promise} | {met} |",
            median(ours),
            best / empty
        );
    }

    /// The figures are those of the paths that they name: nearly every connection was followed to
    /// its answer. (A few random initial sequence numbers meet.)
    fn check(&self) -> Result<()> {
        let mut sums = BTreeMap::<Outcome, u64>::new();
        for service in 0..FRONTENDS {
            for class in SourceClass::ALL {
                for (outcome, count) in self.observer.outcomes(service, class)? {
                    *sums.entry(outcome).or_default() += u64::from(count);
                }
            }
        }
        let wanted = 2 * self.connection_rounds() as u64 * u64::from(CONNECTIONS);
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
                self.observer.faults()?,
            );
        }
        Ok(())
    }
}

/// One of a connection's packets at one hook.
struct Sighting {
    device: u32,
    packet: Vec<u8>,
    ours: Generator,
    empty: Generator,
}

impl Sighting {
    fn run(&self, generator: &Generator, first: u32) -> Result<f64> {
        let mean = generator.run(&self.packet, self.device, first, CONNECTIONS)?;
        Ok(f64::from(mean))
    }
}

/// Of this thread, in nanoseconds.
fn processor_time() -> i64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a timespec that lives for the call.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

fn frontend(service: u32) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::from(FIRST_FRONTEND + service), PORT)
}

fn endpoint(service: u32, index: u32) -> SocketAddrV4 {
    let pod = (service * ENDPOINTS + index) % PODS;
    SocketAddrV4::new(Ipv4Addr::from(FIRST_ENDPOINT + pod), PORT)
}

fn client(number: u32) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::from(CLIENTS | number), 40_001))
}
