//! Detects machines and pods beyond this node that use the sentinel's addresses.
//!
//! If such a machine or pod is behind a default route, or one to a large network, this node's routes and
//! neighbours do not show it. The sentinel's routes would cut this node off from it. So the agent tries TCP
//! handshakes with the sentinel's addresses, by each interface of a route to them. Only an answer from the
//! address itself counts, because a router that does not forward there may also answer. The agent sends no data
//! over an accepted connection.

use std::collections::BTreeSet;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::time::Duration;

use futures_util::future::join_all;
use ipnet::IpNet;
use nix::errno::Errno;
use nix::sys::socket::sockopt::{Ipv4RecvErr, Ipv6RecvErr};
use nix::sys::socket::{MsgFlags, SockaddrStorage, recvmsg, setsockopt};
use pathproof_facts::node_context::address;
use pathproof_plan::expect::addresses::OTHERS;
use pathproof_wire::service::{FAMILIES, Family};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpStream;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::netlink::name_of;
use super::{DeviceError, ROUTE_PROTOCOL};
use crate::netlink::routes;

/// Timeout of a handshake. A machine behind the default route answers in milliseconds, once its link-layer
/// address is resolved.
const WAIT: Duration = Duration::from_millis(300);
/// Number of tries. One is not enough: a router may drop the first packet while it resolves the link-layer
/// address.
const ATTEMPTS: usize = 2;

/// The interfaces by which routes of others lead to one of the addresses: mostly those of default routes. A VPN
/// may have narrower ones, such as 128.0.0.0/1.
pub async fn uplinks(
    family: Family,
    addresses: Vec<IpAddr>,
) -> Result<BTreeSet<String>, DeviceError> {
    let concerns = move |to: IpNet, protocol: u8| {
        protocol != ROUTE_PROTOCOL && addresses.iter().any(|address| to.contains(address))
    };
    let listed = spawn_blocking(move || routes::interfaces(family, concerns)).await;
    let listed = listed.map_err(io::Error::other).flatten();
    let indexes = listed.map_err(|source| DeviceError::Refused {
        operation: "list routes to the sentinel's addresses".to_owned(),
        source,
    })?;
    Ok(indexes.into_iter().map(name_of).collect())
}

/// Tries each address by each uplink of its family. If an address answers, returns a sentence with the
/// remedy.
pub async fn answering(
    tries: &[SocketAddr],
    uplinks: &[BTreeSet<String>; FAMILIES],
) -> Option<String> {
    let tries = tries.iter().flat_map(|to| {
        let devices = uplinks[Family::of(&address(&to.ip())) as usize].iter();
        devices.map(move |device| async move {
            for _ in 0..ATTEMPTS {
                match answers(*to, device).await {
                    Ok(true) => return Some((to, device)),
                    Ok(false) => {}
                    Err(error) => {
                        tracing::debug!(%to, device, %error, "cannot try an address of the sentinel");
                    }
                }
            }
            None
        })
    });
    let (to, device) = join_all(tries).await.into_iter().flatten().next()?;
    Some(format!(
        "the sentinel's address {} is in use: TCP port {} there answers by {device}: {OTHERS}",
        to.ip(),
        to.port()
    ))
}

/// Whether the address accepts or refuses a TCP connection by this interface. The socket is bound to the
/// interface, because a route by the sentinel's devices may exist already.
async fn answers(to: SocketAddr, device: &str) -> io::Result<bool> {
    let kind = Type::STREAM.nonblocking().cloexec();
    let socket = Socket::new(Domain::for_address(to), kind, Some(Protocol::TCP))?;
    socket.bind_device(Some(device.as_bytes()))?;
    match to {
        SocketAddr::V4(_) => setsockopt(&socket, Ipv4RecvErr, &true)?,
        SocketAddr::V6(_) => setsockopt(&socket, Ipv6RecvErr, &true)?,
    }
    match socket.connect(&to.into()) {
        Err(error) if error.raw_os_error() == Some(Errno::EINPROGRESS as i32) => {}
        // The connection attempt ended at once. For example, the interface has no route to the address.
        result => return Ok(result.is_ok()),
    }
    let socket = TcpStream::from_std(socket.into())?;
    match timeout(WAIT, socket.writable()).await {
        Ok(ready) => drop(ready?),
        Err(_) => return Ok(false),
    }
    let refused = match socket.take_error()? {
        None => return Ok(socket.peer_addr().is_ok()),
        Some(error) => error.kind() == ErrorKind::ConnectionRefused,
    };
    // If an ICMP error arrived, its sender decides, whatever its kind. Without one, a refusal was a RST.
    Ok(match refuser(&socket)? {
        Some(refuser) => refuser == to.ip(),
        None => refused,
    })
}

/// The sender of the ICMP error that ended the connection attempt; `None` if none arrived.
fn refuser(socket: &TcpStream) -> io::Result<Option<IpAddr>> {
    let mut space = nix::cmsg_space!(libc::sock_extended_err, libc::sockaddr_in6);
    let received = recvmsg::<SockaddrStorage>(
        socket.as_raw_fd(),
        &mut [],
        Some(&mut space),
        MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT,
    );
    let message = match received {
        Err(Errno::EAGAIN) => return Ok(None),
        received => received?,
    };
    use nix::sys::socket::ControlMessageOwned::{Ipv4RecvErr, Ipv6RecvErr};
    Ok(message.cmsgs()?.find_map(|cmsg| match cmsg {
        Ipv4RecvErr(_, Some(by)) => Some(IpAddr::from(by.sin_addr.s_addr.to_ne_bytes())),
        Ipv6RecvErr(_, Some(by)) => Some(IpAddr::from(by.sin6_addr.s6_addr)),
        _ => None,
    }))
}

#[cfg(test)]
mod tests;
