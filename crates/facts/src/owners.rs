//! Owners of the datapath: the programs or rules that translate Service traffic. This module represents
//! them as a set; the agent detects them.

use pathproof_wire::service::FAMILIES;
use serde::{Deserialize, Serialize};

use crate::named;

named! {
    /// Something that translates Service traffic on this node.
    #[repr(u8)]
    pub enum Owner {
        KubeProxyIptables = "kube_proxy_iptables",
        KubeProxyNftables = "kube_proxy_nftables",
        /// kube-proxy's virtual servers.
        Ipvs = "ipvs",
        Cilium = "cilium",
        /// Programs that are not identified: at the uplinks, for example Calico's eBPF dataplane or a
        /// program that only watches. Open vSwitch of OVN-Kubernetes counts as unknown too.
        Unknown = "unknown",
        /// Cilium's programs in place of kube-proxy, also for node ports and connections of the node itself.
        CiliumReplacement = "cilium_replacement",
    }
}

impl Owner {
    /// Name in sentences.
    pub fn label(self) -> &'static str {
        match self {
            Owner::KubeProxyIptables => "kube-proxy (iptables)",
            Owner::KubeProxyNftables => "kube-proxy (nftables)",
            Owner::Ipvs => "kube-proxy (ipvs)",
            Owner::Cilium => "Cilium",
            Owner::Unknown => "an unknown program",
            Owner::CiliumReplacement => "Cilium's kube-proxy replacement",
        }
    }
}

/// The operator's declaration of what translates Service traffic: `--datapath`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Declared {
    /// kube-proxy, in whatever mode.
    KubeProxy,
    /// Cilium in place of kube-proxy.
    Cilium,
}

impl Declared {
    /// Whether the declared owner was found, or no owner at all.
    pub fn fits(self, owners: DatapathOwners) -> bool {
        owners.is_empty()
            || match self {
                Self::KubeProxy => owners.is_kube_proxy(),
                Self::Cilium => owners.contains(Owner::CiliumReplacement),
            }
    }
}

/// Owners as read, by [`Family`](pathproof_wire::service::Family); `None` if reading failed.
pub type OwnersRead = [Option<DatapathOwners>; FAMILIES];

/// A set of owners; a list of names in JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "Vec<Owner>", into = "Vec<Owner>")]
pub struct DatapathOwners(u8);

impl DatapathOwners {
    pub fn contains(self, owner: Owner) -> bool {
        self.0 & (1 << owner as u8) != 0
    }

    /// The owners that are not in `known`.
    #[must_use]
    pub fn beyond(self, known: DatapathOwners) -> DatapathOwners {
        DatapathOwners(self.0 & !known.0)
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn iter(self) -> impl Iterator<Item = Owner> {
        Owner::ALL
            .into_iter()
            .filter(move |owner| self.contains(*owner))
    }

    /// Names for a sentence, with this text between two; `None` without owners.
    pub fn listed(self, between: &str) -> Option<String> {
        let labels: Vec<&str> = self.iter().map(Owner::label).collect();
        (!labels.is_empty()).then(|| labels.join(between))
    }

    /// Whether kube-proxy is present, in any mode, and Cilium is absent. Only then are the rules known to
    /// be kube-proxy's.
    pub fn is_kube_proxy(self) -> bool {
        let modes = [
            Owner::KubeProxyIptables,
            Owner::KubeProxyNftables,
            Owner::Ipvs,
        ];
        let cilium = [Owner::Cilium, Owner::CiliumReplacement];
        let has = |those: &[Owner]| those.iter().any(|owner| self.contains(*owner));
        has(&modes) && !has(&cilium)
    }

    /// Only unknown programs, which may translate or only watch.
    pub fn unknown() -> Self {
        [Owner::Unknown].into_iter().collect()
    }

    pub fn is_unknown(self) -> bool {
        self == Self::unknown()
    }
}

impl FromIterator<Owner> for DatapathOwners {
    fn from_iter<I: IntoIterator<Item = Owner>>(owners: I) -> Self {
        DatapathOwners(
            owners
                .into_iter()
                .fold(0, |set, owner| set | 1 << owner as u8),
        )
    }
}

impl From<Vec<Owner>> for DatapathOwners {
    fn from(owners: Vec<Owner>) -> Self {
        owners.into_iter().collect()
    }
}

impl From<DatapathOwners> for Vec<Owner> {
    fn from(owners: DatapathOwners) -> Self {
        owners.iter().collect()
    }
}
