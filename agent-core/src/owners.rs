//! Owners of the datapath: those whose rules or programs translate. They are read elsewhere; here
//! they are a set.

use agent_common::service::FAMILIES;
use serde::{Deserialize, Serialize};

use crate::cause::firsts;

/// Something that translates Service traffic on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Owner {
    /// kube-proxy's chains in iptables.
    KubeProxyIptables,
    /// kube-proxy's tables in nftables.
    KubeProxyNftables,
    /// kube-proxy's virtual servers.
    Ipvs,
    /// Cilium's programs.
    Cilium,
    /// Programs that are not known: at the uplinks Calico's eBPF dataplane, or ones that only watch; Open
    /// vSwitch of OVN-Kubernetes.
    Unknown,
    /// Cilium's programs in kube-proxy's place: node ports and the node's own connections too.
    CiliumReplacement,
}

impl Owner {
    /// Names as a person writes them.
    const LABELS: [(Owner, &'static str); 6] = [
        (Owner::KubeProxyIptables, "kube-proxy (iptables)"),
        (Owner::KubeProxyNftables, "kube-proxy (nftables)"),
        (Owner::Ipvs, "kube-proxy (ipvs)"),
        (Owner::Cilium, "Cilium"),
        (Owner::Unknown, "an unknown program"),
        (Owner::CiliumReplacement, "Cilium's kube-proxy replacement"),
    ];
    /// All of them.
    pub const ALL: [Owner; 6] = firsts(&Self::LABELS);

    /// Name as a person writes it.
    pub fn label(self) -> &'static str {
        Self::LABELS[self as usize].1
    }
}

/// What the operator says translates Service traffic: `--datapath`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Declared {
    /// kube-proxy, in whatever mode.
    KubeProxy,
    /// Cilium in kube-proxy's place.
    Cilium,
}

impl Declared {
    /// Whether nothing else was found: it is there, or nobody is.
    pub(crate) fn fits(self, owners: DatapathOwners) -> bool {
        owners.is_empty()
            || match self {
                Self::KubeProxy => owners.is_kube_proxy(),
                Self::Cilium => owners.contains(Owner::CiliumReplacement),
            }
    }
}

/// Owners as they were read, by [`Family`](agent_common::service::Family); nothing where that failed.
pub type OwnersRead = [Option<DatapathOwners>; FAMILIES];

/// A set of owners; a list of names in JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "Vec<Owner>", into = "Vec<Owner>")]
pub struct DatapathOwners(u8);

impl DatapathOwners {
    /// Whether it is among them.
    pub fn contains(self, owner: Owner) -> bool {
        self.0 & (1 << owner as u8) != 0
    }

    /// Those that are not among `known`.
    #[must_use]
    pub fn beyond(self, known: DatapathOwners) -> DatapathOwners {
        DatapathOwners(self.0 & !known.0)
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// All of them.
    pub fn iter(self) -> impl Iterator<Item = Owner> {
        Owner::ALL
            .into_iter()
            .filter(move |owner| self.contains(*owner))
    }

    /// kube-proxy is there, in whatever mode, and no Cilium: what it owes is known.
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

    /// Nobody but programs that are not known: they may translate, or only watch.
    pub(crate) fn unknown() -> Self {
        [Owner::Unknown].into_iter().collect()
    }

    /// Whether that is all.
    pub(crate) fn is_unknown(self) -> bool {
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
