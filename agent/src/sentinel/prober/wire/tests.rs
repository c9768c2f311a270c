use std::io::Write;
use std::net::TcpListener;

use super::*;

fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

fn open() -> impl Socket {
    host_socket(Family::V4).unwrap()
}

/// Polls until there is a result, which on loopback takes microseconds.
fn until<T>(mut ask: impl FnMut() -> io::Result<Option<T>>) -> io::Result<T> {
    loop {
        match ask()? {
            Some(answer) => return Ok(answer),
            None => std::thread::yield_now(),
        }
    }
}

fn connected(socket: &impl Socket) -> io::Result<()> {
    until(|| Ok(socket.is_connected()?.then_some(())))
}

#[test]
fn data_is_echoed_and_the_end_is_a_reset() {
    let (listener, address) = listener();
    let socket = open();
    socket.connect(address).unwrap();
    connected(&socket).unwrap();
    let (mut peer, from) = listener.accept().unwrap();
    assert_eq!(socket.local(), Some(from));

    let mut data = [0; 4];
    assert_eq!(socket.receive(&mut data).unwrap(), None);
    socket.send(b"ping").unwrap();
    peer.read_exact(&mut data).unwrap();
    assert_eq!(&data, b"ping");
    peer.write_all(b"pong").unwrap();
    assert_eq!(until(|| socket.receive(&mut data)).unwrap(), 4);
    assert_eq!(&data, b"pong");

    drop(socket);
    let error = peer.read(&mut data).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
}

#[test]
fn a_closed_port_refuses() {
    let (listener, address) = listener();
    drop(listener);
    let socket = open();
    let error = socket
        .connect(address)
        .and_then(|()| connected(&socket))
        .unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ECONNREFUSED));
}

#[test]
fn every_socket_has_its_own_cookie() {
    let sockets = [open(), open()];
    let cookies = sockets.map(|socket| socket.cookie().unwrap());
    assert!(cookies[0] != 0 && cookies[0] != cookies[1], "{cookies:?}");
}

#[test]
fn the_sequence_number_advances_with_sent_data() {
    let (_listener, address) = listener();
    let socket = open();
    socket.connect(address).unwrap();
    connected(&socket).unwrap();
    let before = match socket.next_sequence() {
        // TCP_REPAIR needs CAP_NET_ADMIN in the socket's user namespace. The agent has it; this test may not.
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => return,
        other => other.unwrap(),
    };
    socket.send(b"ping").unwrap();
    assert_eq!(socket.next_sequence().unwrap(), before.wrapping_add(4));
    drop(socket);
}
