//! Connections by Service port and outcome, summed up since the agent started, for a bounded
//! number of Services.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use agent_common::evidence::{OUTCOMES, Outcome};
use agent_common::service::{FAMILIES, Family, SOURCE_CLASSES, SourceClass};

use agent_core::cluster::ObjectName;
use agent_core::evidence::{CountDelta, Directory, ServiceInfo};
use agent_core::names;
use agent_core::report::{OutcomeCounts, ServiceReport};
use agent_core::verdict::ServiceTrouble;

/// Service ports (once per family) with series of their own.
pub const MAX_SERVICES_SHOWN: usize = 1_000;

/// Outcomes with those that user space counts.
pub(super) const SHOWN: usize = OUTCOMES + 1;

/// Sums by path, then outcome; lost is the last.
pub(super) type Sums = [[u64; SHOWN]; SOURCE_CLASSES];

/// Label of an outcome.
pub(super) fn outcome_name(index: usize) -> &'static str {
    const NAMES: [&str; SHOWN] = [
        "arrived",
        "forwarded",
        "proven",
        "answered",
        "refused",
        "leaked",
        "misrouted",
        "stale",
        "unheard",
        "rejected",
        "retransmitted",
        "lost",
    ];
    NAMES.get(index).copied().unwrap_or("other")
}

/// Everything counted.
#[derive(Debug, Default)]
pub(super) struct Connections {
    /// All Services, by family.
    pub(super) nodes: [Sums; FAMILIES],
    /// By Service id: the first with traffic.
    pub(super) services: HashMap<u32, Tally>,
    /// The rest, by family.
    pub(super) others: [Sums; FAMILIES],
}

/// One Service port and family.
#[derive(Debug)]
pub(super) struct Tally {
    pub(super) name: ObjectName,
    pub(super) port: Arc<str>,
    pub(super) family: Family,
    pub(super) sums: Box<Sums>,
}

impl Tally {
    fn of(info: &ServiceInfo) -> Self {
        Self {
            name: info.name.clone(),
            port: Arc::clone(&info.port),
            family: info.family,
            sums: Box::default(),
        }
    }

    /// Ids are given to other Services once theirs is gone.
    fn is_of(&self, info: &ServiceInfo) -> bool {
        self.family == info.family && self.port == info.port && self.name == info.name
    }

    fn arrived(&self) -> u64 {
        self.sums
            .iter()
            .map(|path| path[Outcome::Arrived as usize])
            .sum()
    }

    /// As reports show it.
    pub(super) fn report(&self, endpoints: u32, trouble: bool) -> ServiceReport {
        ServiceReport {
            service: service_name(self),
            family: self.family,
            endpoints,
            trouble,
            outcomes: self.total(),
        }
    }

    fn total(&self) -> OutcomeCounts {
        let mut counts = [0; OUTCOMES];
        for path in self.sums.iter() {
            for (total, count) in counts.iter_mut().zip(path) {
                *total += count;
            }
        }
        let lost = self.sums.iter().map(|path| path[OUTCOMES]).sum();
        OutcomeCounts::new(&counts, lost)
    }
}

impl Connections {
    pub(super) fn record(&mut self, counts: &[CountDelta], directory: &dyn Directory) {
        for delta in counts {
            // A Service that went away between the count and now is still a connection of the
            // node, but of no family that is known.
            let Some(info) = directory.service(delta.service) else {
                continue;
            };
            let family = info.family as usize;
            add(&mut self.nodes[family], delta);
            match self.tally(delta.service, &info) {
                Some(tally) => add(&mut tally.sums, delta),
                None => add(&mut self.others[family], delta),
            }
        }
    }

    fn tally(&mut self, id: u32, info: &ServiceInfo) -> Option<&mut Tally> {
        let room = self.services.len() < MAX_SERVICES_SHOWN;
        if !room && !self.services.contains_key(&id) {
            return None;
        }
        let tally = self.services.entry(id).or_insert_with(|| Tally::of(info));
        if !tally.is_of(info) {
            *tally = Tally::of(info);
        }
        Some(tally)
    }

    pub(super) fn retain(&mut self, directory: &dyn Directory) {
        self.services.retain(|id, tally| {
            directory
                .service(*id)
                .is_some_and(|info| tally.is_of(&info))
        });
    }

    /// Runs with every turn of the main loop, so names are only written for what is shown.
    pub(super) fn report(
        &self,
        directory: &dyn Directory,
        trouble: &[ServiceTrouble],
        busiest: usize,
    ) -> (Vec<ServiceReport>, u32) {
        let troubled: HashSet<(&str, Family)> = trouble
            .iter()
            .map(|trouble| (trouble.service.as_str(), trouble.family))
            .collect();
        let is_troubled = |tally: &Tally| {
            !troubled.is_empty() && troubled.contains(&(service_name(tally).as_str(), tally.family))
        };
        let mut ranked: Vec<Ranked<'_>> = self
            .services
            .iter()
            .filter_map(|(id, tally)| {
                let info = directory.service(*id).filter(|info| tally.is_of(info))?;
                let trouble = is_troubled(tally);
                Some(Ranked {
                    tally,
                    trouble,
                    arrived: tally.arrived(),
                    endpoints: info.endpoints,
                })
            })
            .collect();
        ranked.sort_by(|a, b| a.order().cmp(&b.order()));
        let troubled = ranked.iter().filter(|service| service.trouble).count();
        let shown = ranked.len().min(troubled + busiest);
        let omitted = u32::try_from(ranked.len() - shown).unwrap_or(u32::MAX);
        (
            ranked.iter().take(shown).map(Ranked::report).collect(),
            omitted,
        )
    }
}

/// A Service on its way into a report.
struct Ranked<'a> {
    tally: &'a Tally,
    trouble: bool,
    arrived: u64,
    endpoints: u32,
}

impl Ranked<'_> {
    /// Trouble first, then the busiest; by name where that is the same.
    fn order(&self) -> impl Ord {
        let Tally {
            name, port, family, ..
        } = self.tally;
        (!self.trouble, Reverse(self.arrived), name, port, *family)
    }

    fn report(&self) -> ServiceReport {
        self.tally.report(self.endpoints, self.trouble)
    }
}

/// `namespace/name`, and `:port` where the port has a name.
fn service_name(tally: &Tally) -> String {
    if tally.port.is_empty() {
        tally.name.to_string()
    } else {
        format!("{}:{}", tally.name, tally.port)
    }
}

fn add(sums: &mut Sums, delta: &CountDelta) {
    let path = &mut sums[delta.class as usize];
    for (sum, count) in path.iter_mut().zip(delta.counts) {
        *sum += u64::from(count);
    }
    path[OUTCOMES] += u64::from(delta.lost);
}

/// Outcomes that a Service's path with traffic shows even while they are zero: a rate needs a
/// beginning. The others appear with their first connection.
pub(super) fn is_always_shown(outcome: usize) -> bool {
    outcome == OUTCOMES
        || matches!(
            Outcome::ALL.get(outcome),
            Some(
                Outcome::Arrived
                    | Outcome::Proven
                    | Outcome::Refused
                    | Outcome::Leaked
                    | Outcome::Misrouted
                    | Outcome::Stale
            )
        )
}

/// Paths with their label.
pub(super) fn paths(sums: &Sums) -> impl Iterator<Item = (&'static str, &[u64; SHOWN])> {
    SourceClass::ALL.into_iter().map(names::of_path).zip(sums)
}
