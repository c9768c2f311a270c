//! Frontend conflicts in the document behind `/verdict`: their number, their Services, and the remedy.

use pathproof_facts::cluster::ObjectName;
use pathproof_node::Node;
use pathproof_plan::FrontendConflict;
use pathproof_wire::service::{FrontendKey, TCP};
use pathproof_witness::evidence::socket_of;
use serde::{Deserialize, Serialize};

/// Maximum number of conflicts that are named.
pub const CONFLICTS_SHOWN: usize = 20;

/// Numbers of frontends in conflict, by owner.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConflictsReport {
    /// The agent's ports at the node's addresses.
    pub node: u64,
    /// Destinations of the sentinel's probes.
    pub sentinel: u64,
    /// Frontends of any other Services.
    pub services: u64,
    /// The first conflicts, in the order of the fields above.
    pub first: Vec<ConflictReport>,
}

/// One frontend with more than one Service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConflictReport {
    /// `192.0.2.10:10256/tcp`.
    pub frontend: String,
    pub owner: ConflictOwner,
    /// `namespace/name` of the Services; the node has no entry.
    pub services: Vec<String>,
}

/// Rightful owner of a frontend in conflict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConflictOwner {
    Node,
    Sentinel,
    Service,
}

impl ConflictsReport {
    pub fn of(node: &Node) -> Self {
        let rule = node.judge().settings.sentinel.as_ref();
        let sentinel = rule.map(|rule| &rule.service);
        let probed = node.sentinel_conflicts().frontends();
        let mut all = Self {
            sentinel: probed.len() as u64,
            ..Self::default()
        };
        let probed = probed.into_iter().take(CONFLICTS_SHOWN);
        all.first.extend(probed.map(|((at, transport), other)| {
            let frontend = format!("{at}/{}", transport.name());
            ConflictReport::new(ConflictOwner::Sentinel, frontend, [sentinel, Some(other)])
        }));
        for FrontendConflict { frontend, parties } in node.planner().conflicts() {
            let (owner, count) = match parties[0] {
                None => (ConflictOwner::Node, &mut all.node),
                // The sentinel's frontends are already listed.
                Some(first) if Some(first) == sentinel => continue,
                Some(_) => (ConflictOwner::Service, &mut all.services),
            };
            *count += 1;
            if *count <= CONFLICTS_SHOWN as u64 {
                let conflict = ConflictReport::new(owner, spelled(frontend), parties);
                all.first.push(conflict);
            }
        }
        all.first.sort_by_key(|conflict| conflict.owner);
        all.first.truncate(CONFLICTS_SHOWN);
        all
    }

    pub fn count(&self) -> u64 {
        self.node + self.sentinel + self.services
    }

    /// A sentence with the frontends in conflict, the consequence and the remedy; `None` without any.
    pub fn sentence(&self) -> Option<String> {
        let conflict = self.first.first()?;
        let more = match self.count() {
            0 | 1 => String::new(),
            count => format!(" ({} more addresses are contested)", count - 1),
        };
        let (at, services) = (&conflict.frontend, conflict.services.join(" and "));
        let what = match conflict.owner {
            ConflictOwner::Node => format!(
                "Service {services} uses {at}, which is this agent's own port{more}: load \
                 balancers may get that Service's answer"
            ),
            ConflictOwner::Sentinel => format!(
                "{services} both use {at}, which the sentinel's probes dial{more}: these probes \
                 are not judged"
            ),
            ConflictOwner::Service => format!(
                "{services} both use {at}{more}: connections to it are not judged, and the proxy \
                 may serve either Service"
            ),
        };
        Some(format!(
            "{what}. Remove the address from the Service that should not have it, and forbid \
             tenants to set external IPs (admission plugin DenyServiceExternalIPs, or a policy)"
        ))
    }
}

impl ConflictReport {
    fn new(owner: ConflictOwner, frontend: String, parties: [Option<&ObjectName>; 2]) -> Self {
        let services = parties.into_iter().flatten();
        Self {
            frontend,
            owner,
            services: services.map(ObjectName::to_string).collect(),
        }
    }
}

fn spelled(key: &FrontendKey) -> String {
    let at = socket_of(&key.address, key.port);
    let protocol = if key.protocol == TCP { "tcp" } else { "udp" };
    format!("{at}/{protocol}")
}

#[cfg(test)]
mod tests {
    use pathproof_facts::testing::assert_words;

    use super::*;

    #[test]
    fn conflicts_have_their_sentences() {
        let conflict = |owner, frontend: &str, services: &[&str]| ConflictReport {
            frontend: frontend.to_owned(),
            owner,
            services: services.iter().map(|name| (*name).to_owned()).collect(),
        };
        let node = conflict(ConflictOwner::Node, "192.0.2.10:10256/tcp", &["shop/claim"]);
        let sentinel = ["pathproof/pathproof-sentinel", "shop/claim"];
        let sentinel = conflict(ConflictOwner::Sentinel, "10.96.0.9:80/udp", &sentinel);
        let service = ["default/web", "shop/claim"];
        let service = conflict(ConflictOwner::Service, "[fd00:96::1]:443/tcp", &service);
        let mut text = String::new();
        for first in [node, sentinel, service] {
            for services in [1, 1_000] {
                let conflicts = ConflictsReport {
                    services,
                    first: vec![first.clone()],
                    ..ConflictsReport::default()
                };
                text += &conflicts.sentence().unwrap();
                text.push('\n');
            }
        }
        assert_words("claims", &text);
        assert_eq!(ConflictsReport::default().sentence(), None);
    }
}
