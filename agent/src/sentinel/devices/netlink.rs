//! Requests to the kernel by netlink, with local types. Decides nothing.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use netlink_packet_core::{DefaultNla, Emitable, NLA_F_NESTED};
use netlink_packet_route::link::{
    AfSpecInet, AfSpecInet6, AfSpecUnspec, In6AddrGenMode, Inet6IfaceFlags, InfoData, InfoKind,
    InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteProtocol, RouteScope,
    RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use pathproof_wire::service::Family;
use tokio::task::spawn_blocking;

use super::{DeviceError, Mac, ROUTE_PROTOCOL};
use crate::netlink::{CREATE, EXCLUSIVE, REPLACE, change, get, list, name_of, routes};

/// `IFLA_INET_CONF` of `linux/if_link.h`.
const IFLA_INET_CONF: u16 = 1;
/// `IPV4_DEVCONF_FORWARDING` of `linux/ip.h`.
const IPV4_DEVCONF_FORWARDING: u16 = 1;
/// `RT_TABLE_LOCAL` and `RT_TABLE_MAIN`.
const TABLE_LOCAL: u8 = 255;
pub(super) const MAIN: u32 = 254;

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
    /// Bridge, bond or VRF that it belongs to.
    pub(super) controller: Option<u32>,
    pub(super) forwards_v4: bool,
    pub(super) has_v6: bool,
    /// IPv6 is configured: the multicast route exists.
    pub(super) v6_ready: bool,
    /// The kernel creates IPv6 addresses on it.
    pub(super) makes_addresses: bool,
}

/// A route of any table, or the result of a lookup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Route {
    pub(super) destination: IpNet,
    pub(super) kind: RouteType,
    pub(super) table: u32,
    /// `None` for several next hops or none.
    pub(super) device: Option<u32>,
    /// It has a next hop behind the device.
    pub(super) gateway: bool,
    /// It has the protocol number of the sentinel's routes.
    pub(super) ours: bool,
}

impl Route {
    /// Whether it leads to exactly this address.
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

/// The error of an operation, which is text that follows "cannot".
pub(super) fn failed(operation: impl Into<String>) -> impl FnOnce(io::Error) -> DeviceError {
    let operation = operation.into();
    move |source| match source.raw_os_error() {
        Some(libc::EPERM) => DeviceError::Permission { operation },
        _ => DeviceError::Refused { operation, source },
    }
}

/// Whether the kernel carried out a request; false if it refused with this error number.
pub(super) fn unless(code: i32, done: io::Result<()>) -> io::Result<bool> {
    match done {
        Err(error) if error.raw_os_error() == Some(code) => Ok(false),
        done => done.map(|()| true),
    }
}

pub(super) fn link(name: &str) -> Result<Option<Link>, DeviceError> {
    let mut question = LinkMessage::default();
    question.attributes = vec![LinkAttribute::IfName(name.to_owned())];
    match get(RouteNetlinkMessage::GetLink(question)) {
        Ok(message) => Ok(Some(link_of(&message))),
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
        Err(error) => Err(failed(format!("look up device {name}"))(error)),
    }
}

/// Name of a device, or its index if the device is gone.
pub(super) fn name_or_index(index: u32) -> String {
    name_of(index).unwrap_or_else(|_| format!("device {index}"))
}

/// Creates a veth pair. Each end has a name, a hardware address and other attributes.
pub(super) fn add_pair(near: Vec<LinkAttribute>, far: Vec<LinkAttribute>) -> io::Result<()> {
    let (mut pair, mut peer) = (LinkMessage::default(), LinkMessage::default());
    peer.attributes = far;
    pair.attributes = near;
    pair.attributes.push(LinkAttribute::LinkInfo(vec![
        LinkInfo::Kind(InfoKind::Veth),
        LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer))),
    ]));
    change(RouteNetlinkMessage::NewLink(pair), CREATE | EXCLUSIVE)
}

fn link_at(index: u32) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.header.index = index;
    message
}

pub(super) fn set_link(index: u32, attributes: Vec<LinkAttribute>) -> io::Result<()> {
    let mut message = link_at(index);
    message.attributes = attributes;
    change(RouteNetlinkMessage::SetLink(message), 0)
}

pub(super) fn set_link_up(index: u32) -> io::Result<()> {
    let mut message = link_at(index);
    message.header.flags = LinkFlags::Up;
    message.header.change_mask = LinkFlags::Up;
    change(RouteNetlinkMessage::SetLink(message), 0)
}

pub(super) fn remove_link(index: u32) -> io::Result<()> {
    change(RouteNetlinkMessage::DelLink(link_at(index)), 0)
}

/// Neighbours of a family, on one device or all.
pub(super) fn neighbours(
    family: Family,
    device: Option<u32>,
) -> Result<Vec<NeighbourMessage>, DeviceError> {
    let mut question = NeighbourMessage::default();
    question.header.family = match family {
        Family::V4 => AddressFamily::Inet,
        Family::V6 => AddressFamily::Inet6,
    };
    // The kernel filters by this attribute since 4.4; older ones return all.
    question
        .attributes
        .extend(device.map(NeighbourAttribute::IfIndex));
    let all: io::Result<Vec<NeighbourMessage>> = list(RouteNetlinkMessage::GetNeighbour(question));
    let mut all = all.map_err(failed("list neighbours"))?;
    all.retain(|one| device.is_none_or(|device| device == one.header.ifindex));
    Ok(all)
}

/// Adds a permanent neighbour, or replaces the one that has the address.
pub(super) fn put_neighbour(device: u32, address: IpAddr, mac: Mac) -> io::Result<()> {
    let mut message = NeighbourMessage::default();
    message.header.family = routes::to(address).header.address_family;
    message.header.ifindex = device;
    message.header.state = NeighbourState::Permanent;
    message.attributes = vec![
        NeighbourAttribute::Destination(address.into()),
        NeighbourAttribute::LinkLayerAddress(mac.to_vec()),
    ];
    change(RouteNetlinkMessage::NewNeighbour(message), CREATE | REPLACE)
}

pub(super) fn remove_neighbour(message: NeighbourMessage) -> io::Result<()> {
    change(RouteNetlinkMessage::DelNeighbour(message), 0)
}

/// The sentinel's host route to `address` by a device.
fn own_route(address: IpAddr, device: u32) -> RouteMessage {
    let mut message = routes::to(address);
    message.header.table = RouteHeader::RT_TABLE_MAIN;
    message.header.kind = RouteType::Unicast;
    message.header.scope = RouteScope::Link;
    message.header.protocol = RouteProtocol::Other(ROUTE_PROTOCOL);
    message.attributes.push(RouteAttribute::Oif(device));
    message
}

/// Adds a host route; `Ok(false)` if a route to the address exists.
pub(super) fn add_route(link: &Link, address: IpAddr) -> Result<bool, DeviceError> {
    let message = RouteNetlinkMessage::NewRoute(own_route(address, link.index));
    let added = unless(libc::EEXIST, change(message, CREATE | EXCLUSIVE));
    added.map_err(failed(format!("add route {address} by {}", link.name)))
}

pub(super) fn remove_route(link: &Link, address: IpAddr) -> Result<(), DeviceError> {
    let message = RouteNetlinkMessage::DelRoute(own_route(address, link.index));
    change(message, 0).map_err(failed(format!("remove route {address} of {}", link.name)))
}

/// Removes the route ff00::/8, which the kernel adds to every device with IPv6: otherwise other
/// programs' multicast could leave by the sentinel's devices.
pub(super) fn drop_multicast_route(link: &Link) -> Result<(), DeviceError> {
    let mut message = routes::to(Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0).into());
    message.header.destination_prefix_length = 8;
    message.header.table = TABLE_LOCAL;
    message.header.kind = RouteType::Multicast;
    message.attributes.push(RouteAttribute::Oif(link.index));
    let removed = change(RouteNetlinkMessage::DelRoute(message), 0);
    let what = format!("remove the route ff00::/8 of {}", link.name);
    unless(libc::ESRCH, removed).map_err(failed(what)).map(drop)
}

/// Looks up the node's route to an address: the matching table entry, with policy rules applied.
/// With `from`, for a packet from that address that enters by that device; mark 0 is no mark.
pub(super) fn lookup(address: IpAddr, from: Option<(IpAddr, u32)>, mark: u32) -> io::Result<Route> {
    let entry = RouteFlags::FibMatch | RouteFlags::LookupTable;
    let answer = routes::look_up(address, from, mark, entry)?;
    Route::of(&answer).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Routes of every table that `wanted` selects, and the sentinel's routes.
pub(super) async fn routes(
    family: Family,
    wanted: impl Fn(IpNet) -> bool + Send + 'static,
) -> Result<Vec<Route>, DeviceError> {
    let wanted = move |to, protocol| protocol == ROUTE_PROTOCOL || wanted(to);
    let listed = spawn_blocking(move || routes::list(family, wanted)).await;
    let listed = listed.map_err(io::Error::other).flatten();
    let listed = listed.map_err(failed("list routes"))?;
    Ok(listed.iter().filter_map(Route::of).collect())
}

/// Disables IPv4 forwarding on one device. As a raw attribute, since the library omits zero values.
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
            AfSpecUnspec::Inet6(values) => {
                (link.has_v6, link.makes_addresses) = (true, true);
                for value in values {
                    read_v6(link, value);
                }
            }
            _ => {}
        }
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
