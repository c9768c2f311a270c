//! Settings of Service routing in this node's kernel: whether it forwards, and who programs the rules. This
//! module only reads these settings. They do not show whether anything works.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{fs, io};

use nix::net::if_::if_nametoindex;
use pathproof_facts::owners::{Owner, OwnersRead};
use pathproof_wire::service::{FAMILIES, Family};

use crate::netfilter::{Nft, has_legacy};
use crate::netlink::{name_of, routes};
use crate::sentinel::devices::Role;

pub mod conntrack;

/// Timeout of a request: the main loop must not block on the kernel.
const PATIENCE: Duration = Duration::from_millis(200);

/// For each [`Family`]: whether a legacy nat table existed when another proxy was last found. While this is
/// true, a legacy table does not count as kube-proxy's ([`is_proxy`]). Static, because there is one kernel.
static LEGACY_OF_OTHERS: [AtomicBool; FAMILIES] = [const { AtomicBool::new(false) }; FAMILIES];

/// Proxies that currently program Service routing, by [`Family`]. Each is recognised by a chain, a table
/// or a device. Cheap enough to run every few seconds: one small nf_tables request per name. `None` for
/// a family if a request failed.
pub fn owners() -> OwnersRead {
    let nft = Nft::open(PATIENCE);
    let has_device = |name: &str| if_nametoindex(name).is_ok();
    let devices = [
        (has_device("kube-ipvs0"), Owner::Ipvs),
        (has_device("cilium_host"), Owner::Cilium),
        // OVN-Kubernetes translates in Open vSwitch, which has no visible rules.
        (has_device("ovn-k8s-mp0"), Owner::Unknown),
    ];
    Family::ALL.map(|family| {
        let has = |table, chain| match &nft {
            Ok(Some(nft)) => nft.has(family, table, chain).ok(),
            Ok(None) => Some(false),
            Err(_) => None,
        };
        let rules = [
            // The chain to which kube-proxy jumps in iptables mode.
            (has("nat", Some("KUBE-SERVICES"))?, Owner::KubeProxyIptables),
            (has("kube-proxy", None)?, Owner::KubeProxyNftables),
        ];
        let all = rules.into_iter().chain(devices);
        let mut found: Vec<Owner> = all.filter(|(there, _)| *there).map(|(_, it)| it).collect();
        let of_others = &LEGACY_OF_OTHERS[family as usize];
        if is_proxy(has_legacy(family, "nat"), !found.is_empty(), of_others) {
            found.push(Owner::KubeProxyIptables);
        }
        Some(found.into_iter().collect())
    })
}

/// Whether a legacy nat table counts as kube-proxy's. Its chains cannot be requested one by one, and a full
/// dump takes megabytes in a large cluster, so the existence of the table decides. But listing a table
/// creates it, and container runtimes use it. So a table that existed beside another proxy does not count as
/// a new proxy when that proxy's rules disappear.
fn is_proxy(legacy: bool, beside_another: bool, of_others: &AtomicBool) -> bool {
    if beside_another {
        of_others.store(legacy, Ordering::Relaxed);
    }
    legacy && !of_others.load(Ordering::Relaxed)
}

/// Whether the node forwards packets that enter by the sentinel's near ends, whose names have this prefix.
/// `None` if the kernel has no forwarding switches. Also `None` if an interface of a default route forwards
/// and the near ends do not: pods may still be served. Pods' interfaces are no evidence: Calico enables
/// forwarding on each that it creates.
///
/// For IPv4 the kernel checks the switch of the interface by which a packet enters. That switch follows
/// `ip_forward`, but can be set separately. For IPv6 it checks `all` for every interface, or the interface's
/// `force_forwarding` (Linux 6.17).
///
/// # Errors
/// The kernel's switches could not be read: the last known values still apply.
pub fn forwarding(prefix: &str, family: Family) -> io::Result<Option<bool>> {
    let own = own(prefix, family)?;
    let all = read(match family {
        Family::V4 => "ipv4/ip_forward",
        Family::V6 => "ipv6/conf/all/forwarding",
    })?;
    let own_forward = own == [Some(true); 2];
    let forwards = match (family, all) {
        (_, None) => return Ok(None),
        // Without the sentinel's interfaces the node's switch decides.
        (Family::V4, Some(all)) if own.contains(&None) => all,
        (Family::V4, _) => own_forward,
        (Family::V6, Some(all)) => all || own_forward,
    };
    Ok((forwards || !uplink_forwards(family)?).then_some(forwards))
}

/// A sentence if somebody disabled IPv4 forwarding only on one of the sentinel's interfaces: then probes or
/// their answers are not forwarded, although pods' packets are.
pub fn overridden(prefix: &str) -> io::Result<Option<String>> {
    let own = own(prefix, Family::V4)?;
    let Some(off) = own.iter().position(|end| *end == Some(false)) else {
        return Ok(None);
    };
    let is_apart = own.contains(&Some(true)) || read("ipv4/ip_forward")? == Some(true);
    let device = Role::NEAR[off].name(prefix);
    Ok((is_apart && uplink_forwards(Family::V4)?).then(|| {
        format!(
            "net.ipv4.conf.{device}.forwarding is 0 while the node forwards: set it to 1, and \
             exclude {device} from the network manager or hardening role that changed it"
        )
    }))
}

/// The switches of the near ends, if they exist.
fn own(prefix: &str, family: Family) -> io::Result<[Option<bool>; 2]> {
    let [client, server] = Role::NEAR.map(|role| read(&switch_of(&role.name(prefix), family)));
    Ok([client?, server?])
}

/// The switch that enables forwarding on a single interface.
fn switch_of(device: &str, family: Family) -> String {
    match family {
        Family::V4 => format!("ipv4/conf/{device}/forwarding"),
        Family::V6 => format!("ipv6/conf/{device}/force_forwarding"),
    }
}

/// Whether an interface of a default route has forwarding enabled.
fn uplink_forwards(family: Family) -> io::Result<bool> {
    // Below Linux 6.17 no interface has the switch, and the kernel takes seconds to list many IPv6 routes.
    if read(&switch_of("all", family))?.is_none() {
        return Ok(false);
    }
    // An interface that is gone has no name.
    let uplinks = routes::uplinks(family)?.into_iter();
    for device in uplinks.filter_map(|index| name_of(index).ok()) {
        if read(&switch_of(&device, family))? == Some(true) {
            return Ok(true);
        }
    }
    Ok(false)
}

pub fn has_ipv6(device: &str) -> bool {
    let disabled = read(&format!("ipv6/conf/{device}/disable_ipv6"));
    disabled.is_ok_and(|disabled| disabled == Some(false))
}

/// Reads a switch; `None` if the kernel has no switch of that name.
fn read(path: &str) -> io::Result<Option<bool>> {
    let text = unless_missing(fs::read_to_string(format!("/proc/sys/net/{path}")))?;
    let number = text.and_then(|text| text.trim().parse::<i64>().ok());
    Ok(number.map(|number| number != 0))
}

fn unless_missing<T>(read: io::Result<T>) -> io::Result<Option<T>> {
    match read {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}

/// Whether another process writes probes to the device with this index. A prober's packet socket receives
/// nothing, so its protocol is 0. The socket of a packet capture has another protocol.
pub fn is_written_to(index: u32) -> bool {
    fs::read_to_string("/proc/net/packet").is_ok_and(|sockets| has_writer(&sockets, index))
}

/// Columns of /proc/net/packet: sk RefCnt Type Proto Iface R Rmem User Inode.
fn has_writer(sockets: &str, index: u32) -> bool {
    let index = index.to_string();
    sockets.lines().skip(1).any(|line| {
        let words = line.split_whitespace().skip(3).take(2);
        words.eq(["0000", index.as_str()])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_legacy_table_of_others_is_no_new_proxy() {
        let of_others = AtomicBool::default();
        let is_proxy = |legacy, beside| is_proxy(legacy, beside, &of_others);
        assert!(
            is_proxy(true, false),
            "at the first check it may be kube-proxy's"
        );
        assert!(!is_proxy(true, true), "somebody listed it");
        assert!(!is_proxy(true, false), "the other proxy's rules are gone");
        assert!(!is_proxy(false, true));
        assert!(
            is_proxy(true, false),
            "it came when they were gone: a new proxy"
        );
    }

    #[test]
    fn probers_are_distinguished_from_captures() {
        let sockets = "\
sk               RefCnt Type Proto  Iface R Rmem   User   Inode
000000001d2a5a7f 3      3    0000   12    1 0      0      4711
000000001d2a5a80 3      3    0003   13    1 0      0      4712
";
        assert!(has_writer(sockets, 12));
        assert!(!has_writer(sockets, 13));
        assert!(!has_writer(sockets, 1));
    }
}
