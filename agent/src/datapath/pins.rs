//! Pins of links and maps, so that an agent that ends, is killed or is replaced leaves no gap:
//! `DIR/v<ABI>/maps/NAME` and `DIR/v<ABI>/links/<ifindex>-<direction>`.
//!
//! A directory of another layout version is never read; [`Pins::sweep_other_versions`] removes it
//! once the programs of this version are attached.
//!
//! `DIR/programs` records which programs are pathproof's, whichever agent loaded them, by links
//! that are named by a program's id. Names and tags of programs take CAP_SYS_ADMIN, and during an
//! upgrade another agent's programs must not be taken for Cilium's. An agent claims its programs
//! before it attaches them: a reader of the hooks first and of the claims after that meets no
//! program of ours that is not claimed. The kernel gives an id once in a boot, so what a killed
//! agent leaves claims nothing else.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use agent_common::abi::{ABI_VERSION, map};
use thiserror::Error;

mod kept;

pub(super) use kept::KeptPins;

/// `f_type` of a BPF file system (linux/magic.h).
const BPF_FS_MAGIC: i64 = 0xcafe_4a11;
const LINKS: &str = "links";
/// Beside the versions' directories, and the same for all of them.
const CLAIMS: &str = "programs";
/// Records of the qdiscs that agents added, beside the claims.
const QDISCS: &str = "qdiscs";
/// Claims that are kept, the newest: those of a dozen agents. One that still runs claims its own
/// again with every look.
const KEPT: usize = 128;
/// Target of a claim: a BPF file system has no plain files, and nothing is ever read behind it.
const OWNER: &str = "pathproof";

/// Nothing can be pinned. The agent runs on without pins: an upgrade then leaves a gap in
/// observation.
#[derive(Debug, Error)]
pub enum PinsError {
    /// Not on a BPF file system.
    #[error(
        "{} is not on a BPF file system: mount one (mount -t bpf bpf /sys/fs/bpf) or give \
         --pin-dir=none",
        path.display()
    )]
    NotBpfFs {
        /// The directory that was asked for.
        path: PathBuf,
    },
    /// Pins of another agent are in the folder, which this one has not made.
    #[error("{} has pins of another agent: remove them, or restart this agent to continue with them", path.display())]
    Others {
        /// The folder of this layout version.
        path: PathBuf,
    },
    /// Could not be made or read.
    #[error("cannot {operation} {}: {source}", path.display())]
    Io {
        operation: &'static str,
        path: PathBuf,
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
        require_bpf_fs(parent, root)?;
        make(root.to_owned())
    }

    /// Opens or makes the directories.
    pub fn open(root: &Path) -> Result<Self, PinsError> {
        Self::make_root(root)?;
        let mut pins = Self {
            root: root.to_owned(),
            version: root.join(format!("v{ABI_VERSION}")),
            found: false,
        };
        pins.found = pins.map(map::PROOFS).exists();
        pins.make_folders()?;
        Ok(pins)
    }

    fn make_folders(&self) -> Result<(), PinsError> {
        ["maps", LINKS]
            .map(|folder| self.version.join(folder))
            .into_iter()
            .try_for_each(make)
    }

    /// Path of a map's pin.
    pub fn map(&self, name: &str) -> PathBuf {
        self.version.join("maps").join(name)
    }

    /// Whether a former agent of this version had pinned its maps when this was opened.
    pub fn were_found(&self) -> bool {
        self.found
    }

    /// Nothing is observed until the next agent is there: [`Pins::were_found`] says so to that one.
    pub fn interrupt(&self) {
        // Without it the next agent believes what was true until now.
        let _ = fs::remove_file(self.map(map::PROOFS));
    }

    /// Path of the pin of the link of a device and direction. By index, not name: a device of the
    /// same name that is back is another device, and its old link is dead.
    pub fn link(&self, device: u32, direction: &str) -> PathBuf {
        self.version
            .join(LINKS)
            .join(format!("{device}-{direction}"))
    }

    /// The links that are pinned, each with its device's index.
    pub(super) fn pinned_links(&self) -> impl Iterator<Item = (u32, PathBuf)> {
        entries(&self.version.join(LINKS)).filter_map(|path| {
            let (index, _) = path.file_name()?.to_str()?.split_once('-')?;
            Some((index.parse().ok()?, path))
        })
    }

    /// Folder of claims; agents mark their steering programs there as well.
    pub(super) fn claims(&self) -> PathBuf {
        self.root.join(CLAIMS)
    }

    /// Folder of the records of qdiscs, below that of all versions.
    pub(super) fn qdiscs(root: &Path) -> PathBuf {
        root.join(QDISCS)
    }

    /// Folder of all versions.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Ids of the programs that some agent claimed.
    pub(super) fn claimed(&self) -> BTreeSet<u32> {
        let id = |path: PathBuf| path.file_name()?.to_str()?.parse().ok();
        entries(&self.claims()).filter_map(id).collect()
    }

    /// Claims these too, and forgets the oldest where there are too many.
    pub(super) fn claim(&self, ids: &BTreeSet<u32>) -> io::Result<()> {
        let folder = self.claims();
        let mut claimed = self.claimed();
        let missing: Vec<u32> = ids.difference(&claimed).copied().collect();
        if missing.is_empty() {
            return Ok(());
        }
        fs::create_dir_all(&folder)?;
        for id in missing {
            match symlink(OWNER, folder.join(id.to_string())) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => claimed.insert(id),
            };
        }
        let old = claimed.len().saturating_sub(KEPT);
        for id in claimed.difference(ids).take(old) {
            let _ = fs::remove_file(folder.join(id.to_string()));
        }
        Ok(())
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
        if !root.exists() {
            return Ok(0);
        }
        require_bpf_fs(root, root)?;
        let mut count = 0;
        for version in versions(root) {
            let folders = entries(&version);
            count += folders
                .map(|folder| entries(&folder).count())
                .sum::<usize>();
            fs::remove_dir_all(&version).map_err(|source| PinsError::Io {
                operation: "remove",
                path: version,
                source,
            })?;
        }
        for folder in [CLAIMS, QDISCS] {
            let _ = fs::remove_dir_all(root.join(folder));
        }
        // Only if nobody else has anything in it.
        let _ = fs::remove_dir(root);
        Ok(count)
    }
}

/// Entries of a folder; none where it cannot be read.
fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path())
}

/// The directories of layout versions, `v` and a number.
fn versions(root: &Path) -> impl Iterator<Item = PathBuf> {
    let is_version = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        let number = name.and_then(|name| name.strip_prefix('v'));
        number.is_some_and(|number| number.parse::<u32>().is_ok())
    };
    entries(root).filter(is_version)
}

fn make(path: PathBuf) -> Result<(), PinsError> {
    fs::create_dir_all(&path).map_err(|source| PinsError::Io {
        operation: "make",
        path,
        source,
    })
}

/// The folder that has the mount point of the BPF file system with `root`, unless that is the root of all files.
pub fn above_mount(root: &Path) -> Option<&Path> {
    let mut folders = root.ancestors().skip(1);
    let above = folders.find(|folder| require_bpf_fs(folder, root).is_err());
    above.filter(|folder| folder.parent().is_some())
}

/// Whether `path`, which is there, is on a BPF file system: `root` is to be or is there.
fn require_bpf_fs(path: &Path, root: &Path) -> Result<(), PinsError> {
    let failed = |source| PinsError::Io {
        operation: "look at",
        path: path.to_owned(),
        source,
    };
    let name = CString::new(path.as_os_str().as_bytes());
    let name = name.map_err(|error| failed(error.into()))?;
    // SAFETY: all zero is a sound `statfs`.
    let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: a valid C string and a struct of the right size.
    if unsafe { libc::statfs(name.as_ptr(), &raw mut stat) } != 0 {
        return Err(failed(io::Error::last_os_error()));
    }
    match stat.f_type {
        BPF_FS_MAGIC => Ok(()),
        _ => Err(PinsError::NotBpfFs {
            path: root.to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pins(root: &Path) -> Pins {
        Pins {
            root: root.to_owned(),
            version: root.join("v0"),
            found: false,
        }
    }

    #[test]
    fn two_agents_claims_stand_beside_each_other() {
        let dir = tempfile::tempdir().unwrap();
        let pins = pins(&dir.path().join("pins"));
        assert!(pins.claimed().is_empty());
        pins.claim(&BTreeSet::from([7, 8])).unwrap();
        pins.claim(&BTreeSet::from([7, 8])).unwrap();
        pins.claim(&BTreeSet::from([11])).unwrap();
        assert_eq!(pins.claimed(), BTreeSet::from([7, 8, 11]));
    }

    #[test]
    fn the_oldest_go_and_ones_own_never() {
        let dir = tempfile::tempdir().unwrap();
        let pins = pins(dir.path());
        let many: BTreeSet<u32> = (100..100 + KEPT as u32).collect();
        pins.claim(&many).unwrap();
        pins.claim(&BTreeSet::from([3, 1000])).unwrap();
        let claimed = pins.claimed();
        assert_eq!(claimed.len(), KEPT);
        assert!(claimed.contains(&3) && claimed.contains(&1000));
        assert!(!claimed.contains(&100) && !claimed.contains(&101) && claimed.contains(&102));
    }
}
