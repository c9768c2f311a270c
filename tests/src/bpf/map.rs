//! Entries of a map that somebody pinned, as bytes: for faults in other programs' tables.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use anyhow::{Context, Result};

use super::{call, descriptor};

const LOOKUP: libc::c_int = 1;
const UPDATE: libc::c_int = 2;
const DELETE: libc::c_int = 3;
const NEXT_KEY: libc::c_int = 4;
const GET_PINNED: libc::c_int = 7;
const INFO: libc::c_int = 15;

#[repr(C)]
#[derive(Default)]
struct PinAttr {
    path: u64,
    fd: u32,
    flags: u32,
}

#[repr(C)]
#[derive(Default)]
struct InfoAttr {
    fd: u32,
    length: u32,
    info: u64,
}

/// The beginning of `struct bpf_map_info`.
#[repr(C)]
#[derive(Default)]
struct MapInfo {
    kind: u32,
    id: u32,
    key_size: u32,
    value_size: u32,
}

#[repr(C)]
#[derive(Default)]
struct ElementAttr {
    fd: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// A key and its value.
pub type Entry = (Vec<u8>, Vec<u8>);

/// A map of somebody else's.
#[derive(Debug)]
pub struct PinnedMap {
    map: OwnedFd,
    key_size: usize,
    value_size: usize,
}

impl PinnedMap {
    /// Opens the map of a pin.
    pub fn open(pin: &Path) -> Result<Self> {
        let path = CString::new(pin.as_os_str().as_bytes())?;
        let mut attr = PinAttr {
            path: path.as_ptr() as u64,
            ..PinAttr::default()
        };
        let map =
            descriptor(GET_PINNED, &mut attr).with_context(|| format!("open {}", pin.display()))?;
        let mut info = MapInfo::default();
        let mut attr = InfoAttr {
            fd: map.as_raw_fd() as u32,
            length: size_of::<MapInfo>() as u32,
            info: (&raw mut info) as u64,
        };
        call(INFO, &mut attr).context("sizes of a map")?;
        Ok(Self {
            map,
            key_size: info.key_size as usize,
            value_size: info.value_size as usize,
        })
    }

    /// Takes every entry out, and gives what was there.
    pub fn empty(&self) -> Result<Vec<Entry>> {
        let mut entries = Vec::new();
        while let Some(key) = self.first_key()? {
            let value = self.value(&key)?;
            let mut attr = self.element(&key, &[]);
            call(DELETE, &mut attr).context("delete an entry")?;
            entries.push((key, value));
        }
        Ok(entries)
    }

    /// Puts entries in.
    pub fn fill(&self, entries: &[Entry]) -> Result<()> {
        for (key, value) in entries {
            let mut attr = self.element(key, value);
            call(UPDATE, &mut attr).context("put an entry")?;
        }
        Ok(())
    }

    /// Empty slices become null: the kernel refuses attributes that a command does not read.
    fn element(&self, key: &[u8], value: &[u8]) -> ElementAttr {
        let address = |bytes: &[u8]| match bytes {
            [] => 0,
            _ => bytes.as_ptr() as u64,
        };
        ElementAttr {
            fd: self.map.as_raw_fd() as u32,
            key: address(key),
            value: address(value),
            ..ElementAttr::default()
        }
    }

    fn first_key(&self) -> Result<Option<Vec<u8>>> {
        let mut key = vec![0; self.key_size];
        let mut attr = self.element(&[], &[]);
        attr.value = key.as_mut_ptr() as u64;
        match call(NEXT_KEY, &mut attr) {
            Ok(_) => Ok(Some(key)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).context("the first key"),
        }
    }

    fn value(&self, key: &[u8]) -> Result<Vec<u8>> {
        let mut value = vec![0; self.value_size];
        let mut attr = self.element(key, &[]);
        attr.value = value.as_mut_ptr() as u64;
        call(LOOKUP, &mut attr).context("a value")?;
        Ok(value)
    }
}
