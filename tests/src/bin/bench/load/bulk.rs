//! One connection that carries as much as goes through.

use std::io::{Read, Write};
use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use node_tests::worker::Worker;
use node_tests::world::Namespace;

const BUFFER: usize = 256 * 1024;

/// A server on both families that takes whatever comes; ends when dropped.
pub(super) fn sink(ns: &Namespace, port: u16) -> Result<Worker> {
    let address = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port);
    let listener = ns.run(|| TcpListener::bind(address)).context("listen")?;
    listener.set_nonblocking(true)?;
    let serve = move |stop: &AtomicBool| {
        while !stop.load(Ordering::Relaxed) {
            match listener.accept() {
                Ok((stream, _)) => swallow(stream),
                Err(_) => thread::sleep(Duration::from_millis(10)),
            }
        }
    };
    Ok(Worker::within(ns, "sink", serve)?)
}

fn swallow(mut stream: TcpStream) {
    let mut buffer = vec![0; BUFFER];
    let _ = stream.set_nonblocking(false);
    let _ = stream.set_read_timeout(Some(Duration::from_secs(2)));
    while stream.read(&mut buffer).is_ok_and(|read| read > 0) {}
}

/// Sends for so long; gives the bytes a second that went into the connection.
pub(super) fn push(ns: &Namespace, target: SocketAddr, lasts: Duration) -> Result<f64> {
    ns.run(|| {
        let mut stream = TcpStream::connect_timeout(&target, Duration::from_secs(2))?;
        let (buffer, start, mut sent) = (vec![7; BUFFER], Instant::now(), 0_u64);
        while start.elapsed() < lasts {
            sent += stream.write(&buffer)? as u64;
        }
        Ok(sent as f64 / start.elapsed().as_secs_f64())
    })
}
