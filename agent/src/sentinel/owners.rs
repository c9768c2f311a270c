//! Who programs Service routing on this node, by the traces that each proxy leaves: a chain, a
//! table, a device. Cheap enough for every few seconds: one small question to nf_tables for each
//! name. It only reads, and says nothing of whether an owner works.

use std::ffi::CString;
use std::time::Duration;

use agent_common::service::{FAMILIES, Family};

use crate::netfilter::{Name, Nft, has_legacy};
use agent_core::owners::{DatapathOwners, Owner};

/// The kernel answers at once or not at all; the main loop must not hang on it.
const PATIENCE: Duration = Duration::from_millis(200);

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
    let nft = Nft::open(PATIENCE).ok().flatten();
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
        // Chains of legacy tables cannot be asked for one by one, and all of them are megabytes in
        // a large cluster: that there is a nat table must do. Listing one makes it, so beside another
        // owner it says nothing.
        if found.is_empty() && has_legacy(family, "nat") {
            found.push(Owner::KubeProxyIptables);
        }
        found.into_iter().collect()
    })
}

fn has_device(name: &str) -> bool {
    let Ok(name) = CString::new(name) else {
        return false;
    };
    // SAFETY: a string with its end.
    unsafe { libc::if_nametoindex(name.as_ptr()) != 0 }
}
