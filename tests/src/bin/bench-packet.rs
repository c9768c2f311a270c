//! Nanoseconds per packet that the observer adds, by BPF_PROG_TEST_RUN, over an empty program run
//! with the same packets in the same way. Prints each figure with its promise (design.md, section
//! 9), and exits 1 if one is not met.
//!
//! Repeated packets (no SYN; a SYN to a stranger) run 1e6 times in one call and so measure warm
//! caches. SYNs to a frontend have random initial sequence numbers, sources and frontends, one call
//! each: caches are as cold as the call leaves them, and the clock that the kernel reads around
//! each run is taken out with the empty program. Needs root; run a release build.

use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use agent_common::abi::{map, program};
use agent_common::evidence::{Outcome, PendingKey};
use agent_common::service::{
    Family, FrontendKind, FrontendValue, Owed, SourceClass, device_flag, endpoint_flag, mapped,
};
use anyhow::{Result, ensure};
use aya::programs::SchedClassifier;
use clap::Parser;
use node_tests::observer::{LO, Observer, Sandbox, in_sandbox, time};
use node_tests::packet;

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
    /// Connections in a round
    #[arg(long, default_value_t = 15_000)]
    connections: usize,
    /// Frontends in the map, each of a Service of its own with three endpoints. Fewer show how much of
    /// a figure is memory that is not in a cache
    #[arg(long, default_value_t = 30_000, value_parser = clap::value_parser!(u32).range(8..=30_000))]
    frontends: u32,
    /// Print a table for docs/benchmarks.md
    #[arg(long)]
    markdown: bool,
    /// Date that the table names
    #[arg(long, default_value = "undated")]
    date: String,
}

/// One line of the result; times are nanoseconds, one pair for each round.
struct Figure {
    name: &'static str,
    promise: Option<f64>,
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
    let Some(observer) = Observer::load(&[])? else {
        return Ok(ExitCode::from(77));
    };
    let figures = in_sandbox(|sandbox| Bench::new(observer, sandbox, &args)?.run())??;
    if args.markdown {
        print!("{}", markdown(&figures, &args));
    } else {
        print!("{}", text(&figures));
    }
    let met = figures.iter().all(|figure| figure.met() != Some(false));
    Ok(if met {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(1)
    })
}

struct Bench<'a> {
    observer: Observer,
    sandbox: Sandbox,
    args: &'a Args,
    random: Random,
}

/// A connection.
#[derive(Clone, Copy)]
struct Connection {
    isn: u32,
    client: SocketAddrV4,
    frontend: SocketAddrV4,
    endpoint: SocketAddrV4,
}

impl<'a> Bench<'a> {
    fn new(mut observer: Observer, sandbox: Sandbox, args: &'a Args) -> Result<Self> {
        for service in 0..args.frontends {
            let value = FrontendValue {
                service,
                kind: FrontendKind::ClusterIp as u8,
                owed: [Owed::Forward as u8; 3],
                ..FrontendValue::default()
            };
            observer.put_frontend(mapped(frontend(service).ip().octets()), 80, value)?;
            for index in 0..ENDPOINTS {
                let address = mapped(endpoint(service, index).ip().octets());
                observer.put_endpoint(service, address, 8080, endpoint_flag::LOCAL)?;
            }
        }
        observer.put_device(sandbox.uplink, device_flag::UPLINK)?;
        observer.put_source(mapped([10, 244, 1, 0]), 120, SourceClass::Pod)?;
        observer.put_source(mapped([192, 0, 2, 2]), 128, SourceClass::Host)?;
        Ok(Self {
            observer,
            sandbox,
            args,
            random: Random::new(),
        })
    }

    fn run(mut self) -> Result<Vec<Figure>> {
        let mut figures = vec![
            self.repeated("no SYN, IPv4", Some(3.0), &data(Family::V4))?,
            self.repeated("no SYN, IPv6", Some(3.0), &data(Family::V6))?,
        ];
        let stranger = packet::syn(client(7), "203.0.113.80:80".parse()?, 1);
        figures.push(self.repeated("SYN to a stranger", None, &stranger.bytes())?);
        let again = packet::syn(client(7), SocketAddr::V4(frontend(7)), 1);
        figures.push(self.repeated("the same SYN to a frontend", None, &again.bytes())?);
        self.observer.reset(8)?;
        figures.extend(self.connections()?);
        Ok(figures)
    }

    fn repeated(&self, name: &'static str, promise: Option<f64>, packet: &[u8]) -> Result<Figure> {
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

    fn connections(&mut self) -> Result<Vec<Figure>> {
        let names = [
            "SYN to a frontend, arriving",
            "the same SYN leaving for an endpoint",
            "its SYN-ACK coming in",
            "its SYN-ACK leaving",
        ];
        let mut figures = names.map(|name| Figure {
            name,
            promise: Some(500.0),
            rounds: Vec::new(),
        });
        for _ in 0..self.args.rounds {
            let connections: Vec<_> = (0..self.args.connections)
                .map(|_| self.connection())
                .collect();
            let (lo, pods) = (LO, self.sandbox.pods);
            let sightings = [
                Sighting::new(program::INGRESS, lo, false, |c| (c.client, c.frontend)),
                Sighting::new(program::EGRESS, pods, false, |c| (c.client, c.endpoint)),
                Sighting::new(program::INGRESS, pods, true, |c| (c.endpoint, c.client)),
                Sighting::new(program::EGRESS, lo, true, |c| (c.frontend, c.client)),
            ];
            for (figure, sighting) in figures.iter_mut().zip(sightings) {
                figure
                    .rounds
                    .push(self.single_runs(&connections, sighting)?);
            }
            self.observer
                .forget(connections.iter().map(|c| PendingKey {
                    isn: c.isn,
                    family: Family::V4 as u32,
                }))?;
        }
        self.check()?;
        Ok(figures.into())
    }

    /// Means of one run for each connection.
    fn single_runs(&self, connections: &[Connection], mut sighting: Sighting) -> Result<Pair> {
        let ours = self.observer.program(sighting.program)?;
        let empty = self.observer.program(program::EMPTY)?;
        let mut sums = [0; 2];
        let device = sighting.device;
        for (program, sum) in [empty, ours].into_iter().zip(&mut sums) {
            for connection in connections {
                let packet = sighting.packet(connection);
                *sum += time(program, packet, device, 1)?.as_nanos();
            }
        }
        let count = connections.len() as f64;
        let [empty, ours] = sums.map(|sum| sum as f64 / count);
        Ok(Pair { ours, empty })
    }

    fn connection(&mut self) -> Connection {
        let random = self.random.next();
        let service = self.random.below(self.args.frontends);
        Connection {
            isn: random as u32,
            client: client_v4((random >> 32) as u32),
            frontend: frontend(service),
            endpoint: endpoint(service, self.random.below(ENDPOINTS)),
        }
    }

    /// The figures are those of the paths that they name: nearly every connection was followed to
    /// its answer. (A few random initial sequence numbers meet.)
    fn check(&self) -> Result<()> {
        let mut sums = std::collections::BTreeMap::<Outcome, u64>::new();
        for service in 0..self.args.frontends {
            for class in SourceClass::ALL {
                for (outcome, count) in self.observer.outcomes(service, class)? {
                    *sums.entry(outcome).or_default() += u64::from(count);
                }
            }
        }
        let wanted = (self.args.rounds * self.args.connections) as u64;
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
    program: &'static str,
    device: u32,
    answer: bool,
    ends: fn(&Connection) -> (SocketAddrV4, SocketAddrV4),
    packet: Vec<u8>,
}

impl Sighting {
    fn new(
        program: &'static str,
        device: u32,
        answer: bool,
        ends: fn(&Connection) -> (SocketAddrV4, SocketAddrV4),
    ) -> Self {
        let (from, to) = (client(7), SocketAddr::V4(frontend(7)));
        let packet = if answer {
            packet::syn_ack(from, to, 0)
        } else {
            packet::syn(from, to, 0)
        };
        Self {
            program,
            device,
            answer,
            ends,
            packet: packet.bytes(),
        }
    }

    /// The packet of a connection. Written over the last one (nobody looks at checksums): making
    /// each anew would fill the caches with what no node has there.
    fn packet(&mut self, connection: &Connection) -> &[u8] {
        const IP: usize = 14;
        const TCP: usize = IP + 20;
        let (from, to) = (self.ends)(connection);
        let mut put = |at: usize, bytes: &[u8]| {
            self.packet[at..at + bytes.len()].copy_from_slice(bytes);
        };
        put(IP + 12, &from.ip().octets());
        put(IP + 16, &to.ip().octets());
        put(TCP, &from.port().to_be_bytes());
        put(TCP + 2, &to.port().to_be_bytes());
        if self.answer {
            put(TCP + 8, &connection.isn.wrapping_add(1).to_be_bytes());
        } else {
            put(TCP + 4, &connection.isn.to_be_bytes());
        }
        &self.packet
    }
}

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

fn frontend(service: u32) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::from(0x0a60_0000 + service), 80)
}

/// Of three pods among 10,000.
fn endpoint(service: u32, index: u32) -> SocketAddrV4 {
    let pod = (service * ENDPOINTS + index) % 10_000;
    SocketAddrV4::new(Ipv4Addr::from(0x0af4_0100 + pod), 8080)
}

fn client(random: u32) -> SocketAddr {
    SocketAddr::V4(client_v4(random))
}

fn client_v4(random: u32) -> SocketAddrV4 {
    let address = Ipv4Addr::from(0x6440_0000 | (random >> 10));
    SocketAddrV4::new(address, 1024 + (random & 0x3fff) as u16)
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

    fn below(&mut self, most: u32) -> u32 {
        (self.next() % u64::from(most)) as u32
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
        self.promise.map(|promise| self.added() <= promise)
    }

    fn promise_text(&self) -> String {
        match (self.promise, self.met()) {
            (Some(promise), Some(true)) => format!("at most {promise:.0}: met"),
            (Some(promise), _) => format!("at most {promise:.0}: NOT met"),
            (None, _) => "none".to_owned(),
        }
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
