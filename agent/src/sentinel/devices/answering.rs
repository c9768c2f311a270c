//! Whether somebody beyond this node answers at the sentinel's addresses.
//!
//! A pod or machine behind a default route leaves no trace in this node's routes or neighbours, and the
//! sentinel's routes would cut this node off from it. So the agent tries TCP handshakes with these addresses,
//! by each interface of a default route. Only an answer from the address itself counts, because a router that
//! does not forward there may also answer. The agent sends no data over an accepted connection.

use std::collections::BTreeSet;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::time::Duration;

use futures_util::future::join_all;
use nix::errno::Errno;
use nix::sys::socket::sockopt::{Ipv4RecvErr, Ipv6RecvErr};
use nix::sys::socket::{MsgFlags, SockaddrStorage, recvmsg, setsockopt};
use pathproof_plan::expect::addresses::OTHERS;
use pathproof_wire::service::Family;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::config::SentinelConfig;
use crate::sentinel::kernel::uplinks;

/// Timeout of a try. A machine behind the default route answers within milliseconds once its hardware address
/// is resolved.
const WAIT: Duration = Duration::from_millis(300);
/// Ports that are tried at every address: the kubelet's, and one on which hardly anything listens, so that a
/// machine without a filter answers with a RST. Ports 80 and 443 are unsuitable: transparent proxies accept
/// connections there for every address.
const PORTS: [u16; 2] = [10_250, 9];

/// Tries the sentinel's addresses in `families`, and the endpoints of other Services there (`claimed`).
/// Returns a sentence with the remedy if one answers.
pub async fn answering(
    config: &SentinelConfig,
    families: &[Family],
    claimed: &[SocketAddr],
) -> Option<String> {
    let addresses = families.iter().flat_map(|family| {
        let at = *family as usize;
        [config.client[at], config.echo[at]]
    });
    let usual = addresses.flat_map(|ip| PORTS.map(|port| SocketAddr::new(ip, port)));
    let tried: BTreeSet<SocketAddr> = usual.chain(claimed.iter().copied()).collect();
    let tries = tried.into_iter().flat_map(|to| {
        let family = if to.is_ipv4() { Family::V4 } else { Family::V6 };
        let devices = uplinks(family).unwrap_or_default().into_iter();
        devices.map(move |device| async move {
            match answers(to, &device).await {
                Ok(true) => Some((to, device)),
                Ok(false) => None,
                Err(error) => {
                    tracing::debug!(%to, device, %error, "cannot try an address of the sentinel");
                    None
                }
            }
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
        // For example, the interface has no route to the address.
        result => return Ok(result.is_ok()),
    }
    let socket = TcpStream::from_std(socket.into())?;
    match timeout(WAIT, socket.writable()).await {
        Ok(ready) => drop(ready?),
        Err(_) => return Ok(false),
    }
    Ok(match socket.take_error()? {
        None => true,
        Some(error) if error.kind() == ErrorKind::ConnectionRefused => {
            refuser(&socket)?.is_none_or(|refuser| refuser == to.ip())
        }
        Some(_) => false,
    })
}

/// The sender of an ICMP error; `None` if the connection was refused by a RST.
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
