//! The node's interfaces, as the kernel describes them now.

use std::io;

use rtnetlink::packet_core::Parseable as _;
use rtnetlink::packet_route::link::{
    AfSpecInet6, AfSpecUnspec, In6AddrGenMode, Inet6IfaceFlags, InfoBridge, InfoData, InfoKind,
    InfoPortKind, LinkAttribute, LinkFlags, LinkInfo, LinkLayerType, LinkMessage, LinkXdp,
    XdpAttached,
};

use crate::netlink::{request, unless};

/// Kinds of devices by which the node reaches its pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leads {
    /// To one other network namespace, as a pair.
    Elsewhere,
    /// To the other end of a pair in this namespace.
    Pair,
    /// To everything behind a bridge.
    Bridge,
}

/// An interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) index: u32,
    pub(crate) name: String,
    pub(crate) layer: LinkLayerType,
    pub(crate) kind: Option<InfoKind>,
    pub(crate) is_loopback: bool,
    pub(crate) up: bool,
    pub(crate) carrier: bool,
    pub(crate) mac: Vec<u8>,
    pub(crate) alias: Option<String>,
    pub(crate) mtu: u32,
    /// Index of the other end of a pair; `None` if it is in another namespace.
    pub(crate) peer: Option<u32>,
    /// Whether the other end or the lower device is in another network namespace.
    pub(crate) leads_elsewhere: bool,
    /// Bridge, bond or VRF that the interface belongs to.
    pub(crate) controller: Option<u32>,
    pub(crate) is_port_of_a_bridge: bool,
    /// Whether a bridge sends packets between its ports through netfilter, for IPv4 and IPv6.
    pub(crate) calls_tables: [bool; 2],
    pub(crate) has_xdp: bool,
    pub(crate) has_v6: bool,
    /// Whether IPv6 is configured, so that the multicast route exists.
    pub(crate) v6_ready: bool,
    /// Whether the kernel creates IPv6 addresses on the interface.
    pub(crate) makes_addresses: bool,
}

pub(crate) fn read(index: u32) -> io::Result<Link> {
    let mut question = LinkMessage::default();
    question.header.index = index;
    parse(&request(libc::RTM_GETLINK, 0, &question)?)
}

/// The interface with this name, if there is one.
pub(crate) fn named(name: &str) -> io::Result<Option<Link>> {
    let mut question = LinkMessage::default();
    question.attributes = vec![LinkAttribute::IfName(name.to_owned())];
    let asked = unless(libc::ENODEV, request(libc::RTM_GETLINK, 0, &question))?;
    asked.map(|body| parse(&body)).transpose()
}

pub(crate) fn parse(body: &[u8]) -> io::Result<Link> {
    let message = LinkMessage::parse(body).map_err(io::Error::other)?;
    Ok(Link::of(&message))
}

impl Link {
    pub(crate) fn of(message: &LinkMessage) -> Self {
        let flags = message.header.flags;
        let mut link = Self {
            index: message.header.index,
            layer: message.header.link_layer_type,
            is_loopback: flags.contains(LinkFlags::Loopback),
            up: flags.contains(LinkFlags::Up),
            carrier: flags.contains(LinkFlags::LowerUp),
            ..Self::default()
        };
        message.attributes.iter().for_each(|found| link.add(found));
        if link.leads_elsewhere {
            link.peer = None;
        }
        link
    }

    /// Index of the bridge that it is a port of.
    pub(crate) fn bridge(&self) -> Option<u32> {
        self.controller.filter(|_| self.is_port_of_a_bridge)
    }

    /// `None` if it does not lead to pods.
    pub(crate) fn leads(&self) -> Option<Leads> {
        match self.kind.as_ref()? {
            InfoKind::Veth | InfoKind::Netkit if self.leads_elsewhere => Some(Leads::Elsewhere),
            InfoKind::Veth | InfoKind::Netkit => Some(Leads::Pair),
            InfoKind::Bridge => Some(Leads::Bridge),
            InfoKind::Other(kind) if kind == "openvswitch" => Some(Leads::Bridge),
            _ => None,
        }
    }

    fn add(&mut self, attribute: &LinkAttribute) {
        match attribute {
            LinkAttribute::IfName(name) => self.name.clone_from(name),
            LinkAttribute::Address(mac) => self.mac.clone_from(mac),
            LinkAttribute::IfAlias(alias) => self.alias = Some(alias.clone()),
            LinkAttribute::Mtu(mtu) => self.mtu = *mtu,
            LinkAttribute::Link(peer) => self.peer = Some(*peer),
            LinkAttribute::LinkNetNsId(_) => self.leads_elsewhere = true,
            LinkAttribute::Controller(index) => self.controller = (*index != 0).then_some(*index),
            LinkAttribute::Xdp(xdp) => self.has_xdp = xdp.iter().any(is_attached),
            LinkAttribute::LinkInfo(infos) => infos.iter().for_each(|info| self.add_info(info)),
            LinkAttribute::AfSpecUnspec(specs) => {
                specs.iter().for_each(|spec| self.add_family(spec));
            }
            _ => {}
        }
    }

    fn add_info(&mut self, info: &LinkInfo) {
        match info {
            LinkInfo::Kind(kind) => self.kind = Some(kind.clone()),
            LinkInfo::PortKind(kind) => self.is_port_of_a_bridge = *kind == InfoPortKind::Bridge,
            LinkInfo::Data(InfoData::Bridge(switches)) => {
                for switch in switches {
                    match switch {
                        InfoBridge::NfCallIpTables(calls) => self.calls_tables[0] = *calls,
                        InfoBridge::NfCallIp6Tables(calls) => self.calls_tables[1] = *calls,
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }

    fn add_family(&mut self, spec: &AfSpecUnspec) {
        if let AfSpecUnspec::Inet6(values) = spec {
            (self.has_v6, self.makes_addresses) = (true, true);
            values.iter().for_each(|value| self.add_v6(value));
        }
    }

    fn add_v6(&mut self, value: &AfSpecInet6) {
        match value {
            AfSpecInet6::Flags(flags) => self.v6_ready = flags.contains(Inet6IfaceFlags::Ready),
            AfSpecInet6::DevConf(conf) => self.has_v6 = conf.disable_ipv6 == 0,
            AfSpecInet6::AddrGenMode(mode) => self.makes_addresses = *mode != In6AddrGenMode::None,
            _ => {}
        }
    }
}

fn is_attached(xdp: &LinkXdp) -> bool {
    matches!(xdp, LinkXdp::Attached(how) if *how != XdpAttached::None)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn link(attributes: Vec<LinkAttribute>) -> Link {
        let mut message = LinkMessage::default();
        message.attributes = attributes;
        Link::of(&message)
    }

    fn of_kind(kind: InfoKind) -> LinkAttribute {
        LinkAttribute::LinkInfo(vec![LinkInfo::Kind(kind)])
    }

    #[rstest]
    #[case::port(InfoPortKind::Bridge, Some(9))]
    // Ports of a bond or a VRF have a controller too, but it is no bridge.
    #[case::in_a_vrf(InfoPortKind::Vrf, None)]
    fn a_port_names_its_bridge(#[case] kind: InfoPortKind, #[case] bridge: Option<u32>) {
        let port = link(vec![
            LinkAttribute::Controller(9),
            LinkAttribute::LinkInfo(vec![LinkInfo::PortKind(kind)]),
        ]);
        assert_eq!((port.controller, port.bridge()), (Some(9), bridge));
    }

    #[test]
    fn a_bridge_has_a_switch_for_each_family() {
        let switches = vec![
            InfoBridge::NfCallIpTables(false),
            InfoBridge::NfCallIp6Tables(true),
        ];
        let bridge = link(vec![LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Bridge),
            LinkInfo::Data(InfoData::Bridge(switches)),
        ])]);
        assert_eq!(bridge.calls_tables, [false, true]);
    }

    #[rstest]
    #[case::of_a_pod(InfoKind::Veth, true, Some(Leads::Elsewhere))]
    #[case::of_cilium(InfoKind::Veth, false, Some(Leads::Pair))]
    #[case::bridge(InfoKind::Bridge, false, Some(Leads::Bridge))]
    #[case::open_vswitch(InfoKind::Other("openvswitch".to_owned()), false, Some(Leads::Bridge))]
    #[case::tunnel(InfoKind::Vxlan, false, None)]
    #[case::tunnel_to_elsewhere(InfoKind::IpIp, true, None)]
    #[case::vlan(InfoKind::Vlan, false, None)]
    fn what_leads_to_pods(
        #[case] kind: InfoKind,
        #[case] elsewhere: bool,
        #[case] leads: Option<Leads>,
    ) {
        let mut attributes = vec![of_kind(kind)];
        attributes.extend(elsewhere.then_some(LinkAttribute::LinkNetNsId(0)));
        assert_eq!(link(attributes).leads(), leads);
    }

    #[test]
    fn a_network_card_does_not_lead_to_pods() {
        assert_eq!(link(vec![LinkAttribute::Controller(9)]).leads(), None);
    }

    #[test]
    fn a_peer_elsewhere_is_not_known_by_its_index() {
        let here = vec![of_kind(InfoKind::Veth), LinkAttribute::Link(9)];
        let elsewhere = [&here[..], &[LinkAttribute::LinkNetNsId(0)]].concat();
        assert_eq!(link(here).peer, Some(9));
        assert_eq!(link(elsewhere).peer, None);
    }
}
