//! Answers of the health port: the only table of 200 and 503, and kube-proxy 1.36's bodies to the
//! byte. Datapath and eligibility meet here and nowhere else.

use std::fmt::Write as _;

use agent_common::service::{FAMILIES, Family};
use serde::{Deserialize, Serialize};

use crate::cause::State;
use crate::cluster::ObjectName;
use crate::eligibility::Eligibility;
use crate::health_ports::HealthPort;
use crate::names;
use crate::time::{Anchor, GO_ZERO_TIME, Mono, Wall};
use crate::verdict::Finding;
use crate::verdict::report::{FamilyVerdict, Verdict};

/// Which of the two questions is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Endpoint {
    /// May the node be sent new connections?
    Healthz,
    /// Does the node route Service traffic?
    Livez,
}

/// Answer to an unknown verdict: `--unknown-policy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnknownPolicy {
    /// 200.
    #[default]
    Open,
    /// 503.
    Closed,
}

/// Whether the datapath's health is enforced: `--enforcement`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Enforcement {
    /// It decides.
    #[default]
    Enforce,
    /// It is computed and published, and answered as healthy.
    Audit,
}

/// Answer that a state requires for the datapath, before [damping](super::damping).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Required {
    /// 200.
    Pass,
    /// The answer stays as it was.
    Undecided,
    /// 503.
    Fail,
}

/// The table: the answer that each finding requires. `/healthz` is 503 besides while a boot waits, see
/// [`answer`].
pub fn required(finding: &Finding, policy: UnknownPolicy) -> Required {
    match (finding.rule.state(), policy) {
        (State::Proven | State::Degraded, _) => Required::Pass,
        // Probes passed since on every path: after a repair nobody waits for the next connection.
        (State::Suspect, _) if finding.is_refuted() => Required::Pass,
        (State::Suspect | State::Starting, _) => Required::Undecided,
        (State::Stale | State::Broken, _) => Required::Fail,
        (State::Unknown, UnknownPolicy::Open) => Required::Pass,
        (State::Unknown, UnknownPolicy::Closed) => Required::Fail,
    }
}

/// Answer for the datapath, after [damping](super::damping).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Served {
    /// The datapath counts as healthy.
    pub healthy: bool,
    /// By [`Family`].
    pub families: [bool; FAMILIES],
    /// 503 stays until then, whatever is proven.
    pub held_until: Option<Mono>,
    /// Flaps in a row.
    pub flaps: u32,
}

/// The answer to one of the two questions. `served` is what [damping](super::damping) made of this
/// verdict; `waits` says that the node is Starting, or failed since and was never more than that; `may_refuse` is false in audit and under the [brake](super::brake), which hold back a 503 of
/// the datapath's; `anchor` tells the wall-clock time of the proofs.
pub fn answer(
    endpoint: Endpoint,
    verdict: &Verdict,
    served: &Served,
    waits: bool,
    policy: UnknownPolicy,
    may_refuse: bool,
    anchor: &Anchor,
) -> Answer {
    let waits = endpoint == Endpoint::Healthz && waits;
    let sound = served.healthy && !waits;
    let healthy = sound || !may_refuse;
    let node_eligible = match endpoint {
        Endpoint::Healthz => Some(is_eligible(&verdict.eligibility, policy)),
        Endpoint::Livez => None,
    };
    let of_family = |judged: &FamilyVerdict| FamilyAnswer {
        family: judged.family,
        healthy: !may_refuse || (served.families[judged.family as usize] && !waits),
        last_updated: judged.last_proof.map(|at| anchor.wall_of(at)),
    };
    let refused = !healthy || node_eligible == Some(false);
    Answer {
        status: if refused { 503 } else { 200 },
        healthy,
        node_eligible,
        families: verdict.families.iter().map(of_family).collect(),
        would_fail: !sound,
    }
}

fn is_eligible(eligibility: &Eligibility, policy: UnknownPolicy) -> bool {
    match eligibility {
        Eligibility::Eligible => true,
        Eligibility::Deleting | Eligibility::Tainted { .. } => false,
        Eligibility::NeverSeen => policy == UnknownPolicy::Open,
    }
}

/// An answer, computed ahead. Only the current time is filled in when it is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// 200 or 503.
    pub status: u16,
    /// Whether the datapath is answered as healthy; eligibility does not count here.
    pub healthy: bool,
    /// On [`Endpoint::Healthz`] only.
    pub node_eligible: Option<bool>,
    /// By family, those that have frontends; IPv4 first.
    pub families: Vec<FamilyAnswer>,
    /// The datapath asks for 503. With [`Enforcement::Audit`] and under the brake it does not get it.
    pub would_fail: bool,
}

/// One entry of `status` in the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FamilyAnswer {
    /// Which.
    pub family: Family,
    /// Whether it is answered as healthy.
    pub healthy: bool,
    /// When it was last proven; where it never was, Go's zero time is printed.
    pub last_updated: Option<Wall>,
}

impl Answer {
    /// The body as kube-proxy 1.36 writes it (Go's `json.Marshal` of `ProxyHealth`, no newline).
    pub fn body(&self, now: Wall) -> String {
        let proofs = self.families.iter().map(|family| family.last_updated);
        let latest = proofs.max().flatten();
        // On 200 kube-proxy says "now", so that clients of older releases see it as recent.
        let last_updated = (self.status == 200).then_some(now).or(latest);
        let mut body = String::with_capacity(320);
        // Writing to a String cannot fail.
        let last_updated = marshalled(last_updated);
        let _ = write!(
            body,
            "{{\"lastUpdated\":{last_updated},\"currentTime\":\"{now}\""
        );
        if let Some(eligible) = self.node_eligible {
            let _ = write!(body, ",\"nodeEligible\":{eligible}");
        }
        let _ = write!(body, ",\"healthy\":{}", self.healthy);
        for (index, family) in self.families.iter().enumerate() {
            body.push_str(if index == 0 { ",\"status\":{" } else { "," });
            let _ = write!(
                body,
                "\"{}\":{{\"lastUpdated\":{},\"healthy\":{}}}",
                names::of_family(family.family),
                marshalled(family.last_updated),
                family.healthy
            );
        }
        body.push_str(if self.families.is_empty() { "}" } else { "}}" });
        body
    }
}

/// Answer at a Service's health check node port, as kube-proxy 1.36 gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceAnswer {
    /// 200 or 503.
    pub status: u16,
    /// Ready endpoints on this node: the weight that a load balancer may give to it.
    pub endpoints: u32,
    /// Go's `fmt.Sprintf`, indented by tabs, without a newline at its end.
    pub body: String,
}

/// Answer about a Service in one family; `None` where it is not served in it. `healthy`
/// says whether the datapath is; whether the node is eligible does not count (KEP-3836: connections of a
/// load balancer go to ready endpoints, whose own shutdown makes them unready).
pub fn of_service(port: &HealthPort, family: Family, healthy: bool) -> Option<ServiceAnswer> {
    let endpoints = port.local[family as usize]?;
    let ObjectName { namespace, name } = &port.service;
    Some(ServiceAnswer {
        status: if healthy && endpoints > 0 { 200 } else { 503 },
        endpoints,
        body: format!(
            "{{\n\t\"service\": {{\n\t\t\"namespace\": \"{namespace}\",\n\t\t\"name\": \"{name}\"\n\t}},\n\t\"localEndpoints\": {endpoints},\n\t\"serviceProxyHealthy\": {healthy}\n}}"
        ),
    })
}

/// A time as Go marshals it.
fn marshalled(at: Option<Wall>) -> String {
    at.map_or_else(|| format!("\"{GO_ZERO_TIME}\""), |at| format!("\"{at}\""))
}

#[cfg(test)]
mod tests;
