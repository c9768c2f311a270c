//! What the kernel spent in the BPF programs that a process holds.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::Result;
use aya::programs::loaded_programs;

use super::held;

/// Runs of a program and the time that they took. Both stand still while the kernel keeps no such
/// figures (`aya::sys::enable_stats`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Runs {
    pub count: u64,
    pub time: Duration,
}

/// Runs of the programs that a process holds, each once, by their names. The kernel cuts names off: two
/// programs with one name are one here.
pub fn programs(pid: u32) -> Result<BTreeMap<String, Runs>> {
    let names: BTreeMap<u32, String> = loaded_programs()
        .flatten()
        .filter_map(|info| Some((info.id(), info.name_as_str()?.to_owned())))
        .collect();
    let (mut programs, mut met) = (BTreeMap::<String, Runs>::new(), BTreeSet::new());
    for field in held(pid)? {
        let (Some(id), Some(time), Some(count)) =
            (field("prog_id:"), field("run_time_ns:"), field("run_cnt:"))
        else {
            continue;
        };
        let name = u32::try_from(id).ok().and_then(|id| names.get(&id));
        let Some(name) = name.filter(|_| met.insert(id)) else {
            continue;
        };
        let runs = programs.entry(name.clone()).or_default();
        runs.count += count;
        runs.time += Duration::from_nanos(time);
    }
    Ok(programs)
}
