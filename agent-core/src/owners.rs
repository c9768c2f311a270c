//! Owners of the datapath: those whose rules or programs translate. They are read elsewhere; here
//! they are a set.

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
    /// Something else.
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

    /// kube-proxy owns the path alone, in whatever mode: what it owes is known.
    pub fn is_kube_proxy(self) -> bool {
        let others = [Owner::Cilium, Owner::CiliumReplacement, Owner::Unknown];
        !self.is_empty() && !others.into_iter().any(|other| self.contains(other))
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
