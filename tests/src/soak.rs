//! A soak: a node under traffic whose Services, endpoints and pods come and go, and what the agent
//! holds all the while. What grows from the second quarter to the last one leaks.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::detect::{Load, Stage};
use crate::rules::Backend;
use crate::storm::{Churn, Injector};
use crate::usage;

/// From one look to the next.
const LOOK: Duration = Duration::from_secs(10);

/// What was seen at a moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Look {
    /// Memory of the agent, KiB.
    pub rss_kib: u64,
    /// Files that it has open.
    pub files: u64,
    /// Entries of its maps.
    pub entries: u64,
    /// Entries of the node's conntrack.
    pub conntrack: u64,
    /// Bytes of its log so far.
    pub log: u64,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Soaked {
    /// Looks, ten seconds apart.
    pub looks: Vec<Look>,
    /// Counters that went back, by series.
    pub went_back: Vec<String>,
    /// Connections that clients began, and how many of them were not answered.
    pub connections: (u64, u64),
}

/// Soaks for so long; the seed decides what comes and goes when.
pub fn soak(binary: PathBuf, seed: u64, length: Duration) -> Result<Soaked> {
    let options = ["--log-filter", "info"];
    let stage = Stage::build(&binary, Backend::Nftables, Load::Busy, &options, true)?;
    let mut injector = Injector::new(stage, binary, options.map(str::to_owned).to_vec());
    let mut soaked = Soaked::default();
    let (start, mut churn) = (Instant::now(), Churn::of(seed, length));
    let (mut counters, mut next) = (BTreeMap::new(), LOOK);
    while start.elapsed() < length {
        churn.go_on(start.elapsed(), &mut injector)?;
        injector.check()?;
        if start.elapsed() >= next {
            next += LOOK;
            soaked.looks.push(look(&injector.stage)?);
            soaked
                .went_back
                .extend(went_back(&injector.stage, &mut counters)?);
            for client in &injector.stage.clients {
                drop(client.take_ended());
            }
        }
        thread::sleep(Duration::from_millis(50));
    }
    churn.go_on(Duration::MAX, &mut injector)?;
    let tally = injector.stage.tally();
    soaked.connections = (tally.started, tally.failed());
    Ok(soaked)
}

fn look(stage: &Stage) -> Result<Look> {
    let pid = stage.agent.pid();
    let files = fs::read_dir(format!("/proc/{pid}/fd")).context("read the agent's files")?;
    let conntrack = stage.world.node.run(|| {
        // Of the thread's own network.
        fs::read_to_string("/proc/thread-self/net/stat/nf_conntrack")
    })?;
    Ok(Look {
        rss_kib: usage::memory(pid)?.rss_kib,
        files: files.count() as u64,
        entries: usage::map_entries(pid)?,
        conntrack: conntrack_entries(&conntrack).context("no entries in nf_conntrack")?,
        log: stage.agent.log().len() as u64,
    })
}

/// The first column of any line but the head: entries, the same for each processor, hexadecimal.
fn conntrack_entries(stat: &str) -> Option<u64> {
    let line = stat.lines().nth(1)?;
    u64::from_str_radix(line.split_whitespace().next()?, 16).ok()
}

/// Counters that are lower than before.
fn went_back(stage: &Stage, before: &mut BTreeMap<String, f64>) -> Result<Vec<String>> {
    let metrics = stage.agent.metrics()?;
    let mut found = Vec::new();
    for line in metrics.lines().filter(|line| !line.starts_with('#')) {
        let Some((series, value)) = line.rsplit_once(' ') else {
            continue;
        };
        let name = series.split('{').next().unwrap_or_default();
        let Ok(value) = value.parse::<f64>() else {
            continue;
        };
        if !name.ends_with("_total") {
            continue;
        }
        if let Some(old) = before.insert(series.to_owned(), value)
            && old > value
        {
            found.push(format!("{series}: {old} and then {value}"));
        }
    }
    Ok(found)
}

impl Soaked {
    /// The median of something in the second quarter and in the last one, once all that is there
    /// from the start has grown to its size.
    pub fn quarters(&self, of: impl Fn(&Look) -> u64) -> (u64, u64) {
        let quarter = self.looks.len() / 4;
        let median = |looks: &[Look]| {
            let mut values: Vec<u64> = looks.iter().map(&of).collect();
            values.sort_unstable();
            values.get(values.len() / 2).copied().unwrap_or_default()
        };
        let last = self.looks.len() - quarter;
        (
            median(&self.looks[quarter..2 * quarter]),
            median(&self.looks[last..]),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quarters_are_compared_by_their_medians() {
        let looks = (0..40).map(|number| Look {
            files: match number {
                0..10 => 5,
                15 => 999,
                10..30 => 20,
                _ => 21,
            },
            ..Look::default()
        });
        let soaked = Soaked {
            looks: looks.collect(),
            ..Soaked::default()
        };
        assert_eq!(soaked.quarters(|look| look.files), (20, 21));
        assert_eq!(Soaked::default().quarters(|look| look.files), (0, 0));
    }

    #[test]
    fn conntrack_counts_in_hexadecimal() {
        let stat = "entries  clashres found\n0000001f  00000000 00000001\n0000001f  0 0\n";
        assert_eq!(conntrack_entries(stat), Some(31));
        assert_eq!(conntrack_entries("entries\n"), None);
    }
}
