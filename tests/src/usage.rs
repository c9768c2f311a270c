//! What a process uses, as the kernel counts it.

mod entries;
mod programs;

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};

pub use entries::map_entries;
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
    let mut maps = BTreeMap::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fdinfo"))?.flatten() {
        let Ok(info) = fs::read_to_string(entry.path()) else {
            continue;
        };
        let field = |name: &str| {
            info.lines()
                .find_map(|line| line.strip_prefix(name))?
                .trim()
                .parse::<u64>()
                .ok()
        };
        if let (Some(id), Some(bytes)) = (field("map_id:"), field("memlock:")) {
            maps.insert(u32::try_from(id)?, bytes);
        }
    }
    Ok(maps)
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
