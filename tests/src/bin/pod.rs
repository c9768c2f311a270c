//! The program in the pods of tests on a real node. `pod pause` does nothing, like the pause container. `pod
//! serve PORT` answers each byte with a line, like `node_tests::traffic::Server`: the program's name, and the
//! client's address as the program sees it.

use std::io::{Read, Write};
use std::net::{Ipv6Addr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

/// Maximum time between two bytes of a client.
const PATIENCE: Duration = Duration::from_secs(3);

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["pause"] => loop {
            thread::park();
        },
        ["serve", port] => serve(port.parse().expect("a port")).expect("listen"),
        _ => panic!("use: pod pause | pod serve PORT"),
    }
}

fn serve(port: u16) -> std::io::Result<()> {
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))?;
    for stream in listener.incoming().flatten() {
        thread::spawn(|| answer(stream));
    }
    Ok(())
}

fn answer(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let name = std::env::var("HOSTNAME").unwrap_or_default();
    let mut peer = stream.peer_addr()?;
    peer.set_ip(peer.ip().to_canonical());
    let mut byte = [0];
    while stream.read(&mut byte)? > 0 {
        stream.write_all(format!("{name} {peer}\n").as_bytes())?;
    }
    Ok(())
}
