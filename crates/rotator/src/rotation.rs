//! When the rotator writes, and what: which rotator leads, when the next generation is due, which slices
//! need repair. Pure; the agent's `rotate` reads and writes.

use std::net::IpAddr;
use std::time::Duration;

use pathproof_facts::cluster::Protocol;
use pathproof_facts::freshness::{
    FIRST_GENERATION, is_generation, newer_generation, next_generation,
};
use pathproof_facts::names::of_family;
use pathproof_facts::time::Mono;
use pathproof_wire::service::{FAMILIES, Family};

/// Another rotator may take the Lease this long after the leader's last renewal. The time is long because
/// each renewal is a write. Two renewals may fail before a rotation is missed.
pub const LEASE: Duration = Duration::from_secs(45);
/// Interval of the leader's renewals.
pub const RENEW: Duration = Duration::from_secs(15);
/// A leader that could not renew stops writing this long before another one may write.
const MARGIN: Duration = Duration::from_secs(15);
/// Minimum length of an outage of the API server.
const OUTAGE: Duration = Duration::from_secs(15);
/// Pause of rotations after an outage: proxies come back one by one and read everything again. It is no
/// fault of a node if its proxy is late then.
pub const PAUSE: Duration = Duration::from_secs(600);
/// Default of `--interval`. A hung proxy is found after the next rotation, so this is most of the delay.
pub const INTERVAL: Duration = Duration::from_secs(15);
/// Watch events per node and rotation: two slices, each sent to an agent and a proxy.
const EVENTS_PER_NODE: u32 = 4;
/// Maximum rate of watch events that rotations cause at the API server, on average.
const EVENTS_PER_SECOND: u32 = 200;

/// Time from one generation to the next: `least`, or nodes / 50 seconds if that is longer. Shorter
/// intervals would cause more than 200 watch events a second. With the default the second term
/// matters from 750 nodes: 20 s for 1,000 nodes, 60 s for 3,000, 100 s for 5,000.
pub fn interval(least: Duration, nodes: u32) -> Duration {
    least.max(Duration::from_secs(1) * EVENTS_PER_NODE * nodes / EVENTS_PER_SECOND)
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseSeen {
    /// The leader; `None` after a leader released it.
    pub holder: Option<String>,
    /// Changes with every write.
    pub version: String,
    /// Time for which the holder leads without a renewal, as the Lease has it.
    pub duration: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseStep {
    Create,
    /// Take the Lease, which has no holder.
    Take,
    /// Take the Lease of another holder, which expired.
    Seize,
    Renew,
    Wait,
}

/// One of several rotators, of which one leads.
#[derive(Clone, Debug, Default, Hash)]
pub struct Candidate {
    me: String,
    /// Version of another holder's Lease, and when this version was first read. Clocks of machines
    /// differ, so a Lease expires by this machine's clock, counted from its last change.
    observed: Option<(String, Mono)>,
    renewed: Option<Mono>,
}

impl Candidate {
    /// `me` must be unique.
    pub fn new(me: String) -> Self {
        Self {
            me,
            ..Self::default()
        }
    }

    pub fn name(&self) -> &str {
        &self.me
    }

    /// Whether to read the Lease now: always, except for a leader that just renewed it.
    pub fn is_due(&self, now: Mono) -> bool {
        self.renewed.is_none_or(|at| now.since(at) >= RENEW)
    }

    /// The next action for the Lease as just read.
    pub fn step(&mut self, lease: Option<&LeaseSeen>, now: Mono) -> LeaseStep {
        let Some(lease) = lease else {
            return LeaseStep::Create;
        };
        match &lease.holder {
            Some(holder) if *holder == self.me => return LeaseStep::Renew,
            None => return LeaseStep::Take,
            Some(_) => self.renewed = None,
        }
        let since = match &self.observed {
            Some((version, since)) if *version == lease.version => *since,
            _ => {
                self.observed = Some((lease.version.clone(), now));
                now
            }
        };
        match now.since(since) >= lease.duration.max(LEASE) {
            true => LeaseStep::Seize,
            false => LeaseStep::Wait,
        }
    }

    /// Records that the Lease was written with this rotator's name, by a request sent at this time.
    pub fn wrote(&mut self, asked: Mono) {
        (self.renewed, self.observed) = (Some(asked), None);
    }

    /// Records that another rotator wrote the Lease, or that this one releases it.
    pub fn lost(&mut self) {
        self.renewed = None;
    }

    /// Whether this rotator may write.
    pub fn leads(&self, now: Mono) -> bool {
        self.renewed
            .is_some_and(|at| now.since(at) < LEASE.saturating_sub(MARGIN))
    }
}

/// Desired slices, derived from the Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceSpec {
    /// The Service's name: the prefix of the slices' names.
    pub service: String,
    /// Families of its cluster IPs.
    pub families: Vec<Family>,
    pub ports: Vec<(String, Protocol)>,
    /// The echo's address, the only endpoint, by [`Family`].
    pub echo: [IpAddr; FAMILIES],
    /// The count of nodes ([`FleetReport`](pathproof_facts::fleet_report::FleetReport)) for the first
    /// family's slice; `None` to keep the present one.
    pub fleet: Option<String>,
}

pub fn slice_name(service: &str, family: Family) -> String {
    format!("{service}-{}", of_family(family).to_lowercase())
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceSeen {
    pub name: String,
    /// Changes with every write.
    pub version: String,
    /// The slice's address type, if supported.
    pub family: Option<Family>,
    /// Whether the slice's labels name pathproof as the manager, and none keeps proxies from serving it.
    pub is_labelled: bool,
    /// Addresses of all its endpoints, and whether all are ready.
    pub endpoints: (Vec<String>, bool),
    /// Ports of the slice: name, protocol, number.
    pub ports: Vec<(String, Protocol, u16)>,
    pub fleet: Option<String>,
}

impl SliceSeen {
    /// The slice's generation, if the slice is as desired.
    fn generation(&self, spec: &SliceSpec, family: Family) -> Option<u16> {
        let echo = spec.echo[family as usize].to_string();
        let generation = self.ports.first()?.2;
        let has = |(name, protocol): &(String, Protocol)| {
            let port = (name.clone(), *protocol, generation);
            self.ports.contains(&port)
        };
        let sound = self.family == Some(family)
            && self.is_labelled
            && self.endpoints == (vec![echo], true)
            && self.ports.len() == spec.ports.len()
            && spec.ports.iter().all(has)
            && is_generation(generation);
        sound.then_some(generation)
    }
}

/// A write to the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    Create {
        family: Family,
        generation: u16,
    },
    /// Update a slice, if it still has this version.
    Update {
        family: Family,
        version: String,
        generation: u16,
    },
    /// Update only the count of nodes, in a slice that is otherwise as desired.
    Count {
        family: Family,
        version: String,
    },
    /// Delete a slice with the right name and another address type, which cannot be changed. The
    /// next check creates it again.
    Delete {
        name: String,
        version: String,
    },
}

/// Result of a check of the slices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    pub writes: Vec<Write>,
    /// Whether the writes move the endpoint; otherwise they repair changes by others.
    pub rotates: bool,
    /// Other slices of the Service: while they exist, agents treat the sentinel as altered.
    pub foreign_slices: Vec<String>,
}

/// Schedule of the generations.
#[derive(Clone, Debug, Default, Hash)]
pub struct Rotation {
    least: Duration,
    /// When requests began to fail.
    failing: Option<Mono>,
    paused_until: Option<Mono>,
    /// The last rotation, or the start of leadership.
    rotated: Option<Mono>,
    /// The last generation that was written.
    generation: Option<u16>,
}

impl Rotation {
    /// `least` is the minimum time between generations.
    pub fn new(least: Duration) -> Self {
        Self {
            least,
            ..Self::default()
        }
    }

    /// Pauses rotations, because this rotator took an expired Lease. Most likely its holder could not renew
    /// it during an outage, which this rotator may not have noticed.
    pub fn seized(&mut self, now: Mono) {
        self.paused_until = Some(now.plus(PAUSE));
    }

    pub fn failed(&mut self, now: Mono) {
        self.failing.get_or_insert(now);
    }

    /// Records that the API server answered all requests. Returns whether that ends an outage.
    pub fn answered(&mut self, now: Mono) -> bool {
        let failing = self.failing.take();
        let outage = failing.is_some_and(|since| now.since(since) >= OUTAGE);
        if outage {
            self.paused_until = Some(now.plus(PAUSE));
        }
        outage
    }

    /// Plans the writes of a leader, for the slices and the number of nodes as just read.
    pub fn plan(&mut self, spec: &SliceSpec, slices: &[SliceSeen], nodes: u32, now: Mono) -> Plan {
        let ours = |family| {
            let name = slice_name(&spec.service, family);
            slices.iter().find(move |slice| slice.name == name)
        };
        let of = |family: Family| ours(family).and_then(|slice| slice.generation(spec, family));
        let held = spec.families.iter().filter_map(|family| of(*family));
        // If a generation was written to one family only, the other family follows.
        let newest = held.chain(self.generation).reduce(newer_generation);
        let current = newest.unwrap_or(FIRST_GENERATION);
        let rotates = newest.is_some() && self.is_due(nodes, now);
        let generation = match rotates {
            true => next_generation(current),
            false => current,
        };
        let write = |family: &Family| -> Option<Write> {
            let family = *family;
            let Some(slice) = ours(family) else {
                return Some(Write::Create { family, generation });
            };
            if slice.family != Some(family) {
                return Some(Write::Delete {
                    name: slice.name.clone(),
                    version: slice.version.clone(),
                });
            }
            let version = slice.version.clone();
            if of(family) != Some(generation) {
                return Some(Write::Update {
                    family,
                    version,
                    generation,
                });
            }
            let counts = spec.families.first() == Some(&family) && spec.fleet.is_some();
            let differs = counts && slice.fleet != spec.fleet;
            differs.then_some(Write::Count { family, version })
        };
        // The slice of a family that the Service lacks is not foreign: it is left from a time when the Service
        // had that family.
        let names = Family::ALL.map(|family| slice_name(&spec.service, family));
        let strange = |slice: &&SliceSeen| !names.contains(&slice.name);
        Plan {
            writes: spec.families.iter().filter_map(write).collect(),
            rotates,
            foreign_slices: slices
                .iter()
                .filter(strange)
                .map(|slice| slice.name.clone())
                .collect(),
        }
    }

    /// Whether the next generation is due. A new leader waits for one interval, because the time of
    /// the last rotation is unknown.
    pub fn is_due(&mut self, nodes: u32, now: Mono) -> bool {
        let rotated = *self.rotated.get_or_insert(now);
        let paused = self.paused_until.is_some_and(|until| now < until);
        !paused && self.failing.is_none() && now.since(rotated) >= interval(self.least, nodes)
    }

    /// Records that a slice with this generation was written, by a plan that rotates or repairs.
    pub fn wrote(&mut self, generation: u16, rotates: bool, now: Mono) {
        self.generation = Some(generation);
        if rotates {
            self.rotated = Some(now);
        }
    }

    /// Forgets the last rotation, because another rotator leads. The slices are read again once this one
    /// leads.
    pub fn rest(&mut self) {
        (self.rotated, self.generation) = (None, None);
    }
}

#[cfg(test)]
mod tests;
