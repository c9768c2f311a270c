//! Frontends of Services that are not in the plan because they exceed a quota. A proxy serves them
//! nevertheless. So a frontend of the plan that such a Service uses is in conflict. Only addresses and
//! ports are compared; no entries are built.

use std::collections::BTreeMap;

use pathproof_facts::cluster::{ObjectName, Protocol, ServiceFacts};
use pathproof_facts::node_context::address;
use pathproof_facts::view::ClusterView;
use pathproof_wire::service::{FrontendKey, TCP, UDP};

use super::Planner;
use super::draft::Draft;

/// Placeholder id of Services beyond the plan: no Service port gets it.
const BEYOND: u32 = u32::MAX - 1;

/// Frontends of the plan that Services beyond it use, each with the first such Service.
pub(super) type Beyond = BTreeMap<FrontendKey, ObjectName>;
impl Planner {
    /// Adds conflicts for frontends that Services beyond the plan use, and ends conflicts that are over.
    pub(super) fn add_conflicts_beyond(&mut self, view: &ClusterView, draft: &mut Draft) {
        let service = |name| view.state(name)?.service.as_deref();
        let over = self.quotas.over().filter_map(service);
        let over: Vec<&ServiceFacts> = over.filter(|service| chooses(service)).collect();
        let mut used = Beyond::new();
        if !over.is_empty() {
            let planned = self.planned(draft);
            for service in over {
                for key in used_by(service, &planned) {
                    used.entry(key).or_insert_with(|| service.name.clone());
                }
            }
        }
        let before = std::mem::replace(&mut self.beyond, used);
        for key in before.keys() {
            if !self.beyond.contains_key(key) {
                self.release(BEYOND, *key, draft);
            }
        }
        let new = self.beyond.keys().filter(|key| !before.contains_key(key));
        let new: Vec<FrontendKey> = new.copied().collect();
        for key in new {
            self.add_conflict(key, BEYOND, draft);
            self.void(key, draft);
        }
    }

    /// The Service beyond the plan that uses a frontend under this id.
    pub(super) fn service_beyond(&self, key: &FrontendKey, id: u32) -> Option<&ObjectName> {
        self.beyond.get(key).filter(|_| id == BEYOND)
    }

    /// Frontends that Services of the plan hold or request, sorted, except the sentinel's: its probes are
    /// followed one by one, and its conflicts are found in [`conflicts`].
    ///
    /// [`conflicts`]: crate::expect::conflicts
    fn planned(&self, draft: &Draft) -> Vec<FrontendKey> {
        let held = self.owners.iter().map(|(key, id)| (*key, *id));
        let requested = draft
            .requests
            .iter()
            .map(|request| (request.key, request.id));
        let conflicts = self.conflicts.iter();
        let conflicts = conflicts.flat_map(|(key, ids)| ids.iter().map(|id| (*key, *id)));
        let short = self.shortage.frontends.iter().copied();
        let all = held.chain(requested).chain(conflicts).chain(short);
        let of_services = all.filter(|(_, id)| *id < BEYOND && !self.is_sentinel(*id));
        let mut planned: Vec<FrontendKey> = of_services.map(|(key, _)| key).collect();
        planned.sort_unstable();
        planned
    }
}

/// Whether a Service has addresses that its author chose. Only these can conflict: the API server keeps
/// cluster IPs and node ports unique.
fn chooses(service: &ServiceFacts) -> bool {
    !service.external_ips.is_empty() || !service.load_balancer_ips.is_empty()
}

/// The frontends of a sorted plan that a Service uses.
fn used_by<'a>(
    service: &'a ServiceFacts,
    planned: &'a [FrontendKey],
) -> impl Iterator<Item = FrontendKey> + use<'a> {
    let chosen = service
        .external_ips
        .iter()
        .chain(&service.load_balancer_ips);
    let keys = chosen.flat_map(|ip| {
        let address = address(ip);
        let first = planned.partition_point(|key| key.address < address);
        let keys = planned[first..].iter();
        keys.take_while(move |key| key.address == address)
    });
    let has_port = move |key: &&FrontendKey| {
        service.ports.iter().any(|port| {
            let protocol = match port.protocol {
                Protocol::Tcp => TCP,
                Protocol::Udp => UDP,
                Protocol::Sctp => return false,
            };
            port.port.to_be_bytes() == key.port && protocol == key.protocol
        })
    };
    keys.filter(has_port).copied()
}
