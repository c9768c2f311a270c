//! Absorbs a sample into the ledger: first proofs, then failures that are later than the proofs.
//!
//! Length: one sample, in the order in which its parts are absorbed.

use std::collections::BTreeSet;
use std::collections::btree_map::Entry;
use std::time::Duration;

use pathproof_facts::cause::Failure;
use pathproof_facts::cluster::ObjectName;
use pathproof_facts::directory::{Directory, ServiceInfo};
use pathproof_facts::limits::{CONFLICT_SETTLES, DIALLED_AFTER, IN_USE_FOR, TRACK_KEPT_FOR};
use pathproof_facts::time::Mono;
use pathproof_wire::abi::LOSS_WINDOW_NS;
use pathproof_wire::evidence::Outcome;
use pathproof_wire::service::{FAMILIES, Family, SourceClass};

use super::family::Streak;
use super::seen_working::NewFailures;
use super::{Ledger, SERVICES_TRACKED, ServicesSeenWorking, Track};
use crate::evidence::{Client, CountDelta, FailedConnection, Place, Sample};
use crate::peers::PeerSample;

/// Time after a SYN's arrival at which its failure is final: connections that a sample counts as lost arrived
/// at least this long before it.
const LOSS_WINDOW: Duration = Duration::from_nanos(LOSS_WINDOW_NS);
/// Maximum delay until a lost connection is noticed, including the time to the next sample.
pub const LOST_NOTICED: Duration = Duration::from_nanos(LOSS_WINDOW_NS + 500_000_000);

impl Ledger {
    pub fn absorb(&mut self, sample: &Sample, directory: &dyn Directory) {
        let before = self.sampled;
        let at = before.map_or(sample.at, |before| sample.at.max(before));
        self.observer = sample.observer.clone();
        if let Some(read) = sample.programming {
            self.programming.get_or_insert_default().take(read);
        }
        self.sampled = Some(at);
        self.seen = Some(at);
        self.tracks
            .retain(|_, track| at.since(track.last) <= TRACK_KEPT_FOR);
        self.external_failures.forget(at, directory);
        if sample.observer.attached == 0 {
            // Unseen connections may have succeeded, so no run of failures continues.
            self.external_failures.excuse();
            return self.end_failures();
        }
        let sample_gap = self.limits.sample_gap;
        let gap = before.is_none_or(|before| at.since(before) > sample_gap);
        if let Some(before) = before {
            self.close_gap(before, at);
        }
        let mut context = SampleContext {
            at,
            // After a gap the ring buffer holds old failures. A run must not start at the time of those.
            floor: if gap { at } else { at.minus(sample_gap) },
            before,
            proven: [false; FAMILIES],
            proven_outside: BTreeSet::new(),
            to_former_endpoints: to_former_endpoints(sample),
        };
        // Real connections only: a connection to the sentinel is a probe, or comes from an unknown client.
        let real = |id| directory.service(id).filter(|info| !info.sentinel);
        let counts = sample.counts.iter();
        let counts = counts.filter_map(|delta| Some((delta, real(delta.service)?)));
        let counts: Vec<Counted<'_>> = counts.collect();
        self.absorb_answers(sample, &counts, real, at);
        self.absorb_proofs(sample, &counts, &mut context);
        self.absorb_successes(sample);
        self.absorb_data(sample, real);
        for (_, info) in counts.iter().filter(|(_, info)| info.endpoints == 0) {
            self.worked.lack_endpoints(info, at);
            self.worked_outside.lack_endpoints(info, at);
        }
        for (family, unanswered) in self.families.iter_mut().zip(sample.unanswered) {
            if unanswered > 0 {
                family.leave_unanswered(at);
            }
        }
        for (delta, info) in &counts {
            self.absorb_failures(delta, info, &context);
        }
        for failed_connection in &sample.failed_connections {
            // A misdelivered connection always counts: even an old view is right about this node's endpoints.
            let counts =
                failed_connection.misdelivered || !self.is_suspended(failed_connection.failure);
            if counts && let Some(info) = real(failed_connection.service) {
                self.absorb_failed_connection(failed_connection, &info, &context);
            }
        }
    }

    /// Records which families users dial. Users are pods and clients outside, but neither the sentinel nor
    /// the pod probe. Processes of the node do not count either: the agent and the proxy dial the API
    /// server's Service, so no node would ever be idle.
    pub fn note_users(&mut self, counts: &[CountDelta], directory: &dyn Directory, at: Mono) {
        let dialled = |delta: &&CountDelta| {
            delta.class != SourceClass::Host && delta.counts[Outcome::Arrived as usize] > 0
        };
        let services = counts.iter().filter(dialled);
        for info in services.filter_map(|delta| directory.service(delta.service)) {
            if !info.sentinel && !info.echo {
                self.families[info.family as usize].used = Some(at);
            }
        }
    }

    /// Absorbs connections to other nodes. Must follow [`Ledger::absorb`] of the same sample.
    pub fn absorb_peers(&mut self, peers: &PeerSample, directory: &dyn Directory) {
        if let Some(at) = self.sampled {
            // With partial coverage an answer may have passed unseen.
            let trusts_silence = self.observer.attached > 0 && !self.is_suspended(Failure::Lost);
            let limits = (self.limits.proof_age, trusts_silence);
            self.peers.absorb(peers, at, limits, directory);
        }
    }

    /// Ends failures that were not confirmed before a gap in observation, since connections may have
    /// succeeded in it. Confirmed failures stay: the kernel counts successes during a gap, too, but not those
    /// of the node itself.
    pub(super) fn close_gap(&mut self, before: Mono, at: Mono) {
        if at.since(before) <= self.limits.sample_gap {
            return;
        }
        self.peers.forget_silence();
        let confirmed = self.limits.broken_after;
        for family in &mut self.families {
            let lasted = |streak: &Streak| before.since(streak.since) >= confirmed;
            family.streak.take_if(|streak| !lasted(streak));
        }
        let all = [true; FAMILIES];
        self.worked.forget_failures_but(all, confirmed);
        self.worked_outside.forget_failures_but(all, confirmed);
        self.leaked_from_host = ServicesSeenWorking::default();
    }

    /// Forgets all failures, since connections may have succeeded unseen. But if the kernel shows an obstacle
    /// for a class of clients, such as a missing route, their connections cannot have succeeded. So failures
    /// of Services for these clients stay, if they have lasted long enough.
    pub(super) fn end_failures(&mut self) {
        for family in &mut self.families {
            family.streak = None;
            family.answers.forget_lost(Mono(u64::MAX));
            family.routes.forget();
            family.data.forget_lost();
        }
        let obstructed = |class: SourceClass| {
            Family::ALL.map(|family| self.family(family).obstacle.present(class).is_some())
        };
        let [pods, outside] = [SourceClass::Pod, SourceClass::External].map(obstructed);
        let spread = self.limits.service_spread;
        self.worked.forget_failures_but(pods, spread);
        self.worked_outside.forget_failures_but(outside, spread);
        self.leaked_from_host = ServicesSeenWorking::default();
    }

    /// Must precede proofs, because a SYN that leaves for an endpoint is no proof while answers enter and
    /// none is forwarded. A forwarded answer counts only if SYNs of its Service leave. Otherwise it may be an
    /// answer of the node itself (of an endpoint that is the node, or of a DNS cache at a Service's address),
    /// which needs no forwarding. While connections may succeed unseen, no further answer counts as lost, and
    /// earlier losses expire like proofs.
    fn absorb_answers(
        &mut self,
        sample: &Sample,
        counts: &[Counted<'_>],
        real: impl Fn(u32) -> Option<ServiceInfo>,
        at: Mono,
    ) {
        let old = at.minus(self.limits.proof_age);
        for (delta, info) in counts.iter().filter(|(_, info)| !info.on_host) {
            let answered = delta.counts[Outcome::Answered as usize] > 0;
            let leaves = delta.counts[Outcome::Proven as usize] > 0
                || match delta.class {
                    SourceClass::Pod => self.worked.has_lately(info, old),
                    SourceClass::External => self.worked_outside.has_lately(info, old),
                    SourceClass::Host => false,
                };
            if answered && leaves {
                let ledger = &mut self.families[info.family as usize];
                ledger.answers.go_on(delta.class, at);
            }
        }
        if self.is_suspended(Failure::Lost) {
            let families = self.families.iter_mut();
            return families.for_each(|family| family.answers.forget_lost(old));
        }
        for failed_connection in sample
            .failed_connections
            .iter()
            .filter(|anomaly| anomaly.answer_lost)
        {
            if let Some(info) =
                real(failed_connection.service).filter(|info| !is_disputed(info, at))
            {
                let ledger = &mut self.families[info.family as usize];
                ledger.lose_answer(failed_connection.class, failed_connection.arrived);
            }
        }
    }

    /// Must precede failures, because a proof ends earlier runs of failures.
    fn absorb_proofs(
        &mut self,
        sample: &Sample,
        counts: &[Counted<'_>],
        context: &mut SampleContext,
    ) {
        context.proven = Family::ALL.map(|family| {
            let ledger = &mut self.families[family as usize];
            let known = ledger.last_proof();
            for class in SourceClass::ALL {
                if ledger.answers.is_stuck(class) {
                    continue;
                }
                if let Some(at) = sample.last_proofs[family as usize][class as usize] {
                    ledger.prove(class, at);
                }
            }
            ledger.last_proof() > known
        });
        for (delta, info) in counts {
            let ledger = &mut self.families[info.family as usize];
            if delta.counts[Outcome::Arrived as usize] > 0 {
                ledger.arrival = Some(context.at);
            }
            if delta.counts[Outcome::Proven as usize] == 0 || ledger.answers.is_stuck(delta.class) {
                continue;
            }
            // The time of the last proof was read before the kernel counted this proof.
            if ledger.proofs[delta.class as usize] <= context.before {
                ledger.prove(delta.class, context.at);
            }
            context.proven[info.family as usize] = true;
            if !info.on_host {
                // `proofs` may contain a later proof of another Service, so this one is dated to the sample
                // at the latest.
                let last = ledger.proofs[delta.class as usize];
                ledger.forward(
                    delta.class,
                    last.map_or(context.at, |last| last.min(context.at)),
                );
            }
            let count = delta.counts[Outcome::Proven as usize];
            match delta.class {
                SourceClass::Pod => self.worked.succeed(info, count, context.at),
                SourceClass::External => {
                    self.worked_outside.succeed(info, count, context.at);
                    self.external_failures.prove((delta.service, info));
                    (context.proven_outside).insert((info.name.clone(), info.family));
                }
                SourceClass::Host => {}
            }
            if let Some(track) = self.tracks.get_mut(&delta.service) {
                track.prove(delta.class, context.at);
            }
        }
    }

    /// Absorbs data of answered connections, forwarded or lost.
    fn absorb_data(&mut self, sample: &Sample, real: impl Fn(u32) -> Option<ServiceInfo>) {
        let mixed = self.sentinel.applicability.mixed;
        for success in &sample.successes {
            if let Some(answered) = success.data_answered {
                let ledger = &mut self.families[success.family as usize];
                ledger.data.answer(success.class, answered, mixed);
            }
        }
        for lost in &sample.lost_data {
            let counts = !self.is_suspended(Failure::Lost);
            if let Some(info) = real(lost.service).filter(|_| counts) {
                let ledger = &mut self.families[info.family as usize];
                let pause = self.limits.proof_age;
                ledger.data.lose(lost, &info, (pause, mixed));
            }
        }
    }

    /// A successful connection to a pod of this node shows that routes to pods exist. If the sentinel is
    /// turned off, any forwarded connection shows it.
    fn absorb_successes(&mut self, sample: &Sample) {
        for family in Family::ALL {
            let of_family = sample
                .successes
                .iter()
                .filter(|success| success.family == family);
            let latest = |place: Place| {
                let of_place = of_family.clone().filter(|success| success.place == place);
                of_place.map(|success| success.at).max()
            };
            let ledger = &mut self.families[family as usize];
            for success in of_family.clone() {
                let client = success.client.map(|(address, device)| Client {
                    address,
                    class: success.class,
                    device,
                });
                client.into_iter().for_each(|client| ledger.serve(client));
            }
            ledger.remote = ledger.remote.max(latest(Place::Remote));
            let shown = match sample.programming {
                Some(_) => latest(Place::Near),
                None => ledger.forwarded.into_iter().flatten().max(),
            };
            shown.inspect(|at| ledger.routes.succeed(*at));
        }
        for endpoint in &sample.by_uplink {
            let family = Family::ALL[usize::from(endpoint.is_ipv6())];
            self.families[family as usize].routes.reach(*endpoint);
        }
    }

    fn absorb_failures(&mut self, delta: &CountDelta, info: &ServiceInfo, context: &SampleContext) {
        if is_disputed(info, context.at) {
            return;
        }
        let mut failures = self.failures_of(delta);
        if failures.is_empty() {
            return;
        }
        let family = &self.families[info.family as usize];
        let is_stuck = family.answers.is_stuck(delta.class);
        let proven = delta.counts[Outcome::Proven as usize] > 0 && !is_stuck;
        if let Some(track) = self.track(delta.service, info, context.at) {
            for (failure, n) in &failures {
                track.count(delta.class, *failure, *n, context.at);
            }
            if proven {
                // The order of proof and failure is unknown, so the proof counts.
                track.prove(delta.class, context.at);
            }
        }
        if delta.class == SourceClass::External
            && !proven
            && self.worked_outside.has(info, context.at)
        {
            // Misrouted clients may reuse the ports of old connections, which conntrack remembers. The kernel
            // limits its reports, so this goes for those of the same sample without a report too.
            let certain = |failure: &Failure| match failure {
                Failure::Leaked => true,
                Failure::Misrouted => !context.to_former_endpoints.contains(&delta.service),
                _ => false,
            };
            let failed = failures.iter().filter(|(failure, _)| certain(failure));
            let n = failed.fold(0_u32, |sum, (_, n)| sum.saturating_add(*n));
            if n > 0 {
                let path = (delta.service, info);
                self.external_failures
                    .fail(path, (n, None), context.at, &self.limits);
            }
        }
        // Stale connections count by age, as failed_connections. A connection whose answer was not delivered did
        // succeed.
        failures.retain(|(failure, _)| {
            !matches!(failure, Failure::Stale | Failure::AnswerNotDelivered)
        });
        if failures.is_empty() {
            return;
        }
        if !proven {
            for (failure, count) in &failures {
                let new = NewFailures {
                    // Failures are reported after their loss window.
                    arrived: context.at.minus(LOSS_WINDOW).max(context.floor),
                    since: context.at,
                    noticed: context.at,
                    failure: *failure,
                    count: *count,
                    icmp: false,
                    misdelivered: false,
                    client: None,
                };
                self.fail_service(delta.class, info, &new);
            }
        }
        let family = &mut self.families[info.family as usize];
        family.fail(delta.class, context.at);
        // The connections arrived a loss window before the sample. If a proof is younger than that, the order
        // of proof and failure is unknown here; failed_connections show it.
        let noticed = context.at.minus(LOST_NOTICED);
        if context.proven[info.family as usize] || family.last_proof() >= Some(noticed) {
            return;
        }
        family.run(
            (context.at, context.at),
            &failures,
            info,
            self.limits.proof_age,
        );
    }

    /// Records failures of a Service that worked for this class of clients. If nothing ever worked, neither
    /// probes nor real connections, the proxy may never have written a rule. In that case untranslated
    /// connections count for any Service, since no policy causes them, unless pods' connections may succeed
    /// unseen.
    fn fail_service(&mut self, class: SourceClass, info: &ServiceInfo, new: &NewFailures) {
        let family = info.family;
        let worked = || !self.worked.is_empty(family) || !self.worked_outside.is_empty(family);
        let unseen = self.sentinel.applicability.pods_unseen;
        let never = new.failure == Failure::Leaked
            && !unseen
            && !self.sentinel.is_armed(family)
            && !worked();
        let pause = self.limits.proof_age;
        match class {
            SourceClass::Pod => self.worked.fail(info, new, never, pause),
            SourceClass::External => self.worked_outside.fail(info, new, false, pause),
            SourceClass::Host
                if new.failure == Failure::Leaked && self.is_host_alone(info, new) =>
            {
                self.leaked_from_host.fail(info, new, true, pause);
            }
            SourceClass::Host => {}
        }
    }

    /// Whether a leaked connection of the node itself may show that a rule is gone. Its successes are not
    /// observed, so it cannot have been seen to work. Instead, the Service must be old enough for any proxy
    /// to have written its rules. If others used the family within the last hour, they are better witnesses.
    fn is_host_alone(&self, info: &ServiceInfo, new: &NewFailures) -> bool {
        let is_old = |since: Mono| new.arrived.since(since) > self.limits.lag_after;
        let unused = |at: Mono| new.noticed.since(at) > IN_USE_FOR;
        info.since.is_some_and(is_old) && self.family(info.family).used.is_none_or(unused)
    }

    fn absorb_failed_connection(
        &mut self,
        failed_connection: &FailedConnection,
        info: &ServiceInfo,
        context: &SampleContext,
    ) {
        if is_disputed(info, context.at) {
            return;
        }
        let at = failed_connection.at.min(context.at);
        // A connection to an endpoint's own address accuses nobody: the client may know that address from
        // elsewhere.
        if failed_connection.is_direct() {
            if failed_connection.age() >= Some(DIALLED_AFTER)
                && let Some(track) = self.track(failed_connection.service, info, at)
            {
                track.count(failed_connection.class, Failure::Stale, 1, at);
                track.dial(at);
            }
            return;
        }
        if let Some(track) = self.track(failed_connection.service, info, at) {
            track.note_failed_connection(failed_connection, at);
        }
        let left_grace = self.limits.left_grace;
        let family = &mut self.families[info.family as usize];
        match failed_connection.failure {
            Failure::AnswerNotDelivered => {
                return family.answer_not_delivered(failed_connection.client, at);
            }
            Failure::Stale if failed_connection.age().is_none_or(|age| age <= left_grace) => return,
            _ => family.fail(failed_connection.class, at),
        }
        // Conntrack sends a client that reuses the port of an old connection to the old endpoint, whatever the
        // rules are. So a Service's failures do not include these. Only the node's verdict counts them, if
        // programming has stalled.
        if failed_connection.failure == Failure::Stale {
            return;
        }
        // The failure was found only now, but counts from the arrival of the connection.
        let began = failed_connection.arrived;
        // For such a client the kernel may also have no route to the old endpoint, and answer by ICMP.
        let counts_outside =
            failed_connection.failure == Failure::Refused && !failed_connection.icmp;
        if counts_outside
            && failed_connection.class == SourceClass::External
            // After a gap the ring buffer holds failures that may be over.
            && at >= context.floor
            // The order of this failure and the proof is unknown.
            && !context.proven_outside.contains(&(info.name.clone(), info.family))
            && self.worked_outside.has(info, context.at)
        {
            let (path, client) = (
                (failed_connection.service, info),
                Some(failed_connection.client),
            );
            self.external_failures
                .fail(path, (1, client), at, &self.limits);
        }
        let arrived = began.max(context.floor).min(context.at);
        let new = NewFailures {
            arrived,
            since: arrived,
            noticed: at.max(context.floor),
            failure: failed_connection.failure,
            // The counters contain this failure as well.
            count: 0,
            icmp: failed_connection.icmp,
            misdelivered: failed_connection.misdelivered,
            client: Some(failed_connection.client),
        };
        self.fail_service(failed_connection.class, info, &new);
        let family = &mut self.families[info.family as usize];
        if let Some(endpoint) = failed_connection.misdelivered_endpoint()
            && self.endpoint_devices.believes(&endpoint)
        {
            let namespace = &info.name.namespace;
            (family.routes).miss(endpoint, namespace, new.arrived, self.limits.proof_age);
        }
        if family.last_proof() >= Some(began) {
            return;
        }
        let times = (new.arrived, new.noticed);
        family.run(
            times,
            &[(failed_connection.failure, 1)],
            info,
            self.limits.proof_age,
        );
    }

    /// Returns the track of a failing Service, which is created if there is room.
    fn track(&mut self, id: u32, info: &ServiceInfo, at: Mono) -> Option<&mut Track> {
        let full = self.tracks.len() >= SERVICES_TRACKED;
        let track = match self.tracks.entry(id) {
            Entry::Vacant(_) if full => return None,
            place => place.or_insert_with(|| Track::begin(info, at)),
        };
        if !track.is(info) {
            *track = Track::begin(info, at);
        }
        track.endpoints = info.endpoints;
        Some(track)
    }

    /// Failures that are judged: not those of a kind that is suspended.
    fn failures_of(&self, delta: &CountDelta) -> Vec<(Failure, u32)> {
        let of = |outcome: Outcome| delta.counts[outcome as usize];
        let failures = [
            (Failure::Refused, of(Outcome::Refused)),
            (Failure::Leaked, of(Outcome::Leaked)),
            (Failure::Misrouted, of(Outcome::Misrouted)),
            (Failure::Stale, of(Outcome::Stale)),
            (Failure::AnswerNotDelivered, of(Outcome::AnswerNotDelivered)),
            (Failure::Lost, delta.lost),
        ];
        let counts = |(failure, n): &(Failure, u32)| *n > 0 && !self.is_suspended(*failure);
        failures.into_iter().filter(counts).collect()
    }

    fn is_suspended(&self, failure: Failure) -> bool {
        match failure {
            Failure::Lost => self.observer.lost_suspended,
            Failure::Misrouted | Failure::Stale => self.observer.misrouted_suspended,
            Failure::Refused => self.observer.refused_suspended,
            Failure::Leaked | Failure::AnswerNotDelivered => false,
        }
    }
}

/// Whether another Service began or ceased to use a frontend of this one a moment ago: connections may
/// have gone to either.
fn is_disputed(info: &ServiceInfo, now: Mono) -> bool {
    info.conflict_changed
        .is_some_and(|at| now.since(at) <= CONFLICT_SETTLES)
}

/// A count delta and the Service that it belongs to.
type Counted<'a> = (&'a CountDelta, ServiceInfo);

/// Values that are needed to absorb each part of a sample.
struct SampleContext {
    at: Mono,
    /// Earliest start of a run of failures that begins in this sample.
    floor: Mono,
    /// Time of the previous sample.
    before: Option<Mono>,
    /// Families with a proof in this sample.
    proven: [bool; FAMILIES],
    /// Services with a proof by a client outside in this sample.
    proven_outside: BTreeSet<(ObjectName, Family)>,
    /// Service ports with a misrouted connection from outside to an endpoint that was removed long ago. Its
    /// client may reuse the port of an old connection.
    to_former_endpoints: BTreeSet<u32>,
}

fn to_former_endpoints(sample: &Sample) -> BTreeSet<u32> {
    let misrouted = sample
        .failed_connections
        .iter()
        .filter(|failed_connection| {
            let is_outside = failed_connection.class == SourceClass::External;
            is_outside
                && failed_connection.failure == Failure::Misrouted
                && failed_connection.left_since.is_some()
        });
    misrouted
        .map(|failed_connection| failed_connection.service)
        .collect()
}
