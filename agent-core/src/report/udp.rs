//! UDP Services: datagrams by outcome and how long answers took. Judged apart: nothing of this makes
//! a verdict.

use std::cmp::Reverse;

use agent_common::service::Family;
use serde::{Deserialize, Serialize};

use super::OutcomeCounts;
use crate::names;

/// UDP Services that are shown.
pub const UDP_SHOWN: usize = 20;

/// UDP Services with traffic.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UdpReport {
    /// Those of DNS first, then the busiest.
    pub services: Vec<UdpServiceReport>,
    /// Services with traffic beyond those.
    pub omitted: u32,
}

/// A UDP Service port and family with traffic.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UdpServiceReport {
    /// `namespace/name`, and `:port` where the port has a name.
    pub service: String,
    /// Which family.
    #[serde(with = "names::FamilyName")]
    pub family: Family,
    /// Current endpoints.
    pub endpoints: u32,
    /// Its port is 53 or is named dns.
    pub dns: bool,
    /// Followed datagrams by outcome since the agent started: one of a flow at a time, and of those
    /// so many in time (docs/adr/0023-passive-udp.md).
    pub outcomes: OutcomeCounts,
    /// How long answers took; absent without any.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub answers: Option<AnswerTimes>,
}

impl UdpServiceReport {
    /// Datagrams that did not go as owed.
    pub fn failed(&self) -> u64 {
        self.outcomes
            .failures()
            .iter()
            .map(|(_, count)| count)
            .sum()
    }

    /// In a list: DNS, then the busiest; by name where that is the same.
    pub fn order(&self) -> impl Ord + use<'_> {
        (
            !self.dns,
            Reverse(self.outcomes.arrived),
            &self.service,
            &self.family,
        )
    }
}

/// Times from a datagram's arrival to its first answer, as bounds: powers of two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnswerTimes {
    /// How many answers were timed.
    pub count: u64,
    /// Half of them took less than this, in nanoseconds.
    pub half_ns: u64,
    /// 99 of 100 took less than this, in nanoseconds.
    pub most_ns: u64,
}
