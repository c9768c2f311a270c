//! The kernel of a simulated node: maps that the agent programs, and the rules of `pathproof_wire::classify`,
//! which run for every packet at every device. A sample contains what the real programs would have counted,
//! so no evidence is made up.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use pathproof_facts::node_context::SourcePrefix;
use pathproof_facts::time::Mono;
use pathproof_node::event::KernelSample;
use pathproof_plan::{Installed, MapChange};
use pathproof_wire::abi::LOSS_WINDOW_NS;
use pathproof_wire::classify::{AnomalyParts, Connection, Direction, World, observe};
use pathproof_wire::evidence::{
    Anomaly, FAULTS, Fault, OUTCOMES, Outcome, Pending, PendingKey, state,
};
use pathproof_wire::packet::Segment;
use pathproof_wire::service::{
    Address, EndpointEntry, EndpointKey, EndpointValue, FAMILIES, Family, FrontendKey,
    FrontendValue, SOURCE_CLASSES, SourceClass, device_flag, frontend_flag,
};
use pathproof_wire::transition::{Failed, failed};
use pathproof_witness::evidence::{
    CountDelta, LostData, PendingReports, Successes, came_back, count, ip_of,
};
use pathproof_witness::peers::PeerSample;

pub(super) type Device = u32;
/// Device of the default route.
pub(super) const UPLINK: Device = 2;
/// Device that a mirror copies packets to.
pub(super) const MIRROR: Device = 3;
/// Bridge of the pods, on nodes that have one.
pub(super) const BRIDGE: Device = 4;
/// Near end of the sentinel's client veth pair.
pub(super) const PROBE_CLIENT: Device = 5;
/// Near end of the sentinel's server veth pair.
pub(super) const PROBE_ECHO: Device = 6;
/// Device to the pods of other nodes in an overlay network.
pub(super) const TUNNEL: Device = 7;
/// First device of a pod.
pub(super) const FIRST_POD: Device = 100;

/// Lifetime of entries in ns, as in `agent`'s sweeper.
const KEEP_ANSWERED: u64 = 1_500_000_000;
const KEEP_UNANSWERED: u64 = 130_000_000_000;
const KEEP_PROBE: u64 = 3_000_000_000;

#[derive(Debug, Default)]
pub(super) struct Kernel {
    frontends: BTreeMap<FrontendKey, FrontendValue>,
    endpoints: BTreeMap<EndpointKey, EndpointValue>,
    sources: BTreeMap<SourcePrefix, SourceClass>,
    /// Devices of addresses that are not reached by the uplink.
    pub(super) routes: BTreeMap<IpAddr, Device>,
    evidence: RefCell<Gathered>,
    /// Lost connections that were already reported.
    reported: BTreeSet<PendingKey>,
    pending_reports: PendingReports,
    successes: Successes,
    lost_data: Vec<LostData>,
    /// Whether `sweep` has run since this agent started. The first run returns no failed connections, because
    /// the previous agent reported them.
    swept: bool,
    /// Endpoints whose times in `met` the agent reads.
    pub(super) asked: Vec<EndpointKey>,
    sampled: u64,
    /// Whether the ring buffer is full: failures are then counted but not reported.
    pub(super) ring_full: bool,
}

#[derive(Debug, Default)]
struct Gathered {
    pending: BTreeMap<PendingKey, (Pending, u32)>,
    counts: BTreeMap<(u32, usize), [u32; OUTCOMES]>,
    anomalies: Vec<Anomaly>,
    /// When endpoints were met, as in [`EndpointEntry::met_ns`].
    met: BTreeMap<EndpointKey, Mono>,
    proofs: [[Option<Mono>; SOURCE_CLASSES]; FAMILIES],
    faults: [u64; FAULTS],
}

struct Crossing<'a> {
    kernel: &'a Kernel,
    now: u64,
    device: Device,
}

struct Followed<'a> {
    evidence: &'a RefCell<Gathered>,
    key: PendingKey,
    fields: Pending,
}

impl Kernel {
    /// Runs the rules for a packet at a device.
    pub(super) fn cross(&self, device: Device, way: Direction, packet: &Segment, now: Mono) {
        let crossing = Crossing {
            kernel: self,
            now: now.0,
            device,
        };
        observe(&crossing, way, packet);
    }

    /// Bits of [`state`] of the connection with this initial sequence number.
    pub(super) fn state(&self, isn: u32, family: Family) -> u32 {
        let key = PendingKey {
            isn,
            family: family as u32,
        };
        let evidence = self.evidence.borrow();
        evidence.pending.get(&key).map_or(0, |(_, state)| *state)
    }

    pub(super) fn program(&mut self, plan: Vec<MapChange>) {
        for change in plan {
            match change {
                MapChange::ResetCounts { service } => {
                    let counts = &mut self.evidence.get_mut().counts;
                    counts.retain(|(id, _), _| *id != service);
                }
                MapChange::PutSource { prefix, class } => {
                    self.sources.insert(prefix, class);
                }
                MapChange::DeleteSource { prefix } => {
                    self.sources.remove(&prefix);
                }
                MapChange::PutEndpoint { key, value }
                | MapChange::UpdateEndpoint { key, value }
                | MapChange::RetireEndpoint { key, value } => {
                    self.evidence.get_mut().met.remove(&key);
                    self.endpoints.insert(key, value);
                }
                MapChange::DeleteEndpoint { key } => {
                    self.evidence.get_mut().met.remove(&key);
                    self.endpoints.remove(&key);
                }
                MapChange::PutFrontend { key, value } => {
                    self.frontends.insert(key, value);
                }
                MapChange::DeleteFrontend { key } => {
                    self.frontends.remove(&key);
                }
            }
        }
    }

    pub(super) fn installed(&self) -> Installed {
        Installed {
            frontends: self.frontends.iter().map(|(k, v)| (*k, *v)).collect(),
            endpoints: self.endpoints.iter().map(|(k, v)| (*k, *v)).collect(),
            sources: self.sources.iter().map(|(k, v)| (*k, *v)).collect(),
        }
    }

    /// Prepares the maps for the next agent, which does not get earlier counts.
    pub(super) fn open(&mut self) {
        self.evidence.get_mut().counts.clear();
        self.successes = Successes::default();
        self.swept = false;
    }

    pub(super) fn sample(&mut self, now: Mono) -> KernelSample {
        let (unanswered, peers) = self.ended(now.0);
        let failed = self.sweep(now.0);
        let evidence = self.evidence.get_mut();
        let moved = std::mem::take(&mut evidence.counts).into_iter();
        let delta = |((service, class), counts)| CountDelta {
            service,
            class: SourceClass::from_index(class as u32),
            counts,
            lost: 0,
        };
        let mut counts: Vec<CountDelta> = moved.map(delta).collect();
        let anomalies = std::mem::take(&mut evidence.anomalies);
        let mut failed_connections = Vec::new();
        for anomaly in &anomalies {
            failed_connections.extend(self.pending_reports.report(anomaly));
        }
        let back = evidence.pending.iter().filter(|(_, (fields, state))| {
            came_back(&Pending {
                state: *state,
                ..*fields
            })
        });
        let by_uplink = back.filter_map(|(key, _)| self.pending_reports.answered_by_uplink(key));
        let by_uplink: BTreeSet<IpAddr> = by_uplink.collect();
        for (key, pending, failed) in &failed {
            failed_connections.push(self.pending_reports.failed(key, pending, *failed));
            count(&mut counts, pending, *failed);
        }
        self.pending_reports.forget(now);
        let is_met = |key: &&EndpointKey| evidence.met.contains_key(*key);
        KernelSample {
            counts,
            failed_connections,
            last_proofs: evidence.proofs,
            faults: evidence.faults,
            unanswered,
            successes: self.successes.take(),
            by_uplink: by_uplink.into_iter().collect(),
            lost_data: std::mem::take(&mut self.lost_data),
            peers,
            met: self.asked.iter().filter(is_met).copied().collect(),
            ..KernelSample::default()
        }
    }

    /// Connections whose loss window ended since the last sample: how many from outside were forwarded and
    /// not answered, and the counts of all connections by peer node.
    fn ended(&mut self, now: u64) -> ([u32; FAMILIES], PeerSample) {
        let since = std::mem::replace(&mut self.sampled, now);
        let (mut unanswered, mut peers) = ([0; FAMILIES], PeerSample::default());
        for (key, (fields, state)) in &self.evidence.get_mut().pending {
            let ends = fields.arrived_ns.saturating_add(LOSS_WINDOW_NS);
            if !(since..now).contains(&ends) || fields.flags & frontend_flag::SENTINEL != 0 {
                continue;
            }
            let fields = Pending {
                state: *state,
                ..*fields
            };
            peers.add(key, &fields);
            let is_silent = state & (state::FORWARDED | state::ANSWERED) == state::FORWARDED;
            let is_external = fields.class == SourceClass::External as u8;
            unanswered[key.family as usize] += u32::from(is_silent && is_external);
        }
        peers.name_devices(|index| match index {
            UPLINK => Some("eth0".into()),
            _ => Some(format!("device{index}").into()),
        });
        (unanswered, peers)
    }

    /// Removes finished entries and returns failed connections.
    fn sweep(&mut self, now: u64) -> Vec<(PendingKey, Pending, Failed)> {
        let (mut failures, mut over) = (Vec::new(), Vec::new());
        let pending = &mut self.evidence.get_mut().pending;
        for (key, (fields, state)) in pending.iter() {
            let age = now.saturating_sub(fields.arrived_ns);
            let is_probe = fields.flags & frontend_flag::SENTINEL != 0;
            let fields = Pending {
                state: *state,
                ..*fields
            };
            self.successes.add(key, &fields);
            if let Some(failed) = failed(&fields, age).filter(|_| !is_probe)
                && self.reported.insert(*key)
                && self.swept
            {
                failures.push((*key, fields, failed));
            }
            let keep = if is_probe {
                KEEP_PROBE
            } else if state & state::ANSWER_OUT != 0 {
                KEEP_ANSWERED
            } else {
                KEEP_UNANSWERED
            };
            if age > keep {
                self.lost_data.extend(LostData::of(&fields));
                over.push(*key);
            }
        }
        for key in over {
            pending.remove(&key);
            self.reported.remove(&key);
        }
        self.swept = true;
        failures
    }

    fn device_to(&self, destination: &Address) -> Device {
        self.routes
            .get(&ip_of(destination))
            .copied()
            .unwrap_or(UPLINK)
    }
}

impl Connection for Followed<'_> {
    fn fields(&self) -> &Pending {
        &self.fields
    }

    fn state(&self) -> u32 {
        let evidence = self.evidence.borrow();
        let found = evidence.pending.get(&self.key);
        found.map_or(0, |(_, state)| *state)
    }

    fn swap(&self, from: u32, to: u32) -> bool {
        let mut evidence = self.evidence.borrow_mut();
        let found = evidence.pending.get_mut(&self.key);
        let same = found.filter(|(_, state)| *state == from);
        same.map(|(_, state)| *state = to).is_some()
    }

    fn sent_to(&self, peer: u16, device: u32, range: u32) {
        let mut evidence = self.evidence.borrow_mut();
        if let Some((fields, _)) = evidence.pending.get_mut(&self.key) {
            fields.note = fields.note & !u32::from(u16::MAX) | u32::from(peer);
            (fields.left_by, fields.range) = (device, range);
        }
    }
}

impl<'a> World for Crossing<'a> {
    type Connection = Followed<'a>;

    fn now(&self) -> u64 {
        self.now
    }

    fn device(&self) -> u32 {
        self.device
    }

    fn device_flags(&self) -> u32 {
        match self.device {
            UPLINK => device_flag::UPLINK,
            _ => 0,
        }
    }

    fn route_names_device(&self, segment: &Segment) -> bool {
        self.kernel.device_to(&segment.destination) == self.device
    }

    fn frontend(&self, key: &FrontendKey) -> Option<FrontendValue> {
        self.kernel.frontends.get(key).copied()
    }

    fn endpoint(&self, key: &EndpointKey) -> Option<EndpointEntry> {
        let value = *self.kernel.endpoints.get(key)?;
        let met = self.kernel.evidence.borrow().met.get(key).copied();
        Some(EndpointEntry {
            met_ns: met.map_or(0, |at| at.0),
            ..EndpointEntry::from(value)
        })
    }

    fn meet(&self, key: &EndpointKey) {
        let met = &mut self.kernel.evidence.borrow_mut().met;
        met.insert(*key, Mono(self.now));
    }

    fn source_class(&self, address: &Address) -> SourceClass {
        let sources = self.kernel.sources.iter();
        let holding = sources.filter(|(prefix, _)| prefix.contains(address));
        holding
            .max_by_key(|(prefix, _)| prefix.bits)
            .map_or(SourceClass::External, |(_, class)| *class)
    }

    fn take_budget(&self, _: &Address) -> bool {
        true
    }

    fn connection(&self, key: &PendingKey) -> Option<Followed<'a>> {
        let evidence = &self.kernel.evidence;
        let fields = evidence.borrow().pending.get(key)?.0;
        Some(Followed {
            evidence,
            key: *key,
            fields,
        })
    }

    fn follow(&self, key: &PendingKey, pending: &Pending) -> bool {
        let mut evidence = self.kernel.evidence.borrow_mut();
        let is_new = !evidence.pending.contains_key(key);
        if is_new {
            evidence.pending.insert(*key, (*pending, pending.state));
        }
        is_new
    }

    fn count(&self, service: u32, class: u8, outcome: Outcome) {
        let mut evidence = self.kernel.evidence.borrow_mut();
        let counts = evidence.counts.entry((service, usize::from(class)));
        counts.or_default()[outcome as usize] += 1;
    }

    fn prove(&self, family: u32, class: u8) {
        let mut evidence = self.kernel.evidence.borrow_mut();
        let of_family = evidence.proofs.get_mut(family as usize);
        if let Some(at) = of_family.and_then(|proofs| proofs.get_mut(usize::from(class))) {
            *at = Some(Mono(self.now));
        }
    }

    fn fault(&self, fault: Fault) {
        self.kernel.evidence.borrow_mut().faults[fault as usize] += 1;
    }

    fn report(&self, anomaly: &AnomalyParts<'_>) {
        if self.kernel.ring_full {
            return self.fault(Fault::RingFull);
        }
        let record = anomaly.record(self.now, self.device);
        self.kernel.evidence.borrow_mut().anomalies.push(record);
    }
}
