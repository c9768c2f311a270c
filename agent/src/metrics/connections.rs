//! Connections and datagrams by Service port and outcome, summed since the agent started, for a
//! bounded number of Services. `series` selects which of them get series.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::time::Duration;

use pathproof_facts::directory::{Directory, ServiceInfo};
use pathproof_facts::time::Mono;
use pathproof_judge::verdict::ServiceTrouble;
use pathproof_report::{OutcomeCounts, ServiceReport, UdpReport, UdpServiceReport};
use pathproof_wire::evidence::{OUTCOMES, Outcome};
use pathproof_wire::service::{FAMILIES, Family, SOURCE_CLASSES};
use pathproof_witness::evidence::CountDelta;

/// Service ports (once per family) that are counted individually: the first ones with traffic.
pub(super) const MAX_SERVICES: usize = 1_000;

/// Further Services that are counted individually from their first failure on.
pub(super) const MAX_MORE_FAILED: usize = 250;

/// Time for which a Service stays in trouble after its last failure.
pub(super) const RECENT: Duration = Duration::from_secs(15 * 60);

/// Number of outcomes, including the one that user space counts.
pub(super) const SHOWN: usize = OUTCOMES + 1;

/// Sums by path, then by outcome; the last outcome is `lost`, which user space counts.
pub(super) type Sums = [[u64; SHOWN]; SOURCE_CLASSES];

#[derive(Debug, Default)]
pub(super) struct Connections {
    /// Totals of all Services, by family.
    pub(super) nodes: [Sums; FAMILIES],
    /// By Service id: the first ones with traffic, and those that failed.
    pub(super) services: HashMap<u32, Tally>,
    /// Totals of the remaining Services, by family.
    pub(super) others: [Sums; FAMILIES],
}

/// One Service port and family.
#[derive(Debug)]
pub(super) struct Tally {
    /// The Service when its first connection arrived.
    pub(super) info: ServiceInfo,
    pub(super) sums: Box<Sums>,
    /// Number of failures without a pause of [`RECENT`] between them, and the time of the last one.
    failed: Option<(u64, Mono)>,
}

impl Tally {
    fn report(&self, endpoints: u32, trouble: bool) -> ServiceReport {
        let outcomes = std::array::from_fn(|outcome| self.total(outcome));
        ServiceReport {
            service: self.info.label(),
            family: self.info.family,
            endpoints,
            trouble,
            outcomes: OutcomeCounts::new(&outcomes, self.total(OUTCOMES)),
        }
    }

    fn of(info: &ServiceInfo) -> Self {
        Self {
            info: info.clone(),
            sums: Box::default(),
            failed: None,
        }
    }

    fn fail(&mut self, count: u64, now: Mono) {
        self.failed = Some((self.recent_failures(now) + count, now));
    }

    /// Failures since the last pause of [`RECENT`]; none once such a pause has passed.
    pub(super) fn recent_failures(&self, now: Mono) -> u64 {
        let recent = self.failed.filter(|(_, last)| now.since(*last) < RECENT);
        recent.map_or(0, |(count, _)| count)
    }

    /// The Service with this id, unless it is another one by now: ids are reused.
    fn info_in(&self, directory: &dyn Directory, id: u32) -> Option<ServiceInfo> {
        directory.service(id).filter(|info| self.is_of(info))
    }

    fn is_of(&self, info: &ServiceInfo) -> bool {
        let known = &self.info;
        (&known.name, &known.port, known.family) == (&info.name, &info.port, info.family)
    }

    fn total(&self, outcome: usize) -> u64 {
        self.sums.iter().map(|path| path[outcome]).sum()
    }
}

impl Connections {
    pub(super) fn record(&mut self, delta: &CountDelta, info: &ServiceInfo, now: Mono) {
        let family = info.family as usize;
        let failed = delta.failed();
        add(&mut self.nodes[family], delta);
        let Some(tally) = self.tally(delta.service, info, failed > 0) else {
            return add(&mut self.others[family], delta);
        };
        add(&mut tally.sums, delta);
        if failed > 0 {
            tally.fail(failed, now);
        }
    }

    fn tally(&mut self, id: u32, info: &ServiceInfo, failed: bool) -> Option<&mut Tally> {
        let more = if failed { MAX_MORE_FAILED } else { 0 };
        let room = self.services.len() < MAX_SERVICES + more;
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
        self.services
            .retain(|id, tally| tally.info_in(directory, *id).is_some());
    }

    /// Counted Services that still exist, with their numbers of endpoints: first those that `is_first` selects,
    /// then the busiest, then by name.
    fn ranked(
        &self,
        directory: &dyn Directory,
        is_first: impl Fn(&ServiceInfo) -> bool,
    ) -> Vec<(&Tally, u32, bool)> {
        let known = self.services.iter().filter_map(|(id, tally)| {
            let info = tally.info_in(directory, *id)?;
            Some((tally, info.endpoints, is_first(&info)))
        });
        let mut ranked: Vec<(&Tally, u32, bool)> = known.collect();
        ranked.sort_by_cached_key(|(tally, _, is_first)| {
            let arrived = Reverse(tally.total(Outcome::Arrived as usize));
            let info = &tally.info;
            (!is_first, arrived, &info.name, &info.port, info.family)
        });
        ranked
    }

    /// Runs in every turn of the main loop, so names are built only for what is shown.
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
        let ranked = self.ranked(directory, |info| {
            !troubled.is_empty() && troubled.contains(&(&*info.label(), info.family))
        });
        let most = busiest + ranked.iter().filter(|(.., trouble)| *trouble).count();
        let shown = ranked.iter().take(most);
        let shown = shown.map(|(tally, endpoints, trouble)| tally.report(*endpoints, *trouble));
        (shown.collect(), omitted(ranked.len(), most))
    }

    /// UDP Services for a report, at most `shown`: DNS first.
    pub(super) fn udp_report(&self, directory: &dyn Directory, shown: usize) -> UdpReport {
        let ranked = self.ranked(directory, |info| info.dns);
        let services = ranked.iter().take(shown);
        let services = services.map(|(tally, endpoints, dns)| UdpServiceReport {
            counted: tally.report(*endpoints, false),
            dns: *dns,
        });
        UdpReport {
            services: services.collect(),
            omitted: omitted(ranked.len(), shown),
        }
    }
}

fn omitted(all: usize, shown: usize) -> u32 {
    u32::try_from(all.saturating_sub(shown)).unwrap_or(u32::MAX)
}

fn add(sums: &mut Sums, delta: &CountDelta) {
    let path = &mut sums[delta.class as usize];
    for (sum, count) in path.iter_mut().zip(delta.counts) {
        *sum += u64::from(count);
    }
    path[OUTCOMES] += u64::from(delta.lost);
}
