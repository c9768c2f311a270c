//! Time that the datapath takes to follow changes of endpoints, measured on the wire: from the
//! change's trigger, and from its receipt on this node, to the first new connection to an added
//! endpoint, or the last one to a removed endpoint.
//!
//! This is SIG Scalability's network programming latency, which kube-proxy measures only until its rules
//! are written. Only connections can show the latency. With few of them, the result would be the pause
//! between two connections, so a change is measured only if its Service has enough. No verdict depends on a
//! latency, only on whether connections followed a change at all ([`ProgrammingSeen`]). Probes measure the
//! sentinel's endpoint ([`freshness`](pathproof_facts::freshness)).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use pathproof_facts::cluster::{ObjectName, SliceFacts};
use pathproof_facts::directory::Directory;
use pathproof_facts::time::{Mono, Wall};
use pathproof_facts::view::{Applied, ClusterView};
use pathproof_plan::MapChange;
use pathproof_wire::evidence::Outcome;
use pathproof_wire::service::{Address, EndpointKey, endpoint_flag};
use pathproof_witness::evidence::{CountDelta, ProgrammingSeen};

/// Maximum number of changes that are measured at a time. Further changes are not measured.
const WAITED_FOR: usize = 1_024;
/// Maximum time to wait for the first connection to an added endpoint, and for the last one to a
/// removed endpoint.
const WITHIN: Duration = Duration::from_secs(60);
/// After this time without a connection, a removed endpoint is assumed to get no further one.
const QUIET: Duration = Duration::from_secs(5);
/// A latency is measured only if the expected pause between two connections to one endpoint is at
/// most this, or at most a quarter of the latency.
const PAUSE: Duration = Duration::from_millis(100);

/// If a Service had this many connections per endpoint and an endpoint got none, the rules lack
/// that endpoint. By chance alone this happens once in a thousand times.
const MISSED_BY: u64 = 7;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EndpointChange {
    /// The endpoint may get new connections.
    Added,
    /// The endpoint may no longer get new connections.
    Removed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latency {
    pub since_receipt: Duration,
    /// From the change's trigger, such as a pod's readiness; `None` if the EndpointSlice names no trigger.
    pub since_trigger: Option<Duration>,
}

/// A change whose measurement ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Programmed {
    pub change: EndpointChange,
    /// `None` if there were too few connections.
    pub latency: Option<Latency>,
}

#[derive(Clone, Copy, Debug)]
struct Change {
    change: EndpointChange,
    received: Mono,
    /// Time from the change's trigger to its receipt.
    delivery: Option<Duration>,
    /// First connection to the added endpoint, or last one to the removed endpoint.
    met: Option<Mono>,
    /// Connections from the Service port to its endpoints since the receipt.
    connections: u64,
}

/// Changes that are being measured.
#[derive(Debug, Default)]
pub(crate) struct Programming {
    changes: BTreeMap<EndpointKey, Change>,
    moved: bool,
    done: Vec<Programmed>,
    /// Receipt of the newest added endpoint that got a connection.
    followed: Option<Mono>,
}

impl Programming {
    /// Starts to measure the changes of a plan. `triggers` is the result of [`deliveries`].
    pub(crate) fn follow(
        &mut self,
        plan: &[MapChange],
        triggers: &BTreeMap<ObjectName, Duration>,
        directory: &dyn Directory,
        now: Mono,
    ) {
        for change in plan {
            let (key, value, change) = match change {
                MapChange::PutEndpoint { key, value } => (*key, value, EndpointChange::Added),
                MapChange::RetireEndpoint { key, value } => (*key, value, EndpointChange::Removed),
                MapChange::DeleteEndpoint { key } => {
                    self.abandon(key);
                    continue;
                }
                _ => continue,
            };
            let service = directory.service(key.service);
            let measured_by_probes = service.as_ref().is_some_and(|service| service.sentinel);
            if value.flags & endpoint_flag::UDP != 0 || measured_by_probes {
                continue;
            }
            self.abandon(&key);
            if self.changes.len() == WAITED_FOR {
                self.done.push(change.unmeasured());
                continue;
            }
            self.moved = true;
            let next = Change {
                change,
                received: now,
                delivery: service.and_then(|service| triggers.get(&service.name).copied()),
                met: None,
                connections: 0,
            };
            self.changes.insert(key, next);
        }
    }

    /// Records a sample of the maps.
    pub(crate) fn read(
        &mut self,
        counts: &[CountDelta],
        met: &[(EndpointKey, Mono)],
        directory: &dyn Directory,
        now: Mono,
    ) {
        if self.changes.is_empty() {
            return;
        }
        for delta in counts {
            let sent =
                [Outcome::Forwarded, Outcome::Stale].map(|outcome| delta.counts[outcome as usize]);
            for (_, change) in self.changes.range_mut(keys_of(delta.service)) {
                change.connections += sent.into_iter().map(u64::from).sum::<u64>();
            }
        }
        for (key, at) in met {
            if let Some(change) = self.changes.get_mut(key) {
                change.met = Some(*at);
            }
        }
        let added = self
            .changes
            .values()
            .filter(|change| change.change == EndpointChange::Added);
        let met = added
            .filter(|change| change.met.is_some())
            .map(|change| change.received);
        self.followed = self.followed.max(met.max());
        let done = &mut self.done;
        let before = self.changes.len();
        self.changes.retain(|key, change| {
            if !change.is_over(now) {
                return true;
            }
            let endpoints = directory
                .service(key.service)
                .map_or(0, |service| service.endpoints);
            done.push(Programmed {
                change: change.change,
                latency: change.latency(endpoints, now),
            });
            false
        });
        self.moved |= self.changes.len() != before;
    }

    /// Whether the datapath follows endpoint changes, judged by added endpoints.
    pub(crate) fn seen(&self, directory: &dyn Directory) -> ProgrammingSeen {
        let is_missed = |(key, change): &(&EndpointKey, &Change)| {
            let endpoints = directory
                .service(key.service)
                .map_or(0, |service| service.endpoints);
            change.change == EndpointChange::Added
                && change.connections >= u64::from(endpoints.max(1)) * MISSED_BY
        };
        let missed = self.changes.iter().filter(is_missed);
        ProgrammingSeen {
            followed: self.followed,
            unmet: missed.map(|(_, change)| change.received).max(),
        }
    }

    /// The endpoints to read, if they changed since the last call.
    pub(crate) fn news(&mut self) -> Option<Vec<EndpointKey>> {
        std::mem::take(&mut self.moved).then(|| self.changes.keys().copied().collect())
    }

    /// The changes that ended since the last call.
    pub(crate) fn take_done(&mut self) -> Vec<Programmed> {
        std::mem::take(&mut self.done)
    }

    fn abandon(&mut self, key: &EndpointKey) {
        if let Some(change) = self.changes.remove(key) {
            self.moved = true;
            self.done.push(change.change.unmeasured());
        }
    }
}

impl EndpointChange {
    fn unmeasured(self) -> Programmed {
        Programmed {
            change: self,
            latency: None,
        }
    }
}

impl Change {
    fn is_over(&self, now: Mono) -> bool {
        let quiet = || now.since(self.met.unwrap_or(self.received)) >= QUIET;
        let settled = match self.change {
            EndpointChange::Added => self.met.is_some(),
            EndpointChange::Removed => quiet(),
        };
        settled || now.since(self.received) >= WITHIN
    }

    /// The latency, if the Service's `endpoints` get connections often enough to show it.
    fn latency(&self, endpoints: u32, now: Mono) -> Option<Latency> {
        let since_receipt = match (self.met, self.change) {
            (Some(at), _) => at.since(self.received),
            (None, EndpointChange::Removed) => Duration::ZERO,
            (None, EndpointChange::Added) => return None,
        };
        let share = match self.change {
            EndpointChange::Added => u64::from(endpoints),
            EndpointChange::Removed => u64::from(endpoints) + 1,
        };
        let connections = self.connections / share.max(1);
        let pause = now
            .since(self.received)
            .checked_div(u32::try_from(connections).ok()?)?;
        (pause <= PAUSE.max(since_receipt / 4)).then(|| Latency {
            since_receipt,
            since_trigger: self.delivery.map(|delivery| delivery + since_receipt),
        })
    }
}

/// Time from the trigger in the changed EndpointSlices to the receipt of the change at `now`, by
/// Service. The earliest trigger counts, as in kube-proxy.
pub(crate) fn deliveries(
    view: &ClusterView,
    applied: &Applied,
    now: Wall,
) -> BTreeMap<ObjectName, Duration> {
    let mut deliveries = BTreeMap::new();
    for (name, before) in &applied.before {
        let slices = view.state(name).map_or(&[][..], |state| &state.slices);
        // A slice with an old trigger does not count. Names are compared too, because slices of two
        // families have the same trigger.
        let is_old = |slice: &&Arc<SliceFacts>| {
            let trigger = |slice: &SliceFacts| (slice.name.clone(), slice.triggered);
            let mut before = before.slices.iter();
            before.any(|other| trigger(other) == trigger(slice))
        };
        let changed = slices.iter().filter(|slice| !is_old(slice));
        if let Some(earliest) = changed.filter_map(|slice| slice.triggered).min() {
            let ns = now.0.saturating_sub(earliest.0);
            let delivery = Duration::from_nanos(u64::try_from(ns).unwrap_or(0));
            deliveries.insert(name.clone(), delivery);
        }
    }
    deliveries
}

fn keys_of(service: u32) -> std::ops::RangeInclusive<EndpointKey> {
    let key = |address: Address, port| EndpointKey {
        service,
        address,
        port,
        padding: [0; 2],
    };
    key([0; 16], [0; 2])..=key([u8::MAX; 16], [u8::MAX; 2])
}

#[cfg(test)]
mod tests;
