//! How many entries the hash maps of a process hold.

use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use anyhow::{Context, Result};

use crate::bpf::{call, descriptor};

/// Commands of bpf(2).
const GET_NEXT_KEY: libc::c_int = 4;
const FD_BY_ID: libc::c_int = 14;
/// `BPF_MAP_TYPE_HASH` and `BPF_MAP_TYPE_LRU_HASH`.
const HASHES: [u64; 2] = [1, 9];

/// Entries of all hash maps that a process holds, together.
pub fn map_entries(pid: u32) -> Result<u64> {
    let folder = format!("/proc/{pid}/fdinfo");
    let infos = fs::read_dir(&folder).with_context(|| format!("read {folder}"))?;
    let mut maps: Vec<(u32, usize)> = infos
        .flatten()
        .filter_map(|entry| hash_map(&entry.path()))
        .collect();
    maps.sort_unstable();
    maps.dedup();
    maps.into_iter()
        .map(|(id, key_size)| count(id, key_size))
        .sum::<io::Result<u64>>()
        .context("count the entries of a map")
}

/// Id and size of keys of a hash map, where a descriptor is one.
fn hash_map(info: &Path) -> Option<(u32, usize)> {
    let text = fs::read_to_string(info).ok()?;
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().parse::<u64>().ok()
    };
    let is_hash = HASHES.contains(&field("map_type:")?);
    let id = u32::try_from(field("map_id:")?).ok()?;
    let key_size = usize::try_from(field("key_size:")?).ok()?;
    is_hash.then_some((id, key_size))
}

/// What the kernel wants for a walk over keys: `map_fd`, `key`, `next_key`.
#[repr(C)]
struct Walk {
    map: u32,
    zero: u32,
    key: u64,
    next: u64,
}

fn count(id: u32, key_size: usize) -> io::Result<u64> {
    let map = descriptor(FD_BY_ID, &mut [id, 0, 0, 0])?;
    let (mut key, mut next) = (vec![0_u8; key_size], vec![0_u8; key_size]);
    let mut entries = 0;
    loop {
        let mut walk = Walk {
            map: map.as_raw_fd().cast_unsigned(),
            zero: 0,
            key: match entries {
                0 => 0,
                _ => key.as_ptr() as u64,
            },
            next: next.as_mut_ptr() as u64,
        };
        if let Err(error) = call(GET_NEXT_KEY, &mut walk) {
            return match error.raw_os_error() {
                Some(libc::ENOENT) => Ok(entries),
                _ => Err(error),
            };
        }
        std::mem::swap(&mut key, &mut next);
        entries += 1;
    }
}
