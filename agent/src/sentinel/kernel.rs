//! State of Service routing in this node's kernel: whether it forwards, and who programs the rules.
//! It is read, never written, and does not show whether anything works.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use agent_common::service::{FAMILIES, Family};
use agent_core::owners::{Owner, OwnersRead};

use crate::netfilter::{Name, Nft, has_legacy};
use crate::netlink::index_of;
use crate::sentinel::devices::Role;

pub mod conntrack;

/// The kernel answers at once or not at all; the main loop must not hang on it.
const PATIENCE: Duration = Duration::from_millis(200);

/// The chain that kube-proxy jumps to in iptables mode.
const IPTABLES_CHAIN: Name<'static> = Name::Chain {
    table: "nat",
    chain: "KUBE-SERVICES",
};
/// kube-proxy's table in nftables mode.
const NFTABLES_TABLE: Name<'static> = Name::Table("kube-proxy");

/// By [`Family`]: a legacy table was there beside a proxy that does not use it, when that was last looked at.
/// All of this process read the same kernel.
static LEGACY_OF_OTHERS: [AtomicBool; FAMILIES] = [const { AtomicBool::new(false) }; FAMILIES];

/// Proxies that program Service routing now, by [`Family`], found by the traces that each leaves: a
/// chain, a table, a device. Cheap enough for every few seconds: one small question to nf_tables
/// for each name. Nothing of a family where a question was not answered.
pub fn owners() -> OwnersRead {
    let nft = Nft::open(PATIENCE);
    let has_device = |name| index_of(name).is_some();
    let devices = [
        (has_device(c"kube-ipvs0"), Owner::Ipvs),
        (has_device(c"cilium_host"), Owner::Cilium),
    ];
    Family::ALL.map(|family| {
        let has = |name| match &nft {
            Ok(Some(nft)) => nft.has(family, name).ok(),
            Ok(None) => Some(false),
            Err(_) => None,
        };
        let rules = [
            (has(IPTABLES_CHAIN)?, Owner::KubeProxyIptables),
            (has(NFTABLES_TABLE)?, Owner::KubeProxyNftables),
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

/// Whether a legacy nat table is taken for kube-proxy's. Its chains cannot be asked for one by one, and all
/// of them are megabytes in a large cluster: that there is a table must do. But listing one makes it, and
/// container runtimes use it: one that was there beside another proxy is no new proxy once that one's rules
/// are gone.
fn is_proxy(legacy: bool, beside_another: bool, of_others: &AtomicBool) -> bool {
    if beside_another {
        of_others.store(legacy, Ordering::Relaxed);
    }
    legacy && !of_others.load(Ordering::Relaxed)
}

/// Whether the node forwards what comes in by the sentinel's near ends, which have this prefix; `None` where
/// the kernel's switches cannot be read, or where other interfaces forward and ours do not: then pods may be
/// served all the same.
///
/// IPv4 asks the interface that a packet came in by; it is set with `ip_forward`, and may be set apart.
/// IPv6 asks `all`, whatever the interface says, or the interface's `force_forwarding` (Linux 6.17).
pub fn forwarding(prefix: &str, family: Family) -> Option<bool> {
    let (folder, file) = switch(family);
    let own = ends(prefix).map(|end| read(&format!("{folder}/{end}/{file}")));
    let all = match family {
        Family::V4 => read("ipv4/ip_forward"),
        Family::V6 => read("ipv6/conf/all/forwarding"),
    };
    let own_forward = own.iter().all(|end| *end == Some(true));
    let forwards = match family {
        // Without interfaces of ours.
        Family::V4 if own.contains(&None) => all?,
        Family::V4 => own_forward,
        Family::V6 => all? || own_forward,
    };
    (forwards || !others_forward(prefix, family)).then_some(forwards)
}

/// In words, that somebody turned IPv4 forwarding off for an interface of ours alone: probes or their answers
/// are not forwarded then, and pods' packets are.
pub fn overridden(prefix: &str) -> Option<String> {
    let own = ends(prefix).map(|end| read(&format!("ipv4/conf/{end}/forwarding")));
    let off = own.iter().position(|end| *end == Some(false))?;
    let is_apart = read("ipv4/ip_forward") == Some(true) || own.contains(&Some(true));
    let device = &ends(prefix)[off];
    (is_apart && others_forward(prefix, Family::V4)).then(|| {
        format!(
            "net.ipv4.conf.{device}.forwarding is 0 while the node forwards: set it to 1, and \
             exclude {device} from the network manager or hardening role that changed it"
        )
    })
}

fn ends(prefix: &str) -> [String; 2] {
    Role::NEAR.map(|role| role.name(prefix))
}

/// Folder of the interfaces' switches, and the one that lets a single interface forward.
fn switch(family: Family) -> (&'static str, &'static str) {
    match family {
        Family::V4 => ("ipv4/conf", "forwarding"),
        Family::V6 => ("ipv6/conf", "force_forwarding"),
    }
}

/// Whether any interface forwards by its own switch that is not one of ours.
fn others_forward(prefix: &str, family: Family) -> bool {
    let (folder, file) = switch(family);
    let entries = fs::read_dir(format!("/proc/sys/net/{folder}"));
    let names = entries.into_iter().flatten().flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    let mut others = names.filter(|name| {
        let is_ours = name
            .strip_prefix(prefix)
            .is_some_and(|rest| rest.starts_with('-'));
        !is_ours && !["all", "default", "lo"].contains(&name.as_str())
    });
    others.any(|name| read(&format!("{folder}/{name}/{file}")) == Some(true))
}

/// Whether IPv6 is enabled on `device`.
pub fn has_ipv6(device: &str) -> bool {
    read(&format!("ipv6/conf/{device}/disable_ipv6")) == Some(false)
}

fn read(path: &str) -> Option<bool> {
    let text = fs::read_to_string(format!("/proc/sys/net/{path}")).ok()?;
    let number: i64 = text.trim().parse().ok()?;
    Some(number != 0)
}

/// Whether a process other than this one writes probes to the device of this index: its packet socket
/// receives nothing, so its protocol is 0. A capture's is not.
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
            "the first look: it may be kube-proxy's"
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
    fn probers_are_told_from_captures() {
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
