//! Series of connections: those of the node, and those of selected Services.
//!
//! Every counted Service keeps counting while it is not shown. So a series that reappears shows the
//! total since the agent started: no reset, and no spurious increase.

use std::cmp::Reverse;
use std::collections::HashMap;

use clap::ValueEnum;
use pathproof_facts::names;
use pathproof_facts::time::Mono;
use pathproof_judge::verdict::ServiceTrouble;
use pathproof_wire::service::{Family, SourceClass};

use super::connections::{Connections, Handshakes, SHOWN, Sums, Tally};

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

/// Maximum number of series of all Services in trouble together, for TCP or for UDP.
#[derive(Debug, Clone, Copy)]
pub(super) struct Allowance {
    services: usize,
    series: usize,
}

pub(super) const TCP: Allowance = Allowance {
    services: 50,
    series: 150,
};
pub(super) const UDP: Allowance = Allowance {
    services: 10,
    series: 40,
};

/// Maximum number of Services in trouble with handshake times, which take seven series each.
const HANDSHAKES: usize = 6;

/// Labels of outcomes, in the order of their indexes.
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

/// Outcomes shown even while zero, since a rate needs a first value.
const FROM_ZERO: [&str; 7] = [
    "arrived",
    "proven",
    "refused",
    "leaked",
    "misrouted",
    "stale",
    "lost",
];

const STEPS: [&str; 2] = ["forwarded", "answered"];

/// Outcomes that are shown in addition to those that occurred.
#[derive(Debug, Clone, Copy, Default)]
struct ShownOutcomes {
    from_zero: &'static [&'static str],
    steps: bool,
}

impl ShownOutcomes {
    /// For a Service, if all Services are shown.
    const ALL: Self = Self {
        from_zero: &FROM_ZERO,
        steps: true,
    };
    /// For a Service in trouble.
    const TROUBLE: Self = Self {
        from_zero: &["arrived", "proven"],
        steps: false,
    };
    /// For the sum of all Services.
    const NODE: Self = Self {
        from_zero: &FROM_ZERO,
        steps: false,
    };

    fn of(self, outcomes: &[u64; SHOWN]) -> impl Iterator<Item = (&'static str, u64)> + use<> {
        let all = NAMES.into_iter().zip(*outcomes);
        all.filter(move |(outcome, count)| {
            let is_step = STEPS.contains(outcome);
            (*count > 0 || self.from_zero.contains(outcome)) && (self.steps || !is_step)
        })
    }
}

#[derive(Debug, Default)]
pub(super) struct Shown<'a> {
    tallies: Vec<&'a Tally>,
    others: Option<&'a [Sums]>,
    shown_outcomes: ShownOutcomes,
    /// Services in trouble that are not shown.
    pub(super) omitted: usize,
}

impl Connections {
    /// Labels (family, path, outcome) and values of the node's series. Paths without traffic have none.
    pub(super) fn node_series(&self) -> impl Iterator<Item = ([&str; 3], f64)> {
        let families = Family::ALL.into_iter().zip(&self.nodes);
        families.flat_map(|(family, sums)| {
            paths(sums).flat_map(move |(path, outcomes)| {
                ShownOutcomes::NODE
                    .of(outcomes)
                    .map(move |(outcome, count)| {
                        ([names::of_family(family), path, outcome], count as f64)
                    })
            })
        })
    }

    /// The same, summed over all paths, for the outcomes that are `known`.
    pub(super) fn family_series(
        &self,
        known: fn(&str) -> bool,
    ) -> impl Iterator<Item = ([&str; 2], f64)> {
        let families = Family::ALL.into_iter().zip(&self.nodes);
        families.flat_map(move |(family, sums)| {
            let total = |outcome: usize| sums.iter().map(|path| path[outcome]).sum::<u64>();
            let outcomes: [u64; SHOWN] = std::array::from_fn(total);
            let any = outcomes.iter().any(|count| *count > 0);
            let shown = ShownOutcomes::NODE.of(&outcomes);
            let shown = shown.filter(move |(outcome, _)| any && known(outcome));
            shown.map(move |(outcome, count)| ([names::of_family(family), outcome], count as f64))
        })
    }

    /// Selects the Services to show. `named` are those in the verdict.
    pub(super) fn shown(
        &self,
        which: ServiceMetrics,
        allowance: Allowance,
        named: &[ServiceTrouble],
        now: Mono,
    ) -> Shown<'_> {
        match which {
            ServiceMetrics::Off => Shown::default(),
            ServiceMetrics::All => Shown {
                tallies: self.services.values().collect(),
                others: Some(&self.others),
                shown_outcomes: ShownOutcomes::ALL,
                omitted: 0,
            },
            ServiceMetrics::Trouble => self.in_trouble(allowance, named, now),
        }
    }

    /// Services that the verdict confirms come first, then those with most failures, then by name.
    fn in_trouble(&self, allowance: Allowance, named: &[ServiceTrouble], now: Mono) -> Shown<'_> {
        let named: HashMap<(&str, Family), bool> = named
            .iter()
            .map(|service| {
                (
                    (service.service.as_str(), service.family),
                    service.confirmed,
                )
            })
            .collect();
        // Build names only if there are any to compare.
        let confirmed = |tally: &Tally| {
            let name = (!named.is_empty()).then(|| tally.info.label())?;
            named.get(&(name.as_str(), tally.info.family)).copied()
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
        let in_trouble = ranked.len();
        let mut left = allowance.series;
        let fits = ranked.into_iter().take(allowance.services);
        let fits = fits.map_while(|(.., tally)| {
            left = left.checked_sub(sums_series(&tally.sums, ShownOutcomes::TROUBLE).count())?;
            Some(tally)
        });
        let tallies: Vec<&Tally> = fits.collect();
        Shown {
            omitted: in_trouble - tallies.len(),
            tallies,
            others: None,
            shown_outcomes: ShownOutcomes::TROUBLE,
        }
    }
}

impl<'a> Shown<'a> {
    /// Labels (namespace, name, port, family) and handshake times of the Services that accepted connections.
    pub(super) fn handshakes(&self) -> impl Iterator<Item = ([&'a str; 4], &'a Handshakes)> {
        let most = if self.shown_outcomes.steps {
            usize::MAX
        } else {
            HANDSHAKES
        };
        let accepting = self
            .tallies
            .iter()
            .filter(|tally| tally.handshakes.count() > 0);
        accepting.take(most).map(|tally| {
            let [namespace, name, port] = names_of(tally);
            let labels = [namespace, name, port, names::of_family(tally.info.family)];
            (labels, &tally.handshakes)
        })
    }

    /// Labels (namespace, name, port, family, path, outcome) and values. Paths without traffic have none.
    pub(super) fn series(&self) -> impl Iterator<Item = ([&'a str; 6], f64)> {
        let shown_outcomes = self.shown_outcomes;
        let named = self.tallies.iter();
        let named = named.map(|tally| (names_of(tally), tally.info.family, &*tally.sums));
        let others = self.others.into_iter().flatten();
        let others = Family::ALL.into_iter().zip(others);
        let others = others.map(|(family, sums)| (["", "other", ""], family, sums));
        named.chain(others).flat_map(move |(name, family, sums)| {
            let [namespace, service, port] = name;
            sums_series(sums, shown_outcomes).map(move |(path, outcome, count)| {
                let family = names::of_family(family);
                let labels = [namespace, service, port, family, path, outcome];
                (labels, count as f64)
            })
        })
    }
}

/// Labels of a Service: namespace, name, port.
fn names_of(tally: &Tally) -> [&str; 3] {
    let info = &tally.info;
    [&info.name.namespace, &info.name.name, &info.port]
}

/// Path, outcome and count of each series of one Service.
fn sums_series<'a>(
    sums: &'a Sums,
    shown_outcomes: ShownOutcomes,
) -> impl Iterator<Item = (&'static str, &'static str, u64)> + use<'a> {
    paths(sums).flat_map(move |(path, outcomes)| {
        shown_outcomes
            .of(outcomes)
            .map(move |(outcome, count)| (path, outcome, count))
    })
}

/// Paths with traffic, with their label.
fn paths(sums: &Sums) -> impl Iterator<Item = (&'static str, &[u64; SHOWN])> {
    let all = SourceClass::ALL.into_iter().map(names::of_path).zip(sums);
    all.filter(|(_, outcomes)| outcomes.iter().any(|count| *count > 0))
}
