//! The program in pods of the tests on a real node: `pod pause` does nothing, as the program that holds
//! a pod's namespaces does; `pod serve PORT` answers a byte with a line, as
//! `node_tests::traffic::Server` does: its name, and the client as it sees it.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

/// How long a connection may stay open.
const PATIENCE: Duration = Duration::from_secs(3);

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["pause"] => loop {
            thread::park();
        },
        ["serve", port] => match port.parse().map(serve) {
            Ok(Err(error)) => fail(&format!("port {port}: {error}")),
            Ok(Ok(())) => ExitCode::SUCCESS,
            Err(error) => fail(&format!("{port} is no port: {error}")),
        },
        _ => fail("use: pod pause | pod serve PORT"),
    }
}

fn fail(why: &str) -> ExitCode {
    eprintln!("pod: {why}");
    ExitCode::FAILURE
}

fn serve(port: u16) -> std::io::Result<()> {
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))?;
    let name = std::env::var("HOSTNAME").unwrap_or_else(|_| "pod".to_owned());
    for stream in listener.incoming().flatten() {
        let name = name.clone();
        thread::spawn(move || answer(stream, &name));
    }
    Ok(())
}

fn answer(mut stream: TcpStream, name: &str) -> std::io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let peer = unmapped(stream.peer_addr()?);
    let mut byte = [0];
    while stream.read(&mut byte)? > 0 {
        stream.write_all(format!("{name} {peer}\n").as_bytes())?;
    }
    Ok(())
}

fn unmapped(peer: SocketAddr) -> SocketAddr {
    let address = match peer.ip() {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4),
        v4 => v4,
    };
    SocketAddr::new(address, peer.port())
}
