//! What a process uses, as the kernel counts it.

mod programs;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::bpf::Map;

pub use programs::{Runs, programs};

/// Memory of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Resident now, KiB.
    pub rss_kib: u64,
    /// Resident at most so far, KiB.
    pub peak_kib: u64,
}

/// Memory of a process now.
pub fn memory(pid: u32) -> Result<Memory> {
    let status = read(pid, "status")?;
    let kib = |field: &str| -> Result<u64> {
        status
            .lines()
            .find_map(|line| line.strip_prefix(field))
            .and_then(|rest| rest.split_whitespace().next()?.parse().ok())
            .with_context(|| format!("no {field} in /proc/PID/status"))
    };
    Ok(Memory {
        rss_kib: kib("VmRSS:")?,
        peak_kib: kib("VmHWM:")?,
    })
}

/// Processor time of a process so far, all threads, in user mode and in the kernel.
pub fn processor(pid: u32) -> Result<(Duration, Duration)> {
    let stat = read(pid, "stat")?;
    // What follows the name, which may hold anything: state is the first field, utime the twelfth.
    let fields = stat.rsplit(')').next().context("no name in stat")?;
    let mut fields = fields.split_whitespace().skip(11);
    let mut next = || -> Result<Duration> {
        let ticks: f64 = fields.next().context("a short stat")?.parse()?;
        Ok(Duration::from_secs_f64(ticks / ticks_per_second()))
    };
    Ok((next()?, next()?))
}

/// What the kernel charges for the maps that a process holds, each once, KiB.
pub fn maps_kib(pid: u32) -> Result<u64> {
    Ok(maps(pid)?.values().sum::<u64>() / 1024)
}

/// Maps that a process holds: bytes by id.
pub fn maps(pid: u32) -> Result<BTreeMap<u32, u64>> {
    let maps = held(pid)?.filter_map(|field| Some((field("map_id:")?, field("memlock:")?)));
    maps.map(|(id, bytes)| Ok((u32::try_from(id)?, bytes)))
        .collect()
}

/// Entries of all hash maps that a process holds, together.
pub fn map_entries(pid: u32) -> Result<u64> {
    /// `BPF_MAP_TYPE_HASH` and `BPF_MAP_TYPE_LRU_HASH`.
    const HASHES: [u64; 2] = [1, 9];
    let hashes: BTreeSet<u32> = held(pid)?
        .filter(|field| field("map_type:").is_some_and(|kind| HASHES.contains(&kind)))
        .filter_map(|field| u32::try_from(field("map_id:")?).ok())
        .collect();
    let count = |id| Map::by_id(id)?.count();
    let counts = hashes.into_iter().map(count).sum::<Result<u64>>();
    counts.context("count the entries of a map")
}

/// Numbers that the kernel gives of each descriptor of a process, by the names of their fields.
fn held(pid: u32) -> Result<impl Iterator<Item = impl Fn(&str) -> Option<u64>>> {
    let folder = format!("/proc/{pid}/fdinfo");
    let files = fs::read_dir(&folder).with_context(|| format!("read {folder}"))?;
    let texts = files.filter_map(|file| fs::read_to_string(file.ok()?.path()).ok());
    Ok(texts.map(|text| {
        move |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim().parse().ok()
        }
    }))
}

fn read(pid: u32, file: &str) -> Result<String> {
    let path = format!("/proc/{pid}/{file}");
    fs::read_to_string(&path).with_context(|| format!("read {path}"))
}

fn ticks_per_second() -> f64 {
    // SAFETY: sysconf takes a number and touches no memory.
    unsafe { libc::sysconf(libc::_SC_CLK_TCK) as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_uses_something() {
        let pid = std::process::id();
        let memory = memory(pid).expect("memory");
        assert!(memory.rss_kib > 0 && memory.rss_kib <= memory.peak_kib);
        let (user, system) = processor(pid).expect("processor time");
        assert!(user + system < Duration::from_secs(3600));
        assert_eq!(maps(pid).expect("maps").len(), 0);
    }
}
