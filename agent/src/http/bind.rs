//! Opens listeners, and reports a failure with its remedy.
//!
//! Listeners at configured ports set `SO_REUSEPORT`, so that a successor can open a port while the agent
//! still answers there. The kernel allows this only to processes of the same user that set the option too.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::time::Duration;

use pathproof_shared::bind_address::BindAddress;
use socket2::{Domain, Protocol, Socket, Type};
use thiserror::Error;

/// Maximum queue of connections to accept. The kernel limits it to net.core.somaxconn.
const BACKLOG: i32 = 4096;

/// Receive buffer of a health check's connection, in bytes; the kernel doubles it. Socket buffers count
/// towards the memory of the agent's container, and a client decides how much of them it fills. With the
/// default size, 1,000 connections whose request lacked one byte took 67 MB; with this size they take 3 MB
/// (Linux 6.18). Longer requests are read in parts.
const RECEIVE_BUFFER: usize = 2 * 1024;
/// Send buffer of a health check's connection, in bytes; the kernel doubles it. A client that reads no
/// answers fills it.
const SEND_BUFFER: usize = 16 * 1024;
/// Time after which the kernel drops a health check's connection whose client acknowledges no data. Without
/// it, the kernel keeps the answers of closed connections for 100 s, and no limit of the agent counts them.
const UNACKNOWLEDGED: Duration = Duration::from_secs(10);

/// Option of the listener for health checks. If connections are steered to this listener, it does not need
/// its port (docs/internal/design/shell.md#port-takeover).
pub const HEALTHZ: &str = "--healthz-bind-address";
/// Option of the listener that connections to health check node ports are steered to.
pub const SERVICES: &str = "--health-check-node-ports";

#[derive(Debug, Error)]
#[error("{option}: cannot listen on {address}; {remedy}", remedy = remedy(source, option))]
pub struct BindError {
    pub option: &'static str,
    pub address: BindAddress,
    pub source: io::Error,
}

fn remedy(source: &io::Error, option: &str) -> String {
    let first = match source.kind() {
        io::ErrorKind::AddrInUse if option == HEALTHZ => {
            "another process listens there (see `ss -ltnp`): stop it, use --port-takeover=steer if \
             the kernel and the agent's privileges allow it, or"
        }
        io::ErrorKind::AddrInUse => "another process listens there (see `ss -ltnp`): stop it, or",
        io::ErrorKind::AddrNotAvailable => "no interface of this machine has that address:",
        io::ErrorKind::PermissionDenied => {
            "ports below 1024 need CAP_NET_BIND_SERVICE: grant it, or"
        }
        _ => "if the error persists,",
    };
    format!("{first} give another address or port with {option}")
}

/// Opens a listener that does not block. `option` is the setting that an error names.
pub fn listen(option: &'static str, address: BindAddress) -> Result<TcpListener, BindError> {
    let opened = match address {
        BindAddress::One(one) => open(option, one, false),
        BindAddress::Everywhere(port) => {
            let both = (Ipv6Addr::UNSPECIFIED, port).into();
            open(option, both, false).or_else(|error| match error.kind() {
                // A port that is in use or forbidden is an error. Any other failure means that this machine
                // has no IPv6.
                io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied => Err(error),
                _ => open(option, (Ipv4Addr::UNSPECIFIED, port).into(), false),
            })
        }
    };
    opened.map_err(|source| BindError {
        option,
        address,
        source,
    })
}

/// Opens a listener for steered connections, at a loopback address and a port that the kernel picks.
/// Clients do not know this port, so only steered connections arrive.
///
/// # Errors
/// No interface has the address that clients dial.
pub fn listen_aside(option: &'static str, address: BindAddress) -> Result<TcpListener, BindError> {
    let v4 = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let v6 = SocketAddr::from((Ipv6Addr::LOCALHOST, 0));
    let opened = match address {
        BindAddress::One(one) => claim(one).and_then(|()| match one {
            SocketAddr::V4(_) => open(option, v4, true),
            SocketAddr::V6(_) => open(option, v6, true),
        }),
        // A socket at an IPv4-mapped IPv6 address accepts steered connections of both families. One
        // at ::1 would accept only IPv6.
        BindAddress::Everywhere(_) => {
            let both = SocketAddr::from((Ipv4Addr::LOCALHOST.to_ipv6_mapped(), 0));
            open(option, both, true).or_else(|_| open(option, v4, true))
        }
    };
    opened.map_err(|source| BindError {
        option,
        address,
        source,
    })
}

/// Fails unless an interface has the address. The port is ignored.
fn claim(address: SocketAddr) -> io::Result<()> {
    let mut anywhere = address;
    anywhere.set_port(0);
    socket(anywhere)?.bind(&anywhere.into())
}

fn open(option: &str, address: SocketAddr, aside: bool) -> io::Result<TcpListener> {
    let socket = socket(address)?;
    // Accepted connections inherit these settings of the listener. Nagle's algorithm is off, because every answer
    // is one write, and waiting for more data would only delay it. The admin port keeps the kernel's buffers,
    // because it has long answers and few clients.
    socket.set_tcp_nodelay(true)?;
    if matches!(option, HEALTHZ | SERVICES) {
        socket.set_recv_buffer_size(RECEIVE_BUFFER)?;
        socket.set_send_buffer_size(SEND_BUFFER)?;
        socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED))?;
    }
    match address {
        _ if !aside => socket.set_reuse_port(true)?,
        // Bind even if the loopback interface lacks ::1: steered connections have other destinations
        // anyway.
        SocketAddr::V4(_) => socket.set_freebind_v4(true)?,
        SocketAddr::V6(_) => socket.set_freebind_v6(true)?,
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

fn socket(address: SocketAddr) -> io::Result<Socket> {
    let domain = Domain::for_address(address);
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    // As in Go, so that closed connections of the last run do not delay a restart. Steered connections have
    // the same local port as the port's owner, and must not prevent it from binding.
    socket.set_reuse_address(true)?;
    if let SocketAddr::V6(v6) = address {
        let ip = v6.ip();
        socket.set_only_v6(!ip.is_unspecified() && ip.to_ipv4_mapped().is_none())?;
    }
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use rstest::rstest;
    use tokio::net::TcpStream;

    use super::*;

    #[tokio::test]
    async fn everywhere_is_both_families() {
        let listener = listen("--x", BindAddress::Everywhere(0)).unwrap();
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        let port = listener.local_addr().unwrap().port();
        TcpStream::connect((Ipv4Addr::LOCALHOST, port))
            .await
            .unwrap();
        let peer = listener.accept().await.unwrap().1;
        assert_eq!(peer.ip().to_canonical(), IpAddr::V4(Ipv4Addr::LOCALHOST));
        if listener.local_addr().unwrap().is_ipv6() {
            TcpStream::connect((Ipv6Addr::LOCALHOST, port))
                .await
                .unwrap();
        }
    }

    #[tokio::test]
    async fn a_port_in_use_names_address_and_option() {
        let first = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = first.local_addr().unwrap();
        let error = listen(HEALTHZ, address.into()).unwrap_err();
        assert_eq!(error.source.kind(), io::ErrorKind::AddrInUse);
        let message = error.to_string();
        assert!(message.contains(&address.to_string()), "{message}");
        assert!(message.contains("--healthz-bind-address"), "{message}");
        assert!(message.contains("--port-takeover=steer"), "{message}");
        let error = listen("--admin-bind-address", address.into()).unwrap_err();
        assert!(!error.to_string().contains("takeover"), "{error}");
    }

    #[rstest]
    #[case::health(HEALTHZ)]
    #[case::services(SERVICES)]
    #[case::admin("--x")]
    #[tokio::test]
    async fn answers_are_not_delayed(#[case] option: &'static str) {
        let loopback: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let listener = listen(option, loopback.into()).unwrap();
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap());
        let _client = client.await.unwrap();
        let (accepted, _) = listener.accept().await.unwrap();
        assert!(accepted.nodelay().unwrap());
    }

    #[tokio::test]
    async fn a_successor_shares_the_port() {
        let loopback: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let first = listen("--x", loopback.into()).unwrap();
        let address = first.local_addr().unwrap();
        let second = listen("--x", address.into()).unwrap();
        assert_eq!(second.local_addr().unwrap(), address);
    }

    #[tokio::test]
    async fn a_listener_aside_holds_no_port_that_others_know() {
        let holder = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let held = holder.local_addr().unwrap();
        for address in [BindAddress::One(held), BindAddress::Everywhere(held.port())] {
            let aside = listen_aside(HEALTHZ, address).unwrap();
            let own = aside.local_addr().unwrap();
            assert!(own.ip().to_canonical().is_loopback(), "{own}");
            assert_ne!(own.port(), held.port());
        }
        let foreign: SocketAddr = "192.0.2.1:10256".parse().unwrap();
        let error = listen_aside(HEALTHZ, foreign.into()).unwrap_err();
        assert_eq!(error.source.kind(), io::ErrorKind::AddrNotAvailable);
    }

    #[tokio::test]
    async fn a_foreign_address_is_explained() {
        let foreign: SocketAddr = "192.0.2.1:0".parse().unwrap();
        let error = listen("--admin-bind-address", foreign.into()).unwrap_err();
        assert!(
            error.to_string().contains("no interface of this machine"),
            "{error}"
        );
    }
}
