//! Clients in a closed loop: each opens a connection, asks, is answered, resets, and begins again.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::ops::Range;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use node_tests::detect::Figure;
use node_tests::scene::Scene;
use node_tests::world::Family;
use socket2::{Domain, Protocol, Socket, Type};

/// Clients in a pod, and as many outside.
const CLIENTS: usize = 4;
/// Longer than a SYN that is repeated once.
const PATIENCE: Duration = Duration::from_secs(2);

/// Has all of them open connections, at most so many a second together. Gives the times from SYN to
/// SYN-ACK.
pub(super) fn connect(scene: &Scene, rate: Option<u32>, lasts: Duration) -> Result<Figure> {
    let world = &scene.world;
    let pod = world.pod("client-1");
    let away = world.outside_client(0, Family::V4);
    let inside = scene.cluster_ip("web", Family::V4);
    let pause = rate.map_or(0.0, |rate| 2.0 * CLIENTS as f64 / f64::from(rate));
    let pause = Duration::from_secs_f64(pause);
    let mut threads = Vec::new();
    for (ns, source, target) in [
        (&pod.ns, pod.address(Family::V4), inside),
        (&world.outside, away, super::outside(scene)),
    ] {
        for _ in 0..CLIENTS {
            let ports = world.source_ports(source);
            let client = move || dial(source, ports, target, lasts, pause);
            threads.push(ns.spawn("client", client)?);
        }
    }
    let felt = threads.into_iter().filter_map(|thread| thread.join().ok());
    Ok(Figure::join(felt))
}

fn dial(
    source: IpAddr,
    ports: Range<u16>,
    target: SocketAddr,
    lasts: Duration,
    pause: Duration,
) -> Figure {
    let mut felt = Figure::default();
    let mut due = Instant::now();
    let end = due + lasts;
    // In sequence: a port that the kernel chooses may meet the entry of an earlier connection.
    for port in ports.cycle().take_while(|_| Instant::now() < end) {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        due += pause;
        felt.note(once(SocketAddr::new(source, port), target).ok());
    }
    felt
}

fn once(source: SocketAddr, target: SocketAddr) -> io::Result<Duration> {
    let domain = Domain::for_address(source);
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
    // A reset instead of TIME_WAIT, and instead of conntrack entries that stay for two minutes.
    socket.set_linger(Some(Duration::ZERO))?;
    socket.set_tcp_nodelay(true)?;
    socket.bind(&source.into())?;
    let start = Instant::now();
    socket.connect_timeout(&target.into(), PATIENCE)?;
    let time = start.elapsed();
    let mut stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"?")?;
    match stream.read(&mut [0; 128])? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(time),
    }
}
