//! Entries of any map, as bytes: for faults in other programs' tables, and to be counted.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::Path;

use anyhow::{Context, Result};
use aya::maps::{MapFd, MapInfo};

use super::call;

const LOOKUP: libc::c_int = 1;
const UPDATE: libc::c_int = 2;
const DELETE: libc::c_int = 3;
const NEXT_KEY: libc::c_int = 4;

/// A key and its value.
pub type Entry = (Vec<u8>, Vec<u8>);

/// A map, whoever made it.
#[derive(Debug)]
pub struct Map {
    map: MapFd,
    key_size: usize,
    value_size: usize,
}

impl Map {
    /// Opens the map of a pin.
    pub fn pinned(pin: &Path) -> Result<Self> {
        let info = MapInfo::from_pin(pin).with_context(|| format!("open {}", pin.display()))?;
        Self::of(&info)
    }

    /// Opens a map by its id.
    pub fn by_id(id: u32) -> Result<Self> {
        Self::of(&MapInfo::from_id(id)?)
    }

    fn of(info: &MapInfo) -> Result<Self> {
        Ok(Self {
            map: info.fd()?,
            key_size: info.key_size() as usize,
            value_size: info.value_size() as usize,
        })
    }

    /// Number of its entries.
    pub fn count(&self) -> Result<u64> {
        let (mut key, mut entries) = (Vec::new(), 0);
        while let Some(next) = self.next_key(&key)? {
            (key, entries) = (next, entries + 1);
        }
        Ok(entries)
    }

    /// Takes every entry out, and gives what was there.
    pub fn empty(&self) -> Result<Vec<Entry>> {
        let mut entries = Vec::new();
        while let Some(key) = self.next_key(&[])? {
            let value = self.value(&key)?;
            call(DELETE, &mut self.element(&key, 0)).context("delete an entry")?;
            entries.push((key, value));
        }
        Ok(entries)
    }

    /// Puts entries in.
    pub fn fill(&self, entries: &[Entry]) -> Result<()> {
        for (key, value) in entries {
            let mut attr = self.element(key, value.as_ptr() as u64);
            call(UPDATE, &mut attr).context("put an entry")?;
        }
        Ok(())
    }

    /// Descriptor and padding, key, value or next key, flags. An empty key becomes null, which stands
    /// before the first one.
    fn element(&self, key: &[u8], value: u64) -> [u64; 4] {
        let map = self.map.as_fd().as_raw_fd().cast_unsigned();
        let key = match key {
            [] => 0,
            _ => key.as_ptr() as u64,
        };
        [map.into(), key, value, 0]
    }

    fn next_key(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut next = vec![0_u8; self.key_size];
        let mut attr = self.element(key, next.as_mut_ptr() as u64);
        match call(NEXT_KEY, &mut attr) {
            Ok(_) => Ok(Some(next)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).context("the next key"),
        }
    }

    fn value(&self, key: &[u8]) -> Result<Vec<u8>> {
        let mut value = vec![0_u8; self.value_size];
        let mut attr = self.element(key, value.as_mut_ptr() as u64);
        call(LOOKUP, &mut attr).context("a value")?;
        Ok(value)
    }
}
