//! Whether the datapath follows changes of endpoints, judged by the first new connections to added
//! endpoints ([`ProgrammingSeen`]).
//!
//! Only connections can show it, so an added endpoint without one counts only if its Service has enough of
//! them. Probes show it for the sentinel's endpoint ([`freshness`](pathproof_facts::freshness)).

use std::collections::BTreeMap;
use std::time::Duration;

use pathproof_facts::directory::Directory;
use pathproof_facts::time::Mono;
use pathproof_plan::MapChange;
use pathproof_wire::evidence::Outcome;
use pathproof_wire::service::{Address, EndpointKey, endpoint_flag};
use pathproof_witness::evidence::{CountDelta, ProgrammingSeen};

/// Maximum number of added endpoints that are followed at a time. Further ones are not followed.
const MAX_ADDED: usize = 1_024;
/// Maximum time to wait for the first connection to an added endpoint.
const WITHIN: Duration = Duration::from_secs(60);
/// If a Service had this many connections per endpoint and an endpoint got none, the rules lack
/// that endpoint. By chance alone this happens once in a thousand times.
const MISSED_CONNECTIONS: u64 = 7;

#[derive(Clone, Copy, Debug)]
struct Added {
    received: Mono,
    /// Connections from the Service port to its endpoints since the receipt.
    connections: u64,
}

/// Added endpoints without a connection so far.
#[derive(Debug, Default)]
pub(crate) struct Programming {
    added: BTreeMap<EndpointKey, Added>,
    /// Whether endpoints were added or removed here since the last [`Self::news`].
    changed: bool,
    /// Receipt of the newest added endpoint that got a connection.
    followed: Option<Mono>,
}

impl Programming {
    /// Starts to follow the endpoints that a plan adds.
    pub(crate) fn follow(&mut self, plan: &[MapChange], directory: &dyn Directory, now: Mono) {
        for change in plan {
            match change {
                MapChange::PutEndpoint { key, value } => {
                    self.abandon(key);
                    let service = directory.service(key.service);
                    let measured_by_probes = service.is_some_and(|service| service.sentinel);
                    let is_followed = value.flags & endpoint_flag::UDP == 0 && !measured_by_probes;
                    if is_followed && self.added.len() < MAX_ADDED {
                        let added = Added {
                            received: now,
                            connections: 0,
                        };
                        self.added.insert(*key, added);
                        self.changed = true;
                    }
                }
                MapChange::RetireEndpoint { key, .. } | MapChange::DeleteEndpoint { key } => {
                    self.abandon(key);
                }
                _ => {}
            }
        }
    }

    /// Records a sample of the maps. `met` are the endpoints that got a connection.
    pub(crate) fn read(&mut self, counts: &[CountDelta], met: &[EndpointKey], now: Mono) {
        if self.added.is_empty() {
            return;
        }
        for delta in counts {
            let sent =
                [Outcome::Forwarded, Outcome::Stale].map(|outcome| delta.counts[outcome as usize]);
            for (_, added) in self.added.range_mut(keys_of(delta.service)) {
                added.connections += sent.into_iter().map(u64::from).sum::<u64>();
            }
        }
        let before = self.added.len();
        let met = met.iter().filter_map(|key| self.added.remove(key));
        self.followed = self.followed.max(met.map(|added| added.received).max());
        (self.added).retain(|_, added| now.since(added.received) < WITHIN);
        self.changed |= self.added.len() != before;
    }

    pub(crate) fn seen(&self, directory: &dyn Directory) -> ProgrammingSeen {
        let is_missed = |(key, added): &(&EndpointKey, &Added)| {
            let endpoints = directory
                .service(key.service)
                .map_or(0, |service| service.endpoints);
            added.connections >= u64::from(endpoints.max(1)) * MISSED_CONNECTIONS
        };
        let missed = self.added.iter().filter(is_missed);
        ProgrammingSeen {
            followed: self.followed,
            unmet: missed.map(|(_, added)| added.received).max(),
        }
    }

    /// The endpoints to read, if they changed since the last call.
    pub(crate) fn news(&mut self) -> Option<Vec<EndpointKey>> {
        std::mem::take(&mut self.changed).then(|| self.added.keys().copied().collect())
    }

    fn abandon(&mut self, key: &EndpointKey) {
        self.changed |= self.added.remove(key).is_some();
    }
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
