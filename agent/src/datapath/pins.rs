//! Where links and maps are pinned, so that an agent that ends, is killed or is replaced leaves no
//! gap: `DIR/v<ABI>/maps/NAME` and `DIR/v<ABI>/links/<ifindex>-<direction>`. `DIR/programs` is
//! `claims`'s.
//!
//! A directory of another layout version is never read; [`Pins::sweep_other_versions`] removes it
//! once the programs of this version are attached.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use agent_common::abi::{ABI_VERSION, map};
use thiserror::Error;

/// `f_type` of a BPF file system (linux/magic.h).
const BPF_FS_MAGIC: i64 = 0xcafe_4a11;
/// Beside the versions' directories, and the same for all of them.
const CLAIMS: &str = "programs";

/// Why nothing can be pinned. The agent runs on without: an upgrade then leaves a gap in
/// observation.
#[derive(Debug, Error)]
pub enum PinsError {
    /// Not on a BPF file system.
    #[error(
        "{} is not on a BPF file system: mount one (mount -t bpf bpf /sys/fs/bpf) or pass --pin-dir none",
        path.display()
    )]
    NotBpfFs {
        /// What was asked for.
        path: PathBuf,
    },
    /// Could not be made or read.
    #[error("cannot {operation} {}: {source}", path.display())]
    Io {
        /// What was tried.
        operation: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// The directory of this layout version.
#[derive(Clone, Debug)]
pub struct Pins {
    root: PathBuf,
    version: PathBuf,
    /// Maps of this version were there already.
    found: bool,
}

impl Pins {
    /// Makes the directory of all versions, if it is not there.
    pub fn make_root(root: &Path) -> Result<(), PinsError> {
        let parent = root
            .ancestors()
            .find(|path| path.exists())
            .unwrap_or(Path::new("/"));
        if !is_bpf_fs(parent)? {
            return Err(PinsError::NotBpfFs {
                path: root.to_owned(),
            });
        }
        make(root.to_owned())
    }

    /// Opens or makes the directories.
    pub fn open(root: &Path) -> Result<Self, PinsError> {
        Self::make_root(root)?;
        let pins = Self {
            root: root.to_owned(),
            version: root.join(format!("v{ABI_VERSION}")),
            found: false,
        };
        let pins = Self {
            found: pins.map(map::PROOFS).exists(),
            ..pins
        };
        for path in [pins.version.join("maps"), pins.links()] {
            make(path)?;
        }
        Ok(pins)
    }

    /// Where a map is pinned.
    pub fn map(&self, name: &str) -> PathBuf {
        self.version.join("maps").join(name)
    }

    /// Whether a former agent of this version had pinned its maps when this was opened.
    pub fn were_found(&self) -> bool {
        self.found
    }

    /// Where agents of every version say which programs are theirs.
    pub fn claims(&self) -> PathBuf {
        self.root.join(CLAIMS)
    }

    /// Where links are pinned.
    pub fn links(&self) -> PathBuf {
        self.version.join("links")
    }

    /// Where the link of a device and direction is pinned. By index, not name: a device of the
    /// same name that is back is another device, and its old link is dead.
    pub fn link(&self, device: u32, direction: &str) -> PathBuf {
        self.links().join(format!("{device}-{direction}"))
    }

    /// Device indexes and directions of the links that are pinned.
    pub fn pinned_links(&self) -> Vec<(u32, String, PathBuf)> {
        let Ok(entries) = fs::read_dir(self.links()) else {
            return Vec::new();
        };
        entries
            .flatten()
            .filter_map(|entry| {
                let name = entry.file_name().into_string().ok()?;
                let (index, direction) = name.split_once('-')?;
                Some((index.parse().ok()?, direction.to_owned(), entry.path()))
            })
            .collect()
    }

    /// Forgets every pinned map, so that the next load makes fresh ones.
    pub fn forget_maps(&self) {
        let _ = fs::remove_dir_all(self.version.join("maps"));
        let _ = fs::create_dir_all(self.version.join("maps"));
    }

    /// Removes what agents of other layout versions left. Nothing else below the directory is
    /// touched: it may be shared with others' pins.
    pub fn sweep_other_versions(&self) {
        for path in versions(&self.root).filter(|path| *path != self.version) {
            let _ = fs::remove_dir_all(path);
        }
    }

    /// Removes everything of every version: `pathproof cleanup`. The number of links and maps that
    /// were there, for the message. Removing a link's last pin detaches its program.
    pub fn remove_all(root: &Path) -> Result<usize, PinsError> {
        let io = |operation, path: &Path, source| PinsError::Io {
            operation,
            path: path.to_owned(),
            source,
        };
        if !root.exists() {
            return Ok(0);
        }
        if !is_bpf_fs(root)? {
            return Err(PinsError::NotBpfFs {
                path: root.to_owned(),
            });
        }
        let mut count = 0;
        for version in versions(root) {
            count += count_files(&version);
            fs::remove_dir_all(&version).map_err(|source| io("remove", &version, source))?;
        }
        let _ = fs::remove_dir_all(root.join(CLAIMS));
        // Only if nobody else has anything in it.
        let _ = fs::remove_dir(root);
        Ok(count)
    }
}

/// The directories of layout versions, `v` and a number.
fn versions(root: &Path) -> impl Iterator<Item = PathBuf> {
    let is_version = |name: &str| {
        name.strip_prefix('v')
            .is_some_and(|number| number.parse::<u32>().is_ok())
    };
    fs::read_dir(root)
        .into_iter()
        .flatten()
        .flatten()
        .filter(move |entry| entry.file_name().to_str().is_some_and(is_version))
        .map(|entry| entry.path())
}

fn count_files(path: &Path) -> usize {
    let Ok(entries) = fs::read_dir(path) else {
        return 0;
    };
    entries
        .flatten()
        .map(|entry| {
            if entry.path().is_dir() {
                count_files(&entry.path())
            } else {
                1
            }
        })
        .sum()
}

fn make(path: PathBuf) -> Result<(), PinsError> {
    fs::create_dir_all(&path).map_err(|source| PinsError::Io {
        operation: "make",
        path,
        source,
    })
}

fn is_bpf_fs(path: &Path) -> Result<bool, PinsError> {
    let failed = |source| PinsError::Io {
        operation: "look at",
        path: path.to_owned(),
        source,
    };
    let name = CString::new(path.as_os_str().as_bytes())
        .map_err(|error| failed(io::Error::new(io::ErrorKind::InvalidInput, error)))?;
    // SAFETY: all zero is a sound `statfs`.
    let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: a valid C string and a struct of the right size.
    if unsafe { libc::statfs(name.as_ptr(), &raw mut stat) } != 0 {
        return Err(failed(io::Error::last_os_error()));
    }
    Ok(stat.f_type == BPF_FS_MAGIC)
}
