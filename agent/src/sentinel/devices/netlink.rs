//! Requests to the kernel by rtnetlink, converted to local types. This module decides nothing.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use futures_util::TryStreamExt;
use ipnet::IpNet;
use pathproof_wire::service::Family;
use rtnetlink::packet_core::{DefaultNla, Emitable, NLA_F_NESTED};
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::link::{
    AfSpecInet, AfSpecInet6, AfSpecUnspec, In6AddrGenMode, Inet6IfaceFlags, InfoKind,
    LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use rtnetlink::packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteProtocol, RouteScope,
    RouteType,
};
use rtnetlink::{Handle, RouteMessageBuilder, new_connection};
use tokio::task::{JoinHandle, spawn_blocking};

use super::{DeviceError, ROUTE_PROTOCOL};
use crate::netlink::{self, routes};

const IFLA_INET_CONF: u16 = 1;
const IPV4_DEVCONF_FORWARDING: u16 = 1;
/// `RT_TABLE_LOCAL` and `RT_TABLE_MAIN`.
const TABLE_LOCAL: u8 = 255;
pub(super) const MAIN: u32 = 254;

/// A netlink socket in the network namespace of the thread that opened it.
pub(super) struct Netlink {
    pub(super) handle: Handle,
    task: JoinHandle<()>,
}

impl Drop for Netlink {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Link {
    pub(super) index: u32,
    pub(super) name: String,
    pub(super) veth: bool,
    /// Index of the other end; `None` if it is in another namespace.
    pub(super) peer: Option<u32>,
    pub(super) mac: Vec<u8>,
    pub(super) alias: Option<String>,
    pub(super) mtu: u32,
    pub(super) up: bool,
    pub(super) carrier: bool,
    /// Bridge, bond or VRF that the device belongs to.
    pub(super) controller: Option<u32>,
    pub(super) forwards_v4: bool,
    pub(super) has_v6: bool,
    /// Whether IPv6 is configured, so that the multicast route exists.
    pub(super) v6_ready: bool,
    /// Whether the kernel creates IPv6 addresses on the device.
    pub(super) makes_addresses: bool,
}

/// A route of any table, or the result of a lookup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Route {
    pub(super) destination: IpNet,
    pub(super) kind: RouteType,
    pub(super) table: u32,
    /// `None` if the route has several next hops, or none.
    pub(super) device: Option<u32>,
    pub(super) gateway: bool,
    /// Whether the route has the protocol number of the sentinel's routes.
    pub(super) ours: bool,
}

impl Route {
    pub(super) fn is_exactly(&self, address: IpAddr) -> bool {
        self.destination == IpNet::from(address)
    }

    fn of(message: &RouteMessage) -> Option<Self> {
        let any: IpAddr = match message.header.address_family {
            AddressFamily::Inet => Ipv4Addr::UNSPECIFIED.into(),
            AddressFamily::Inet6 => Ipv6Addr::UNSPECIFIED.into(),
            _ => return None,
        };
        let (mut address, mut table) = (any, message.header.table.into());
        let (mut device, mut gateway) = (None, false);
        for attribute in &message.attributes {
            match attribute {
                RouteAttribute::Destination(RouteAddress::Inet(v4)) => address = (*v4).into(),
                RouteAttribute::Destination(RouteAddress::Inet6(v6)) => address = (*v6).into(),
                RouteAttribute::Table(number) => table = *number,
                RouteAttribute::Oif(index) => device = Some(*index),
                RouteAttribute::Gateway(_)
                | RouteAttribute::Via(_)
                | RouteAttribute::MultiPath(_) => gateway = true,
                _ => {}
            }
        }
        let prefix = message.header.destination_prefix_length;
        Some(Self {
            destination: IpNet::new(address, prefix).ok()?,
            kind: message.header.kind,
            table,
            device,
            gateway,
            ours: message.header.protocol == RouteProtocol::Other(ROUTE_PROTOCOL),
        })
    }
}

/// The kernel's error number, positive.
pub(super) fn errno(error: &rtnetlink::Error) -> Option<i32> {
    match error {
        rtnetlink::Error::NetlinkError(message) => Some(-message.raw_code()),
        _ => None,
    }
}

/// Converts an error of rtnetlink. `operation` is the text that follows "cannot" in the message.
pub(super) fn failed(operation: impl Into<String>, error: rtnetlink::Error) -> DeviceError {
    let operation = operation.into();
    let source = match errno(&error) {
        Some(libc::EPERM) => return DeviceError::Permission { operation },
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::Error::other(error),
    };
    DeviceError::Refused { operation, source }
}

/// A message about the route to exactly `address`.
fn host_route(address: IpAddr) -> RouteMessage {
    let mut message = RouteMessage::default();
    let (number, bits) = netlink::family(address);
    message.header.address_family = number.into();
    message.header.destination_prefix_length = bits;
    message.attributes = vec![RouteAttribute::Destination(address.into())];
    message
}

/// The sentinel's host route to `address` by a device.
pub(super) fn own_route(address: IpAddr, device: u32) -> RouteMessage {
    let mut message = host_route(address);
    message.header.table = RouteHeader::RT_TABLE_MAIN;
    message.header.kind = RouteType::Unicast;
    message.header.scope = RouteScope::Link;
    message.header.protocol = RouteProtocol::Other(ROUTE_PROTOCOL);
    message.attributes.push(RouteAttribute::Oif(device));
    message
}

impl Netlink {
    /// Needs a tokio runtime.
    pub(super) fn open() -> Result<Self, DeviceError> {
        let (connection, handle, _) = new_connection().map_err(DeviceError::Open)?;
        let task = tokio::spawn(connection);
        Ok(Self { handle, task })
    }

    pub(super) async fn link(&self, name: &str) -> Result<Option<Link>, DeviceError> {
        let request = self.handle.link().get().match_name(name);
        match request.execute().try_next().await {
            Ok(message) => Ok(message.map(|message| link_of(&message))),
            Err(error) if errno(&error) == Some(libc::ENODEV) => Ok(None),
            Err(error) => Err(failed(format!("look up device {name}"), error)),
        }
    }

    pub(super) async fn neighbours(
        &self,
        family: Family,
        device: Option<u32>,
    ) -> Result<Vec<NeighbourMessage>, DeviceError> {
        let mut request = self.handle.neighbours().get();
        let message = request.message_mut();
        message.header.family = netlink::number(family).into();
        // The kernel filters by this attribute since 4.4; older ones return all.
        message
            .attributes
            .extend(device.map(NeighbourAttribute::IfIndex));
        let all: Result<Vec<_>, _> = request.execute().try_collect().await;
        let mut all = all.map_err(|error| failed("list neighbours", error))?;
        all.retain(|one| device.is_none_or(|device| device == one.header.ifindex));
        Ok(all)
    }

    /// Adds a host route; `Ok(false)` if a route to the address exists.
    pub(super) async fn add_route(
        &self,
        link: &Link,
        address: IpAddr,
    ) -> Result<bool, DeviceError> {
        let message = own_route(address, link.index);
        match self.handle.route().add(message).execute().await {
            Ok(()) => Ok(true),
            Err(error) if errno(&error) == Some(libc::EEXIST) => Ok(false),
            Err(error) => Err(failed(
                format!("add route {address} by {}", link.name),
                error,
            )),
        }
    }

    /// Removes the route ff00::/8, which the kernel adds to every device with IPv6: otherwise other
    /// programs' multicast could leave by the sentinel's devices.
    pub(super) async fn drop_multicast_route(&self, link: &Link) -> Result<(), DeviceError> {
        let all = Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0);
        let mut message = RouteMessageBuilder::<Ipv6Addr>::new()
            .destination_prefix(all, 8)
            .output_interface(link.index)
            .kind(RouteType::Multicast)
            .build();
        message.header.table = TABLE_LOCAL;
        message.header.protocol = RouteProtocol::Unspec;
        match self.handle.route().del(message).execute().await {
            Ok(()) => Ok(()),
            Err(error) if errno(&error) == Some(libc::ESRCH) => Ok(()),
            Err(error) => {
                let what = format!("remove the route ff00::/8 of {}", link.name);
                Err(failed(what, error))
            }
        }
    }

    /// Requests the route to an address: the matching table entry, with policy rules applied. With `from`,
    /// the lookup is for a packet that enters by that device from that address, otherwise for a packet of the
    /// node itself. Mark 0 is no mark.
    pub(super) async fn lookup(
        &self,
        address: IpAddr,
        from: Option<(u32, IpAddr)>,
        mark: u32,
    ) -> Result<Route, rtnetlink::Error> {
        let mut question = host_route(address);
        question.header.flags = RouteFlags::FibMatch | RouteFlags::LookupTable;
        if let Some((device, source)) = from {
            question.header.source_prefix_length = question.header.destination_prefix_length;
            question.attributes.push(RouteAttribute::Iif(device));
            let source = RouteAttribute::Source(source.into());
            question.attributes.push(source);
        }
        if mark != 0 {
            question.attributes.push(RouteAttribute::Mark(mark));
        }
        let mut answers = self.handle.route().get(question).execute();
        let answer = answers.try_next().await?;
        answer
            .and_then(|route| Route::of(&route))
            .ok_or(rtnetlink::Error::RequestFailed)
    }
}

/// Name of a device, or its index if the device is gone.
pub(super) fn name_of(index: u32) -> String {
    netlink::name_of(index).unwrap_or_else(|_| format!("device {index}"))
}

/// Routes of every table that `wanted` selects, and the sentinel's routes.
pub(super) async fn routes(
    family: Family,
    wanted: impl Fn(IpNet) -> bool + Send + 'static,
) -> Result<Vec<Route>, DeviceError> {
    let wanted = move |to, protocol| protocol == ROUTE_PROTOCOL || wanted(to);
    let listed = spawn_blocking(move || routes::list(family, wanted)).await;
    let listed = listed.map_err(io::Error::other).flatten();
    let listed = listed.map_err(|source| DeviceError::Refused {
        operation: "list routes".to_owned(),
        source,
    })?;
    Ok(listed.iter().filter_map(Route::of).collect())
}

/// Disables IPv4 forwarding on one device. The attribute is encoded here, because the library omits zero
/// values.
pub(super) fn forwarding_off() -> LinkAttribute {
    let value = DefaultNla::new(IPV4_DEVCONF_FORWARDING, 0_u32.to_ne_bytes().to_vec());
    let mut bytes = vec![0; value.buffer_len()];
    value.emit(&mut bytes);
    let conf = DefaultNla::new(IFLA_INET_CONF | NLA_F_NESTED, bytes);
    LinkAttribute::AfSpecUnspec(vec![AfSpecUnspec::Inet(vec![AfSpecInet::Other(conf)])])
}

/// Prevents the kernel from creating a link-local address.
pub(super) fn no_addresses() -> LinkAttribute {
    let mode = AfSpecInet6::AddrGenMode(In6AddrGenMode::None);
    LinkAttribute::AfSpecUnspec(vec![AfSpecUnspec::Inet6(vec![mode])])
}

fn link_of(message: &LinkMessage) -> Link {
    let flags = message.header.flags;
    let mut link = Link {
        index: message.header.index,
        up: flags.contains(LinkFlags::Up),
        carrier: flags.contains(LinkFlags::LowerUp),
        ..Link::default()
    };
    let mut elsewhere = false;
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name.clone_from(name),
            LinkAttribute::Address(mac) => link.mac.clone_from(mac),
            LinkAttribute::IfAlias(alias) => link.alias = Some(alias.clone()),
            LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
            LinkAttribute::Link(peer) => link.peer = Some(*peer),
            LinkAttribute::LinkNetNsId(_) => elsewhere = true,
            LinkAttribute::Controller(index) => link.controller = (*index != 0).then_some(*index),
            LinkAttribute::LinkInfo(infos) => {
                link.veth = infos.contains(&LinkInfo::Kind(InfoKind::Veth));
            }
            LinkAttribute::AfSpecUnspec(specs) => {
                specs.iter().for_each(|spec| read_family(&mut link, spec));
            }
            _ => {}
        }
    }
    if elsewhere {
        link.peer = None;
    }
    link
}

fn read_family(link: &mut Link, spec: &AfSpecUnspec) {
    match spec {
        AfSpecUnspec::Inet(values) => {
            for value in values {
                if let AfSpecInet::DevConf(conf) = value {
                    link.forwards_v4 = conf.forwarding != 0;
                }
            }
        }
        AfSpecUnspec::Inet6(values) => {
            (link.has_v6, link.makes_addresses) = (true, true);
            values.iter().for_each(|value| read_v6(link, value));
        }
        _ => {}
    }
}

fn read_v6(link: &mut Link, value: &AfSpecInet6) {
    match value {
        AfSpecInet6::Flags(flags) => link.v6_ready = flags.contains(Inet6IfaceFlags::Ready),
        AfSpecInet6::DevConf(conf) => link.has_v6 = conf.disable_ipv6 == 0,
        AfSpecInet6::AddrGenMode(mode) => link.makes_addresses = *mode != In6AddrGenMode::None,
        _ => {}
    }
}

/// Address, hardware address, and whether the neighbour is permanent.
pub(super) fn neighbour_of(message: &NeighbourMessage) -> Option<(IpAddr, Vec<u8>, bool)> {
    let (mut address, mut mac) = (None, Vec::new());
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(v4)) => {
                address = Some(IpAddr::V4(*v4));
            }
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(v6)) => {
                address = Some(IpAddr::V6(*v6));
            }
            NeighbourAttribute::LinkLayerAddress(bytes) => mac.clone_from(bytes),
            _ => {}
        }
    }
    let permanent = message.header.state == NeighbourState::Permanent;
    Some((address?, mac, permanent))
}
