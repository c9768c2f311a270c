//! Evidence kept per failing Service port.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use pathproof_facts::cause::{FAILURES, Failure};
use pathproof_facts::directory::ServiceInfo;
use pathproof_facts::limits::Limits;
use pathproof_facts::time::Mono;
use pathproof_wire::service::{Family, SOURCE_CLASSES, SourceClass};
use serde::{Deserialize, Serialize};

use super::family::commonest;
use super::source_ports::SourcePorts;
use crate::evidence::FailedConnection;

/// Maximum number of connections to endpoints that left, per Service port and source class.
const STALE_KEPT: usize = 16;

/// A Service port and family with failures.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Track {
    /// `namespace/name`, and `:port` where the port has a name.
    pub label: Box<str>,
    pub family: Family,
    pub endpoints: u32,
    /// First failure that is remembered.
    pub since: Mono,
    /// Last failure, including answers that were not delivered.
    pub last: Mono,
    /// Last proof after `since`.
    pub last_proof: Option<Mono>,
    /// Failures after `since`, by [`Failure`].
    pub failures: [u64; FAILURES],
    /// Leaked and misrouted connections, which need no confirmation, with the time of the last one.
    certain: [(Failure, Window, Option<Mono>); 2],
    /// Refused and lost connections by class of clients, since the last success of that class.
    #[serde(rename = "doubtful_by_class")]
    doubtful: [Option<DoubtfulRun>; SOURCE_CLASSES],
    /// Connections to endpoints that left: of pods, then of all other clients.
    stale: [VecDeque<StaleConnection>; 2],
    /// Source ports that dialled endpoints that left: of pods, then of all other clients.
    #[serde(default, skip_serializing_if = "crate::is_default")]
    dialled_from: [SourcePorts; 2],
    /// Connections that dialled the address of an endpoint that left, and the time of the last one.
    dialled: (Window, Option<Mono>),
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct DoubtfulRun {
    first: Mono,
    last: Mono,
    n: u32,
}

/// A new connection to an endpoint that has left its slice.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct StaleConnection {
    pub at: Mono,
    /// Time from the endpoint's departure to the arrival of the connection.
    pub age: Duration,
    /// Whether the client is a pod of this node. `of_pod` and `of_outsider` are both false for connections of
    /// the node itself.
    pub of_pod: bool,
    /// Whether the client is outside.
    pub of_outsider: bool,
    pub destination: Option<SocketAddr>,
    /// Whether the same client and port dialled that endpoint before: conntrack may remember the
    /// connection, and then no rule was evaluated.
    pub is_reused: bool,
}

impl StaleConnection {
    /// When the endpoint left.
    pub fn left(&self) -> Mono {
        self.at.minus(self.age)
    }
}

impl Track {
    pub(crate) fn begin(info: &ServiceInfo, at: Mono) -> Self {
        Self {
            label: info.label().into(),
            family: info.family,
            endpoints: info.endpoints,
            since: at,
            last: at,
            last_proof: None,
            failures: [0; FAILURES],
            certain: [Failure::Leaked, Failure::Misrouted]
                .map(|failure| (failure, Window::default(), None)),
            doubtful: [None; SOURCE_CLASSES],
            stale: Default::default(),
            dialled_from: Default::default(),
            dialled: Default::default(),
        }
    }

    /// Whether the id still belongs to this Service: ids are reused.
    pub(crate) fn is(&self, info: &ServiceInfo) -> bool {
        *self.label == *info.label() && self.family == info.family
    }

    /// Counts failures that were noticed by `at`.
    pub(crate) fn count(&mut self, class: SourceClass, failure: Failure, n: u32, at: Mono) {
        // After a quiet time the counts start from zero.
        if at.since(self.last) > WINDOW {
            (self.since, self.failures) = (at, [0; FAILURES]);
            self.doubtful = [None; SOURCE_CLASSES];
        }
        self.last = self.last.max(at);
        let total = &mut self.failures[failure as usize];
        *total = total.saturating_add(u64::from(n));
        match failure {
            Failure::Leaked | Failure::Misrouted => {
                let (_, window, last) = &mut self.certain[usize::from(failure != Failure::Leaked)];
                window.add(at, n);
                *last = (*last).max(Some(at));
            }
            Failure::Refused | Failure::Lost => {
                let (first, last) = (at, at);
                let run = &mut self.doubtful[class as usize];
                let run = run.get_or_insert(DoubtfulRun { first, last, n: 0 });
                run.last = run.last.max(at);
                run.n = run.n.saturating_add(n);
            }
            // `sight` records these, because their meaning depends on age and client.
            Failure::Stale | Failure::AnswerNotDelivered => {}
        }
    }

    /// Records a connection to the address of an endpoint that left. The counters contain it as well.
    pub(crate) fn dial(&mut self, at: Mono) {
        let (window, last) = &mut self.dialled;
        window.add(at, 1);
        *last = (*last).max(Some(at));
    }

    /// Records a single failure, which the counters contain as well.
    pub(crate) fn note_failed_connection(
        &mut self,
        failed_connection: &FailedConnection,
        at: Mono,
    ) {
        self.since = self.since.min(at);
        self.last = self.last.max(at);
        let Some(age) = failed_connection
            .age()
            .filter(|_| failed_connection.failure == Failure::Stale)
        else {
            return;
        };
        let place = usize::from(failed_connection.class != SourceClass::Pod);
        let client = SocketAddr::new(failed_connection.client, failed_connection.client_port);
        let is_reused =
            self.dialled_from[place].met_before(client, failed_connection.destination, at);
        let kept = &mut self.stale[place];
        if kept.len() == STALE_KEPT {
            // Connections from reused ports are removed first, so that one client cannot displace the few
            // connections that count.
            let reused = kept
                .iter()
                .position(|failed_connection| failed_connection.is_reused);
            kept.remove(reused.unwrap_or_default());
        }
        kept.push_back(StaleConnection {
            at,
            age,
            of_pod: failed_connection.class == SourceClass::Pod,
            of_outsider: failed_connection.class == SourceClass::External,
            destination: failed_connection.destination,
            is_reused,
        });
    }

    /// Records that a connection of this Service succeeded.
    pub(crate) fn prove(&mut self, class: SourceClass, at: Mono) {
        self.last_proof = self.last_proof.max(Some(at));
        self.doubtful[class as usize] = None;
    }

    /// Whether a recent failure is worth reporting. Connections to an endpoint that left a moment ago are
    /// not, since every rollout has them.
    pub fn is_trouble(&self, now: Mono, limits: &Limits) -> bool {
        let recent = |at: Mono| now.since(at) <= WINDOW;
        let other = self.failures.iter().sum::<u64>() > self.failures[Failure::Stale as usize];
        let dialled = self.dialled.0.at(now) >= limits.service_failures;
        dialled || (other && recent(self.last)) || self.last_stale(limits).is_some_and(recent)
    }

    /// The last connections to endpoints that had left, at most `STALE_KEPT` of pods and as many of others.
    pub fn stale(&self) -> impl Iterator<Item = &StaleConnection> + Clone {
        self.stale.iter().flatten()
    }

    /// When an endpoint that left longer ago than the grace period was last dialled, by any client.
    pub fn last_stale(&self, limits: &Limits) -> Option<Mono> {
        self.old_stale(limits).map(|seen| seen.at).max()
    }

    /// Connections to endpoints that left longer ago than the grace period.
    fn old_stale(&self, limits: &Limits) -> impl Iterator<Item = &StaleConnection> {
        self.stale().filter(|seen| seen.age > limits.left_grace)
    }

    /// The most common of the failures that confirm the Service to be broken, if it is.
    pub fn confirmed(&self, now: Mono, limits: &Limits) -> Option<Failure> {
        let mut among = [0; FAILURES];
        if self.is_going_on(self.last_stale(limits), now, limits) {
            let recent = |seen: &&StaleConnection| now.since(seen.at) <= WINDOW;
            among[Failure::Stale as usize] = self.old_stale(limits).filter(recent).count() as u64;
        }
        let (window, last) = &self.dialled;
        if self.is_going_on(*last, now, limits) {
            among[Failure::Stale as usize] += u64::from(window.at(now));
        }
        for (failure, window, last) in &self.certain {
            if self.is_going_on(*last, now, limits) {
                among[*failure as usize] = u64::from(window.at(now));
            }
        }
        if among.iter().sum::<u64>() >= u64::from(limits.service_failures) {
            return commonest(&among);
        }
        let lasts = |run: &DoubtfulRun| {
            let long = run.last.since(run.first) >= limits.service_spread;
            run.n >= limits.service_failures && long && now.since(run.last) <= WINDOW
        };
        if !self.doubtful.iter().flatten().any(lasts) {
            return None;
        }
        let mut among = [0; FAILURES];
        for failure in [Failure::Refused, Failure::Lost] {
            among[failure as usize] = self.failures[failure as usize];
        }
        commonest(&among)
    }

    /// Whether failures of one kind continue: the last one is recent, or nothing succeeded after it. So a
    /// repair shows after a short quiet time, before the window is empty.
    fn is_going_on(&self, last: Option<Mono>, now: Mono, limits: &Limits) -> bool {
        last.is_some_and(|last| {
            now.since(last) <= limits.service_quiet || self.last_proof.is_none_or(|at| at < last)
        })
    }

    /// The most common failure so far.
    pub fn commonest(&self) -> Failure {
        commonest(&self.failures).unwrap_or(Failure::Stale)
    }
}

/// Span of a `Window`; the current second is incomplete.
pub const WINDOW: Duration = Duration::from_secs(SECONDS as u64);

const SECONDS: usize = 10;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Window {
    /// Each second with its count, at the index that is the second modulo [`SECONDS`].
    buckets: [(u64, u32); SECONDS],
}

impl Window {
    pub(crate) fn add(&mut self, at: Mono, n: u32) {
        let second = at.0 / 1_000_000_000;
        let bucket = &mut self.buckets[(second % SECONDS as u64) as usize];
        if bucket.0 != second {
            *bucket = (second, 0);
        }
        bucket.1 = bucket.1.saturating_add(n);
    }

    pub(crate) fn at(&self, now: Mono) -> u32 {
        let second = now.0 / 1_000_000_000;
        let recent = |age: u64| age < SECONDS as u64;
        let buckets = self.buckets.iter();
        buckets
            .filter(|(counted, _)| second.checked_sub(*counted).is_some_and(recent))
            .fold(0, |sum, (_, n)| sum.saturating_add(*n))
    }
}
