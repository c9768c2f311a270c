//! A soak: a storm of everyday changes only, with samples of the agent's resources. Growth from the second
//! quarter of the time to the last one is a leak.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use anyhow::Result;

use super::plan::{Action, Harmless};
use crate::detect::Stage;
use crate::promises::{Missed, head, median};
use crate::usage;

/// Interval between samples.
const LOOK: Duration = Duration::from_secs(10);
/// Absolute growth up to which a small number does not count as a leak.
const SOME: f64 = 8.0;
/// Maximum bytes of log a second: a few lines for each change.
const LOG: f64 = 2_000.0;
/// Name, unit, accepted relative growth and source of a figure.
type Row = (&'static str, &'static str, f64, fn(&Stage) -> Result<u64>);

/// Sampled figures. Conntrack gets the largest tolerance: connections to killed backends stay there for two
/// minutes, with or without the agent.
const ROWS: [Row; 4] = [
    ("memory (RSS)", "KiB", 0.05, |stage| {
        Ok(usage::memory(stage.agent.pid())?.rss_kib)
    }),
    ("open files", "files", 0.05, |stage| {
        usage::open_files(stage.agent.pid())
    }),
    ("its maps", "entries", 0.05, |stage| {
        usage::map_entries(stage.agent.pid())
    }),
    ("conntrack of the node", "entries", 0.25, |stage| {
        let file = "/proc/sys/net/netfilter/nf_conntrack_count";
        let count = stage.world.node.run(|| fs::read_to_string(file))?;
        Ok(count.trim().parse()?)
    }),
];

/// Whether the action adds or removes Services, endpoints or pods.
pub(super) fn is_churn(action: Action) -> bool {
    use Harmless::{BackendKilled, EndpointMoved, PodAdded, ServiceAdded};
    let churn = [EndpointMoved, ServiceAdded, PodAdded, BackendKilled];
    churn.map(Action::Harmless).contains(&action)
}

#[derive(Default)]
pub(super) struct Soak {
    /// Values of each row of [`ROWS`], one for each sample.
    looks: [Vec<u64>; 4],
    /// Last values of counters by series.
    counters: BTreeMap<String, f64>,
    went_back: Vec<String>,
}

impl Soak {
    /// Takes a sample if it is due.
    pub(super) fn look(&mut self, now: Duration, stage: &Stage) -> Result<()> {
        if now < LOOK * (self.looks[0].len() as u32 + 1) {
            return Ok(());
        }
        for ((.., read), values) in ROWS.iter().zip(&mut self.looks) {
            values.push(read(stage)?);
        }
        self.compare(&stage.agent.metrics()?);
        Ok(())
    }

    /// Records counters that decreased.
    fn compare(&mut self, metrics: &str) {
        for (series, value) in metrics.lines().filter_map(|line| line.rsplit_once(' ')) {
            // This skips help lines: they have text after the name, so `name` does not end in `_total`.
            let name = series.split('{').next().unwrap_or_default();
            let Ok(value) = value.parse() else { continue };
            if !name.ends_with("_total") {
                continue;
            }
            let before = self.counters.insert(series.to_owned(), value);
            if let Some(before) = before.filter(|before| *before > value) {
                let back = format!("{series}: {before} and then {value}");
                self.went_back.push(back);
            }
        }
    }

    /// Prints the table and judges it.
    pub(super) fn report(&self, stage: &Stage, length: Duration, missed: &mut Missed) {
        head("of the agent | second quarter | last quarter | unit | ratio | flat");
        for ((name, unit, share, _), values) in ROWS.iter().zip(&self.looks) {
            let [before, after] = quarters(values);
            let flat = after <= before * (1.0 + share) + SOME;
            let (flat, ratio) = (missed.record(format!("flat {name}"), flat), after / before);
            println!("| {name} | {before} | {after} | {unit} | {ratio:.3} | {flat} |");
        }
        let log = stage.agent.log().len() as f64 / length.as_secs_f64();
        println!("\nlog: {log:.0} bytes a second");
        println!("{} counters went back", self.went_back.len());
        for series in &self.went_back {
            println!("  {series}");
        }
        let what = format!("at most {LOG:.0} bytes of log a second");
        missed.record(what, log <= LOG);
        missed.record("no counter goes back", self.went_back.is_empty());
    }
}

/// The medians of the second and the last quarter. In the first quarter, structures that exist from the start
/// still grow to their size.
fn quarters(values: &[u64]) -> [f64; 2] {
    let quarter = values.len() / 4;
    let [second, last] = [quarter, values.len() - quarter];
    let parts = [&values[second..2 * quarter], &values[last..]];
    parts.map(|part| median(part.iter().map(|value| *value as f64)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quarters_are_compared_by_their_medians() {
        let values = (0..40).map(|number| match number {
            0..10 => 5,
            15 => 999,
            10..30 => 20,
            _ => 21,
        });
        assert_eq!(quarters(&values.collect::<Vec<u64>>()), [20.0, 21.0]);
        // Without samples there is no median, and the figure counts as not flat.
        assert!(quarters(&[]).iter().all(|value| value.is_nan()));
    }

    #[test]
    fn only_counters_that_went_back_are_noted() {
        let mut soak = Soak::default();
        soak.compare("# HELP a_total b 9\na_total{b=\"c\"} 5\nd_total 7\ngauge 9\n");
        soak.compare("# HELP a_total b 8\na_total{b=\"c\"} 4\nd_total 8\ngauge 1\n");
        assert_eq!(soak.went_back, ["a_total{b=\"c\"}: 5 and then 4"]);
    }
}
