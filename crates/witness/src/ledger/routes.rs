//! Connections that left by an uplink although their endpoint is on this node: the endpoint's route is gone,
//! and the default route is used instead.
//!
//! No policy causes this. But a single endpoint may be leaving, with its route removed before its slice is
//! updated. So two endpoints are needed, in two namespaces if two are in use. The verdict decides, not this
//! module. Endpoints to which no route was ever seen are left out before (`endpoint_devices`).

use std::net::IpAddr;
use std::time::Duration;

use pathproof_facts::limits::Limits;
use pathproof_facts::time::Mono;
use serde::{Deserialize, Serialize};

use super::service::WINDOW;

/// Maximum number of endpoints: two of each namespace are enough.
const KEPT: usize = 16;
const KEPT_OF_NAMESPACE: usize = 2;
/// Maximum number of endpoints that are reached by an uplink.
const REACHED_KEPT: usize = 64;

/// Connections of one family that left by an uplink, since the last connection that reached an endpoint of
/// this node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrongRoutes {
    missed: Vec<Missed>,
    /// Arrival of the first connection.
    pub since: Mono,
    /// Arrival of the last one.
    pub last: Mono,
    pub connections: u32,
    /// Endpoints that answered over an uplink, because pods may be bridged to it; the latest last. If one of
    /// them no longer answers, it hangs; its connections are not misrouted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    by_uplink: Vec<IpAddr>,
    /// Arrival of the last connection that reached an endpoint of this node.
    succeeded: Option<Mono>,
    /// Last time with two missed endpoints, and with two in different namespaces.
    two: [Option<Mono>; 2],
}

/// An endpoint of this node whose connections left by an uplink.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Missed {
    endpoint: IpAddr,
    namespace: Box<str>,
    at: Mono,
}

impl WrongRoutes {
    /// Records a connection that left by an uplink for this endpoint and stayed unanswered.
    pub(crate) fn miss(
        &mut self,
        endpoint: IpAddr,
        namespace: &str,
        arrived: Mono,
        pause: Duration,
    ) {
        if self.succeeded >= Some(arrived) || self.by_uplink.contains(&endpoint) {
            return;
        }
        if self.connections > 0 && arrived.since(self.last) > pause {
            self.begin_anew();
        }
        if self.connections == 0 {
            self.since = arrived;
        }
        self.connections = self.connections.saturating_add(1);
        self.since = self.since.min(arrived);
        self.last = self.last.max(arrived);
        let last = self.last;
        let young = |missed: &Missed| last.since(missed.at) <= WINDOW;
        self.missed
            .retain(|missed| young(missed) && missed.endpoint != endpoint);
        let same = |missed: &Missed| *missed.namespace == *namespace;
        let oldest =
            match self.missed.iter().filter(|missed| same(missed)).count() < KEPT_OF_NAMESPACE {
                true => (self.missed.len() >= KEPT).then_some(0),
                false => self.missed.iter().position(same),
            };
        oldest.map(|at| self.missed.remove(at));
        let has_others = !self.missed.iter().all(same);
        self.missed.push(Missed {
            endpoint,
            namespace: namespace.into(),
            at: arrived,
        });
        if self.missed.len() > 1 {
            self.two[0] = Some(last);
            self.two[1] = has_others.then_some(last).or(self.two[1]);
        }
    }

    /// Records that an endpoint answered over an uplink, which is therefore the right device for it.
    pub(crate) fn reach(&mut self, endpoint: IpAddr) {
        crate::keep_latest(&mut self.by_uplink, endpoint, REACHED_KEPT);
    }

    /// Endpoints whose routes are missing.
    pub(super) fn missed(&self) -> impl Iterator<Item = IpAddr> {
        self.missed.iter().map(|missed| missed.endpoint)
    }

    pub(crate) fn forget(&mut self) {
        self.begin_anew();
        self.succeeded = None;
    }

    /// Records that a connection, which arrived at the given time, reached an endpoint of this node.
    pub(crate) fn succeed(&mut self, arrived: Mono) {
        self.succeeded = self.succeeded.max(Some(arrived));
        if arrived >= self.since {
            self.begin_anew();
        }
    }

    fn begin_anew(&mut self) {
        *self = Self {
            by_uplink: std::mem::take(&mut self.by_uplink),
            succeeded: self.succeeded,
            ..Self::default()
        };
    }

    /// Whether enough connections missed enough endpoints. Once true, this holds for the rest of the run:
    /// load balancers that received 503 send no more clients, so further failures may not be seen.
    pub fn are_confirmed(&self, needs_two_namespaces: bool, limits: &Limits) -> bool {
        self.two[usize::from(needs_two_namespaces)].is_some()
            && self.connections >= limits.service_failures
            && self.last.since(self.since) >= limits.service_spread
    }
}
