//! Reads the evidence out of the maps: what was counted since the last look, single anomalies, the
//! times of the last proofs, and what the programs could not do.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

use agent_common::abi::map;
use agent_common::evidence::{
    Anomaly, Delays, FAULTS, Fault, OUTCOMES, Outcome, Pending, ServiceCounts, TOUCH_CHUNK,
    Touched, anomaly_flag, proof_slot,
};
use agent_common::service::{
    Address, FAMILIES, Family, FrontendKind, Port, SOURCE_CLASSES, SourceClass,
};
use aya::Ebpf;
use aya::maps::{Array, Map, MapData, MapError, PerCpuArray, RingBuf};
use thiserror::Error;

use super::datagrams::{Datagrams, UdpAnswer};
use super::load::LoadError;
use super::sweep::{Sweeper, Swept};
use agent_core::cause::Failure;
use agent_core::event::KernelSample;
use agent_core::evidence::{CountDelta, Sighting};
use agent_core::time::Mono;

/// A map could not be opened or read.
#[derive(Debug, Error)]
pub enum SampleError {
    /// The object lacks it.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The kernel refused.
    #[error("cannot read the map {map}: {source}")]
    Read {
        /// Its name.
        map: &'static str,
        /// Why not.
        source: MapError,
    },
    /// Many elements at a time could not be read.
    #[error("cannot sweep the map {map}: {source}")]
    Sweep {
        /// Its name.
        map: &'static str,
        /// Why not.
        source: std::io::Error,
    },
}

/// What one reading of the maps brought.
#[derive(Debug, Default)]
pub struct Read {
    /// The evidence.
    pub sample: KernelSample,
    /// Answers to datagrams.
    pub answers: Vec<UdpAnswer>,
    /// Connections under way.
    pub under_way: usize,
}

/// The maps that hold evidence.
pub struct Sampler {
    counts: Array<MapData, ServiceCounts>,
    touched: Array<MapData, Touched>,
    proofs: Array<MapData, u64>,
    delays: Array<MapData, Delays>,
    faults: PerCpuArray<MapData, u64>,
    anomalies: RingBuf<MapData>,
    pending: MapData,
    datagrams: Datagrams,
    sweeper: Sweeper,
    /// Whether a sweep was made: the first one finds what was lost under a former agent, which told
    /// it already.
    swept: bool,
    words: Box<Touched>,
    seen: HashMap<u32, ServiceCounts>,
}

/// Counts as read, of the Services whose counts moved.
struct Counts {
    words: Box<Touched>,
    moved: Vec<(u32, ServiceCounts)>,
}

/// Takes a map out of the object as the type it is used as.
pub(super) fn take<T: TryFrom<Map, Error = MapError>>(
    ebpf: &mut Ebpf,
    name: &'static str,
) -> Result<T, SampleError> {
    let map = ebpf
        .take_map(name)
        .ok_or(LoadError::Missing { kind: "map", name })?;
    T::try_from(map).map_err(|source| SampleError::Read { map: name, source })
}

impl Sampler {
    /// Takes the maps. What was counted under a former agent is the base of what comes, and no
    /// evidence: it was judged already.
    pub fn open(ebpf: &mut Ebpf) -> Result<Self, SampleError> {
        let pending = match ebpf.take_map(map::PENDING) {
            Some(Map::HashMap(data)) => data,
            _ => Err(LoadError::Missing {
                kind: "map",
                name: map::PENDING,
            })?,
        };
        let mut sampler = Self {
            counts: take(ebpf, map::COUNTS)?,
            touched: take(ebpf, map::TOUCHED)?,
            proofs: take(ebpf, map::PROOFS)?,
            delays: take(ebpf, map::DELAYS)?,
            faults: take(ebpf, map::FAULTS)?,
            anomalies: take(ebpf, map::ANOMALIES)?,
            pending,
            datagrams: Datagrams::open(ebpf)?,
            sweeper: Sweeper::default(),
            swept: false,
            words: Box::default(),
            seen: HashMap::new(),
        };
        let base = sampler.read_counts()?;
        sampler.take_deltas(base);
        Ok(sampler)
    }

    /// The map of connections under way.
    pub(super) fn pending(&self) -> BorrowedFd<'_> {
        self.pending.fd().as_fd()
    }

    /// The devices by which default routes leave: what comes in there comes from outside.
    pub(super) fn set_uplinks(&mut self, uplinks: BTreeSet<u32>) {
        self.sweeper.set_uplinks(uplinks);
    }

    /// Reads all of them. Nothing is taken before everything is read: a reading that fails half-way
    /// loses nothing.
    pub fn sample(&mut self, now: Mono) -> Result<Read, SampleError> {
        let read = self.read_counts()?;
        let last_proofs = self.last_proofs()?;
        let faults = self.fault_counts()?;
        // What cannot be read of datagrams judges nobody, and is no reason to read nothing.
        let datagrams = self.datagrams.sweep_or_warn(now.0);
        let swept = self.sweep(now)?;
        let mut counts = self.take_deltas(read);
        Self::add_lost(&swept.lost, &mut counts);
        Self::add_lost(&datagrams.lost, &mut counts);
        let mut sightings: Vec<Sighting> = Vec::new();
        while let Some(record) = self.anomalies.next() {
            sightings.extend(read_anomaly(&record).and_then(|anomaly| sighting_of(&anomaly)));
        }
        sightings.extend(swept.lost.iter().map(|pending| lost_sighting(pending, now)));
        Ok(Read {
            sample: KernelSample {
                counts,
                sightings,
                last_proofs,
                faults,
                forgotten_early: swept.forgotten_early,
                outside: swept.outside,
            },
            answers: datagrams.answers,
            under_way: swept.under_way,
        })
    }

    /// Sets the counts of an id to zero that is given to another Service.
    pub fn reset(&mut self, service: u32) -> Result<(), SampleError> {
        self.seen.remove(&service);
        self.counts
            .set(service, ServiceCounts::default(), 0)
            .map_err(|source| SampleError::Read {
                map: map::COUNTS,
                source,
            })
    }

    /// Delays from arrival to departure, by family.
    pub fn delays(&self) -> Result<[Delays; FAMILIES], SampleError> {
        let mut delays = [Delays::default(); FAMILIES];
        for family in Family::ALL {
            delays[family as usize] = read(&self.delays, map::DELAYS, family as u32)?;
        }
        Ok(delays)
    }

    fn sweep(&mut self, now: Mono) -> Result<Swept, SampleError> {
        let fd = self.pending.fd();
        let mut swept =
            self.sweeper
                .sweep(fd.as_fd(), now.0)
                .map_err(|source| SampleError::Sweep {
                    map: map::PENDING,
                    source,
                })?;
        if !std::mem::replace(&mut self.swept, true) {
            swept.lost.clear();
        }
        Ok(swept)
    }

    fn read_counts(&self) -> Result<Counts, SampleError> {
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
        Ok(Counts { words, moved })
    }

    /// What moved since the counts that were taken before.
    fn take_deltas(&mut self, counts: Counts) -> Vec<CountDelta> {
        let mut deltas = Vec::new();
        for (service, now) in counts.moved {
            let before = self.seen.insert(service, now).unwrap_or_default();
            push_deltas(service, &before, &now, &mut deltas);
        }
        self.words = counts.words;
        deltas
    }

    fn add_lost(lost: &[Pending], deltas: &mut Vec<CountDelta>) {
        for pending in lost {
            let class = SourceClass::from_index(u32::from(pending.class));
            match deltas
                .iter_mut()
                .find(|delta| delta.service == pending.service && delta.class == class)
            {
                Some(delta) => delta.lost += 1,
                None => deltas.push(CountDelta {
                    service: pending.service,
                    class,
                    counts: [0; OUTCOMES],
                    lost: 1,
                }),
            }
        }
    }

    fn last_proofs(&self) -> Result<[[Option<Mono>; SOURCE_CLASSES]; FAMILIES], SampleError> {
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

    fn fault_counts(&self) -> Result<[u64; FAULTS], SampleError> {
        let mut counts = [0; FAULTS];
        for fault in Fault::ALL {
            let per_cpu =
                self.faults
                    .get(&(fault as u32), 0)
                    .map_err(|source| SampleError::Read {
                        map: map::FAULTS,
                        source,
                    })?;
            counts[fault as usize] = per_cpu.iter().sum();
        }
        Ok(counts)
    }
}

fn read<T: aya::Pod>(
    array: &Array<MapData, T>,
    map: &'static str,
    index: u32,
) -> Result<T, SampleError> {
    array
        .get(&index, 0)
        .map_err(|source| SampleError::Read { map, source })
}

fn push_deltas(
    service: u32,
    before: &ServiceCounts,
    now: &ServiceCounts,
    deltas: &mut Vec<CountDelta>,
) {
    for class in SourceClass::ALL {
        let index = class as usize;
        let mut counts = [0; OUTCOMES];
        for (outcome, count) in counts.iter_mut().enumerate() {
            *count = counted_since(before.counts[index][outcome], now.counts[index][outcome]);
        }
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

/// A sum that went back was set to zero meanwhile, by another agent that gave the id to another
/// Service: two thousand million connections do not come between two looks.
fn counted_since(before: u32, now: u32) -> u32 {
    let by = now.wrapping_sub(before);
    if by <= u32::MAX / 2 { by } else { now }
}

/// A record of the ring buffer; nothing where it is of another size than ours.
fn read_anomaly(bytes: &[u8]) -> Option<Anomaly> {
    if bytes.len() < size_of::<Anomaly>() {
        return None;
    }
    // SAFETY: long enough, read unaligned, and `Anomaly` takes any bytes (`layout`).
    Some(unsafe { bytes.as_ptr().cast::<Anomaly>().read_unaligned() })
}

/// The address of either family that 16 mapped bytes stand for.
pub fn ip_of(address: &Address) -> IpAddr {
    Ipv6Addr::from(*address).to_canonical()
}

fn socket_of(address: &Address, port: Port) -> SocketAddr {
    SocketAddr::new(ip_of(address), u16::from_be_bytes(port))
}

/// When the endpoint of a stale connection left its slice, the core adds.
fn sighting_of(anomaly: &Anomaly) -> Option<Sighting> {
    let failure = match Outcome::from_byte(anomaly.outcome)? {
        Outcome::Refused => Failure::Refused,
        Outcome::Leaked => Failure::Leaked,
        Outcome::Misrouted => Failure::Misrouted,
        Outcome::Stale => Failure::Stale,
        Outcome::Unheard => Failure::Unheard,
        _ => return None,
    };
    let destination = (anomaly.destination != [0; 16])
        .then(|| socket_of(&anomaly.destination, anomaly.destination_port));
    Some(Sighting {
        at: Mono(anomaly.at_ns),
        arrived: Mono(anomaly.arrived_ns),
        service: anomaly.service,
        class: SourceClass::from_index(u32::from(anomaly.class)),
        kind: FrontendKind::from_byte(anomaly.kind),
        failure,
        client: ip_of(&anomaly.client),
        frontend: socket_of(&anomaly.frontend, anomaly.frontend_port),
        destination,
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
