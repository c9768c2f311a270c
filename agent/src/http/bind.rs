//! Where a listener is opened, and what is said when that fails.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use socket2::{Domain, Protocol, Socket, Type};
use thiserror::Error;
use tokio::net::TcpListener;

/// Connections that wait to be accepted. The kernel limits it to net.core.somaxconn.
const BACKLOG: i32 = 4096;

/// An address to listen at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BindAddress {
    /// Every address of both families, at this port: what Go means by 0.0.0.0, `[::]` or no host.
    Everywhere(u16),
    /// One address.
    One(SocketAddr),
}

impl From<SocketAddr> for BindAddress {
    fn from(address: SocketAddr) -> Self {
        let ip = address.ip().to_canonical();
        if ip.is_unspecified() {
            BindAddress::Everywhere(address.port())
        } else if ip == address.ip() {
            // As it was said: an IPv6 address may carry a scope.
            BindAddress::One(address)
        } else {
            BindAddress::One(SocketAddr::new(ip, address.port()))
        }
    }
}

impl fmt::Display for BindAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BindAddress::Everywhere(port) => write!(f, "every address, port {port}"),
            BindAddress::One(address) => write!(f, "{address}"),
        }
    }
}

/// A listener that could not be opened.
#[derive(Debug, Error)]
#[error("{option}: cannot listen at {address}; {remedy}", remedy = remedy(source, option))]
pub struct BindError {
    /// The option that says where.
    pub option: &'static str,
    /// Where.
    pub address: BindAddress,
    /// What the system said.
    pub source: io::Error,
}

fn remedy(source: &io::Error, option: &str) -> String {
    match source.kind() {
        io::ErrorKind::AddrInUse => format!(
            "another process listens there (`ss -ltnp` names it): stop it, or give another port \
             with {option}"
        ),
        io::ErrorKind::AddrNotAvailable => {
            format!(
                "no interface of this machine has that address: give one that it has with {option}"
            )
        }
        io::ErrorKind::PermissionDenied => {
            format!(
                "ports below 1024 need CAP_NET_BIND_SERVICE: grant it, or give another port with {option}"
            )
        }
        _ => format!("give another address with {option}"),
    }
}

/// Opens a listener. `option` is the setting that an error names.
///
/// # Errors
/// The address cannot be had.
pub fn listen(option: &'static str, address: BindAddress) -> Result<TcpListener, BindError> {
    let opened = match address {
        BindAddress::One(one) => open(one, false),
        BindAddress::Everywhere(port) => {
            let both = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), port);
            open(both, true).or_else(|error| match error.kind() {
                // In use is in use; anything else means that this machine has no IPv6.
                io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied => Err(error),
                _ => open(
                    SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), port),
                    false,
                ),
            })
        }
    };
    opened.map_err(|source| BindError {
        option,
        address,
        source,
    })
}

fn open(address: SocketAddr, both_families: bool) -> io::Result<TcpListener> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    socket.set_nonblocking(true)?;
    // As Go does: a restart need not wait for the last run's closed connections.
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(!both_families)?;
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpStream;

    #[tokio::test]
    async fn everywhere_is_both_families() {
        let listener = listen("--x", BindAddress::Everywhere(0)).unwrap();
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
        let first = listen("--x", "127.0.0.1:0".parse::<SocketAddr>().unwrap().into()).unwrap();
        let address = first.local_addr().unwrap();
        let error = listen("--healthz-bind-address", address.into()).unwrap_err();
        assert_eq!(error.source.kind(), io::ErrorKind::AddrInUse);
        let message = error.to_string();
        assert!(message.contains(&address.to_string()), "{message}");
        assert!(message.contains("--healthz-bind-address"), "{message}");
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
