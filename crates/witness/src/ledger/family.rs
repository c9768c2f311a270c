//! Evidence kept per IP family, and its run of failures without a success.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use pathproof_facts::cause::{FAILURES, Failure};
use pathproof_facts::directory::ServiceInfo;
use pathproof_facts::time::Mono;
use pathproof_wire::service::{SOURCE_CLASSES, SourceClass};
use serde::{Deserialize, Serialize};

use super::answers::AnswerForwarding;
use super::data::DataLedger;
use super::obstacle::{Classes, ObstacleLedger};
use super::routes::WrongRoutes;
use super::service::WINDOW;
use crate::evidence::Client;

/// Maximum number of clients whose answers were not delivered: the verdict needs two.
pub(crate) const SOURCES_KEPT: usize = 16;
const SERVED_KEPT: usize = 64;
/// Maximum number of Service ports named in one run; further ones are only counted.
pub(crate) const SERVICES_KEPT: usize = 256;

/// Evidence on one family, which outlives the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FamilyLedger {
    /// Last proof by source class.
    pub proofs: [Option<Mono>; SOURCE_CLASSES],
    /// Last proof by source class among connections that the node had to forward: not to endpoints that are
    /// the node itself.
    pub forwarded: [Option<Mono>; SOURCE_CLASSES],
    /// Last failure by source class, except connections whose answer was not delivered.
    pub failures: [Option<Mono>; SOURCE_CLASSES],
    /// Endpoints' answers that were forwarded or lost.
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub answers: AnswerForwarding,
    /// Data of connections that was forwarded or lost.
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub data: DataLedger,
    /// When a new connection last arrived.
    pub arrival: Option<Mono>,
    /// When a user last dialled a Service, by TCP or UDP and with any outcome.
    pub used: Option<Mono>,
    /// Failures since the last success.
    pub streak: Option<Streak>,
    /// Clients that did not receive their answer, each with the last time.
    #[serde(rename = "unheard")]
    pub answers_not_delivered: Vec<(IpAddr, Mono)>,
    /// First and last time in a run of connections from outside that were forwarded and not answered.
    pub unanswered: Option<(Mono, Mono)>,
    /// Connections that left by an uplink for endpoints of this node.
    pub routes: WrongRoutes,
    /// Arrival of the last connection that an endpoint of another node answered.
    pub remote: Option<Mono>,
    pub obstacle: ObstacleLedger,
    /// Clients that were served, with the interface by which they dialled, the latest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub served: Vec<Client>,
    /// By class of clients: whether lookups for served clients showed that packets pass. Otherwise lookups
    /// for the class mean nothing.
    pub open_ways: Classes,
}

impl FamilyLedger {
    /// Whether anything was ever seen.
    pub fn is_known(&self) -> bool {
        // An obstacle alone shows no use of the family: it may be read on a node that has only the other
        // family.
        let seen = Self {
            obstacle: ObstacleLedger::default(),
            ..self.clone()
        };
        seen != Self::default()
    }

    pub fn last_proof(&self) -> Option<Mono> {
        self.proofs.into_iter().max().flatten()
    }

    pub fn last_failure(&self) -> Option<Mono> {
        self.failures.into_iter().max().flatten()
    }

    pub(crate) fn prove(&mut self, class: SourceClass, at: Mono) {
        let proof = &mut self.proofs[class as usize];
        *proof = (*proof).max(Some(at));
        self.streak.take_if(|streak| streak.since <= at);
        self.obstacle.succeed(class, at);
    }

    pub(crate) fn serve(&mut self, client: Client) {
        crate::keep_latest(&mut self.served, client, SERVED_KEPT);
    }

    /// Records a success of a connection that the node had to forward.
    pub(crate) fn forward(&mut self, class: SourceClass, at: Mono) {
        let last = &mut self.forwarded[class as usize];
        *last = (*last).max(Some(at));
    }

    /// Records that the answer to a connection was not forwarded to its client. Revokes successes after the
    /// last forwarded answer.
    pub(crate) fn lose_answer(&mut self, class: SourceClass, arrived: Mono) {
        if let Some(last) = self.answers.lose(class, arrived) {
            for proofs in [&mut self.proofs, &mut self.forwarded] {
                let proof = &mut proofs[class as usize];
                *proof = (*proof).min(Some(last));
            }
        }
    }

    pub(crate) fn fail(&mut self, class: SourceClass, at: Mono) {
        let failure = &mut self.failures[class as usize];
        *failure = (*failure).max(Some(at));
    }

    /// Adds failures of a Service, between `since` and `last`, to the run. A run ends after `pause` without a
    /// failure.
    pub(crate) fn run(
        &mut self,
        (since, last): (Mono, Mono),
        failures: &[(Failure, u32)],
        info: &ServiceInfo,
        pause: Duration,
    ) {
        self.streak
            .take_if(|streak| last.since(streak.last) > pause);
        let streak = self.streak.get_or_insert_with(|| Streak {
            since,
            ..Streak::default()
        });
        streak.since = streak.since.min(since);
        streak.last = streak.last.max(last);
        for (failure, n) in failures {
            let count = &mut streak.failures[*failure as usize];
            *count = count.saturating_add(u64::from(*n));
        }
        if streak.labels.len() < SERVICES_KEPT {
            streak.labels.insert(info.label());
        }
    }

    /// Records that a connection from outside was forwarded and not answered.
    pub(crate) fn leave_unanswered(&mut self, at: Mono) {
        let run = self
            .unanswered
            .filter(|(_, last)| at.since(*last) <= WINDOW);
        self.unanswered = Some((run.map_or(at, |(first, _)| first), at));
    }

    /// Records that a client did not receive its answer.
    pub(crate) fn answer_not_delivered(&mut self, client: IpAddr, at: Mono) {
        if let Some((_, last)) = self
            .answers_not_delivered
            .iter_mut()
            .find(|(known, _)| *known == client)
        {
            *last = at.max(*last);
            return;
        }
        if self.answers_not_delivered.len() >= SOURCES_KEPT {
            let oldest = (0..self.answers_not_delivered.len())
                .min_by_key(|place| self.answers_not_delivered[*place].1);
            oldest.map(|place| self.answers_not_delivered.swap_remove(place));
        }
        self.answers_not_delivered.push((client, at));
    }
}

/// A run of failures of any client since the last success. It names Services rather than ids, because it
/// outlives the agent and ids do not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Streak {
    pub since: Mono,
    /// The last failure.
    pub last: Mono,
    /// By label (`namespace/name:port`).
    pub labels: BTreeSet<String>,
    /// By [`Failure`].
    pub(crate) failures: [u64; FAILURES],
}

impl Streak {
    pub fn commonest(&self) -> Failure {
        commonest(&self.failures).unwrap_or(Failure::Lost)
    }
}

/// The most common failure; among equals, the least ambiguous one.
pub fn commonest(failures: &[u64; FAILURES]) -> Option<Failure> {
    const BY_DOUBT: [Failure; FAILURES] = [
        Failure::Leaked,
        Failure::Misrouted,
        Failure::Stale,
        Failure::Refused,
        Failure::Lost,
        Failure::AnswerNotDelivered,
    ];
    let most = failures.iter().max().filter(|n| **n > 0)?;
    let is_most = |failure: &Failure| failures[*failure as usize] == *most;
    BY_DOUBT.into_iter().find(is_most)
}
