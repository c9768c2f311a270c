//! Clients in a closed loop: each opens a connection, sends a request, reads the answer, resets, and
//! starts again. Also one connection for bulk data.

use std::io::{self, BufReader, Read, Write};
use std::net::{IpAddr, Ipv6Addr, TcpListener, TcpStream};
use std::ops::Range;

use anyhow::{Context, Result};
use node_tests::prelude::*;
use socket2::{Domain, Protocol, Socket, Type};

/// Number of clients in a pod, and of clients outside.
const CLIENTS: usize = 4;
/// Timeout of one connection, longer than a SYN with one retransmission takes.
const PATIENCE: Duration = Duration::from_secs(2);
const BUFFER: usize = 256 * 1024;

/// Runs all clients, which together open at most `rate` connections a second. Returns the number of
/// answered connections.
pub(super) fn connect(scene: &Scene, rate: u32, lasts: Duration) -> Result<u64> {
    let world = &scene.world;
    let pod = world.pod("client-1");
    let away = world.outside_client(0, Family::V4);
    let inside = scene.cluster_ip("web", Family::V4);
    let pause = Duration::from_secs_f64(2.0 * CLIENTS as f64 / f64::from(rate));
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
    let answered = threads.into_iter().filter_map(|thread| thread.join().ok());
    Ok(answered.sum())
}

/// Returns the number of answered connections.
fn dial(
    source: IpAddr,
    ports: Range<u16>,
    target: SocketAddr,
    lasts: Duration,
    pause: Duration,
) -> u64 {
    let mut answered = 0;
    let mut due = Instant::now();
    let end = due + lasts;
    // Use ports in sequence: a port that the kernel chooses may still have a conntrack entry of an earlier
    // connection.
    for port in ports.cycle().take_while(|_| Instant::now() < end) {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        due += pause;
        answered += u64::from(once(SocketAddr::new(source, port), target).is_ok());
    }
    answered
}

fn once(source: SocketAddr, target: SocketAddr) -> io::Result<()> {
    let domain = Domain::for_address(source);
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
    // Close with a reset: without it, TIME_WAIT sockets and conntrack entries would stay for two minutes.
    socket.set_linger(Some(Duration::ZERO))?;
    socket.set_tcp_nodelay(true)?;
    socket.bind(&source.into())?;
    socket.connect_timeout(&target.into(), PATIENCE)?;
    let mut stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"?")?;
    // One byte of the line suffices as an answer.
    stream.read_exact(&mut [0])
}

/// A server on both families that reads one connection after another, for as long as this process runs.
pub(super) fn sink(ns: &Namespace, port: u16) -> Result<()> {
    let address = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port);
    let listener = ns.run(|| TcpListener::bind(address)).context("listen")?;
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let _ = stream.set_read_timeout(Some(PATIENCE));
            let mut stream = BufReader::with_capacity(BUFFER, stream);
            let _ = io::copy(&mut stream, &mut io::sink());
        }
    });
    Ok(())
}

/// Sends for this time; returns the bytes a second that the connection accepted.
pub(super) fn push(ns: &Namespace, target: SocketAddr, lasts: Duration) -> Result<f64> {
    ns.run(|| {
        let mut stream = TcpStream::connect_timeout(&target, PATIENCE)?;
        let (buffer, start, mut sent) = (vec![7; BUFFER], Instant::now(), 0_u64);
        while start.elapsed() < lasts {
            sent += stream.write(&buffer)? as u64;
        }
        Ok(sent as f64 / start.elapsed().as_secs_f64())
    })
}
