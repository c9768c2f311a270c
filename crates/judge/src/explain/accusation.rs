//! Sentences about an accusation: its rule, the innocent explanations that the rule excludes, and the criterion
//! that keeps failed connections from accusing the node. Nothing is decided here.

use pathproof_facts::cause::{Cause, ProbeCause};
use pathproof_facts::limits::Limits;
use pathproof_facts::time::HumanDuration;

use super::Words;
use crate::verdict::finding::{
    ConcurrentFailures, Evidence, Finding, MissingCriterion, Rule, Scope,
};

/// The rule by which a family takes the node out: a sentence from docs/behaviour.md, with the
/// numbers. Other findings name what is missing in their reason.
pub fn rule(finding: &Finding, limits: &Limits) -> Option<String> {
    let lag = HumanDuration(limits.lag_after);
    let stale = HumanDuration(limits.stale_after);
    Some(match (finding.rule, &finding.evidence) {
        (Rule::BrokenByProbes, _) if finding.cause == Some(Cause::ConntrackFull) => format!(
            "At least {} probes were lost on a path that worked before, each within {} of the \
             previous one, while the kernel dropped connections because its conntrack table was \
             full. Single probes that pass do not end this state.",
            limits.probe_failures,
            HumanDuration(limits.probe_gap),
        ),
        (Rule::BrokenByProbes, evidence) => {
            let how = match evidence {
                Evidence::Probes { lanes, .. } if lanes.iter().all(|lane| !lane.clear) => {
                    "and real connections that arrived after the first failed probe failed too"
                }
                _ => "in a way that a filter on the sentinel's own addresses cannot cause",
            };
            let probes = limits.probe_failures;
            format!("At least {probes} probes in a row failed on a path that worked before, {how}.")
        }
        (Rule::BrokenByTwoScopes, _) => format!(
            "Two witnesses failed since the same moment that no single innocent explanation covers: the \
             sentinel's probes (at least {} in a row on a path that worked before), the pod probe, or \
             connections that worked before (at least {}). Nothing that needs the same path succeeded \
             since.",
            limits.probe_failures, limits.service_failures,
        ),
        (Rule::BrokenByRules, _) => format!(
            "Every Service that was dialled, at least {}, failed for at least {} in a way that no policy \
             causes: connections were refused by the node itself, left it untranslated, or went to an \
             address that is no endpoint. Nothing succeeded since.",
            limits.broken_services,
            HumanDuration(limits.broken_after),
        ),
        (Rule::BrokenByRoutes, _) => format!(
            "At least {} connections, over at least {}, left for at least two endpoints by an interface that \
             does not lead there, and stayed unanswered: for endpoints of this node by an uplink, for those of \
             other nodes by another interface than answered connections before. None over these routes \
             succeeded since.",
            limits.service_failures,
            HumanDuration(limits.service_spread),
        ),
        (Rule::BrokenByConnections, _) => format!(
            "Every Service with new connections failed for at least {}. At least {} of them worked \
             before and have at least {} endpoints together, they are in at least {} namespaces \
             (fewer if fewer have traffic), and at least {} pods of this node were affected.",
            HumanDuration(limits.broken_after),
            limits.broken_services,
            limits.broken_endpoints,
            limits.broken_namespaces,
            limits.broken_sources,
        ),
        (Rule::BrokenByData, _) => format!(
            "The first data of at least {} answered connections, to at least {} Services, came three times \
             and was never forwarded, for at least {}. Of no connection since did data go both ways, as it did \
             before.",
            limits.service_failures,
            limits.broken_services,
            HumanDuration(limits.broken_after),
        ),
        (Rule::BrokenByObstacle, _) => format!(
            "The kernel shows an obstacle (forwarding is off, a program is missing, or no endpoint of \
             this node can be reached from the clients), and at least {} connections of these clients \
             failed to Services that worked for them before. None succeeded since.",
            limits.service_failures,
        ),
        (Rule::StaleByProbes, _) => format!(
            "Probes pass, but reach an old port of the sentinel's endpoint at least {lag} after \
             this node received a newer one."
        ),
        (Rule::StaleByConnections, _) => {
            format!(
                "Connections still go to an endpoint that was removed more than {stale} earlier and stay \
                 unanswered, and nothing that changed since has been seen on the wire."
            )
        }
        _ => return None,
    })
}

/// Eliminated explanations, as a sentence without a period; `None` if the finding does not accuse the node.
pub fn eliminated(finding: &Finding) -> Option<String> {
    let text = match (finding.rule, &finding.evidence) {
        (Rule::BrokenByProbes, Evidence::Probes { lanes, .. }) => {
            let is_full = lanes
                .iter()
                .any(|lane| lane.cause == ProbeCause::ConntrackFull);
            match is_full {
                true => {
                    "a filter on the sentinel's addresses: the kernel counted drops by a full table"
                }
                false => {
                    "a filter on the sentinel's addresses, which cannot make probes fail like this; the \
                     application, because the sentinel's echo answers the control probes"
                }
            }
        }
        (Rule::BrokenByTwoScopes, Evidence::Probes { beside, .. }) => {
            return Some(beside_probes(beside.as_ref()));
        }
        (Rule::BrokenByTwoScopes, _) => {
            "a NetworkPolicy for the clients, because the pod probe failed too; a policy for the pod probe, \
             because other connections failed too; single backends, because several Services failed at \
             once"
        }
        (Rule::BrokenByRules, _) => {
            "a NetworkPolicy and the backends: neither makes connections leave untranslated, go to an \
             address that is no endpoint, or meet a refusal of the node's own"
        }
        (Rule::BrokenByRoutes, _) => {
            "a NetworkPolicy, because the connections were forwarded to the wrong interface; a single \
             endpoint or node that goes away, because several are affected"
        }
        (Rule::BrokenByConnections, _) => {
            "a NetworkPolicy or a fault of one application, because every Service fails, across namespaces, \
             clients and endpoints"
        }
        (Rule::BrokenByData, _) => {
            "the applications, because the data was never forwarded to them; a program that inspects the data of \
             one Service, because several Services are affected and no data of any watched connection passes"
        }
        (Rule::BrokenByObstacle, _) => {
            "the clients, their network and a NetworkPolicy, because the connections arrived and the kernel shows \
             the obstacle"
        }
        (Rule::StaleByConnections, _) => {
            "clients that use a source port again, because each of these was new and nothing newer is on the wire \
             for any Service"
        }
        (Rule::StaleByProbes, _) => {
            "a slow API server, because the lag counts from the receipt of the change on this node"
        }
        _ => return None,
    };
    Some(text.to_owned())
}

/// Explanations that probes and connections eliminate together.
fn beside_probes(beside: Option<&ConcurrentFailures>) -> String {
    let clients = beside.map_or(&[][..], |failures| &failures.clients);
    let policy_for = |scope: &Scope| match scope {
        Scope::Pods => "a NetworkPolicy for pods",
        Scope::PodProbe => "a policy for the pod probe",
        Scope::Outside => "a firewall before the node",
        Scope::Host => "a filter on the node's own connections",
    };
    let mut policies: Vec<&str> = clients.iter().map(policy_for).collect();
    if policies.is_empty() {
        policies.push("a NetworkPolicy");
    }
    format!(
        "a filter on the sentinel's addresses, because real connections failed too; {} and the backends, because \
         the sentinel's probes failed since the same moment",
        policies.join(", ")
    )
}

impl Words<'_> {
    pub(super) fn lacking(&self, lacking: MissingCriterion) -> String {
        let limits = self.limits;
        match lacking {
            MissingCriterion::Services => {
                format!("fewer than {} Services failed", limits.broken_services)
            }
            MissingCriterion::Endpoints => format!(
                "these Services have fewer than {} endpoints together",
                limits.broken_endpoints
            ),
            MissingCriterion::Pod => "only clients outside the node failed, and a firewall or a \
                                      NetworkPolicy may deny these connections"
                .to_owned(),
            MissingCriterion::New => "no failed Service worked before".to_owned(),
            MissingCriterion::Referee => {
                "the sentinel's probes pass, so a NetworkPolicy may deny these \
                                 connections"
                    .to_owned()
            }
            MissingCriterion::Filtered => "the sentinel's probes and these connections did not begin to \
                                           fail at the same time, so a filter on the sentinel's addresses and \
                                           a NetworkPolicy may explain them"
                .to_owned(),
            MissingCriterion::SentinelConflict => {
                "another Service uses the address that the sentinel's probes dial, so a fault \
                 cannot be told from a NetworkPolicy"
                    .to_owned()
            }
            MissingCriterion::Unprobed => {
                "no probe takes the way of pods' connections on this node, and a \
                               NetworkPolicy may deny these"
                    .to_owned()
            }
            MissingCriterion::Namespaces => {
                "all failed Services are in one namespace, and other namespaces have traffic"
                    .to_owned()
            }
            MissingCriterion::Sources => {
                format!("fewer than {} clients were affected", limits.broken_sources)
            }
            MissingCriterion::Time => format!(
                "they have failed for less than {}",
                HumanDuration(limits.broken_after)
            ),
        }
    }
}
