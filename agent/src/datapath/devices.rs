//! Follows the node's interfaces by netlink, and which of them have default routes.
//!
//! Each notification of an interface or a default route leads to a full list after a short pause.
//! Notifications are lost when the socket's buffer is full, but a list is always complete, and a burst of 250
//! new pods causes only a few lists. Notifications of other routes are filtered out: on a router they come
//! many times a second.

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use netlink_sys::AsyncSocket as _;
use netlink_sys::protocols::NETLINK_ROUTE;
use nix::net::if_::if_nametoindex;
use pathproof_wire::packet::Link;
use pathproof_wire::service::Family;
use rtnetlink::packet_route::link::{InfoKind, LinkLayerType};
use rtnetlink::{MulticastGroup, new_multicast_connection};
use socket2::{SockFilter, SockRef};
use thiserror::Error;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout};

use crate::netlink::{self, link, routes};

/// Delay from a notification to the listing: a new device brings several notifications.
const PAUSE: Duration = Duration::from_millis(30);
/// Interfaces are listed at least this often, in case a notification was lost. After a slow list the
/// interval is [`REST_FACTOR`] times its duration, which costs 1 % of a processor, but at most five minutes.
const AT_LEAST: [Duration; 2] = [Duration::from_secs(30), Duration::from_secs(300)];
const REST_FACTOR: u32 = 100;
/// Pause before subscribing again if the notifications end.
const RESUBSCRIBE: Duration = Duration::from_secs(1);
/// Timeout for each part of a list.
const PATIENCE: Duration = Duration::from_secs(10);

/// An interface that Service traffic can cross.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    pub index: u32,
    pub name: String,
    /// Header before the network header.
    pub link: Link,
    /// Whether the interface has a default route.
    pub uplink: bool,
    /// A veth or netkit pair whose other end is in another network namespace.
    pub leads_elsewhere: bool,
    /// A veth, netkit, tun or tap without a default route: the CNI plugin that created it, or a chained
    /// one, may still be working on it.
    pub may_be_a_pods: bool,
}

impl Device {
    /// Index and name: the kernel may give the index of a removed interface to a new one.
    pub(super) fn identity(&self) -> (u32, &str) {
        (self.index, &self.name)
    }

    pub(super) fn exists(&self) -> bool {
        if_nametoindex(self.name.as_str()) == Ok(self.index)
    }
}

/// The interfaces, except loopback.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interfaces {
    /// Interfaces that can be watched, by index.
    pub devices: Vec<Device>,
    /// Number of interfaces that are not followed: they carry IP behind other headers (PPP, InfiniBand).
    pub unfollowed: usize,
    /// Number of netkit pairs: their packets may bypass every hook of the observer.
    pub netkit: u32,
    pub accelerated: BTreeSet<u32>,
}

impl Interfaces {
    /// Indexes of the interfaces that can be watched.
    pub fn indexes(&self) -> BTreeSet<u32> {
        self.devices.iter().map(|device| device.index).collect()
    }
}

#[derive(Debug, Error)]
#[error("cannot {operation} by netlink: {source}")]
pub struct DevicesError {
    operation: &'static str,
    source: Box<dyn std::error::Error + Send + Sync>,
}

fn failed<E: Into<Box<dyn std::error::Error + Send + Sync>>>(
    operation: &'static str,
) -> impl FnOnce(E) -> DevicesError {
    move |source| DevicesError {
        operation,
        source: source.into(),
    }
}

/// Lists the interfaces once and follows them from then on; the receiver holds the latest list. The
/// task ends when the receiver is dropped.
pub async fn follow() -> Result<watch::Receiver<Interfaces>, DevicesError> {
    follow_by(subscribe).await
}

/// Same as [`follow`], with the given source of notifications. If they end, subscribes again.
async fn follow_by<S>(
    subscribe: impl Fn() -> Result<S, DevicesError> + Send + 'static,
) -> Result<watch::Receiver<Interfaces>, DevicesError>
where
    S: Stream<Item: Send> + Unpin + Send + 'static,
{
    let mut messages = subscribe()?;
    let mut uplinks = list_uplinks().await?;
    let (sender, receiver) = watch::channel(list(&uplinks).await?);
    tokio::spawn(async move {
        let [mut at_least, at_most] = AT_LEAST;
        while !sender.is_closed() {
            // List after a notification or a timeout.
            if let Ok(None) = timeout(at_least, messages.next()).await {
                sleep(RESUBSCRIBE).await;
                match subscribe() {
                    Ok(others) => messages = others,
                    Err(error) => tracing::warn!(%error, "the interfaces are listed every second"),
                }
            }
            sleep(PAUSE).await;
            while let Ok(Some(_)) = timeout(Duration::ZERO, messages.next()).await {}
            let began = Instant::now();
            at_least = AT_LEAST[0];
            match look(&mut uplinks, &sender).await {
                Ok(()) => at_least = (began.elapsed() * REST_FACTOR).clamp(at_least, at_most),
                Err(error) => tracing::warn!(%error, "the interfaces could not be listed"),
            }
        }
    });
    Ok(receiver)
}

/// Subscribes to notifications of interfaces and default routes.
fn subscribe() -> Result<impl Stream<Item: Send> + Unpin + Send + 'static, DevicesError> {
    let groups = [
        MulticastGroup::Link,
        MulticastGroup::Ipv4Route,
        MulticastGroup::Ipv6Route,
    ];
    let (mut connection, _, messages) =
        new_multicast_connection(&groups).map_err(failed("follow interfaces"))?;
    SockRef::from(connection.socket_mut().socket_ref())
        .attach_filter(&without_other_routes())
        .map_err(failed("follow default routes alone"))?;
    tokio::spawn(connection);
    Ok(messages)
}

/// A socket filter that drops notifications of all routes except default routes.
fn without_other_routes() -> [SockFilter; 7] {
    /// Message types, and offsets of the type and of `rtm_dst_len`, which follows the header.
    const ROUTES: [u16; 2] = [24, 25];
    const TYPE: u32 = 4;
    const PREFIX: u32 = 17;
    let load = (libc::BPF_LD | libc::BPF_ABS) as u16;
    let (half, byte) = (load | libc::BPF_H as u16, load | libc::BPF_B as u16);
    let equals = (libc::BPF_JMP | libc::BPF_JEQ) as u16;
    let returns = (libc::BPF_RET | libc::BPF_K) as u16;
    // The filter reads numbers in network byte order.
    let [new, deleted] = ROUTES.map(|kind| u32::from(kind.to_be()));
    [
        SockFilter::new(half, 0, 0, TYPE),
        SockFilter::new(equals, 1, 0, new),
        SockFilter::new(equals, 0, 2, deleted),
        SockFilter::new(byte, 0, 0, PREFIX),
        SockFilter::new(equals, 0, 1, 0),
        SockFilter::new(returns, 0, 0, u32::MAX),
        SockFilter::new(returns, 0, 0, 0),
    ]
}

/// Sends the interfaces with the known uplinks first, and again if the uplinks have changed. A router's
/// routes take long to list, and a new pod must not wait for them.
async fn look(
    uplinks: &mut BTreeSet<u32>,
    sender: &watch::Sender<Interfaces>,
) -> Result<(), DevicesError> {
    let send = |interfaces| {
        sender.send_if_modified(|held| {
            let changed = *held != interfaces;
            *held = interfaces;
            changed
        })
    };
    send(list(uplinks).await?);
    let listed = list_uplinks().await?;
    if *uplinks != listed {
        *uplinks = listed;
        send(list(uplinks).await?);
    }
    Ok(())
}

/// Lists all interfaces or fails: a missing one would count as gone, and lose its hooks and pins.
async fn list(uplinks: &BTreeSet<u32>) -> Result<Interfaces, DevicesError> {
    let listed = spawn_blocking(links)
        .await
        .map_err(failed("list interfaces"))?;
    let mut interfaces = Interfaces::default();
    for found in listed.map_err(failed("list interfaces"))? {
        interfaces.add(found, uplinks);
    }
    interfaces.devices.sort_by_key(|device| device.index);
    Ok(interfaces)
}

fn links() -> io::Result<Vec<link::Link>> {
    /// A `struct ifinfomsg` that selects all.
    const ALL: [u8; 16] = [0; 16];
    let mut links = Vec::new();
    netlink::dump(PATIENCE, NETLINK_ROUTE, libc::RTM_GETLINK, &ALL, |body| {
        match link::parse(body) {
            Ok(link) => links.push(link),
            Err(error) => tracing::debug!(%error, "an interface could not be read"),
        }
        Ok(())
    })?;
    Ok(links)
}

/// Indexes of the devices of default routes, in any table.
async fn list_uplinks() -> Result<BTreeSet<u32>, DevicesError> {
    let listed = spawn_blocking(|| {
        let v4 = routes::uplinks(Family::V4)?;
        io::Result::Ok(&v4 | &routes::uplinks(Family::V6)?)
    });
    let listed = listed.await.map_err(failed("list routes"))?;
    listed.map_err(failed("list routes"))
}

impl Interfaces {
    fn add(&mut self, found: link::Link, uplinks: &BTreeSet<u32>) {
        if found.is_loopback {
            return;
        }
        let Some(link) = link_of(found.layer) else {
            // An interface that is down carries nothing.
            self.unfollowed += usize::from(found.up && carries_ip(found.layer));
            return;
        };
        if found.has_xdp {
            self.accelerated.insert(found.index);
        }
        let netkit = found.kind == Some(InfoKind::Netkit);
        self.netkit += u32::from(netkit);
        let pair = netkit || found.kind == Some(InfoKind::Veth);
        let tun = found.kind == Some(InfoKind::Tun);
        let uplink = uplinks.contains(&found.index);
        self.devices.push(Device {
            index: found.index,
            name: found.name,
            link,
            uplink,
            leads_elsewhere: found.leads_elsewhere && pair,
            may_be_a_pods: (pair || tun) && !uplink,
        });
    }
}

/// Header before the network header; `None` if such interfaces are not followed.
fn link_of(kind: LinkLayerType) -> Option<Link> {
    match kind {
        LinkLayerType::Ether => Some(Link::Ethernet),
        // Packets of these devices begin with the IP header.
        LinkLayerType::None
        | LinkLayerType::Rawip
        | LinkLayerType::Tunnel
        | LinkLayerType::Tunnel6
        | LinkLayerType::Sit
        | LinkLayerType::Ipgre
        | LinkLayerType::Ip6gre => Some(Link::None),
        _ => None,
    }
}

/// Whether an unfollowed kind may carry Service traffic. Monitors, buses, radios below another device
/// and void devices do not.
fn carries_ip(kind: LinkLayerType) -> bool {
    !matches!(
        kind,
        LinkLayerType::Netlink
            | LinkLayerType::Vsockmon
            | LinkLayerType::Can
            | LinkLayerType::Mctp
            | LinkLayerType::Pimreg
            | LinkLayerType::Ieee80211
            | LinkLayerType::Ieee80211Prism
            | LinkLayerType::Ieee80211Radiotap
            | LinkLayerType::Ieee802154
            | LinkLayerType::Ieee802154Monitor
            | LinkLayerType::Void
    )
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use futures_util::stream;
    use rstest::rstest;
    use rtnetlink::packet_route::link::LinkFlags;

    use super::*;

    /// Without notifications a new pod's interface would be seen 30 s later, or never.
    #[tokio::test(start_paused = true)]
    async fn subscribes_again_when_notifications_end() {
        static ASKED: AtomicU32 = AtomicU32::new(0);
        let receiver = follow_by(|| {
            Ok(match ASKED.fetch_add(1, Ordering::Relaxed) {
                0 => stream::empty::<()>().boxed(),
                1 => return Err(failed("follow interfaces")("no memory")),
                _ => stream::pending().boxed(),
            })
        });
        let receiver = receiver.await.expect("a list");
        sleep(RESUBSCRIBE * 10).await;
        assert_eq!(ASKED.load(Ordering::Relaxed), 3);
        drop(receiver);
    }

    #[rstest]
    #[case::ethernet(LinkLayerType::Ether, LinkFlags::Up, Some(Link::Ethernet), 0)]
    #[case::down(LinkLayerType::Ether, LinkFlags::empty(), Some(Link::Ethernet), 0)]
    #[case::wireguard(LinkLayerType::None, LinkFlags::Up, Some(Link::None), 0)]
    #[case::ipip(LinkLayerType::Tunnel, LinkFlags::Up, Some(Link::None), 0)]
    #[case::ppp(LinkLayerType::Ppp, LinkFlags::Up, None, 1)]
    #[case::ppp_down(LinkLayerType::Ppp, LinkFlags::empty(), None, 0)]
    #[case::infiniband(LinkLayerType::Infiniband, LinkFlags::Up, None, 1)]
    #[case::monitor(LinkLayerType::Netlink, LinkFlags::Up, None, 0)]
    #[case::bus(LinkLayerType::Can, LinkFlags::Up, None, 0)]
    #[case::loopback(LinkLayerType::Loopback, LinkFlags::Up | LinkFlags::Loopback, None, 0)]
    fn kinds(
        #[case] kind: LinkLayerType,
        #[case] flags: LinkFlags,
        #[case] link: Option<Link>,
        #[case] unfollowed: usize,
    ) {
        let found = link::Link {
            index: 7,
            name: "one".to_owned(),
            layer: kind,
            up: flags.contains(LinkFlags::Up),
            is_loopback: flags.contains(LinkFlags::Loopback),
            ..link::Link::default()
        };
        let mut interfaces = Interfaces::default();
        interfaces.add(found, &BTreeSet::from([7]));
        let expected = link.map(|link| Device {
            index: 7,
            name: "one".to_owned(),
            link,
            uplink: true,
            leads_elsewhere: false,
            may_be_a_pods: false,
        });
        assert_eq!(interfaces.devices, Vec::from_iter(expected));
        assert_eq!(interfaces.unfollowed, unfollowed);
    }

    #[test]
    fn only_default_routes_and_interfaces_trigger_a_list() {
        let heard = |kind: u16, prefix: u8| {
            let body = [2, prefix, 0, 0, 254, 4, 0, 1, 0, 0, 0, 0];
            passes(&netlink::message(kind, 0, &body))
        };
        let (new, deleted, new_link, done) = (24, 25, 16, 3);
        for (kind, prefix, expected) in [
            (new, 24, false),
            (deleted, 32, false),
            (new, 0, true),
            (deleted, 0, true),
            (new_link, 24, true),
            (done, 24, true),
        ] {
            assert_eq!(heard(kind, prefix), expected, "{kind} {prefix}");
        }
    }

    /// Returns whether the filter passes a message. It is tried on a Unix socket, since filters work alike on
    /// all sockets.
    fn passes(message: &[u8]) -> bool {
        let (from, to) = std::os::unix::net::UnixDatagram::pair().expect("a pair");
        SockRef::from(&to)
            .attach_filter(&without_other_routes())
            .expect("a filter");
        to.set_nonblocking(true).expect("no waiting");
        from.send(message).expect("sent");
        to.recv(&mut [0; 64]).is_ok()
    }

    #[rstest]
    #[case::pod(InfoKind::Veth, true, [true, true])]
    #[case::pod_by_netkit(InfoKind::Netkit, true, [true, true])]
    #[case::both_ends_here(InfoKind::Veth, false, [false, true])]
    #[case::virtual_machine(InfoKind::Tun, false, [false, true])]
    #[case::uplink_of_a_node_in_a_container(InfoKind::MacVlan, true, [false, false])]
    fn pairs(#[case] kind: InfoKind, #[case] elsewhere: bool, #[case] expected: [bool; 2]) {
        let found = link::Link {
            layer: LinkLayerType::Ether,
            kind: Some(kind),
            leads_elsewhere: elsewhere,
            ..link::Link::default()
        };
        let mut interfaces = Interfaces::default();
        interfaces.add(found, &BTreeSet::new());
        let device = &interfaces.devices[0];
        assert_eq!([device.leads_elsewhere, device.may_be_a_pods], expected);
    }
}
