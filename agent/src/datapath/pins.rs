//! Pins of links and maps, so that an agent that ends, is killed or is replaced leaves no gap:
//! `DIR/v<ABI>/maps/NAME` and `DIR/v<ABI>/links/<ifindex>-<direction>`.
//!
//! A directory of another layout version is never read; [`Pins::sweep_other_versions`] removes it
//! once the programs of this version are attached.
//!
//! `DIR/programs` records which programs are pathproof's, whichever agent loaded them. These records, the
//! *claims*, are symlinks named by program id. They are needed because reading names and tags of programs
//! needs CAP_SYS_ADMIN, and during an upgrade another agent's programs must not be taken for Cilium's. An
//! agent claims its programs before it attaches them, so a reader that lists the hooks first and the claims
//! second finds every pathproof program claimed. The kernel assigns an id once per boot, so claims of a
//! killed agent never match another program.

use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::{fs, io};

use nix::sys::statfs::{BPF_FS_MAGIC, statfs};
use pathproof_wire::abi::{ABI_VERSION, map};
use thiserror::Error;

mod kept;

pub(super) use kept::KeptPins;

const LINKS: &str = "links";
/// Folder of claims, beside the versions' directories and shared by all versions.
const CLAIMS: &str = "programs";
/// Records of the qdiscs that agents added, beside the claims.
const QDISCS: &str = "qdiscs";
/// Number of newest claims that are kept: enough for a dozen agents. A running agent renews its claims at
/// every check.
const KEPT: usize = 128;
/// Target of the symlinks that are used as records; it is never read.
const OWNER: &str = "pathproof";

/// Nothing can be pinned. The agent runs without pins, and an upgrade then leaves a gap in observation.
#[derive(Debug, Error)]
pub enum PinsError {
    #[error(
        "{} is not on a BPF file system: mount one (mount -t bpf bpf /sys/fs/bpf) or give \
         --pin-dir=none",
        path.display()
    )]
    NotBpfFs { path: PathBuf },
    #[error("{} has pins of another agent: remove them, or restart this agent to continue with them", path.display())]
    Others { path: PathBuf },
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
    pub(super) root: PathBuf,
    version: PathBuf,
    /// Whether a previous agent of this version had pinned its maps when this was opened.
    pub found: bool,
}

impl Pins {
    /// Creates the directory of all versions, if it does not exist.
    pub fn make_root(root: &Path) -> Result<(), PinsError> {
        let parent = root
            .ancestors()
            .find(|path| path.exists())
            .unwrap_or(Path::new("/"));
        require_bpf_fs(parent, root)?;
        make(root)
    }

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
        make(&self.version.join("maps"))?;
        make(&self.version.join(LINKS))
    }

    pub fn map(&self, name: &str) -> PathBuf {
        self.version.join("maps").join(name)
    }

    /// Records that nothing observes until the next agent starts. For that agent [`Pins::found`] is false.
    pub fn interrupt(&self) {
        // Otherwise the next agent would take old proofs for current ones.
        let _ = fs::remove_file(self.map(map::PROOFS));
    }

    /// Path of the pin of a link. By index, not name: a device that is created again with the same
    /// name is another device, and its old link is dead.
    pub fn link(&self, device: u32, direction: &str) -> PathBuf {
        self.version
            .join(LINKS)
            .join(format!("{device}-{direction}"))
    }

    /// The pinned links, each with the index of its device.
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

    /// Folder of the qdisc records, below the folder of all versions.
    pub(super) fn qdiscs(root: &Path) -> PathBuf {
        root.join(QDISCS)
    }

    /// Ids of the programs that any agent claimed.
    pub(super) fn claimed(&self) -> BTreeSet<u32> {
        numbers(&self.claims())
    }

    /// Adds claims, and removes the oldest beyond `KEPT`.
    pub(super) fn claim(&self, ids: &BTreeSet<u32>) -> io::Result<()> {
        let folder = self.claims();
        let mut claimed = self.claimed();
        let missing: Vec<u32> = ids.difference(&claimed).copied().collect();
        if missing.is_empty() {
            return Ok(());
        }
        for id in missing {
            record(&folder, id)?;
            claimed.insert(id);
        }
        let old = claimed.len().saturating_sub(KEPT);
        for id in claimed.difference(ids).take(old) {
            let _ = fs::remove_file(folder.join(id.to_string()));
        }
        Ok(())
    }

    /// Removes every pinned map, so that the next load creates new ones.
    pub fn forget_maps(&self) {
        let _ = fs::remove_dir_all(self.version.join("maps"));
        let _ = fs::create_dir_all(self.version.join("maps"));
    }

    /// Removes what agents of other layout versions left. Nothing else below the directory is
    /// touched: it may hold pins of other programs.
    pub fn sweep_other_versions(&self) {
        for path in versions(&self.root).filter(|path| *path != self.version) {
            let _ = fs::remove_dir_all(path);
        }
    }

    /// Removes everything of every version (`pathproof cleanup`). Returns the number of links and
    /// maps that were removed. Removing a link's last pin detaches its program.
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
            fs::remove_dir_all(&version).map_err(failed("remove", &version))?;
        }
        for folder in [CLAIMS, QDISCS] {
            let _ = fs::remove_dir_all(root.join(folder));
        }
        // Only if it is empty.
        let _ = fs::remove_dir(root);
        Ok(count)
    }
}

/// Entries of a folder; none if it cannot be read.
fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path())
}

/// The records in a folder: symlinks named by a number, since a BPF file system has no plain files.
pub(super) fn numbers(folder: &Path) -> BTreeSet<u32> {
    let number = |path: PathBuf| path.file_name()?.to_str()?.parse().ok();
    entries(folder).filter_map(number).collect()
}

/// Adds a record, and the folder if it does not exist.
pub(super) fn record(folder: &Path, number: u32) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    match symlink(OWNER, folder.join(number.to_string())) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// The directories of layout versions: `v` and a number.
fn versions(root: &Path) -> impl Iterator<Item = PathBuf> {
    let is_version = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        let number = name.and_then(|name| name.strip_prefix('v'));
        number.is_some_and(|number| number.parse::<u32>().is_ok())
    };
    entries(root).filter(is_version)
}

fn failed<E: Into<io::Error>>(operation: &'static str, path: &Path) -> impl FnOnce(E) -> PinsError {
    move |error| PinsError::Io {
        operation,
        path: path.to_owned(),
        source: error.into(),
    }
}

fn make(path: &Path) -> Result<(), PinsError> {
    fs::create_dir_all(path).map_err(failed("make", path))
}

/// The folder above the mount point of the BPF file system that holds `root`; `None` if that is `/`.
pub fn above_mount(root: &Path) -> Option<&Path> {
    let mut folders = root.ancestors().skip(1);
    let above = folders.find(|folder| require_bpf_fs(folder, root).is_err());
    above.filter(|folder| folder.parent().is_some())
}

/// Checks that the existing `path` is on a BPF file system; `root` is for the error.
fn require_bpf_fs(path: &Path, root: &Path) -> Result<(), PinsError> {
    match statfs(path) {
        Ok(found) if found.filesystem_type() == BPF_FS_MAGIC => Ok(()),
        Ok(_) => Err(PinsError::NotBpfFs {
            path: root.to_owned(),
        }),
        Err(error) => Err(failed("look at", path)(error)),
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
    fn claims_of_two_agents_coexist() {
        let dir = tempfile::tempdir().unwrap();
        let pins = pins(&dir.path().join("pins"));
        assert!(pins.claimed().is_empty());
        pins.claim(&BTreeSet::from([7, 8])).unwrap();
        pins.claim(&BTreeSet::from([7, 8])).unwrap();
        pins.claim(&BTreeSet::from([11])).unwrap();
        assert_eq!(pins.claimed(), BTreeSet::from([7, 8, 11]));
    }

    #[test]
    fn the_oldest_claims_are_removed_but_never_own_ones() {
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
