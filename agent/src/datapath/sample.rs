//! Reads the evidence from the maps: counts since the last sample, single anomalies, the times of
//! the last proofs, and faults of the programs.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use aya::maps::{Array, MapData, PerCpuArray, RingBuf};
use aya::{Ebpf, Pod};
use pathproof_facts::time::Mono;
use pathproof_node::event::KernelSample;
use pathproof_wire::abi::map;
use pathproof_wire::evidence::{
    Anomaly, FAULTS, Fault, OUTCOMES, ServiceCounts, TOUCH_CHUNK, Touched, proof_slot,
};
use pathproof_wire::service::{FAMILIES, Family, SOURCE_CLASSES, SourceClass};
use pathproof_witness::evidence::{CountDelta, PendingReports, count};

use super::devices::Device;
use super::load::{MapsError, read, refused, take, write};
use super::sweep::{Arrivals, Sweeper, Swept};

#[derive(Debug, Default)]
pub struct Read {
    pub sample: KernelSample,
    pub under_way: usize,
}

pub struct Sampler {
    counts: Array<MapData, ServiceCounts>,
    touched: Array<MapData, Touched>,
    proofs: Array<MapData, u64>,
    faults: PerCpuArray<MapData, u64>,
    anomalies: RingBuf<MapData>,
    pub(super) connections: Sweeper,
    datagrams: Sweeper,
    arrivals: Arrivals,
    /// Whether the last sweep of datagrams failed; only the first of several failures is logged.
    datagrams_refused: bool,
    /// Connections that were reported as failed and may still be answered.
    pending_reports: PendingReports,
    words: Box<Touched>,
    seen: HashMap<u32, ServiceCounts>,
}

/// The words of [`Touched`] at a reading, and the counts of the Services whose counts changed.
type Counts = (Box<Touched>, Vec<(u32, ServiceCounts)>);

impl Sampler {
    /// Takes the maps. Counts of a previous agent are the baseline and no evidence: that agent judged them.
    pub fn open(ebpf: &mut Ebpf) -> Result<Self, MapsError> {
        let mut sampler = Self {
            counts: take(ebpf, map::COUNTS)?,
            touched: take(ebpf, map::TOUCHED)?,
            proofs: take(ebpf, map::PROOFS)?,
            faults: take(ebpf, map::FAULTS)?,
            anomalies: take(ebpf, map::ANOMALIES)?,
            connections: Sweeper::open(ebpf, map::PENDING)?,
            datagrams: Sweeper::open(ebpf, map::UDP_PENDING)?,
            arrivals: Arrivals::default(),
            datagrams_refused: false,
            pending_reports: PendingReports::default(),
            words: Box::default(),
            seen: HashMap::new(),
        };
        let base = sampler.read_counts()?;
        sampler.take_deltas(base);
        Ok(sampler)
    }

    /// Sets the current devices. Traffic that enters by one with a default route comes from outside. A device
    /// that is created again keeps its name, but gets another index.
    pub(super) fn set_devices(&mut self, devices: &[Device]) {
        let uplinks = devices.iter().filter(|device| device.uplink);
        self.arrivals.uplinks = uplinks.map(|device| device.index).collect();
        let named = devices.iter();
        let named = named.map(|device| (device.index, Arc::from(device.name.as_str())));
        self.arrivals.devices = named.collect();
    }

    /// Takes a sample. The counts are committed only after every map was read: a failed reading
    /// loses nothing.
    pub fn sample(&mut self, now: Mono) -> Result<Read, MapsError> {
        let read = self.read_counts()?;
        let last_proofs = self.last_proofs()?;
        let faults = self.fault_counts()?;
        let (connections, sample, came_back) = self.arrivals.sweep(&mut self.connections, now.0)?;
        let datagrams = self.sweep_datagrams(now);
        let mut counts = self.take_deltas(read);
        // Only connections have anomalies. Datagrams are no evidence against the node: they are counted, and
        // show that their family is used.
        let mut failed_connections = Vec::new();
        while let Some(record) = self.anomalies.next() {
            let anomaly = self::record::<Anomaly>(&record);
            failed_connections
                .extend(anomaly.and_then(|anomaly| self.pending_reports.report(&anomaly)));
        }
        let by_uplink = came_back.iter();
        let by_uplink = by_uplink.filter_map(|key| self.pending_reports.answered_by_uplink(key));
        let by_uplink: BTreeSet<IpAddr> = by_uplink.collect();
        // A datagram to a departed endpoint is no fault of the node. It is reported like a connection to a
        // departed endpoint.
        let departed = datagrams
            .failed
            .iter()
            .filter(|(_, pending, _)| pending.is_direct());
        for (key, pending, failed) in connections.failed.iter().chain(departed) {
            failed_connections.push(self.pending_reports.failed(key, pending, *failed));
        }
        self.pending_reports.forget(now);
        // A connection to a departed endpoint has no frontend, so it is not counted.
        let all = connections.failed.iter().chain(&datagrams.failed);
        for (_, pending, failed) in all.filter(|(_, pending, _)| !pending.is_direct()) {
            count(&mut counts, pending, *failed);
        }
        Ok(Read {
            sample: KernelSample {
                counts,
                failed_connections,
                last_proofs,
                faults,
                by_uplink: by_uplink.into_iter().collect(),
                forgotten_early: connections.forgotten_early,
                ..sample
            },
            under_way: connections.under_way,
        })
    }

    /// Sweeps the datagrams. They do not affect the verdict, so a failure must not fail the sample.
    fn sweep_datagrams(&mut self, now: Mono) -> Swept {
        let swept = self.datagrams.sweep(now.0, |_, _, _| {});
        let was_refused = std::mem::replace(&mut self.datagrams_refused, swept.is_err());
        swept.unwrap_or_else(|error| {
            if !was_refused {
                tracing::warn!(%error, "UDP datagrams cannot be followed");
            }
            Swept::default()
        })
    }

    /// Sets the counts of an id to zero, because another Service gets it.
    pub fn reset(&mut self, service: u32) -> Result<(), MapsError> {
        self.seen.remove(&service);
        let none = ServiceCounts::default();
        write(&mut self.counts, map::COUNTS, service, none)
    }

    fn read_counts(&self) -> Result<Counts, MapsError> {
        let words = Box::new(read(&self.touched, map::TOUCHED, 0)?);
        let mut moved = Vec::new();
        for (word, (now, before)) in words.words.iter().zip(&self.words.words).enumerate() {
            if now == before {
                continue;
            }
            let first = word as u32 * TOUCH_CHUNK;
            for service in first..first + TOUCH_CHUNK {
                let counts: ServiceCounts = read(&self.counts, map::COUNTS, service)?;
                let before = self.seen.get(&service).copied().unwrap_or_default();
                if counts.counts != before.counts {
                    moved.push((service, counts));
                }
            }
        }
        Ok((words, moved))
    }

    /// Commits the new counts and returns the changes.
    fn take_deltas(&mut self, (words, moved): Counts) -> Vec<CountDelta> {
        let mut deltas = Vec::new();
        for (service, now) in moved {
            let before = self.seen.insert(service, now).unwrap_or_default();
            for class in SourceClass::ALL {
                let (before, now) = (before.counts[class as usize], now.counts[class as usize]);
                let counts =
                    std::array::from_fn(|outcome| counted_since(before[outcome], now[outcome]));
                if counts != [0; OUTCOMES] {
                    deltas.push(CountDelta {
                        service,
                        class,
                        counts,
                        lost: 0,
                    });
                }
            }
        }
        self.words = words;
        deltas
    }

    fn last_proofs(&self) -> Result<[[Option<Mono>; SOURCE_CLASSES]; FAMILIES], MapsError> {
        let mut proofs = [[None; SOURCE_CLASSES]; FAMILIES];
        for family in Family::ALL {
            for class in SourceClass::ALL {
                let slot = proof_slot(family as u32, class as u8);
                let at: u64 = read(&self.proofs, map::PROOFS, slot)?;
                proofs[family as usize][class as usize] = (at != 0).then_some(Mono(at));
            }
        }
        Ok(proofs)
    }

    fn fault_counts(&self) -> Result<[u64; FAULTS], MapsError> {
        let mut counts = [0; FAULTS];
        for fault in Fault::ALL {
            let per_cpu = self.faults.get(&(fault as u32), 0);
            let per_cpu = per_cpu.map_err(refused("read", map::FAULTS))?;
            counts[fault as usize] = per_cpu.iter().sum();
        }
        Ok(counts)
    }
}

/// The increase of a counter. Fewer than 2^31 connections come between two samples. So a counter that
/// decreased was reset by another agent, which gave the id to another Service.
fn counted_since(before: u32, now: u32) -> u32 {
    let by = now.wrapping_sub(before);
    if by <= u32::MAX / 2 { by } else { now }
}

/// A record of a ring buffer; `None` if it is too short.
pub(super) fn record<T: Pod>(bytes: &[u8]) -> Option<T> {
    // SAFETY: there are enough bytes, the read may be unaligned, and `Pod` accepts any bytes.
    let read = || unsafe { bytes.as_ptr().cast::<T>().read_unaligned() };
    (bytes.len() >= size_of::<T>()).then(read)
}
