//! Datagrams of UDP Services by outcome, and how long answers took, since the agent started.

use std::cmp::Reverse;
use std::collections::HashMap;

use agent_common::evidence::{DELAY_BUCKETS, Delays, delay_bucket};
use agent_common::service::FAMILIES;

use super::connections::{Connections, MAX_SERVICES_SHOWN};
use agent_core::evidence::{CountDelta, Directory};
use agent_core::report::{AnswerTimes, UdpReport, UdpServiceReport};

/// Everything counted.
#[derive(Debug, Default)]
pub(super) struct Datagrams {
    /// By outcome, as connections are.
    pub(super) counted: Connections,
    /// Times of answers, by Service id.
    answers: HashMap<u32, Delays>,
    /// Those of DNS Services, by family.
    pub(super) dns: [Delays; FAMILIES],
}

impl Datagrams {
    /// `answers` are Service ids and microseconds.
    pub(super) fn record(
        &mut self,
        counts: &[CountDelta],
        answers: impl Iterator<Item = (u32, u32)>,
        directory: &dyn Directory,
    ) {
        self.counted.record(counts, directory);
        for (service, us) in answers {
            let Some(info) = directory.service(service) else {
                continue;
            };
            let ns = u64::from(us) * 1_000;
            if info.dns {
                add(&mut self.dns[info.family as usize], ns);
            }
            if self.answers.len() < MAX_SERVICES_SHOWN || self.answers.contains_key(&service) {
                add(self.answers.entry(service).or_default(), ns);
            }
        }
    }

    pub(super) fn retain(&mut self, directory: &dyn Directory) {
        self.counted.retain(directory);
        let services = &self.counted.services;
        self.answers.retain(|id, _| services.contains_key(id));
    }

    /// The busiest Services for a report, those with failures or of DNS first.
    pub(super) fn report(&self, directory: &dyn Directory, shown: usize) -> UdpReport {
        let mut services: Vec<UdpServiceReport> = self
            .counted
            .services
            .iter()
            .filter_map(|(id, tally)| {
                let info = directory.service(*id)?;
                Some(UdpServiceReport {
                    counted: tally.report(info.endpoints, false),
                    dns: info.dns,
                    answers: self.answers.get(id).and_then(times),
                })
            })
            .collect();
        // DNS, then the busiest; by name where that is the same.
        services.sort_by_cached_key(|UdpServiceReport { counted, dns, .. }| {
            let busy = Reverse(counted.outcomes.arrived);
            (!dns, busy, counted.service.clone(), counted.family)
        });
        let omitted = services.len().saturating_sub(shown);
        services.truncate(shown);
        UdpReport {
            services,
            omitted: u32::try_from(omitted).unwrap_or(u32::MAX),
        }
    }
}

fn add(delays: &mut Delays, ns: u64) {
    delays.buckets[delay_bucket(ns)] += 1;
    delays.sum_ns += ns;
}

fn times(delays: &Delays) -> Option<AnswerTimes> {
    let count: u64 = delays.buckets.iter().sum();
    (count > 0).then(|| AnswerTimes {
        count,
        half_ns: quantile(delays, count.div_ceil(2)),
        most_ns: quantile(delays, (count * 99).div_ceil(100)),
    })
}

/// The bound below which so many of the delays lie.
fn quantile(delays: &Delays, rank: u64) -> u64 {
    let mut below = 0;
    let bucket = delays.buckets.iter().position(|count| {
        below += count;
        below >= rank
    });
    1 << (bucket.unwrap_or(DELAY_BUCKETS - 1) + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_bounds_of_buckets() {
        let mut delays = Delays::default();
        assert_eq!(times(&delays), None);
        for _ in 0..98 {
            add(&mut delays, 300_000);
        }
        add(&mut delays, 3_000_000);
        add(&mut delays, 40_000_000);
        let AnswerTimes {
            count,
            half_ns,
            most_ns,
        } = times(&delays).expect("answers");
        assert_eq!((count, half_ns, most_ns), (100, 1 << 19, 1 << 22));
    }
}
