//! Contested frontends in the document behind `/verdict`: their number, their claimants, and the remedy.

use agent_common::service::{FrontendKey, TCP};
use serde::{Deserialize, Serialize};

use crate::cluster::ObjectName;
use crate::evidence::socket_of;
use crate::node::Node;
use crate::plan::Conflict;

/// Maximum number of claims that are named.
pub const CLAIMS_SHOWN: usize = 20;

/// Numbers of contested frontends, by owner.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimsReport {
    /// The agent's ports at the node's addresses.
    pub node: u64,
    /// Destinations of the sentinel's probes.
    pub sentinel: u64,
    /// Frontends of any other Services.
    pub services: u64,
    /// Claims that appeared since the agent started.
    pub begun: u64,
    /// The first claims, in the order of the fields above.
    pub first: Vec<ClaimReport>,
}

/// One frontend with more than one claimant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimReport {
    /// `192.0.2.10:10256/tcp`.
    pub frontend: String,
    pub owner: ClaimOwner,
    /// `namespace/name` of the Services; the node has no entry.
    pub services: Vec<String>,
}

/// Rightful owner of a contested frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClaimOwner {
    Node,
    Sentinel,
    Service,
}

impl ClaimsReport {
    pub fn of(node: &Node) -> Self {
        let rule = node.judge().settings.sentinel.as_ref();
        let sentinel = rule.map(|rule| &rule.service);
        let probed = node.rivals().frontends();
        let mut all = Self {
            sentinel: probed.len() as u64,
            begun: node.claims_begun(),
            ..Self::default()
        };
        let probed = probed.into_iter().take(CLAIMS_SHOWN);
        all.first.extend(probed.map(|((at, transport), rival)| {
            let frontend = format!("{at}/{}", transport.name());
            let of = sentinel.into_iter().chain([rival]);
            ClaimReport::new(ClaimOwner::Sentinel, frontend, of)
        }));
        for Conflict {
            frontend,
            claimants,
        } in node.planner().conflicts()
        {
            let [first, second] = claimants;
            let (owner, count) = match first {
                None => (ClaimOwner::Node, &mut all.node),
                // The sentinel's frontends are already listed.
                Some(first) if Some(first) == sentinel => continue,
                Some(_) => (ClaimOwner::Service, &mut all.services),
            };
            *count += 1;
            if *count <= CLAIMS_SHOWN as u64 {
                let of = first.into_iter().chain(second);
                let claim = ClaimReport::new(owner, spelled(frontend), of);
                all.first.push(claim);
            }
        }
        all.first.sort_by_key(|claim| claim.owner);
        all.first.truncate(CLAIMS_SHOWN);
        all
    }

    pub fn count(&self) -> u64 {
        self.node + self.sentinel + self.services
    }

    /// A sentence with the contested frontends, the consequence and the remedy; `None` without any.
    pub fn sentence(&self) -> Option<String> {
        let claim = self.first.first()?;
        let more = match self.count() {
            0 | 1 => String::new(),
            count => format!(" ({} more addresses are contested)", count - 1),
        };
        let (at, services) = (&claim.frontend, claim.services.join(" and "));
        let what = match claim.owner {
            ClaimOwner::Node => format!(
                "Service {services} uses {at}, which is this agent's own port{more}: load \
                 balancers may get that Service's answer"
            ),
            ClaimOwner::Sentinel => format!(
                "{services} both use {at}, which the sentinel's probes dial{more}: these probes \
                 are not judged"
            ),
            ClaimOwner::Service => format!(
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

impl ClaimReport {
    fn new<'a>(
        owner: ClaimOwner,
        frontend: String,
        services: impl Iterator<Item = &'a ObjectName>,
    ) -> Self {
        let services = services.map(ObjectName::to_string).collect();
        Self {
            frontend,
            owner,
            services,
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
    use super::*;
    use crate::names::tests::assert_words;

    #[test]
    fn claims_have_their_sentences() {
        let claim = |owner, frontend: &str, services: &[&str]| ClaimReport {
            frontend: frontend.to_owned(),
            owner,
            services: services.iter().map(|name| (*name).to_owned()).collect(),
        };
        let node = claim(ClaimOwner::Node, "192.0.2.10:10256/tcp", &["shop/claim"]);
        let sentinel = ["pathproof/pathproof-sentinel", "shop/claim"];
        let sentinel = claim(ClaimOwner::Sentinel, "10.96.0.9:80/udp", &sentinel);
        let service = ["default/web", "shop/claim"];
        let service = claim(ClaimOwner::Service, "[fd00:96::1]:443/tcp", &service);
        let mut text = String::new();
        for first in [node, sentinel, service] {
            for services in [1, 1_000] {
                let claims = ClaimsReport {
                    services,
                    first: vec![first.clone()],
                    ..ClaimsReport::default()
                };
                text += &claims.sentence().unwrap();
                text.push('\n');
            }
        }
        assert_words("claims", &text);
        assert_eq!(ClaimsReport::default().sentence(), None);
    }
}
