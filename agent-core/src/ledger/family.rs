//! Evidence kept per IP family, and the run of failures in it that no success has interrupted.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use agent_common::service::{SOURCE_CLASSES, SourceClass};
use serde::{Deserialize, Serialize};

use super::answers::Answers;
use super::data::DataLedger;
use super::obstacle::ObstacleLedger;
use super::routes::WrongRoutes;
use super::service::WINDOW;
use crate::cause::{FAILURES, Failure};
use crate::evidence::{Client, ServiceInfo};
use crate::time::Mono;

/// Clients kept that did not receive their answers: the finding needs two.
pub(crate) const SOURCES_KEPT: usize = 16;
/// Clients kept that were served.
const SERVED_KEPT: usize = 64;
/// Service ports named in one run; beyond, they are counted under their failure only.
pub(crate) const SERVICES_KEPT: usize = 256;

/// Evidence on one family. Serialisable: it outlives the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FamilyLedger {
    /// By path.
    pub(crate) proofs: [Option<Mono>; SOURCE_CLASSES],
    /// The same of connections that the node had to forward: not to endpoints that are the node itself.
    #[serde(default)]
    pub(crate) forwarded: [Option<Mono>; SOURCE_CLASSES],
    /// By path; unheard ones do not count.
    pub(crate) failures: [Option<Mono>; SOURCE_CLASSES],
    /// Answers of endpoints that went on, or did not.
    #[serde(default, skip_serializing_if = "Answers::are_unknown")]
    pub(crate) answers: Answers,
    /// Data of connections that went on, or did not.
    #[serde(default, skip_serializing_if = "DataLedger::is_unknown")]
    pub(crate) data: DataLedger,
    /// When a new connection last arrived.
    pub(crate) arrival: Option<Mono>,
    /// When a user last dialled a Service, by TCP or UDP and with success or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) used: Option<Mono>,
    /// Failures since the last success.
    pub(crate) streak: Option<Streak>,
    /// Clients that did not hear their answer, and when last.
    pub(crate) unheard: Vec<(IpAddr, Mono)>,
    /// Connections from outside were sent on and not answered: when the first and the last of a run
    /// were told.
    #[serde(default)]
    pub(crate) unanswered: Option<(Mono, Mono)>,
    /// Connections that left by an uplink for endpoints of this node.
    #[serde(default)]
    pub(crate) routes: WrongRoutes,
    /// Arrival of the last connection that an endpoint of another node answered.
    #[serde(default)]
    pub(crate) remote: Option<Mono>,
    /// Obstacle in the node itself.
    #[serde(default)]
    pub(crate) obstacle: ObstacleLedger,
    /// Clients that were served, with the interface by which they dialled; the last one at the end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) served: Vec<Client>,
    /// While clients were served, the kernel showed open ways for them: lookups show what happens to packets here.
    #[serde(default)]
    pub(crate) shows_ways: bool,
}

impl FamilyLedger {
    /// Whether anything was ever seen.
    pub(crate) fn is_known(&self) -> bool {
        // An obstacle alone says nothing of connections: not every node has both families.
        let seen = Self {
            obstacle: ObstacleLedger::default(),
            ..self.clone()
        };
        seen != Self::default()
    }

    /// The last success of any path.
    pub(crate) fn last_proof(&self) -> Option<Mono> {
        self.proofs.into_iter().max().flatten()
    }

    /// The last failure of any path.
    pub(crate) fn last_failure(&self) -> Option<Mono> {
        self.failures.into_iter().max().flatten()
    }

    /// A connection succeeded.
    pub(crate) fn prove(&mut self, class: SourceClass, at: Mono) {
        let proof = &mut self.proofs[class as usize];
        *proof = (*proof).max(Some(at));
        self.streak.take_if(|streak| streak.since <= at);
        self.obstacle.succeed(class, at);
    }

    /// A client was served.
    pub(crate) fn serve(&mut self, client: Client) {
        self.served.retain(|known| *known != client);
        if self.served.len() >= SERVED_KEPT {
            self.served.remove(0);
        }
        self.served.push(client);
    }

    /// A connection succeeded that the node had to forward.
    pub(crate) fn forward(&mut self, class: SourceClass, at: Mono) {
        let last = &mut self.forwarded[class as usize];
        *last = (*last).max(Some(at));
    }

    /// The answer to a connection that had arrived then did not go on to its client. Takes back the
    /// successes later than the last answer that went on.
    pub(crate) fn lose_answer(&mut self, class: SourceClass, arrived: Mono) {
        if let Some(last) = self.answers.lose(class, arrived) {
            for proofs in [&mut self.proofs, &mut self.forwarded] {
                let proof = &mut proofs[class as usize];
                *proof = (*proof).min(Some(last));
            }
        }
    }

    /// A connection of that path failed.
    pub(crate) fn fail(&mut self, class: SourceClass, at: Mono) {
        let failure = &mut self.failures[class as usize];
        *failure = (*failure).max(Some(at));
    }

    /// Adds to the run of failures. A run with nothing in it for longer than `pause` is over.
    pub(crate) fn run(&mut self, entry: &Entry<'_>, pause: Duration) {
        let goes_on = |streak: &Streak| entry.last.since(streak.last) <= pause;
        let streak = self.streak.take().filter(goes_on);
        let streak = streak.unwrap_or_else(|| Streak {
            since: entry.since,
            ..Streak::default()
        });
        self.streak.insert(streak).enter(entry);
    }

    /// A connection from outside was sent on and not answered.
    pub(crate) fn leave_unanswered(&mut self, at: Mono) {
        let run = self
            .unanswered
            .filter(|(_, last)| at.since(*last) <= WINDOW);
        self.unanswered = Some((run.map_or(at, |(first, _)| first), at));
    }

    /// A client did not hear its answer.
    pub(crate) fn unhear(&mut self, client: IpAddr, at: Mono) {
        if let Some((_, last)) = self.unheard.iter_mut().find(|(known, _)| *known == client) {
            *last = at.max(*last);
            return;
        }
        if self.unheard.len() >= SOURCES_KEPT {
            let oldest = (0..self.unheard.len()).min_by_key(|place| self.unheard[*place].1);
            oldest.map(|place| self.unheard.swap_remove(place));
        }
        self.unheard.push((client, at));
    }
}

/// A run of failures of any client since the last success. Services are known by name: ids do not outlive
/// a restart of the agent, a run does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Streak {
    /// The earliest failure.
    pub(crate) since: Mono,
    /// The last one.
    pub(crate) last: Mono,
    /// By label (`namespace/name:port`).
    #[serde(default)]
    pub(crate) labels: BTreeSet<String>,
    /// By [`Failure`].
    pub(crate) failures: [u64; FAILURES],
}

/// One entry into a run.
pub(crate) struct Entry<'a> {
    pub(crate) since: Mono,
    pub(crate) last: Mono,
    pub(crate) failures: &'a [(Failure, u32)],
    pub(crate) info: &'a ServiceInfo,
}

impl Streak {
    fn enter(&mut self, entry: &Entry<'_>) {
        self.since = self.since.min(entry.since);
        self.last = self.last.max(entry.last);
        for (failure, n) in entry.failures {
            let count = &mut self.failures[*failure as usize];
            *count = count.saturating_add(u64::from(*n));
        }
        if self.labels.len() < SERVICES_KEPT {
            self.labels.insert(entry.info.label());
        }
    }

    /// The commonest failure; among equals, the one that leaves least doubt.
    pub(crate) fn commonest(&self) -> Failure {
        commonest(&self.failures).unwrap_or(Failure::Lost)
    }
}

/// The commonest of some failures; among equals, the one that leaves least doubt.
pub(crate) fn commonest(failures: &[u64; FAILURES]) -> Option<Failure> {
    const BY_DOUBT: [Failure; FAILURES] = [
        Failure::Leaked,
        Failure::Misrouted,
        Failure::Stale,
        Failure::Refused,
        Failure::Lost,
        Failure::Unheard,
    ];
    let most = failures.iter().max().filter(|n| **n > 0)?;
    let is_most = |failure: &Failure| failures[*failure as usize] == *most;
    BY_DOUBT.into_iter().find(is_most)
}
