//! Resources that a process uses, as the kernel counts them.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::time::Duration;
use std::{fs, io};

use anyhow::{Context, Result};
use aya::maps::MapInfo;
use aya::programs::loaded_programs;
use nix::time::ClockId;
use nix::unistd::Pid;

use crate::bpf;

/// Memory of a process, in KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    pub rss_kib: u64,
    /// Maximum resident memory so far.
    pub peak_kib: u64,
    /// Resident memory that is not backed by a file.
    pub anonymous_kib: u64,
}

pub fn memory(pid: u32) -> Result<Memory> {
    let path = format!("/proc/{pid}/status");
    let status = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    let kib = |name| number(&status, name).with_context(|| format!("no {name} in {path}"));
    Ok(Memory {
        rss_kib: kib("VmRSS:")?,
        peak_kib: kib("VmHWM:")?,
        anonymous_kib: kib("RssAnon:")?,
    })
}

/// Number of descriptors that a process has.
pub fn open_files(pid: u32) -> Result<u64> {
    let files = fs::read_dir(format!("/proc/{pid}/fd"));
    Ok(files.context("read the files of a process")?.count() as u64)
}

/// Processor time of a process so far, including threads that have ended.
pub fn processor(pid: u32) -> Result<Duration> {
    let clock = ClockId::pid_cpu_clock_id(Pid::from_raw(pid.cast_signed()));
    let time = clock.context("the clock of a process")?.now()?;
    Ok(time.into())
}

/// Memory that the kernel charges for a process's maps, each counted once, in KiB.
pub fn maps_kib(pid: u32) -> Result<u64> {
    Ok(maps(pid)?.values().sum::<u64>() / 1024)
}

/// Maps of a process: bytes by id.
pub fn maps(pid: u32) -> Result<BTreeMap<u32, u64>> {
    let maps = held(pid)?.filter_map(|field| Some((field("map_id:")?, field("memlock:")?)));
    maps.map(|(id, bytes)| Ok((u32::try_from(id)?, bytes)))
        .collect()
}

/// Total entries of all hash maps of a process.
pub fn map_entries(pid: u32) -> Result<u64> {
    /// `BPF_MAP_TYPE_HASH` and `BPF_MAP_TYPE_LRU_HASH`.
    const HASHES: [u64; 2] = [1, 9];
    let hashes: BTreeSet<u32> = held(pid)?
        .filter(|field| field("map_type:").is_some_and(|kind| HASHES.contains(&kind)))
        .filter_map(|field| u32::try_from(field("map_id:")?).ok())
        .collect();
    let counts = hashes.into_iter().map(entries).sum::<Result<u64>>();
    counts.context("count the entries of a map")
}

fn entries(id: u32) -> Result<u64> {
    const NEXT_KEY: libc::c_int = 4;
    let info = MapInfo::from_id(id)?;
    let map = info.fd()?;
    let mut key = vec![0_u8; info.key_size() as usize];
    // Attributes of the command: descriptor and padding, key, next key. A null key yields the first key.
    let mut attr = [map.as_fd().as_raw_fd() as u64, 0, key.as_mut_ptr() as u64];
    let mut count = 0;
    loop {
        match bpf::call(NEXT_KEY, &mut attr) {
            Ok(_) => attr[1] = attr[2],
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(count),
            Err(error) => return Err(error.into()),
        }
        count += 1;
    }
}

/// Runs of all programs of a process, each counted once, and their total time. Both increase only while
/// the kernel records statistics (`aya::sys::enable_stats`).
pub fn programs(pid: u32) -> Result<(u64, Duration)> {
    let held: BTreeSet<u64> = held(pid)?.filter_map(|field| field("prog_id:")).collect();
    let (mut runs, mut time) = (0, Duration::ZERO);
    for program in loaded_programs().flatten() {
        if held.contains(&program.id().into()) {
            runs += program.run_count();
            time += program.run_time();
        }
    }
    Ok((runs, time))
}

/// For each descriptor of a process, a function that returns a number in its fdinfo by field name.
fn held(pid: u32) -> Result<impl Iterator<Item = impl Fn(&str) -> Option<u64>>> {
    let folder = format!("/proc/{pid}/fdinfo");
    let files = fs::read_dir(&folder).with_context(|| format!("read {folder}"))?;
    let texts = files.filter_map(|file| fs::read_to_string(file.ok()?.path()).ok());
    Ok(texts.map(|text| move |name: &str| number(&text, name)))
}

/// The number after a name at the start of a line, as in files below /proc.
fn number(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figures_of_this_process_are_plausible() {
        let pid = std::process::id();
        let memory = memory(pid).expect("memory");
        assert!(memory.rss_kib > 0 && memory.rss_kib <= memory.peak_kib);
        let processor = processor(pid).expect("processor time");
        assert!(processor < Duration::from_secs(3600));
        assert_eq!(maps(pid).expect("maps").len(), 0);
        assert!(open_files(pid).expect("files") >= 3);
    }
}
