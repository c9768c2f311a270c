//! Connections from outside that are open during a node's removal: how many there are, and drains that wait
//! for them.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use aya::sys::{Stats, enable_stats};
use node_tests::prelude::*;
use node_tests::traffic::Manner;
use node_tests::usage;
use node_tests::wait::bound;
use node_tests::worker::Worker;
use socket2::{Domain, Protocol, Socket, Type};

use crate::agent_drain::{drain, drainz};
use crate::commands::{assert_says, told};

/// An open connection to a server that answers each byte with a line.
struct Kept(TcpStream);

impl Kept {
    fn open(from: &Namespace, to: SocketAddr) -> Self {
        let opened = from.run(|| TcpStream::connect_timeout(&to, PATIENCE));
        let mut kept = Self(opened.expect("a connection"));
        kept.use_it();
        kept
    }

    fn use_it(&mut self) {
        self.0.write_all(b"x").expect("sent");
        let mut answer = [0; 256];
        assert!(self.0.read(&mut answer).expect("an answer") > 0, "cut");
    }
}

fn counted(scene: &Scene) -> (Option<u64>, Option<u64>) {
    let (_, body) = drainz(scene, "?until=open");
    (body["open"].as_u64(), body["idle"].as_u64())
}

/// A drain waits for requests that have no answer yet, and not for idle connections. Connections of pods and
/// of the node itself do not count.
#[test]
fn open_connections_are_waited_for() {
    let mut scene = Scene::idle(Backend::Nftables, &[]);
    for name in ["api-1", "api-2", "web-1", "web-2", "web-3"] {
        scene.servers.remove(name);
        let pod = scene.world.pod(name);
        let server = Server::start_as(&pod.ns, name, PORT, Manner::Keeps);
        scene
            .servers
            .insert(name.to_owned(), server.expect("a server"));
    }
    let (v4, v6) = (
        scene.node_port(30081, Family::V4),
        scene.node_port(30081, Family::V6),
    );
    let outside = &scene.world.outside;
    // Open connections before the removal begins, so that the agent must count connections whose SYN it did
    // not follow.
    let mut used: Vec<Kept> = (0..100)
        .map(|number| Kept::open(outside, if number % 2 == 0 { v4 } else { v6 }))
        .collect();
    let mut idle: Vec<Kept> = (0..20).map(|_| Kept::open(outside, v4)).collect();
    let pod = scene.world.pod("client-1").ns.clone();
    let inside = SocketAddr::new(scene.manifests.service("web").cluster_ip(Family::V4), 80);
    let _others = [
        Kept::open(&pod, inside),
        Kept::open(&pod, v4),
        Kept::open(&scene.world.node, inside),
    ];
    assert_eq!(counted(&scene), (None, None), "nothing is counted");
    scene.manifests.taint(AUTOSCALER_TAINT).expect("taint");
    let last = Instant::now();
    let seen = until(PATIENCE, || {
        used.iter_mut().for_each(Kept::use_it);
        (counted(&scene) == (Some(100), Some(20))).then_some(())
    });
    println!("20 idle after {:?}", last.elapsed());
    assert!(seen.is_some(), "{:?}", drainz(&scene, "?until=open"));

    let args = ["--wait", "--until", "open", "--quiet", "1s", "--timeout"];
    let busy = told(drain(&scene, &[&args[..], &["3s"]].concat()), 1);
    assert_says(&busy, &["100 connections from outside were in use"]);
    // The default drain ends because there are no new connections.
    told(drain(&scene, &["--quiet", "1s"]), 0);

    let hook = std::thread::scope(|scope| {
        let hook = scope.spawn(|| {
            let told = told(drain(&scene, &[&args[..], &["40s"]].concat()), 0);
            (told, Instant::now())
        });
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(4) {
            used.iter_mut().for_each(Kept::use_it);
        }
        used.clear();
        let ended = Instant::now();
        let (told, at) = hook.join().expect("the hook");
        assert!(at > ended, "it waited");
        told
    });
    assert_says(&hook, &["the 20 open ones have been idle"]);
    idle.iter_mut().for_each(Kept::use_it);
    let again = until(PATIENCE, || {
        (counted(&scene) == (Some(20), Some(0))).then_some(())
    });
    assert!(again.is_some(), "in use again: {:?}", counted(&scene));
    drop(idle);
    let none = until(PATIENCE, || {
        (counted(&scene) == (Some(0), Some(0))).then_some(())
    });
    assert!(none.is_some(), "none is open: {:?}", counted(&scene));
}

const LONG: Duration = Duration::from_secs(20);
/// Number of requests to each Service.
const REQUESTS: u32 = 20;
const STAGGER: Duration = Duration::from_millis(500);
/// First byte of a request whose answer gets a byte every second. Other requests get nothing before the end.
const STREAM: u8 = b's';
const END: &[u8] = b"end";

/// A server that answers requests after [`LONG`]. Dropping it cuts unfinished ones, as the end of a pod does.
fn slow_server(ns: &Namespace) -> Worker {
    let listener = ns
        .run(|| bound(|| TcpListener::bind(("::", PORT))))
        .expect("listen");
    listener.set_nonblocking(true).expect("an option");
    Worker::here(move |stop| {
        thread::scope(|scope| {
            while !stop.load(Ordering::Relaxed) {
                if let Ok((stream, _)) = listener.accept() {
                    scope.spawn(|| answer_late(stream, stop));
                }
                thread::sleep(Duration::from_millis(10));
            }
        });
    })
}

fn answer_late(mut stream: TcpStream, stop: &AtomicBool) {
    let begun = Instant::now();
    let mut request = [0];
    let blocks = stream.set_nonblocking(false);
    if blocks
        .and_then(|()| stream.read_exact(&mut request))
        .is_err()
    {
        return;
    }
    let mut streamed = 0;
    while begun.elapsed() < LONG {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        if request == [STREAM] && begun.elapsed().as_secs() > streamed {
            streamed += 1;
            let _ = stream.write_all(b".");
        }
        thread::sleep(Duration::from_millis(50));
    }
    let _ = stream.write_all(END);
}

/// Sends a request. The thread returns whether the complete answer came.
fn request(from: &Namespace, to: SocketAddr, kind: u8) -> JoinHandle<bool> {
    let opened = from.run(|| TcpStream::connect_timeout(&to, PATIENCE));
    let mut stream = opened.expect("a connection");
    stream.write_all(&[kind]).expect("sent");
    thread::spawn(move || {
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).is_ok() && answer.ends_with(END)
    })
}

/// When the drain begins, requests that take 20 s have run for 0 to 10 s. The pods of one Service end only
/// after these requests. The pods of the other Service end as soon as no new connection arrives.
#[test]
fn requests_of_20_s_are_cut_by_no_drain_that_waits_for_them() {
    let mut scene = Scene::idle(Backend::Nftables, &[]);
    scene.servers.clear();
    let serve = |pods: &[&str]| -> Vec<Worker> {
        let pods = pods.iter().map(|pod| scene.world.pod(pod));
        pods.map(|pod| slow_server(&pod.ns)).collect()
    };
    let (waits, hurries) = (
        serve(&["api-1", "api-2"]),
        serve(&["web-1", "web-2", "web-3"]),
    );
    let (mut waited_for, mut hurried) = (Vec::new(), Vec::new());
    for number in 0..REQUESTS {
        let family = Family::ALL[number as usize % 2];
        // The last requests get no bytes before their end, so in the end the drain waits for silent
        // connections only.
        let kind = if number < REQUESTS / 2 { STREAM } else { b'x' };
        let outside = &scene.world.outside;
        waited_for.push(request(outside, scene.node_port(30081, family), kind));
        hurried.push(request(outside, scene.node_port(30080, family), kind));
        thread::sleep(STAGGER);
    }
    scene.manifests.taint(AUTOSCALER_TAINT).expect("taint");
    let begun = Instant::now();
    let open = [
        "--wait",
        "--until",
        "open",
        "--quiet",
        "1s",
        "--idle",
        "30s",
        "--timeout",
        "60s",
    ];
    thread::scope(|scope| {
        scope.spawn(|| {
            told(drain(&scene, &open), 0);
            println!("none in use after {:?}", begun.elapsed());
        });
        let new = ["--wait", "--quiet", "1s", "--timeout", "60s"];
        told(drain(&scene, &new), 0);
        println!("no new connection after {:?}", begun.elapsed());
        drop(hurries);
    });
    drop(waits);
    let cut = |requests: Vec<JoinHandle<bool>>| {
        let ends = requests
            .into_iter()
            .map(|request| request.join().expect("a request"));
        ends.filter(|whole| !whole).count()
    };
    assert_eq!(cut(waited_for), 0, "cut although the hook waited");
    assert_eq!(
        cut(hurried),
        REQUESTS as usize,
        "waiting for new connections only protects no request"
    );
}

const FLOWS: u64 = 10_000;
/// Number of flows that stay in use.
const USED: u64 = 1_000;
/// Whether the count is within 1 % of the truth.
fn is_near(counted: Option<u64>, truth: u64) -> bool {
    counted.is_some_and(|counted| counted.abs_diff(truth) * 100 <= truth)
}

/// A server that listens without accepting: the kernel completes connections, and resets them on drop.
fn silent_server(ns: &Namespace) -> Socket {
    ns.sysctl("net/core/somaxconn", "16384").expect("a limit");
    let listen = || {
        let socket = Socket::new(Domain::IPV6, Type::STREAM, Some(Protocol::TCP))?;
        socket.set_only_v6(false)?;
        socket.bind(&SocketAddr::new(IpAddr::from([0; 16]), PORT).into())?;
        socket.listen(16_384)?;
        std::io::Result::Ok(socket)
    };
    ns.run(|| bound(listen)).expect("listen")
}

/// Opens a connection. Dropping it resets it.
fn flow(from: SocketAddr, to: SocketAddr) -> Socket {
    let socket = Socket::new(Domain::for_address(from), Type::STREAM, Some(Protocol::TCP));
    let socket = socket.expect("a socket");
    socket.set_linger(Some(Duration::ZERO)).expect("an option");
    socket.bind(&from.into()).expect("a port");
    socket.connect_timeout(&to.into(), PATIENCE).expect("open");
    socket
}

/// Closes this end of a connection without sending a packet, so that the test needs no 10,000 open files.
fn abandon(socket: Socket) {
    let on: libc::c_int = 1;
    // SAFETY: the option reads one int at `on`, which lives for the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_REPAIR,
            (&raw const on).cast(),
            size_of_val(&on) as libc::socklen_t,
        )
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

/// Opens all flows, from 6 addresses with source ports in sequence. Returns the flows that stay in use.
fn open_flows(scene: &Scene) -> Vec<Socket> {
    let sources = (0..3).flat_map(|client| Family::ALL.map(|family| (client, family)));
    let mut plans: Vec<_> = sources
        .map(|(client, family)| {
            let source = scene.world.outside_client(client, family);
            let ports = scene.world.source_ports(source);
            (source, ports, scene.node_port(30081, family))
        })
        .collect();
    scene.world.outside.run(|| {
        let mut used = Vec::new();
        for number in 0..FLOWS {
            let (source, ports, target) = &mut plans[number as usize % 6];
            let port = ports.next().expect("a port");
            let opened = flow(SocketAddr::new(*source, port), *target);
            match number < USED {
                true => used.push(opened),
                false => abandon(opened),
            }
        }
        used
    })
}

#[test]
fn ten_thousand_open_connections_are_counted() {
    let mut scene = Scene::idle(Backend::Nftables, &[]);
    scene.servers.clear();
    let servers = ["api-1", "api-2"].map(|pod| silent_server(&scene.world.pod(pod).ns));
    let mut used = open_flows(&scene);
    let pid = scene.agent().pid();
    // The agent's processor time, and number and total time of the runs of its programs.
    let spent = || {
        let processor = usage::processor(pid).expect("its use");
        (processor, usage::programs(pid).expect("its programs"))
    };
    let _figures = enable_stats(Stats::RunTime).expect("times of programs");
    let spend = |used: &mut Vec<Socket>, what: &str| {
        let ((before, (ran, took)), begun) = (spent(), Instant::now());
        while begun.elapsed() < scaled(Duration::from_secs(12)) {
            for socket in used.iter() {
                socket.send(b"x").expect("sent");
            }
            thread::sleep(Duration::from_secs(2));
        }
        let (after, (runs, time)) = spent();
        let share = (after - before).as_secs_f64() / begun.elapsed().as_secs_f64();
        let runs = runs - ran;
        println!(
            "MEASURED {what}: {:.2} % of a processor; programs: {runs} runs, {} ns each",
            100.0 * share,
            (time - took).as_nanos() / u128::from(runs.max(1))
        );
    };
    let seen = |scene: &Scene, what: &str, in_use: u64, idle: u64| {
        let counts = || {
            let (open, silent) = counted(scene);
            (is_near(open, in_use) && is_near(silent, idle)).then_some((open, silent))
        };
        match until(PATIENCE, counts) {
            Some(counts) => println!("{what}: {counts:?}"),
            None => panic!("{what}: {:?}, not {in_use} and {idle}", counted(scene)),
        }
    };
    spend(&mut used, "before it leaves");
    scene.manifests.taint(AUTOSCALER_TAINT).expect("taint");
    seen(&scene, "in use, and idle", USED, FLOWS - USED);
    spend(&mut used, "while it leaves");
    seen(&scene, "later", USED, FLOWS - USED);
    used.clear();
    seen(&scene, "those in use were closed", 0, FLOWS - USED);
    drop(servers);
    seen(&scene, "all were closed", 0, 0);
}
