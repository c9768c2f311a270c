//! Questions and orders to the kernel by rtnetlink, in our own types. Decides nothing.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use agent_common::service::Family;
use futures_util::{StreamExt, TryStreamExt};
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
use rtnetlink::{Handle, LinkMessageBuilder, LinkUnspec, RouteMessageBuilder, new_connection};
use tokio::task::JoinHandle;

use super::{DeviceError, HardwareAddress, ROUTE_PROTOCOL};

/// `IFLA_INET_CONF` of `linux/if_link.h`.
const IFLA_INET_CONF: u16 = 1;
/// `IPV4_DEVCONF_FORWARDING` of `linux/ip.h`.
const IPV4_DEVCONF_FORWARDING: u16 = 1;
/// `RT_TABLE_LOCAL`.
const TABLE_LOCAL: u8 = 255;

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

/// What the kernel says of a device.
#[derive(Clone, Debug, Default)]
pub(super) struct Link {
    pub(super) index: u32,
    pub(super) name: String,
    pub(super) veth: bool,
    /// Index of the other end; `None` where that lies in another namespace.
    pub(super) peer: Option<u32>,
    pub(super) mac: Vec<u8>,
    pub(super) alias: Option<String>,
    pub(super) mtu: u32,
    pub(super) up: bool,
    pub(super) carrier: bool,
    /// Bridge, bond or VRF that it belongs to.
    pub(super) controller: Option<u32>,
    pub(super) forwards_v4: bool,
    /// `None` where the device has no IPv6 at all.
    pub(super) v6: Option<LinkV6>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct LinkV6 {
    pub(super) disabled: bool,
    /// Autoconfiguration has begun: the multicast route is there.
    pub(super) ready: bool,
    pub(super) makes_addresses: bool,
}

impl Link {
    /// Whether IPv6 works on it.
    pub(super) fn has_v6(&self) -> bool {
        self.v6.is_some_and(|v6| !v6.disabled)
    }
}

/// What a lookup in the routing tables gave.
#[derive(Clone, Debug)]
pub(super) struct Lookup {
    pub(super) kind: RouteType,
    pub(super) device: Option<u32>,
    pub(super) gateway: bool,
    pub(super) prefix: u8,
    pub(super) table: u32,
}

/// The error number that the kernel answered, positive.
pub(super) fn errno(error: &rtnetlink::Error) -> Option<i32> {
    match error {
        rtnetlink::Error::NetlinkError(message) => Some(-message.raw_code()),
        _ => None,
    }
}

pub(super) fn io_error(error: rtnetlink::Error) -> io::Error {
    match errno(&error) {
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::Error::other(error),
    }
}

/// The error of an operation, told in words as what follows "cannot".
pub(super) fn failed(operation: impl Into<String>, error: rtnetlink::Error) -> DeviceError {
    let operation = operation.into();
    match errno(&error) {
        Some(libc::EPERM) => DeviceError::Permission { operation },
        _ => DeviceError::Refused {
            operation,
            source: io_error(error),
        },
    }
}

fn netlink_family(family: Family) -> AddressFamily {
    match family {
        Family::V4 => AddressFamily::Inet,
        Family::V6 => AddressFamily::Inet6,
    }
}

/// A host route's message: `address` alone, by `device`.
fn host_route(address: IpAddr, device: u32) -> RouteMessage {
    let mut message = match address {
        IpAddr::V4(v4) => RouteMessageBuilder::<Ipv4Addr>::new()
            .destination_prefix(v4, 32)
            .build(),
        IpAddr::V6(v6) => RouteMessageBuilder::<Ipv6Addr>::new()
            .destination_prefix(v6, 128)
            .build(),
    };
    message.header.scope = RouteScope::Link;
    message.header.protocol = RouteProtocol::Other(ROUTE_PROTOCOL);
    message.attributes.push(RouteAttribute::Oif(device));
    message
}

impl Netlink {
    /// Needs a tokio runtime.
    pub(super) fn open() -> Result<Self, DeviceError> {
        let (connection, handle, _) =
            new_connection().map_err(|source| DeviceError::Open { source })?;
        let task = tokio::spawn(connection);
        Ok(Self { handle, task })
    }

    /// The device of a name, if there is one.
    pub(super) async fn link(&self, name: &str) -> Result<Option<Link>, DeviceError> {
        let request = self.handle.link().get().match_name(name);
        match request.execute().try_next().await {
            Ok(message) => Ok(message.map(|message| link_of(&message))),
            Err(error) if errno(&error) == Some(libc::ENODEV) => Ok(None),
            Err(error) => Err(failed(format!("look up device {name}"), error)),
        }
    }

    /// Name of a device, or its index where it is gone.
    pub(super) async fn name_of(&self, index: u32) -> String {
        let request = self.handle.link().get().match_index(index);
        match request.execute().try_next().await {
            Ok(Some(message)) => link_of(&message).name,
            _ => format!("device {index}"),
        }
    }

    /// Changes a device. `change` is given a builder that names it.
    pub(super) async fn set(
        &self,
        link: &Link,
        what: &str,
        change: impl FnOnce(LinkMessageBuilder<LinkUnspec>) -> LinkMessageBuilder<LinkUnspec>,
    ) -> Result<(), DeviceError> {
        let message = change(LinkUnspec::new_with_index(link.index)).build();
        let done = self.handle.link().set(message).execute().await;
        done.map_err(|error| failed(format!("set {what} of {}", link.name), error))
    }

    /// Neighbours of a family, on one device or all.
    pub(super) async fn neighbours(
        &self,
        family: Family,
        device: Option<u32>,
    ) -> Result<Vec<NeighbourMessage>, DeviceError> {
        let mut request = self.handle.neighbours().get();
        let message = request.message_mut();
        message.header.family = netlink_family(family);
        // The kernel filters by this attribute since 4.4; an older one answers with all.
        message
            .attributes
            .extend(device.map(NeighbourAttribute::IfIndex));
        let all: Result<Vec<_>, _> = request.execute().try_collect().await;
        let mut all = all.map_err(|error| failed("list neighbours", error))?;
        all.retain(|one| device.is_none_or(|device| device == one.header.ifindex));
        Ok(all)
    }

    /// Adds a permanent neighbour, or makes it so.
    pub(super) async fn put_neighbour(
        &self,
        link: &Link,
        address: IpAddr,
        mac: HardwareAddress,
    ) -> Result<(), DeviceError> {
        let request = self.handle.neighbours().add(link.index, address).replace();
        let done = request
            .state(NeighbourState::Permanent)
            .link_layer_address(&mac.0)
            .execute()
            .await;
        done.map_err(|error| failed(format!("add neighbour {address} to {}", link.name), error))
    }

    /// All routes of a family, in every table.
    pub(super) async fn routes(&self, family: Family) -> Result<Vec<RouteMessage>, DeviceError> {
        let mut question = RouteMessage::default();
        question.header.address_family = netlink_family(family);
        let mut answers = self.handle.route().get(question).execute();
        let mut routes = Vec::new();
        while let Some(answer) = answers.next().await {
            match answer {
                Ok(route) => routes.push(route),
                // A kernel without IPv6 has no such table.
                Err(rtnetlink::Error::NetlinkError(_)) if family == Family::V6 => break,
                Err(error) => return Err(failed("list routes", error)),
            }
        }
        Ok(routes)
    }

    /// Adds a host route of ours; `Ok(false)` where a route to the address is there.
    pub(super) async fn add_route(
        &self,
        link: &Link,
        address: IpAddr,
    ) -> Result<bool, DeviceError> {
        let message = host_route(address, link.index);
        match self.handle.route().add(message).execute().await {
            Ok(()) => Ok(true),
            Err(error) if errno(&error) == Some(libc::EEXIST) => Ok(false),
            Err(error) => Err(failed(
                format!("add route {address} by {}", link.name),
                error,
            )),
        }
    }

    /// Removes the route ff00::/8 that the kernel gives every device with IPv6: without it no
    /// program's multicast takes our devices for a way out. Whether there was one.
    pub(super) async fn drop_multicast_route(&self, index: u32) -> Result<bool, rtnetlink::Error> {
        let all = Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0);
        let mut message = RouteMessageBuilder::<Ipv6Addr>::new()
            .destination_prefix(all, 8)
            .output_interface(index)
            .kind(RouteType::Multicast)
            .build();
        message.header.table = TABLE_LOCAL;
        message.header.protocol = RouteProtocol::Unspec;
        match self.handle.route().del(message).execute().await {
            Ok(()) => Ok(true),
            Err(error) if errno(&error) == Some(libc::ESRCH) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Which route the node takes to an address: the tables' entry, policy rules applied. With
    /// `from`, for a packet that comes in by that device from that address.
    pub(super) async fn lookup(
        &self,
        address: IpAddr,
        from: Option<(u32, IpAddr)>,
    ) -> Result<Lookup, rtnetlink::Error> {
        let mut question = host_route(address, 0);
        question.header = RouteHeader {
            address_family: question.header.address_family,
            destination_prefix_length: question.header.destination_prefix_length,
            flags: RouteFlags::FibMatch | RouteFlags::LookupTable,
            ..RouteHeader::default()
        };
        question
            .attributes
            .retain(|one| matches!(one, RouteAttribute::Destination(_)));
        if let Some((device, source)) = from {
            question.header.source_prefix_length = question.header.destination_prefix_length;
            question.attributes.push(RouteAttribute::Iif(device));
            question
                .attributes
                .push(RouteAttribute::Source(RouteAddress::from(source)));
        }
        let mut answers = self.handle.route().get(question).execute();
        let answer = answers.try_next().await?;
        answer
            .map(|route| lookup_of(&route))
            .ok_or(rtnetlink::Error::RequestFailed)
    }
}

/// Sets IPv4 forwarding of one device off: as a raw attribute, since the library leaves out what
/// is zero.
pub(super) fn forwarding_off() -> LinkAttribute {
    let value = DefaultNla::new(IPV4_DEVCONF_FORWARDING, 0_u32.to_ne_bytes().to_vec());
    let mut bytes = vec![0; value.buffer_len()];
    value.emit(&mut bytes);
    let conf = DefaultNla::new(IFLA_INET_CONF | NLA_F_NESTED, bytes);
    LinkAttribute::AfSpecUnspec(vec![AfSpecUnspec::Inet(vec![AfSpecInet::Other(conf)])])
}

/// Lets the kernel make no link-local address.
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
            LinkAttribute::AfSpecUnspec(specs) => read_families(&mut link, specs),
            _ => {}
        }
    }
    if elsewhere {
        link.peer = None;
    }
    link
}

fn read_families(link: &mut Link, specs: &[AfSpecUnspec]) {
    for spec in specs {
        match spec {
            AfSpecUnspec::Inet(values) => {
                for value in values {
                    if let AfSpecInet::DevConf(conf) = value {
                        link.forwards_v4 = conf.forwarding != 0;
                    }
                }
            }
            AfSpecUnspec::Inet6(values) => link.v6 = Some(link_v6(values)),
            _ => {}
        }
    }
}

fn link_v6(values: &[AfSpecInet6]) -> LinkV6 {
    let mut v6 = LinkV6 {
        disabled: false,
        ready: false,
        makes_addresses: true,
    };
    for value in values {
        match value {
            AfSpecInet6::Flags(flags) => v6.ready = flags.contains(Inet6IfaceFlags::Ready),
            AfSpecInet6::DevConf(conf) => v6.disabled = conf.disable_ipv6 != 0,
            AfSpecInet6::AddrGenMode(mode) => v6.makes_addresses = *mode != In6AddrGenMode::None,
            _ => {}
        }
    }
    v6
}

fn lookup_of(route: &RouteMessage) -> Lookup {
    let mut lookup = Lookup {
        kind: route.header.kind,
        device: None,
        gateway: false,
        prefix: route.header.destination_prefix_length,
        table: route.header.table.into(),
    };
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::Oif(index) => lookup.device = Some(*index),
            RouteAttribute::Gateway(_) | RouteAttribute::Via(_) => lookup.gateway = true,
            RouteAttribute::Table(table) => lookup.table = *table,
            _ => {}
        }
    }
    lookup
}

/// Address, hardware address and whether it is permanent.
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
