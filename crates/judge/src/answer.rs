//! Answers of the health port: the only table of 200 and 503, and bodies identical to those of
//! kube-proxy 1.36. Datapath and eligibility are combined only here.

use std::fmt::Write as _;

use pathproof_facts::cause::State;
use pathproof_facts::cluster::ObjectName;
use pathproof_facts::names;
use pathproof_facts::time::{Anchor, GO_ZERO_TIME, Wall};
use pathproof_wire::service::{FAMILIES, Family};
use serde::{Deserialize, Serialize};

use crate::eligibility::Eligibility;
use crate::health_ports::HealthPort;
use crate::verdict::Finding;
use crate::verdict::report::{FamilyVerdict, Verdict};

/// URL path of the health port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Endpoint {
    /// May the node get new connections?
    Healthz,
    /// Does the node route Service traffic?
    Livez,
}

/// Answer for an unknown verdict: `--unknown-policy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnknownPolicy {
    /// 200.
    #[default]
    Open,
    /// 503.
    Closed,
}

/// Answer that a state requires for the datapath, before [damping](super::damping): pass is 200,
/// fail is 503.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Required {
    Pass,
    /// The previous answer stays.
    Undecided,
    Fail,
}

/// The table: the answer that each finding requires. During boot, `/healthz` may also
/// answer 503: see [`answer`].
pub fn required(finding: &Finding, policy: UnknownPolicy) -> Required {
    match (finding.rule.state(), policy) {
        (State::Proven | State::Degraded, _) => Required::Pass,
        // Probes have since passed on every path: after a repair, 200 does not wait for the next
        // connection.
        (State::Suspect, _) if finding.is_refuted() => Required::Pass,
        (State::Suspect | State::Starting, _) => Required::Undecided,
        (State::Stale | State::Broken, _) => Required::Fail,
        (State::Unknown, UnknownPolicy::Open) => Required::Pass,
        (State::Unknown, UnknownPolicy::Closed) => Required::Fail,
    }
}

/// Which failures `/healthz` and `/livez` answer with 503.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refuses {
    All,
    /// Only the wait during boot. The [brake](super::brake) holds back other failures of the datapath.
    BootOnly,
    /// No failure of the datapath: audit mode.
    Nothing,
}

/// Answer for the datapath, after [damping](super::damping).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Served {
    pub healthy: bool,
    pub families: [bool; FAMILIES],
}

/// The answer at one of the two URL paths. `served` is the result of [damping](super::damping) for this
/// verdict. `waits` means that the node is Starting, or failed without ever having left Starting. `eligible` is
/// whether the node may get new connections apart from its datapath, or the fleet brake holds back its 503.
/// `anchor` translates the times of proofs to wall-clock time.
pub fn answer(
    endpoint: Endpoint,
    verdict: &Verdict,
    served: &Served,
    waits: bool,
    eligible: bool,
    refuses: Refuses,
    anchor: &Anchor,
) -> Answer {
    let waits = endpoint == Endpoint::Healthz && waits;
    let answered = |healthy: bool| match refuses {
        Refuses::All => healthy && !waits,
        Refuses::BootOnly => !waits,
        Refuses::Nothing => true,
    };
    let healthy = answered(served.healthy);
    let node_eligible = (endpoint == Endpoint::Healthz).then_some(eligible);
    let of_family = |judged: &FamilyVerdict| FamilyAnswer {
        family: judged.family,
        healthy: answered(served.families[judged.family as usize]),
        last_updated: judged.last_proof.map(|at| anchor.wall_of(at)),
    };
    let refused = !healthy || node_eligible == Some(false);
    Answer {
        status: if refused { 503 } else { 200 },
        healthy,
        node_eligible,
        families: verdict.families.iter().map(of_family).collect(),
        would_fail: waits || !served.healthy,
    }
}

/// Whether the node may get new connections apart from its datapath.
pub fn is_eligible(eligibility: &Eligibility, policy: UnknownPolicy) -> bool {
    match eligibility {
        Eligibility::NeverSeen => policy == UnknownPolicy::Open,
        known => !known.is_leaving(),
    }
}

/// An answer, computed in advance: a request only adds the current time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// 200 or 503.
    pub status: u16,
    /// Whether the datapath is answered as healthy, regardless of eligibility.
    pub healthy: bool,
    /// Only for [`Endpoint::Healthz`].
    pub node_eligible: Option<bool>,
    /// Families with frontends; IPv4 first.
    pub families: Vec<FamilyAnswer>,
    /// Whether the datapath requires 503, even if audit mode or the brake holds that back.
    pub would_fail: bool,
}

/// One entry of `status` in the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FamilyAnswer {
    pub family: Family,
    pub healthy: bool,
    /// Time of the last proof; without one, the body has Go's zero time.
    pub last_updated: Option<Wall>,
}

impl Answer {
    /// The answer once nothing is known of the datapath, if that is to be 503.
    #[must_use]
    pub fn refused(mut self) -> Self {
        (self.status, self.healthy, self.would_fail) = (503, false, true);
        for family in &mut self.families {
            family.healthy = false;
        }
        self
    }

    /// The body as kube-proxy 1.36 writes it (Go's `json.Marshal` of `ProxyHealth`, no newline). `judged` is
    /// the time at which this answer was last confirmed.
    pub fn body(&self, judged: Wall, now: Wall) -> String {
        let proofs = self.families.iter().map(|family| family.last_updated);
        let latest = proofs.max().flatten();
        // On 200 kube-proxy writes the current time, so that clients of older releases see a recent one.
        let last_updated = (self.status == 200).then_some(judged).or(latest);
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

/// Answer of a Service's health check node port, like kube-proxy 1.36's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceAnswer {
    pub status: u16,
    /// Ready endpoints on this node: the node's weight for a load balancer.
    pub endpoints: u32,
    /// Like Go's `fmt.Sprintf`: indented by tabs, without a final newline.
    pub body: String,
}

/// The answer for a Service in one family; `None` if the Service is not served in it. `healthy` is the answer
/// for the datapath. Eligibility does not count (KEP-3836): load balancers follow ready endpoints, which
/// become unready when they shut down.
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
