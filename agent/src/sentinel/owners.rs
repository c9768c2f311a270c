//! Who programs Service routing on this node, by the traces that each proxy leaves: a chain, a
//! table, a device. Cheap enough for every few seconds: one small question to nf_tables for each
//! name. It only reads, and says nothing of whether an owner works.

use std::ffi::CString;
use std::fs;

use agent_common::service::{FAMILIES, Family};

use crate::domain::sentinel::{DatapathOwners, Owner};
use nft::{Name, Nft};

mod nft;

/// The chain that kube-proxy jumps to in iptables mode.
const IPTABLES_CHAIN: Name<'static> = Name::Chain {
    table: "nat",
    chain: "KUBE-SERVICES",
};
/// kube-proxy's table in nftables mode.
const NFTABLES_TABLE: Name<'static> = Name::Table("kube-proxy");

/// Looks who is there now, by [`Family`]. What cannot be read is as if it were not there: only an
/// owner that appears means anything.
pub fn owners() -> [DatapathOwners; FAMILIES] {
    let nft = Nft::open().ok().filter(|_| has_nf_tables());
    let devices = [("kube-ipvs0", Owner::Ipvs), ("cilium_host", Owner::Cilium)];
    let devices: Vec<Owner> = devices
        .into_iter()
        .filter_map(|(name, owner)| has_device(name).then_some(owner))
        .collect();
    Family::ALL.map(|family| {
        let has = |name| {
            nft.as_ref()
                .is_some_and(|nft| nft.has(family, name).unwrap_or(false))
        };
        let rules = [
            (has(IPTABLES_CHAIN), Owner::KubeProxyIptables),
            (has(NFTABLES_TABLE), Owner::KubeProxyNftables),
        ];
        let rules = rules
            .into_iter()
            .filter_map(|(there, owner)| there.then_some(owner));
        let mut found: Vec<Owner> = rules.chain(devices.iter().copied()).collect();
        // Listing a legacy table makes it: beside another owner it says nothing.
        if found.is_empty() && has_legacy_nat(family) {
            found.push(Owner::KubeProxyIptables);
        }
        found.into_iter().collect()
    })
}

/// Whether the kernel has nf_tables already: a question to it would load the module. A kernel
/// without modules has what it has.
fn has_nf_tables() -> bool {
    match fs::read_to_string("/proc/modules") {
        Ok(modules) if !modules.is_empty() => {
            modules.lines().any(|line| line.starts_with("nf_tables "))
        }
        _ => true,
    }
}

fn has_device(name: &str) -> bool {
    let Ok(name) = CString::new(name) else {
        return false;
    };
    // SAFETY: a string with its end.
    unsafe { libc::if_nametoindex(name.as_ptr()) != 0 }
}

/// Chains of legacy tables cannot be asked for one by one, and all of them are megabytes in a large
/// cluster: that there is a nat table must do.
fn has_legacy_nat(family: Family) -> bool {
    let file = match family {
        Family::V4 => "/proc/thread-self/net/ip_tables_names",
        Family::V6 => "/proc/thread-self/net/ip6_tables_names",
    };
    fs::read_to_string(file).is_ok_and(|names| names.lines().any(|name| name == "nat"))
}
