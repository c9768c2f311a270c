//! The kernel's drop reasons for packets of connections to Services. They are read only while connections or
//! probes are lost, and only for a bounded part of the time.
//!
//! Reasons explain a verdict and never change it.

use std::cmp::Reverse;

use pathproof_facts::directory::Directory;
use pathproof_facts::limits::{DROPS_KEPT, DROPS_QUIET, DROPS_REST, DROPS_WATCHED};
use pathproof_facts::time::Mono;
use pathproof_wire::service::Family;
use serde::{Deserialize, Serialize};

/// Maximum number of entries, one for each Service and reason.
const KEPT: usize = 64;
/// The kernel's name for an unknown reason; older kernels give it for many packets.
const NOT_SPECIFIED: &str = "NOT_SPECIFIED";
/// A tc program or filter drops at ingress.
const BY_TC: &str = "TC_INGRESS";
/// A tc program or filter drops at egress.
const BY_TC_OUT: &str = "TC_EGRESS";

/// Packets of one Service that the kernel dropped for one reason since the previous sample.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DropCount {
    /// Id of the Service port and family.
    pub service: u32,
    /// The kernel's name for the reason, without its prefix.
    pub reason: String,
    pub packets: u64,
}

/// Whether the kernel's drop reasons are read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DropWatch {
    #[default]
    Off,
    On,
    /// The kernel cannot provide reasons, or the agent must not read them: a sentence with the remedy.
    Denied(String),
}

/// Packets of one Service that were dropped for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dropped {
    /// `namespace/name`, with `:port` if the port has a name.
    pub service: String,
    pub family: Family,
    /// The kernel's name for the reason, without its prefix.
    pub reason: String,
    /// Number of packets, counted only while reasons were read.
    pub packets: u64,
    /// Time of the last reading that found such a packet.
    pub last: Mono,
}

impl Dropped {
    /// Whether the kernel gave a reason.
    pub fn is_specific(&self) -> bool {
        self.reason != NOT_SPECIFIED
    }
}

/// Dropped packets by Service and reason, for display.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drops {
    pub watch: DropWatch,
    /// Drops of the last minutes. Those with a reason come first, then they are sorted by number of packets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dropped: Vec<Dropped>,
}

impl Drops {
    /// The most frequent recent reason, in `family` if given.
    pub fn main(&self, family: Option<Family>, now: Mono) -> Option<&Dropped> {
        let is_recent = |it: &&Dropped| now.since(it.last) <= DROPS_QUIET && it.is_specific();
        let of_family = |it: &&Dropped| family.is_none_or(|family| it.family == family);
        let recent = self.dropped.iter().filter(is_recent).filter(of_family);
        recent.max_by_key(|it| it.packets)
    }
}

/// Drops, and when they were read. The times are not recorded, because no verdict depends on them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DropLedger {
    pub shown: Drops,
    /// When reading began; `None` while it is off.
    #[serde(skip)]
    asked: Option<Mono>,
    #[serde(skip)]
    lost: Option<Mono>,
    /// Reading must not begin before this time.
    #[serde(skip)]
    rests: Option<Mono>,
}

impl DropLedger {
    /// Records that a connection or probe was lost. Returns whether to attach the program that reads reasons
    /// now.
    pub fn lose(&mut self, now: Mono) -> bool {
        self.lost = Some(now);
        let begins = self.asked.is_none() && self.rests.is_none_or(|until| now >= until);
        if begins {
            self.asked = Some(now);
        }
        begins
    }

    /// Expires old entries. Returns whether to detach the program now: losses have ended, or the
    /// time for reading is over.
    pub fn look(&mut self, now: Mono) -> bool {
        let kept = |dropped: &Dropped| now.since(dropped.last) <= DROPS_KEPT;
        self.shown.dropped.retain(kept);
        let Some(asked) = self.asked else {
            return false;
        };
        let is_quiet = self.lost.is_none_or(|at| now.since(at) >= DROPS_QUIET);
        let is_long = now.since(asked) >= DROPS_WATCHED;
        if is_quiet || is_long {
            self.asked = None;
            self.rests = (!is_quiet).then(|| now.plus(DROPS_REST));
        }
        is_quiet || is_long
    }

    pub fn take(&mut self, counts: &[DropCount], directory: &dyn Directory, now: Mono) {
        for count in counts {
            let Some(info) = directory.service(count.service) else {
                continue;
            };
            // pathproof's own tc programs drop probes on purpose: at the end of their path, and before an
            // untranslated probe leaves the node by an uplink. Such a drop is no loss.
            if info.sentinel && [BY_TC, BY_TC_OUT].contains(&&*count.reason) {
                continue;
            }
            self.add(info.label(), info.family, count, now);
        }
        let dropped = &mut self.shown.dropped;
        dropped.sort_by_key(|dropped| (!dropped.is_specific(), Reverse(dropped.packets)));
        dropped.truncate(KEPT);
    }

    fn add(&mut self, service: String, family: Family, count: &DropCount, now: Mono) {
        let mut known = self.shown.dropped.iter_mut();
        let same = known
            .find(|it| (&it.service, it.family, &it.reason) == (&service, family, &count.reason));
        match same {
            Some(known) => {
                known.packets = known.packets.saturating_add(count.packets);
                known.last = now;
            }
            None => self.shown.dropped.push(Dropped {
                service,
                family,
                reason: count.reason.clone(),
                packets: count.packets,
                last: now,
            }),
        }
    }
}

/// A short explanation of a reason, if it is frequent.
pub fn meaning(reason: &str) -> Option<&'static str> {
    let lines = include_str!("drops/meanings.txt").lines();
    let mut meanings = lines.filter_map(|line| line.split_once(": "));
    let has = |names: &str| names.split(' ').any(|name| name == reason);
    meanings.find_map(|(names, text)| has(names).then_some(text))
}

#[cfg(test)]
mod tests;
