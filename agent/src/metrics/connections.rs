//! Connections by Service port and outcome, summed up since the agent started, for a bounded
//! number of Services.

use std::collections::HashMap;
use std::sync::Arc;

use agent_common::evidence::{OUTCOMES, Outcome};
use agent_common::service::{FAMILIES, Family, SOURCE_CLASSES, SourceClass};

use crate::domain::cluster::ObjectName;
use crate::domain::evidence::{CountDelta, Directory, ServiceInfo};
use crate::domain::verdict::report::names;
use crate::report::{OutcomeCounts, ServiceReport};

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
    fn of(info: &ServiceInfo<'_>) -> Self {
        Self {
            name: info.name.clone(),
            port: info.port.into(),
            family: info.family,
            sums: Box::default(),
        }
    }

    /// Ids are given to other Services once theirs is gone.
    fn is_of(&self, info: &ServiceInfo<'_>) -> bool {
        self.family == info.family && *self.port == *info.port && self.name == *info.name
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

    fn tally(&mut self, id: u32, info: &ServiceInfo<'_>) -> Option<&mut Tally> {
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

    pub(super) fn report(
        &self,
        directory: &dyn Directory,
        trouble: &dyn Fn(&str, &str) -> bool,
        busiest: usize,
    ) -> (Vec<ServiceReport>, u32) {
        let mut reports: Vec<ServiceReport> = self
            .services
            .iter()
            .filter_map(|(id, tally)| {
                let info = directory.service(*id).filter(|info| tally.is_of(info))?;
                let service = service_name(tally);
                let family = names::of_family(tally.family);
                Some(ServiceReport {
                    trouble: trouble(&service, family),
                    service,
                    family: family.to_owned(),
                    endpoints: info.endpoints,
                    outcomes: tally.total(),
                })
            })
            .collect();
        reports.sort_by(|a, b| {
            let key =
                |report: &ServiceReport| (!report.trouble, u64::MAX - report.outcomes.arrived);
            let name = |report: &ServiceReport| (report.service.clone(), report.family.clone());
            key(a).cmp(&key(b)).then_with(|| name(a).cmp(&name(b)))
        });
        let troubled = reports.iter().filter(|report| report.trouble).count();
        let shown = reports.len().min(troubled + busiest);
        let omitted = u32::try_from(reports.len() - shown).unwrap_or(u32::MAX);
        reports.truncate(shown);
        (reports, omitted)
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
