//! Series of connections: those of the node, and those of selected Services.
//!
//! Connections of every counted Service are counted even while it is not shown. So a series that reappears
//! shows the total since the agent started: no reset, and no spurious increase.

use std::cmp::Reverse;
use std::collections::HashMap;

use clap::ValueEnum;
use pathproof_facts::names;
use pathproof_facts::time::Mono;
use pathproof_facts::trace::Transport;
use pathproof_judge::verdict::ServiceTrouble;
use pathproof_report::OutcomeCounts;
use pathproof_wire::service::{Family, SourceClass};

use super::connections::{Connections, SHOWN, Sums, Tally};
use super::samples::Samples;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum ServiceMetrics {
    /// Services that the verdict names, or with a failed connection in the last 15 minutes: at most
    /// 50 ports, those with most failures
    #[default]
    Trouble,
    /// Every Service with traffic: about 9 series for each port, family and path, up to 1,000 ports
    All,
    /// No Services
    Off,
}

/// Maximum number of Services in trouble, and of series of all of them together.
fn allowance(transport: Transport) -> (usize, usize) {
    match transport {
        Transport::Tcp => (50, 150),
        Transport::Udp => (10, 40),
    }
}

/// How many outcomes are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Detail {
    /// Failures once they occurred.
    Trouble,
    /// All failures from zero on, since a rate needs a first value.
    Failures,
    /// Intermediate steps too.
    Steps,
}

/// Selection of outcomes. For UDP, refusals and answers that do not arrive cannot be observed, and have no
/// series.
#[derive(Debug, Clone, Copy)]
struct ShownOutcomes(Detail, Transport);

impl ShownOutcomes {
    fn shows(self, outcome: &str, count: u64) -> bool {
        match outcome {
            "refused" | "unheard" if self.1 == Transport::Udp => false,
            "arrived" | "proven" => true,
            "forwarded" | "answered" => count > 0 && self.0 == Detail::Steps,
            "refused" | "leaked" | "misrouted" | "stale" | "lost" => {
                count > 0 || self.0 != Detail::Trouble
            }
            _ => count > 0,
        }
    }

    fn of(self, outcomes: &[u64; SHOWN]) -> impl Iterator<Item = (&'static str, u64)> + use<> {
        let all = OutcomeCounts::NAMES.into_iter().zip(*outcomes);
        all.filter(move |(outcome, count)| self.shows(outcome, *count))
    }

    /// Path, outcome and count of each series of these sums. Paths without traffic have none.
    fn of_paths(self, sums: &Sums) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
        let paths = SourceClass::ALL.into_iter().map(names::of_path).zip(sums);
        let used = paths.filter(|(_, outcomes)| outcomes.iter().any(|count| *count > 0));
        used.flat_map(move |(path, outcomes)| {
            let shown = self.of(outcomes);
            shown.map(move |(outcome, count)| (path, outcome, count))
        })
    }
}

#[derive(Debug)]
pub(super) struct Shown<'a> {
    tallies: Vec<&'a Tally>,
    others: Option<&'a [Sums]>,
    shown_outcomes: ShownOutcomes,
    /// Services in trouble that are not shown.
    pub(super) omitted: usize,
}

impl Connections {
    /// Writes the node's series, with the labels family, path and outcome.
    pub(super) fn write(&self, to: &mut Samples<'_>) {
        let shown = ShownOutcomes(Detail::Failures, Transport::Tcp);
        for (family, sums) in Family::ALL.into_iter().zip(&self.nodes) {
            for (path, outcome, count) in shown.of_paths(sums) {
                to.add(&[names::of_family(family), path, outcome], count as f64);
            }
        }
    }

    /// Writes the node's series of datagrams, summed over all paths.
    pub(super) fn write_datagrams(&self, to: &mut Samples<'_>) {
        let shown = ShownOutcomes(Detail::Failures, Transport::Udp);
        for (family, sums) in Family::ALL.into_iter().zip(&self.nodes) {
            let total = |outcome: usize| sums.iter().map(|path| path[outcome]).sum::<u64>();
            let outcomes: [u64; SHOWN] = std::array::from_fn(total);
            if outcomes.iter().all(|count| *count == 0) {
                continue;
            }
            for (outcome, count) in shown.of(&outcomes) {
                to.add(&[names::of_family(family), outcome], count as f64);
            }
        }
    }

    /// Selects the Services to show. `named` are those in the verdict.
    pub(super) fn shown(
        &self,
        which: ServiceMetrics,
        transport: Transport,
        named: &[ServiceTrouble],
        now: Mono,
    ) -> Shown<'_> {
        let mut shown = Shown {
            tallies: Vec::new(),
            others: None,
            shown_outcomes: ShownOutcomes(Detail::Trouble, transport),
            omitted: 0,
        };
        match which {
            ServiceMetrics::Off => {}
            ServiceMetrics::All => {
                shown.tallies.extend(self.services.values());
                shown.others = Some(&self.others);
                shown.shown_outcomes.0 = Detail::Steps;
            }
            ServiceMetrics::Trouble => {
                let ranked = self.in_trouble(named, now);
                let (services, mut left) = allowance(transport);
                // The limit also counts outcomes that are not shown for datagrams.
                let counted = ShownOutcomes(Detail::Trouble, Transport::Tcp);
                let fits = ranked.iter().take(services).map_while(|tally| {
                    left = left.checked_sub(counted.of_paths(&tally.sums).count())?;
                    Some(*tally)
                });
                shown.tallies.extend(fits);
                shown.omitted = ranked.len() - shown.tallies.len();
            }
        }
        shown
    }

    /// Services that the verdict confirms come first, then those with most failures, then by name.
    fn in_trouble(&self, named: &[ServiceTrouble], now: Mono) -> Vec<&Tally> {
        let mut confirmations: HashMap<(&str, Family), bool> = HashMap::new();
        for trouble in named {
            confirmations.insert((&trouble.service, trouble.family), trouble.confirmed);
        }
        // Build names only if the verdict names any Services.
        let confirmed = |tally: &Tally| {
            let name = (!named.is_empty()).then(|| tally.info.label())?;
            confirmations.get(&(&*name, tally.info.family)).copied()
        };
        let mut ranked: Vec<(Option<bool>, u64, &Tally)> = self
            .services
            .values()
            .map(|tally| (confirmed(tally), tally.recent_failures(now), tally))
            .filter(|(named, failures, _)| named.is_some() || *failures > 0)
            .collect();
        ranked.sort_by_cached_key(|(named, failures, tally)| {
            let worst = Reverse((*named == Some(true), *failures, named.is_some()));
            (worst, &tally.info.name, &tally.info.port, tally.info.family)
        });
        ranked.into_iter().map(|(.., tally)| tally).collect()
    }
}

impl Shown<'_> {
    /// Writes the series of each Service, and those of all others together.
    pub(super) fn write(&self, to: &mut Samples<'_>) {
        let named = self.tallies.iter().map(|tally| {
            let info = &tally.info;
            let labels = [&*info.name.namespace, &*info.name.name, &*info.port];
            (labels, info.family, &*tally.sums)
        });
        let others = self.others.into_iter().flatten();
        let others = Family::ALL.into_iter().zip(others);
        let others = others.map(|(family, sums)| (["", "other", ""], family, sums));
        for ([namespace, service, port], family, sums) in named.chain(others) {
            let family = names::of_family(family);
            for (path, outcome, count) in self.shown_outcomes.of_paths(sums) {
                let labels = [namespace, service, port, family, path, outcome];
                to.add(&labels, count as f64);
            }
        }
    }
}
