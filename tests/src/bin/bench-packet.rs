//! Nanoseconds per packet that the observer adds, by BPF_PROG_TEST_RUN, over an empty program run
//! with the same packets in the same way. Prints each figure with its promise and the statistic that
//! judges it, and exits 1 if one is not met.
//!
//! A packet that is no SYN, and a SYN to a stranger, run 1e6 times in one call. Every SYN to a
//! frontend is another one: initial sequence number, client and frontend are taken at random by a
//! program that then calls the one that is measured (`node_tests::generator`). Needs root.
//!
//! Length: a figure for each path of a packet, and one table of them.

use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use agent_common::abi::{FOLLOW_ALL, map, program};
use agent_common::evidence::{Outcome, PendingKey};
use agent_common::service::{
    Family, FrontendKind, FrontendValue, Owed, SourceClass, device_flag, endpoint_flag,
};
use anyhow::{Result, ensure};
use aya::programs::SchedClassifier;
use clap::Parser;
use node_tests::generator::{Generator, Ranges, Shape};
use node_tests::observer::{LO, Observer, Sandbox, in_sandbox, time};
use node_tests::packet;
use node_tests::promises::Missed;

/// Frontends in the map, each of a Service of its own with three endpoints.
const FRONTENDS: u32 = 30_000;
/// Of these so many are in use: what a node's clients talk to at a time.
const IN_USE: u32 = 100;
/// Endpoints of each frontend's Service.
const ENDPOINTS: u32 = 3;

/// Measures what the observer adds to a packet
#[derive(Parser)]
struct Args {
    /// Rounds; best and median are of these
    #[arg(long, default_value_t = 11)]
    rounds: usize,
    /// Runs of a repeated packet in a round
    #[arg(long, default_value_t = 1_000_000)]
    repeat: u32,
    /// Connections in a round; there are ten times as many rounds of these, since they are short
    #[arg(long, default_value_t = 2_000)]
    connections: u32,
    /// Print a table for docs/benchmarks.md
    #[arg(long)]
    markdown: bool,
    /// Date that the table names
    #[arg(long, default_value = "undated")]
    date: String,
}

/// At most so many nanoseconds are added.
#[derive(Clone, Copy)]
enum Promise {
    /// By the difference of the best rounds: a packet that runs a million times in one call meets the
    /// same caches each time, and noise only ever adds.
    Best(f64),
    /// By the median of the rounds' differences: the cost of a sighting on the machine as it is.
    Median(f64),
}

const OF_NO_SYN: Option<Promise> = Some(Promise::Best(3.0));
const OF_DATAGRAM: Option<Promise> = Some(Promise::Best(15.0));
const OF_SIGHTING: Option<Promise> = Some(Promise::Median(500.0));

/// One line of the result; times are nanoseconds, one pair for each round.
struct Figure {
    name: &'static str,
    promise: Option<Promise>,
    rounds: Vec<Pair>,
}

/// Of one round.
#[derive(Clone, Copy)]
struct Pair {
    ours: f64,
    empty: f64,
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    ensure!(
        args.rounds >= 1 && args.connections >= 1,
        "nothing to measure"
    );
    // With no gate: a round is a rush, of which most would not be followed.
    let Some(observer) = Observer::load(&[(FOLLOW_ALL, 1)])? else {
        return Ok(ExitCode::from(77));
    };
    let mut figures = in_sandbox(|sandbox| Bench::new(observer, sandbox, &args)?.run())??;
    if let Some(observer) = Observer::load(&[])? {
        let sampled = in_sandbox(|sandbox| Bench::new(observer, sandbox, &args)?.sampled())?;
        figures.extend(sampled?);
    }
    if args.markdown {
        print!("{}", markdown(&figures, &args));
    } else {
        print!("{}", text(&figures));
    }
    let mut missed = Missed::default();
    for figure in &figures {
        missed.judge(figure.name, figure.met() != Some(false));
    }
    Ok(missed.close())
}

struct Bench<'a> {
    observer: Observer,
    sandbox: Sandbox,
    args: &'a Args,
    random: Random,
}

impl<'a> Bench<'a> {
    fn new(mut observer: Observer, sandbox: Sandbox, args: &'a Args) -> Result<Self> {
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
            args,
            random: Random::new(),
        })
    }

    fn run(mut self) -> Result<Vec<Figure>> {
        let mut figures = vec![
            self.repeated("no SYN, IPv4", OF_NO_SYN, &data(Family::V4))?,
            self.repeated("no SYN, IPv6", OF_NO_SYN, &data(Family::V6))?,
        ];
        let stranger = packet::syn(client(7), "203.0.113.80:80".parse()?, 1);
        figures.push(self.repeated("SYN to a stranger", None, &stranger.bytes())?);
        let again = packet::syn(client(7), SocketAddr::V4(frontend(7)), 1);
        figures.push(self.repeated("the same SYN to a frontend", None, &again.bytes())?);
        let quic = SocketAddr::from(([10, 96, 255, 1], 443));
        let value = FrontendValue::default();
        self.observer.put_udp_frontend(quic, value)?;
        let udp = |to, byte: u8| packet::udp(client(7), to, &[byte; 1_200]).bytes();
        self.observer.run(program::INGRESS, &udp(quic, 1), LO)?;
        for (name, promise, to) in [
            (
                "datagram, no Service's port",
                None,
                "203.0.113.80:8443".parse()?,
            ),
            (
                "the same, at a UDP Service's port",
                OF_DATAGRAM,
                "203.0.113.80:443".parse()?,
            ),
            (
                "the same, to that Service: bulk of a flow",
                OF_DATAGRAM,
                quic,
            ),
        ] {
            figures.push(self.repeated(name, promise, &udp(to, 2))?);
        }
        self.observer.reset(8)?;
        figures.extend(self.connections(
            IN_USE,
            OF_SIGHTING,
            [
                "SYN to one of 100 frontends in use, of 30,000: arriving",
                "the same SYN leaving for an endpoint",
                "its SYN-ACK coming in",
                "its SYN-ACK leaving",
            ],
        )?);
        // No node is used so: every lookup misses the processor's caches. Told, not promised.
        figures.extend(self.connections(
            FRONTENDS,
            None,
            [
                "SYN to any of 30,000 frontends, all as likely: arriving",
                "the same SYN leaving for an endpoint, all as likely",
                "its SYN-ACK coming in, all as likely",
                "its SYN-ACK leaving, all as likely",
            ],
        )?);
        self.check()?;
        Ok(figures)
    }

    /// Connections to one busy Service, of which few are followed.
    fn sampled(mut self) -> Result<[Figure; 4]> {
        self.connections(
            1,
            None,
            [
                "SYN to a busy Service, one of a hundred followed: arriving",
                "the same SYN leaving for an endpoint of a busy Service",
                "a busy Service's SYN-ACK coming in",
                "a busy Service's SYN-ACK leaving",
            ],
        )
    }

    fn repeated(
        &self,
        name: &'static str,
        promise: Option<Promise>,
        packet: &[u8],
    ) -> Result<Figure> {
        let ours = self.observer.program(program::INGRESS)?;
        let empty = self.observer.program(program::EMPTY)?;
        let mut rounds = Vec::new();
        for _ in 0..self.args.rounds {
            rounds.push(Pair {
                ours: repeat(ours, packet, self.args.repeat)?,
                empty: repeat(empty, packet, self.args.repeat)?,
            });
        }
        Ok(Figure {
            name,
            promise,
            rounds,
        })
    }

    fn connections(
        &mut self,
        frontends: u32,
        promise: Option<Promise>,
        names: [&'static str; 4],
    ) -> Result<[Figure; 4]> {
        let mut figures = names.map(|name| Figure {
            name,
            promise,
            rounds: Vec::new(),
        });
        let (lo, pods) = (LO, self.sandbox.pods);
        let sightings = [
            self.sighting(program::INGRESS, lo, SYN_TO_FRONTEND, frontends)?,
            self.sighting(program::EGRESS, pods, SYN_TO_ENDPOINT, frontends)?,
            self.sighting(program::INGRESS, pods, ANSWER_OF_ENDPOINT, frontends)?,
            self.sighting(program::EGRESS, lo, ANSWER_OF_FRONTEND, frontends)?,
        ];
        for _ in 0..self.connection_rounds() {
            let first = self.random.next() as u32;
            for (figure, sighting) in figures.iter_mut().zip(&sightings) {
                let run = |generator: &Generator| -> Result<f64> {
                    let count = self.args.connections;
                    let time = generator.run(&sighting.packet, sighting.device, first, count)?;
                    Ok(f64::from(time))
                };
                figure.rounds.push(Pair {
                    empty: run(&sighting.empty)?,
                    ours: run(&sighting.ours)?,
                });
            }
            let followed = self.observer.followed()?.into_iter();
            self.observer.forget(followed.map(|isn| PendingKey {
                isn,
                family: Family::V4 as u32,
            }))?;
        }
        Ok(figures)
    }

    fn connection_rounds(&self) -> usize {
        self.args.rounds * 10
    }

    fn sighting(
        &self,
        program: &'static str,
        device: u32,
        shape: Shape,
        frontends: u32,
    ) -> Result<Sighting> {
        let ranges = Ranges {
            clients: CLIENTS,
            frontends: FIRST_FRONTEND,
            frontend_count: frontends,
            endpoints: FIRST_ENDPOINT,
            endpoint_count: PODS,
            per_frontend: ENDPOINTS,
        };
        let generator = |name| Generator::new(self.observer.program(name)?, shape, &ranges);
        let (from, to) = if shape.endpoint {
            (client(7), SocketAddr::V4(endpoint(7, 0)))
        } else {
            (client(7), SocketAddr::V4(frontend(7)))
        };
        let packet = if shape.answer {
            packet::syn_ack(to, from, 0)
        } else {
            packet::syn(from, to, 0)
        };
        Ok(Sighting {
            device,
            packet: packet.bytes(),
            ours: generator(program)?,
            empty: generator(program::EMPTY)?,
        })
    }

    /// The figures are those of the paths that they name: nearly every connection was followed to
    /// its answer. (A few random initial sequence numbers meet.)
    fn check(&self) -> Result<()> {
        let mut sums = std::collections::BTreeMap::<Outcome, u64>::new();
        for service in 0..FRONTENDS {
            for class in SourceClass::ALL {
                for (outcome, count) in self.observer.outcomes(service, class)? {
                    *sums.entry(outcome).or_default() += u64::from(count);
                }
            }
        }
        let wanted = 2 * self.connection_rounds() as u64 * u64::from(self.args.connections);
        for outcome in [
            Outcome::Arrived,
            Outcome::Forwarded,
            Outcome::Proven,
            Outcome::Answered,
        ] {
            let count = sums.get(&outcome).copied().unwrap_or(0);
            ensure!(
                count * 1000 >= wanted * 999 && count <= wanted,
                "{outcome:?} was counted {count} times for {wanted} connections ({sums:?}, faults {:?}, {})",
                self.observer.faults()?,
                map::FAULTS,
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

const SYN_TO_FRONTEND: Shape = Shape {
    answer: false,
    endpoint: false,
};
const SYN_TO_ENDPOINT: Shape = Shape {
    answer: false,
    endpoint: true,
};
const ANSWER_OF_ENDPOINT: Shape = Shape {
    answer: true,
    endpoint: true,
};
const ANSWER_OF_FRONTEND: Shape = Shape {
    answer: true,
    endpoint: false,
};

/// Nanoseconds of one run. The kernel reports whole ones, too coarse for a promise of three, so
/// the thread's processor time is taken around the whole call: entering and leaving it is nothing
/// beside a million runs, and what else the machine does is left out.
fn repeat(program: &SchedClassifier, packet: &[u8], times: u32) -> Result<f64> {
    let start = processor_time();
    time(program, packet, LO, times)?;
    Ok((processor_time() - start) as f64 / f64::from(times))
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

fn data(family: Family) -> Vec<u8> {
    let payload = [0x55; 512];
    match family {
        Family::V4 => packet::data(client(7), SocketAddr::V4(frontend(7)), &payload),
        Family::V6 => {
            let at = |last| SocketAddr::from((Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last), 80));
            packet::data(at(1), at(2), &payload)
        }
    }
    .bytes()
}

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

/// SplitMix64.
struct Random(u64);

impl Random {
    fn new() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        Self(now.map_or(1, |since| since.as_nanos() as u64))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

impl Figure {
    fn best(&self, of: impl Fn(&Pair) -> f64) -> f64 {
        self.rounds.iter().map(of).fold(f64::INFINITY, f64::min)
    }

    fn median(&self, of: impl Fn(&Pair) -> f64) -> f64 {
        let mut all: Vec<f64> = self.rounds.iter().map(of).collect();
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    }

    /// What is added: the difference of the best runs, since noise only ever adds.
    fn added(&self) -> f64 {
        self.best(|pair| pair.ours) - self.best(|pair| pair.empty)
    }

    fn added_median(&self) -> f64 {
        self.median(|pair| pair.ours - pair.empty)
    }

    fn met(&self) -> Option<bool> {
        self.promise.map(|promise| match promise {
            Promise::Best(most) => self.added() <= most,
            Promise::Median(most) => self.added_median() <= most,
        })
    }

    fn promise_text(&self) -> String {
        let (by, most) = match self.promise {
            Some(Promise::Best(most)) => ("best", most),
            Some(Promise::Median(most)) => ("median", most),
            None => return "none".to_owned(),
        };
        let met = match self.met() {
            Some(true) => "met",
            _ => "NOT met",
        };
        format!("{by} at most {most:.0}: {met}")
    }

    fn cells(&self) -> [String; 8] {
        let ratio = self.best(|pair| pair.ours) / self.best(|pair| pair.empty);
        [
            self.name.to_owned(),
            format!("{:.1}", self.best(|pair| pair.ours)),
            format!("{:.1}", self.median(|pair| pair.ours)),
            format!("{:.1}", self.best(|pair| pair.empty)),
            format!("{:.1}", self.added()),
            format!("{:.1}", self.added_median()),
            format!("{ratio:.1}x"),
            self.promise_text(),
        ]
    }
}

const HEADS: [&str; 8] = [
    "ns per packet",
    "best",
    "median",
    "empty program, best",
    "added, best",
    "added, median",
    "ratio",
    "promise",
];

fn text(figures: &[Figure]) -> String {
    let mut rows = vec![HEADS.map(str::to_owned)];
    rows.extend(figures.iter().map(Figure::cells));
    let mut out = String::new();
    for row in &rows {
        for (column, cell) in row.iter().enumerate() {
            let width = rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
            out += &match column {
                0 | 7 => format!("{cell:width$}  "),
                _ => format!("{cell:>width$}  "),
            };
        }
        out = out.trim_end().to_owned() + "\n";
    }
    out
}

fn markdown(figures: &[Figure], args: &Args) -> String {
    let mut out = format!(
        "{}: {}, Linux {}; {} rounds.\n\n| {} |\n|{}\n",
        args.date,
        cpu(),
        kernel(),
        args.rounds,
        HEADS.join(" | "),
        " --- |".repeat(HEADS.len()),
    );
    for figure in figures {
        out += &format!("| {} |\n", figure.cells().join(" | "));
    }
    out
}

fn cpu() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = info.lines().find(|line| line.starts_with("model name"));
    let name = line.and_then(|line| line.split_once(": "));
    name.map_or("unknown processor", |(_, name)| name)
        .to_owned()
}

fn kernel() -> String {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    release.trim().to_owned()
}
