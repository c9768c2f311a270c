//! The kernel's side of a simulated node: the maps that the agent programs, and the rules of
//! `agent_common::classify` run over them for every packet that crosses a device. What a sample
//! holds is what the programs would have counted, so no evidence is made up.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use agent_common::abi::LOSS_WINDOW_NS;
use agent_common::classify::{Connection, Direction, Evidence, World, observe};
use agent_common::evidence::{
    Anomaly, FAULTS, Fault, OUTCOMES, Outcome, Pending, PendingKey, anomaly_flag, state,
};
use agent_common::packet::Segment;
use agent_common::service::{
    Address, EndpointKey, EndpointValue, FAMILIES, FrontendKey, FrontendKind, FrontendValue, Owed,
    SOURCE_CLASSES, SourceClass, device_flag, frontend_flag, mapped,
};

use crate::cause::Failure;
use crate::event::KernelSample;
use crate::evidence::{CountDelta, Sighting};
use crate::expect::SourcePrefix;
use crate::plan::{Installed, MapChange};
use crate::time::Mono;

/// Index of an interface.
pub(super) type Device = u32;
/// A default route leaves by it.
pub(super) const UPLINK: Device = 2;
/// Device that a mirror copies packets to.
pub(super) const MIRROR: Device = 3;
/// Pods' bridge, where a node has one.
pub(super) const BRIDGE: Device = 4;
/// Near end of the sentinel's client pair.
pub(super) const PROBE_CLIENT: Device = 5;
/// Near end of the sentinel's server pair.
pub(super) const PROBE_ECHO: Device = 6;
/// The first of pods' own.
pub(super) const FIRST_POD: Device = 100;

/// Lifetime of entries in ns, as in `agent`'s sweeper.
const KEEP_ANSWERED: u64 = 1_500_000_000;
const KEEP_UNANSWERED: u64 = 130_000_000_000;
const KEEP_PROBE: u64 = 3_000_000_000;

/// Maps and evidence.
#[derive(Debug, Default)]
pub(super) struct Kernel {
    frontends: BTreeMap<FrontendKey, FrontendValue>,
    endpoints: BTreeMap<EndpointKey, EndpointValue>,
    sources: BTreeMap<SourcePrefix, SourceClass>,
    /// Devices of addresses that do not leave by the uplink.
    pub(super) routes: BTreeMap<Ipv4Addr, Device>,
    evidence: RefCell<Gathered>,
    /// Lost connections that were reported already.
    told: BTreeSet<PendingKey>,
    /// The next sweep is an agent's first: what it finds lost was reported by the one before.
    swept: bool,
    /// The ring buffer is full: failures are counted and not reported.
    pub(super) ring_full: bool,
}

#[derive(Debug, Default)]
struct Gathered {
    pending: BTreeMap<PendingKey, (Pending, u32)>,
    counts: BTreeMap<(u32, usize), [u32; OUTCOMES]>,
    anomalies: Vec<Anomaly>,
    proofs: [[Option<Mono>; SOURCE_CLASSES]; FAMILIES],
    faults: [u64; FAULTS],
}

/// A packet crosses a device.
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
    /// A packet crosses a device.
    pub(super) fn cross(&self, device: Device, way: Direction, packet: &Segment, now: Mono) {
        let crossing = Crossing {
            kernel: self,
            now: now.0,
            device,
        };
        observe(&crossing, way, packet);
    }

    /// Bits of [`state`] of the connection with this initial sequence number.
    pub(super) fn state(&self, isn: u32) -> u32 {
        let key = PendingKey { isn, family: 0 };
        let evidence = self.evidence.borrow();
        evidence.pending.get(&key).map_or(0, |(_, state)| *state)
    }

    /// Changes the maps.
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
                | MapChange::RetireEndpoint { key, value } => {
                    self.endpoints.insert(key, value);
                }
                MapChange::DeleteEndpoint { key } => {
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

    /// Content of the maps.
    pub(super) fn installed(&self) -> Installed {
        Installed {
            frontends: self.frontends.iter().map(|(k, v)| (*k, *v)).collect(),
            endpoints: self.endpoints.iter().map(|(k, v)| (*k, *v)).collect(),
            sources: self.sources.iter().map(|(k, v)| (*k, *v)).collect(),
        }
    }

    /// Another agent opens the maps: what was counted until then is no evidence to it.
    pub(super) fn open(&mut self) {
        self.evidence.get_mut().counts.clear();
        self.swept = false;
    }

    /// Evidence since the last sample.
    pub(super) fn sample(&mut self, now: Mono) -> KernelSample {
        let lost = self.sweep(now.0);
        let evidence = self.evidence.get_mut();
        let mut counts: BTreeMap<(u32, usize), CountDelta> = BTreeMap::new();
        let delta = |(service, class): (u32, usize)| CountDelta {
            service,
            class: SourceClass::from_index(class as u32),
            counts: [0; OUTCOMES],
            lost: 0,
        };
        for (key, moved) in std::mem::take(&mut evidence.counts) {
            counts.entry(key).or_insert_with(|| delta(key)).counts = moved;
        }
        for pending in &lost {
            let key = (pending.service, usize::from(pending.class));
            counts.entry(key).or_insert_with(|| delta(key)).lost += 1;
        }
        let anomalies = std::mem::take(&mut evidence.anomalies);
        let mut sightings: Vec<Sighting> = anomalies.iter().filter_map(sighting).collect();
        sightings.extend(lost.iter().map(|pending| lost_sighting(pending, now)));
        KernelSample {
            counts: counts.into_values().collect(),
            sightings,
            last_proofs: evidence.proofs,
            faults: evidence.faults,
            ..KernelSample::default()
        }
    }

    /// Forgets what is over, and returns what became lost.
    fn sweep(&mut self, now: u64) -> Vec<Pending> {
        let (mut lost, mut over) = (Vec::new(), Vec::new());
        let pending = &mut self.evidence.get_mut().pending;
        for (key, (fields, state)) in pending.iter() {
            let age = now.saturating_sub(fields.arrived_ns);
            let is_probe = fields.flags & frontend_flag::SENTINEL != 0;
            let is_lost = age > LOSS_WINDOW_NS
                && state & state::PROGRESS == 0
                && Owed::from_byte(fields.owed).is_forward()
                && fields.flags & frontend_flag::HOST_ENDPOINT == 0
                && !is_probe;
            if is_lost && self.told.insert(*key) && self.swept {
                lost.push(*fields);
            }
            let keep = if is_probe {
                KEEP_PROBE
            } else if state & state::ANSWERED != 0 {
                KEEP_ANSWERED
            } else {
                KEEP_UNANSWERED
            };
            if age > keep {
                over.push(*key);
            }
        }
        for key in over {
            pending.remove(&key);
            self.told.remove(&key);
        }
        self.swept = true;
        lost
    }

    fn device_to(&self, destination: &Address) -> Device {
        let IpAddr::V4(to) = ip_of(destination) else {
            return UPLINK;
        };
        self.routes.get(&to).copied().unwrap_or(UPLINK)
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

    fn endpoint(&self, key: &EndpointKey) -> Option<EndpointValue> {
        self.kernel.endpoints.get(key).copied()
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
        if let Some(at) = of_family.and_then(|of| of.get_mut(usize::from(class))) {
            *at = Some(Mono(self.now));
        }
    }

    fn delay(&self, _: u32, _: u64) {}

    fn fault(&self, fault: Fault) {
        self.kernel.evidence.borrow_mut().faults[fault as usize] += 1;
    }

    fn report(&self, anomaly: &Evidence<'_>) {
        if self.kernel.ring_full {
            return self.fault(Fault::RingFull);
        }
        let record = anomaly.record(self.now, self.device);
        self.kernel.evidence.borrow_mut().anomalies.push(record);
    }
}

/// An address as the maps hold it.
pub(super) fn map_of(address: Ipv4Addr) -> Address {
    mapped(address.octets())
}

fn ip_of(address: &Address) -> IpAddr {
    Ipv6Addr::from(*address).to_canonical()
}

fn socket_of(address: &Address, port: [u8; 2]) -> SocketAddr {
    SocketAddr::new(ip_of(address), u16::from_be_bytes(port))
}

fn sighting(anomaly: &Anomaly) -> Option<Sighting> {
    let failure = match Outcome::from_byte(anomaly.outcome)? {
        Outcome::Refused => Failure::Refused,
        Outcome::Leaked => Failure::Leaked,
        Outcome::Misrouted => Failure::Misrouted,
        Outcome::Stale => Failure::Stale,
        Outcome::Unheard => Failure::Unheard,
        _ => return None,
    };
    let left = anomaly.destination != [0; 16];
    Some(Sighting {
        at: Mono(anomaly.at_ns),
        arrived: Mono(anomaly.arrived_ns),
        service: anomaly.service,
        class: SourceClass::from_index(u32::from(anomaly.class)),
        kind: FrontendKind::from_byte(anomaly.kind),
        failure,
        client: ip_of(&anomaly.client),
        frontend: socket_of(&anomaly.frontend, anomaly.frontend_port),
        destination: left.then(|| socket_of(&anomaly.destination, anomaly.destination_port)),
        device: anomaly.device,
        misdelivered: anomaly.flags & anomaly_flag::MISDELIVERED != 0,
        icmp: anomaly.flags & anomaly_flag::ICMP != 0,
        left_since: None,
    })
}

fn lost_sighting(pending: &Pending, now: Mono) -> Sighting {
    Sighting {
        at: now,
        arrived: Mono(pending.arrived_ns),
        service: pending.service,
        class: SourceClass::from_index(u32::from(pending.class)),
        kind: FrontendKind::from_byte(pending.kind),
        failure: Failure::Lost,
        client: ip_of(&pending.client),
        frontend: socket_of(&pending.frontend, pending.frontend_port),
        destination: None,
        device: pending.device,
        misdelivered: false,
        icmp: false,
        left_since: None,
    }
}
