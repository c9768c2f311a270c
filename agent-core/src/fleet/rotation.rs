//! When the rotator writes what: who leads, when the next generation is due, which slices are not
//! as they should be. Pure; `crate::rotate` reads and writes.

use std::net::IpAddr;
use std::time::Duration;

use agent_common::service::{FAMILIES, Family};

use crate::cluster::Protocol;
use crate::freshness::{FIRST_GENERATION, is_generation, newer_generation, next_generation};
use crate::names::of_family;
use crate::time::Mono;

/// The leader may write for this long after its last renewal; another one takes over then. Long,
/// since each renewal is a write, and two may fail before a rotation is missed.
pub const LEASE: Duration = Duration::from_secs(45);
/// Interval of the leader's renewals.
pub const RENEW: Duration = Duration::from_secs(15);
/// A leader that could not renew stops writing this long before another one may write.
const MARGIN: Duration = Duration::from_secs(15);
/// An API server that answered nothing for this long was away; less is a hiccup.
const OUTAGE: Duration = Duration::from_secs(15);
/// After an outage nothing moves for this long: proxies come back one by one, each with everything
/// to read again, and one that is late then is no fault of its node.
pub const PAUSE: Duration = Duration::from_secs(600);
/// The default of `--interval`. A hung proxy is noticed after the next rotation, so the interval is
/// most of that delay.
pub const INTERVAL: Duration = Duration::from_secs(15);
/// Watch events of a rotation for each node: two slices, each sent to an agent and a proxy.
const EVENTS_PER_NODE: u32 = 4;
/// Maximum rate of watch events that rotations cause at the API server, on average.
const EVENTS_PER_SECOND: u32 = 200;

/// Time from one generation to the next: `least`, or nodes / 50 seconds if that is longer. More
/// often, rotations would cause more than 200 watch events a second. With the default the second
/// part begins at 750 nodes: 20 s for 1,000 nodes, 60 s for 3,000, 100 s for 5,000.
pub fn interval(least: Duration, nodes: u32) -> Duration {
    least.max(Duration::from_secs(1) * EVENTS_PER_NODE * nodes / EVENTS_PER_SECOND)
}

/// A Lease as it was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseSeen {
    /// The leader; nobody after a leader that went in order.
    pub holder: Option<String>,
    /// Changes with every write.
    pub version: String,
    /// Time for which the holder leads without a renewal, as it wrote it.
    pub duration: Duration,
}

/// Next action on the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseStep {
    /// Make it, in our name.
    Create,
    /// Write our name over nobody's.
    Take,
    /// Write our name over another one's, which ran out.
    Seize,
    /// Say that we still lead.
    Renew,
    /// Nothing.
    Wait,
}

/// One rotator among several, of which one leads.
#[derive(Clone, Debug, Default)]
pub struct Candidate {
    me: String,
    /// Version of another one's lease, and when it was first seen: clocks of other machines say
    /// nothing, so a lease runs out by ours, from when we saw its last change.
    observed: Option<(String, Mono)>,
    renewed: Option<Mono>,
}

impl Candidate {
    /// By a name that no other has.
    pub fn new(me: String) -> Self {
        Self {
            me,
            ..Self::default()
        }
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.me
    }

    /// Whether the lease is to be looked at: always, but for a leader that just said so.
    pub fn is_due(&self, now: Mono) -> bool {
        self.renewed.is_none_or(|at| now.since(at) >= RENEW)
    }

    /// The next action, with the lease as it was just read.
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

    /// The lease was written in our name; the request was sent at `asked`.
    pub fn wrote(&mut self, asked: Mono) {
        (self.renewed, self.observed) = (Some(asked), None);
    }

    /// The lease was written by somebody else, or is given up.
    pub fn lost(&mut self) {
        self.renewed = None;
    }

    /// Whether we may write.
    pub fn leads(&self, now: Mono) -> bool {
        self.renewed
            .is_some_and(|at| now.since(at) < LEASE.saturating_sub(MARGIN))
    }
}

/// Desired slices, from the Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The Service's name, which those of the slices begin with.
    pub service: String,
    /// Families of its cluster IPs.
    pub families: Vec<Family>,
    /// Its ports.
    pub ports: Vec<(String, Protocol)>,
    /// The one endpoint, by [`Family`].
    pub echo: [IpAddr; FAMILIES],
    /// The count of nodes ([`FleetReport`](crate::brake::FleetReport)) that the first family's slice
    /// should hold; nothing where what it holds stays.
    pub fleet: Option<String>,
}

/// Name of a family's slice.
pub fn slice_name(service: &str, family: Family) -> String {
    format!("{service}-{}", of_family(family).to_lowercase())
}

/// A slice of the Service as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceSeen {
    /// Its name.
    pub name: String,
    /// Changes with every write.
    pub version: String,
    /// Its address type, where it is one of ours.
    pub family: Option<Family>,
    /// It says that nobody else manages it.
    pub is_labelled: bool,
    /// Addresses of all its endpoints, and whether all are ready.
    pub endpoints: (Vec<String>, bool),
    /// Its ports: name, protocol, number.
    pub ports: Vec<(String, Protocol, u16)>,
    /// The count of nodes that it holds.
    pub fleet: Option<String>,
}

impl SliceSeen {
    /// The generation that it holds, where it is as it should be.
    fn generation(&self, wanted: &Wanted, family: Family) -> Option<u16> {
        let echo = wanted.echo[family as usize].to_string();
        let generation = self.ports.first()?.2;
        let has = |(name, protocol): &(String, Protocol)| {
            let port = (name.clone(), *protocol, generation);
            self.ports.contains(&port)
        };
        let sound = self.family == Some(family)
            && self.is_labelled
            && self.endpoints == (vec![echo], true)
            && self.ports.len() == wanted.ports.len()
            && wanted.ports.iter().all(has)
            && is_generation(generation);
        sound.then_some(generation)
    }
}

/// A write that is to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// A slice that is not there.
    Create {
        /// Whose.
        family: Family,
        /// Its ports.
        generation: u16,
    },
    /// A slice that is there, if it is still at this version.
    Update {
        /// Whose.
        family: Family,
        /// Its version as it was read.
        version: String,
        /// Its ports.
        generation: u16,
    },
    /// The count of nodes alone, in a slice that is as it should be otherwise.
    Count {
        /// Whose.
        family: Family,
        /// Its version as it was read.
        version: String,
    },
    /// A slice of our name and of another address type, which cannot be changed; it is made anew
    /// with the next look.
    Delete {
        /// Its name.
        name: String,
        /// Its version as it was read.
        version: String,
    },
}

/// Result of a look at the slices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// In this order.
    pub writes: Vec<Write>,
    /// It moves the endpoint; else it mends what somebody changed.
    pub rotates: bool,
    /// Slices of the Service that are not ours: agents take the sentinel for altered while they
    /// stay.
    pub strangers: Vec<String>,
}

/// When generations follow one another.
#[derive(Clone, Debug, Default)]
pub struct Rotation {
    least: Duration,
    /// Since when requests fail.
    failing: Option<Mono>,
    paused_until: Option<Mono>,
    /// The last rotation, or since when we lead.
    rotated: Option<Mono>,
    /// Written last.
    generation: Option<u16>,
}

impl Rotation {
    /// With this time between generations, at least.
    pub fn new(least: Duration) -> Self {
        Self {
            least,
            ..Self::default()
        }
    }

    /// The lease of another one ran out and is ours: it could not say that it leads, and an outage is
    /// the likeliest reason. We may have begun in the midst of it, and not know.
    pub fn seized(&mut self, now: Mono) {
        self.paused_until = Some(now.plus(PAUSE));
    }

    /// The API server did not answer.
    pub fn failed(&mut self, now: Mono) {
        self.failing.get_or_insert(now);
    }

    /// The API server answered everything that was asked. Returns whether that ends an outage.
    pub fn answered(&mut self, now: Mono) -> bool {
        let failing = self.failing.take();
        let outage = failing.is_some_and(|since| now.since(since) >= OUTAGE);
        if outage {
            self.paused_until = Some(now.plus(PAUSE));
        }
        outage
    }

    /// Plans the writes, given the slices and the number of nodes as they were just read by a
    /// leader.
    pub fn plan(&mut self, wanted: &Wanted, slices: &[SliceSeen], nodes: u32, now: Mono) -> Plan {
        let ours = |family| {
            let name = slice_name(&wanted.service, family);
            slices.iter().find(move |slice| slice.name == name)
        };
        let of = |family: Family| ours(family).and_then(|slice| slice.generation(wanted, family));
        let held = wanted.families.iter().filter_map(|family| of(*family));
        // A generation that was written to one family and not to the other goes on, not back.
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
            let counts = wanted.families.first() == Some(&family) && wanted.fleet.is_some();
            let differs = counts && slice.fleet != wanted.fleet;
            differs.then_some(Write::Count { family, version })
        };
        // The slice of a family that the Service lacks is ours as well: both are shipped, whatever
        // the cluster has.
        let names = Family::ALL.map(|family| slice_name(&wanted.service, family));
        let strange = |slice: &&SliceSeen| !names.contains(&slice.name);
        Plan {
            writes: wanted.families.iter().filter_map(write).collect(),
            rotates,
            strangers: slices
                .iter()
                .filter(strange)
                .map(|slice| slice.name.clone())
                .collect(),
        }
    }

    /// Whether the next generation is due. A new leader does not know when the last one was written
    /// and waits for one interval.
    pub fn is_due(&mut self, nodes: u32, now: Mono) -> bool {
        let rotated = *self.rotated.get_or_insert(now);
        let paused = self.paused_until.is_some_and(|until| now < until);
        !paused && self.failing.is_none() && now.since(rotated) >= interval(self.least, nodes)
    }

    /// A slice with this generation was written, by a plan that rotates or mends.
    pub fn wrote(&mut self, generation: u16, rotates: bool, now: Mono) {
        self.generation = Some(generation);
        if rotates {
            self.rotated = Some(now);
        }
    }

    /// Somebody else leads: what it writes is read afresh once we do.
    pub fn rest(&mut self) {
        (self.rotated, self.generation) = (None, None);
    }
}

#[cfg(test)]
mod tests;
