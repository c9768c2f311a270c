//! Bridges and pods' devices among the node's interfaces, as the kernel describes them now.

use std::io;

use netlink_sys::protocols::NETLINK_ROUTE;

use crate::netlink::{ask, find, word};

/// Length of `struct ifinfomsg`.
const HEADER: usize = 16;
/// Attributes of interfaces: `IFLA_MASTER`, `IFLA_LINK_NETNSID`, and `IFLA_LINKINFO` with its
/// `IFLA_INFO_KIND`, `IFLA_INFO_DATA` and `IFLA_INFO_SLAVE_KIND`.
const MASTER: u16 = 10;
const OTHER_NAMESPACE: u16 = 37;
const INFO: u16 = 18;
const KIND: u16 = 1;
const DATA: u16 = 2;
const PORT_KIND: u16 = 4;
/// `IFLA_BR_NF_CALL_IPTABLES` and `IFLA_BR_NF_CALL_IP6TABLES`.
const CALL_TABLES: [u16; 2] = [36, 37];

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

/// An interface's part in bridging, and what it leads to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// Index of the bridge that it is a port of.
    pub(crate) bridge: Option<u32>,
    /// If it is a bridge, whether it sends packets between its ports through netfilter, for IPv4 and IPv6.
    pub(crate) calls_tables: Option<[bool; 2]>,
    /// `None` if it does not lead to pods.
    pub(crate) leads: Option<Leads>,
}

pub(crate) fn read(index: u32) -> io::Result<Link> {
    let mut question = [0; HEADER];
    question[4..8].copy_from_slice(&index.to_ne_bytes());
    let body = ask(NETLINK_ROUTE, (libc::RTM_GETLINK, 0), &question)?;
    Ok(body.get(HEADER..).map(parse).unwrap_or_default())
}

pub fn parse(attributes: &[u8]) -> Link {
    let info = find(attributes, INFO).unwrap_or_default();
    let is_bridge =
        |kind: u16| find(info, kind).is_some_and(|name| name == b"bridge\0" || name == b"bridge");
    let master = || word(find(attributes, MASTER)?, 0);
    let kind = find(info, KIND).unwrap_or_default();
    let leads = match kind.strip_suffix(b"\0").unwrap_or(kind) {
        b"veth" | b"netkit" if find(attributes, OTHER_NAMESPACE).is_some() => {
            Some(Leads::Elsewhere)
        }
        b"veth" | b"netkit" => Some(Leads::Pair),
        b"bridge" | b"openvswitch" => Some(Leads::Bridge),
        _ => None,
    };
    let calls = |data: &[u8]| CALL_TABLES.map(|switch| find(data, switch) == Some(&[1][..]));
    Link {
        bridge: is_bridge(PORT_KIND).then(master).flatten(),
        calls_tables: is_bridge(KIND).then(|| calls(find(info, DATA).unwrap_or_default())),
        leads,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::netlink::attribute;

    fn info(parts: &[(u16, &[u8])]) -> Vec<u8> {
        let nested: Vec<u8> = parts
            .iter()
            .flat_map(|(kind, bytes)| attribute(*kind, bytes))
            .collect();
        attribute(INFO, &nested)
    }

    #[test]
    fn a_port_names_its_bridge() {
        let mut port = attribute(MASTER, &9_u32.to_ne_bytes());
        port.extend(info(&[(KIND, b"veth\0"), (PORT_KIND, b"bridge\0")]));
        let expected = Link {
            bridge: Some(9),
            leads: Some(Leads::Pair),
            ..Link::default()
        };
        assert_eq!(parse(&port), expected);
        // Ports of a bond or a VRF have a master too, but it is no bridge.
        let mut other = attribute(MASTER, &9_u32.to_ne_bytes());
        other.extend(info(&[(PORT_KIND, b"vrf\0")]));
        assert_eq!(parse(&other), Link::default());
    }

    #[test]
    fn a_bridge_has_a_switch_for_each_family() {
        let data: Vec<u8> = [(CALL_TABLES[0], 0), (CALL_TABLES[1], 1)]
            .iter()
            .flat_map(|(kind, on)| attribute(*kind, &[*on]))
            .collect();
        let bridge = info(&[(KIND, b"bridge\0"), (DATA, &data)]);
        assert_eq!(parse(&bridge).calls_tables, Some([false, true]));
    }

    #[rstest]
    #[case::of_a_pod(b"veth\0", true, Some(Leads::Elsewhere))]
    #[case::of_cilium(b"veth\0", false, Some(Leads::Pair))]
    #[case::bridge(b"bridge\0", false, Some(Leads::Bridge))]
    #[case::tunnel(b"vxlan\0", false, None)]
    #[case::tunnel_to_elsewhere(b"ipip\0", true, None)]
    #[case::vlan(b"vlan", false, None)]
    fn what_leads_to_pods(
        #[case] kind: &[u8],
        #[case] elsewhere: bool,
        #[case] leads: Option<Leads>,
    ) {
        let mut link = info(&[(KIND, kind)]);
        if elsewhere {
            link.extend(attribute(OTHER_NAMESPACE, &0_u32.to_ne_bytes()));
        }
        assert_eq!(parse(&link).leads, leads);
    }

    #[test]
    fn a_network_card_does_not_lead_to_pods() {
        assert_eq!(parse(&attribute(MASTER, &9_u32.to_ne_bytes())).leads, None);
    }

    #[test]
    fn incomplete_answers_are_no_bridge() {
        let mut port = attribute(MASTER, &9_u32.to_ne_bytes());
        port.extend(info(&[(KIND, b"veth\0"), (PORT_KIND, b"bridge\0")]));
        for length in 0..port.len() {
            let _ = parse(&port[..length]);
        }
        assert_eq!(parse(&port[..6]), Link::default());
    }
}
