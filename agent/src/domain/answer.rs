//! What the health port answers: the only table of 200 and 503, and kube-proxy 1.36's bodies to
//! the byte. Datapath and eligibility meet here and nowhere else.

use std::fmt::Write as _;

use agent_common::service::Family;
use serde::{Deserialize, Serialize};

use super::time::{GO_ZERO_TIME, Wall};
use super::verdict::report::names;

/// Which of the two questions is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Endpoint {
    /// May the node be sent new connections?
    Healthz,
    /// Does the node route Service traffic?
    Livez,
}

/// What an unknown verdict is answered with: `--unknown-policy`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum UnknownPolicy {
    /// 200.
    #[default]
    Open,
    /// 503.
    Closed,
}

/// Whether the datapath's health is enforced: `--enforcement`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Enforcement {
    /// It decides.
    #[default]
    Enforce,
    /// It is computed and published, and answered as healthy.
    Audit,
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
    /// The answer would be 503 if audit did not hold it back.
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
        let latest = self
            .families
            .iter()
            .filter_map(|family| family.last_updated)
            .max();
        // On 200 kube-proxy says "now", so that clients of older releases see it as recent.
        let last_updated = if self.status == 200 {
            Some(now)
        } else {
            latest
        };
        let mut body = String::with_capacity(320);
        // Writing to a String cannot fail.
        let _ = write!(
            body,
            "{{\"lastUpdated\":{},\"currentTime\":\"{now}\"",
            Time(last_updated)
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
                Time(family.last_updated),
                family.healthy
            );
        }
        body.push_str(if self.families.is_empty() { "}" } else { "}}" });
        body
    }
}

/// A time as Go marshals it.
struct Time(Option<Wall>);

impl std::fmt::Display for Time {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(wall) => write!(f, "\"{wall}\""),
            None => write!(f, "\"{GO_ZERO_TIME}\""),
        }
    }
}
