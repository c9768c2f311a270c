//! The datapath's topology: which proxy translates each path of this node, how much of it crosses the
//! observer's hooks, and which of the sentinel's paths it serves.
//!
//! [`DatapathTopology::after`] computes it from plain facts, which `datapath` reads. A fact that could not be
//! read must lead to a weaker statement, never to a stronger one. The places where Cilium attaches its
//! programs were measured with two versions (docs/cilium.md).

use std::collections::BTreeSet;

use pathproof_facts::named;
use pathproof_facts::owners::{DatapathOwners, Owner, OwnersRead};
use pathproof_facts::text::is_hidden;
use pathproof_wire::service::{FAMILIES, Family, SourceClass};
use serde::{Deserialize, Serialize};

mod words;

#[cfg(test)]
mod tests;

/// Name of a Cilium program that translates packets leaving by an uplink. The kube-proxy
/// replacement has it, and some other features of Cilium do too.
const TO_NETDEV: &str = "cil_to_netdev";
/// Name prefix of all of Cilium's programs.
const CILIUM: &str = "cil_";

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopologyFacts {
    /// Relevant interfaces: uplinks, the sentinel's, Cilium's.
    pub devices: Vec<DeviceFacts>,
    /// Number of interfaces that are netkit pairs.
    pub netkit: u32,
    /// Other programs that run when this process calls `connect`, by [`Family`]; `None` if reading failed.
    pub connect: [Option<ForeignPrograms>; FAMILIES],
    /// Other programs that run after this process bound a socket, by [`Family`]; `None` if reading failed.
    pub bound: [Option<ForeignPrograms>; FAMILIES],
    /// Owners of the Service rules, by [`Family`]; `None` if reading failed.
    pub owners: OwnersRead,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceFacts {
    pub name: String,
    pub role: Role,
    pub xdp: bool,
    /// Other programs at ingress and egress; `None` if reading failed.
    pub hooks: Option<[ForeignPrograms; 2]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// An interface with a default route.
    Uplink,
    /// One of the sentinel's two interfaces on the node's side.
    Sentinel,
    /// An interface made by Cilium.
    Cilium,
}

/// Programs at one hook that are not pathproof's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForeignPrograms {
    /// Names of programs attached as links, if the kernel shows them (that takes CAP_SYS_ADMIN).
    pub links: Vec<Option<String>>,
    /// Filters of the clsact qdisc.
    pub filters: Vec<Option<String>>,
}

impl ForeignPrograms {
    fn all(&self) -> impl Iterator<Item = Option<&str>> {
        let all = self.links.iter().chain(&self.filters);
        all.map(|name| name.as_deref())
    }

    /// Whether a program has this name prefix; a program without a known name may have it.
    fn may_have(&self, prefix: &str) -> bool {
        self.all()
            .any(|name| name.is_none_or(|name| name.starts_with(prefix)))
    }
}

named! {
    /// Yes, no or unknown.
    #[derive(Default)]
    pub enum Tristate {
        Yes = "yes",
        No = "no",
        /// It could not be read.
        #[default]
        Unknown = "unknown",
    }
}

impl From<Option<bool>> for Tristate {
    fn from(known: Option<bool>) -> Self {
        match known {
            Some(true) => Tristate::Yes,
            Some(false) => Tristate::No,
            None => Tristate::Unknown,
        }
    }
}

/// Facts about Cilium, as far as they can be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cilium {
    /// Whether it serves node ports and similar frontends in place of kube-proxy.
    pub replacement: Tristate,
    /// Whether it translates at `connect`.
    pub socket_lb: Tristate,
}

named! {
    /// Extent to which a path crosses the observer's hooks.
    pub enum Seen {
        Full = "full",
        Partial = "partial",
        /// No connection crosses the hooks, or only connections that fail.
        Hidden = "hidden",
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathTopology {
    pub family: Family,
    pub path: SourceClass,
    /// Owners that translate the path.
    pub owners: DatapathOwners,
    /// Extent to which the path is observed.
    pub seen: Seen,
    /// A description for people.
    pub sentence: String,
}

/// The datapath of this node, as far as known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DatapathTopology {
    /// Cilium, if it is there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cilium: Option<Cilium>,
    /// Uplinks with an XDP program, which may answer or translate before the observer sees a packet.
    pub accelerated: Vec<String>,
    /// Number of interfaces that are netkit pairs; the observer cannot attach to them.
    pub netkit: u32,
    /// Whether other programs are attached at both of the sentinel's interfaces.
    pub sentinel_managed: Tristate,
    /// Programs on uplinks that are neither pathproof's nor Cilium's: `name at interface`.
    #[serde(rename = "strangers")]
    pub foreign_programs: Vec<String>,
    /// Uplinks where Cilium translates egress, and no program translates ingress.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unhooked: Vec<String>,
    /// Programs other than Cilium's run at `connect`, and may translate, as Calico's do.
    #[serde(skip)]
    pub other_socket_lb: bool,
    /// The programs of some uplink could not be read.
    #[serde(skip)]
    pub hooks_unread: bool,
    /// Every path of both families.
    pub paths: Vec<PathTopology>,
    /// Further facts for readers of the verdict, in sentences.
    pub notes: Vec<String>,
}

impl DatapathTopology {
    /// Computes it from facts. `managed` is the previous value of [`DatapathTopology::sentinel_managed`].
    /// That value stays while the sentinel's interfaces are missing, as during a repair.
    pub fn after(managed: Tristate, facts: &TopologyFacts) -> Self {
        let mut topology = DatapathTopology {
            cilium: facts.cilium(),
            accelerated: facts.accelerated(),
            netkit: facts.netkit,
            sentinel_managed: (facts.sentinel_managed()).map_or(managed, |is| Some(is).into()),
            foreign_programs: facts.foreign_programs(),
            unhooked: facts.unhooked(),
            other_socket_lb: facts.has_other_socket_lb(),
            hooks_unread: facts
                .with(Role::Uplink)
                .any(|device| device.hooks.is_none()),
            ..DatapathTopology::default()
        };
        for family in Family::ALL {
            for path in SourceClass::ALL {
                let there = facts.owners[family as usize].unwrap_or_default();
                let owners = topology.owners(there, path);
                let seen = topology.seen(path);
                topology.paths.push(PathTopology {
                    family,
                    path,
                    owners,
                    seen,
                    sentence: words::path(&topology, path, owners),
                });
            }
        }
        topology.notes = words::notes(&topology, facts);
        topology
    }

    /// Description of the changes since `before`; empty if there is nothing to report.
    pub fn change_since(&self, before: &Self) -> String {
        words::change(before, self)
    }

    /// Whether Cilium replaces kube-proxy; `None` without Cilium.
    fn replacement(&self) -> Option<Tristate> {
        self.cilium.map(|cilium| cilium.replacement)
    }

    fn may_replace(&self) -> bool {
        matches!(self.replacement(), Some(Tristate::Yes | Tristate::Unknown))
    }

    /// Whether connections of pods may succeed unobserved. It is the same for both families.
    pub fn hides_pods(&self) -> bool {
        let mut pods = (self.paths.iter()).filter(|path| path.path == SourceClass::Pod);
        pods.any(|path| path.seen != Seen::Full)
    }

    /// Whether connections of pods or of clients outside may succeed unobserved.
    pub fn hides_clients(&self) -> bool {
        let mut paths = self
            .paths
            .iter()
            .filter(|path| path.path != SourceClass::Host);
        paths.any(|path| path.seen != Seen::Full)
    }

    /// Whether the datapath handles the sentinel's probes from outside the node like real connections. If
    /// Cilium replaces kube-proxy, it translates at the interfaces that it manages. Packets that enter by
    /// other interfaces are not translated, or only by leftover rules of kube-proxy. So they do not show what
    /// users experience.
    pub fn has_applicable_probes(&self) -> bool {
        !self.may_replace() || self.sentinel_managed == Tristate::Yes
    }

    /// Whether different proxies translate connections from outside and from pods.
    pub fn is_mixed(&self) -> bool {
        self.replacement() == Some(Tristate::No)
    }

    /// Owners of a family's datapath, including those that only the topology shows.
    pub fn owners_with(&self, owners: DatapathOwners) -> DatapathOwners {
        let replaces = self.replacement() == Some(Tristate::Yes);
        let more = replaces.then_some(Owner::CiliumReplacement);
        owners.iter().chain(more).chain(self.unknown()).collect()
    }

    /// Unknown programs at the uplinks, which may translate.
    fn unknown(&self) -> Option<Owner> {
        (self.cilium.is_none() && !self.foreign_programs.is_empty()).then_some(Owner::Unknown)
    }

    /// The present owners that translate a path. An unknown program counts only if there is no
    /// other owner: beside kube-proxy it most likely only watches.
    fn owners(&self, there: DatapathOwners, path: SourceClass) -> DatapathOwners {
        let kube_proxy = || there.iter().filter(|owner| *owner != Owner::Cilium);
        let Some(cilium) = self.cilium else {
            let unknown = self.unknown().filter(|_| there.is_empty());
            return kube_proxy().chain(unknown).collect();
        };
        let own = Some(Owner::Cilium).into_iter();
        match (path, cilium.replacement, cilium.socket_lb) {
            (SourceClass::Pod, ..)
            | (_, Tristate::Yes, _)
            | (SourceClass::Host, _, Tristate::Yes) => own.collect(),
            (_, Tristate::No, _) => kube_proxy().collect(),
            // Either Cilium or kube-proxy; which of the two is unknown.
            (_, Tristate::Unknown, _) => own.chain(kube_proxy()).collect(),
        }
    }

    fn seen(&self, path: SourceClass) -> Seen {
        let ciliums = self.cilium.map_or(Tristate::No, |cilium| cilium.socket_lb);
        let socket_lb = self.other_socket_lb || ciliums != Tristate::No;
        match path {
            SourceClass::Host => Seen::Hidden,
            SourceClass::Pod if self.netkit > 0 || socket_lb => Seen::Partial,
            SourceClass::External if self.netkit > 0 || !self.accelerated.is_empty() => {
                Seen::Partial
            }
            SourceClass::Pod | SourceClass::External => Seen::Full,
        }
    }
}

/// Whether one of these is true; `None` if none is known to be true and one is unknown.
fn any(known: impl Iterator<Item = Option<bool>> + Clone) -> Option<bool> {
    let has_one = known.clone().any(|one| one == Some(true));
    (has_one || !known.clone().any(|one| one.is_none())).then_some(has_one)
}

/// Whether a program of Cilium is attached for any family. Programs without a known name count as
/// Cilium's, because it owns the root of the cgroup hierarchy. A family that cannot be read may have one.
fn has_cilium(by_family: &[Option<ForeignPrograms>; FAMILIES]) -> Option<bool> {
    let families = by_family.iter().map(Option::as_ref);
    any(families.map(|foreign_programs| Some(foreign_programs?.may_have(CILIUM))))
}

impl TopologyFacts {
    fn with(&self, role: Role) -> impl Iterator<Item = &DeviceFacts> {
        let devices = self.devices.iter();
        devices.filter(move |device| device.role == role)
    }

    fn cilium(&self) -> Option<Cilium> {
        let mut devices = self.with(Role::Cilium);
        devices
            .any(|device| device.name == "cilium_host")
            .then(|| Cilium {
                replacement: self.replacement(),
                socket_lb: has_cilium(&self.connect).into(),
            })
    }

    /// The replacement needs both a program at the uplinks' egress and translation at `connect`. One of them
    /// alone may have another reason. Beside kube-proxy even both may have other reasons, so there Cilium
    /// must also prevent processes from binding node ports.
    fn replacement(&self) -> Tristate {
        let uplinks: Vec<_> = self.with(Role::Uplink).collect();
        let leaves = |uplink: &&DeviceFacts| Some(uplink.hooks.as_ref()?[1].may_have(TO_NETDEV));
        let leaves = any(uplinks.iter().map(leaves)).filter(|_| !uplinks.is_empty());
        // If Cilium serves node ports, it prevents processes from binding them
        // (`node-port-bind-protection`, on by default).
        let serves = || has_cilium(&self.bound) == Some(true) || !self.has_kube_proxy();
        match (leaves, has_cilium(&self.connect)) {
            (Some(true), Some(true)) if serves() => Tristate::Yes,
            // Cilium has a program at the uplinks, and no other owner could serve node ports.
            (Some(true), Some(false)) if !self.has_kube_proxy() => Tristate::Unknown,
            (_, Some(false)) | (Some(false), _) => Tristate::No,
            _ => Tristate::Unknown,
        }
    }

    fn has_kube_proxy(&self) -> bool {
        let cilium = DatapathOwners::from_iter([Owner::Cilium]);
        let others = |owners: &DatapathOwners| !owners.beyond(cilium).is_empty();
        self.owners.iter().flatten().any(others)
    }

    fn has_other_socket_lb(&self) -> bool {
        let mut connect = self.connect.iter().flatten();
        self.cilium().is_none()
            && connect.any(|foreign_programs| foreign_programs.all().next().is_some())
    }

    fn accelerated(&self) -> Vec<String> {
        let with_xdp = self.with(Role::Uplink).filter(|device| device.xdp);
        with_xdp.map(|device| device.name.clone()).collect()
    }

    /// Uplinks with Cilium's egress program alone, although Cilium replaces kube-proxy and attaches both
    /// programs of an uplink or neither. Names of programs are rarely known: if several uplinks have one at
    /// egress, it may be another tool's, and none is reported.
    fn unhooked(&self) -> Vec<String> {
        let replaces = self.cilium().map(|cilium| cilium.replacement) == Some(Tristate::Yes);
        let has_egress = |device: &&DeviceFacts| {
            let hooks = device.hooks.as_ref().filter(|_| replaces);
            hooks.is_some_and(|[_, egress]| egress.may_have(TO_NETDEV))
        };
        let mut managed = self.with(Role::Uplink).filter(has_egress);
        let (Some(uplink), None) = (managed.next(), managed.next()) else {
            return Vec::new();
        };
        let ingress = uplink.hooks.as_ref().map(|[ingress, _]| ingress);
        let is_bare = ingress.is_some_and(|ingress| ingress.all().next().is_none());
        is_bare.then(|| uplink.name.clone()).into_iter().collect()
    }

    /// Whether sockets of pods are, or may be, translated before the observer sees their packets.
    pub fn may_translate_sockets(&self) -> bool {
        (self.cilium()).is_some_and(|cilium| cilium.socket_lb != Tristate::No)
    }

    fn sentinel_managed(&self) -> Option<bool> {
        let ends = self.with(Role::Sentinel);
        let managed = |device: &DeviceFacts| {
            let [ingress, _] = device.hooks.as_ref()?;
            Some(ingress.all().next().is_some())
        };
        let managed: Vec<Option<bool>> = ends.map(managed).collect();
        if managed.contains(&Some(false)) {
            return Some(false);
        }
        // A single interface of a pair that is being created is inconclusive.
        (managed == [Some(true); 2]).then_some(true)
    }

    fn foreign_programs(&self) -> Vec<String> {
        let foreign_at = |device: &DeviceFacts| {
            let all = device.hooks.iter().flatten().flat_map(ForeignPrograms::all);
            let others = all.filter(|name| name.is_none_or(|name| !name.starts_with(CILIUM)));
            let named = others.map(|name| match name {
                Some(name) if !name.contains(is_hidden) => name,
                _ => "a program whose name cannot be read",
            });
            let at = |name| format!("{name} at {}", device.name);
            named.map(at).collect::<BTreeSet<_>>()
        };
        let found: BTreeSet<String> = self.with(Role::Uplink).flat_map(foreign_at).collect();
        found.into_iter().collect()
    }
}
