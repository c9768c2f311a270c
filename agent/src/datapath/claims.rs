//! Which programs are pathproof's, whichever agent loaded them: links in a directory beside the
//! pins, each named by a program's id. Names and tags of programs take CAP_SYS_ADMIN, and during an
//! upgrade another agent's programs must not be taken for Cilium's.
//!
//! An agent claims its programs before it attaches them: who looks at the hooks first and at the
//! claims after that meets no program of ours that is not claimed. The kernel gives an id once in a
//! boot, so what a killed agent leaves claims nothing else.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;

/// Claims that are kept, the newest: those of a dozen agents. One that still runs claims its own
/// again with every look.
const KEPT: usize = 128;

/// What a claim leads to: a BPF file system has no plain files, and nothing is ever read behind it.
const OWNER: &str = "pathproof";

/// Ids that some agent claimed.
pub(super) fn read(dir: &Path) -> BTreeSet<u32> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

/// Claims these too, and forgets the oldest where there are too many.
pub(super) fn add(dir: &Path, ids: &BTreeSet<u32>) -> io::Result<()> {
    let mut claimed = read(dir);
    let missing: Vec<u32> = ids.difference(&claimed).copied().collect();
    if missing.is_empty() {
        return Ok(());
    }
    fs::create_dir_all(dir)?;
    for id in missing {
        match symlink(OWNER, dir.join(id.to_string())) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => claimed.insert(id),
        };
    }
    let old = claimed.len().saturating_sub(KEPT);
    for id in claimed.iter().filter(|id| !ids.contains(id)).take(old) {
        let _ = fs::remove_file(dir.join(id.to_string()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_agents_claims_stand_beside_each_other() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("programs");
        assert!(read(&dir).is_empty());
        add(&dir, &BTreeSet::from([7, 8])).unwrap();
        add(&dir, &BTreeSet::from([7, 8])).unwrap();
        add(&dir, &BTreeSet::from([11])).unwrap();
        assert_eq!(read(&dir), BTreeSet::from([7, 8, 11]));
    }

    #[test]
    fn the_oldest_go_and_ones_own_never() {
        let dir = tempfile::tempdir().unwrap();
        let many: BTreeSet<u32> = (100..100 + KEPT as u32).collect();
        add(dir.path(), &many).unwrap();
        add(dir.path(), &BTreeSet::from([3, 1000])).unwrap();
        let claimed = read(dir.path());
        assert_eq!(claimed.len(), KEPT);
        assert!(claimed.contains(&3) && claimed.contains(&1000));
        assert!(!claimed.contains(&100) && !claimed.contains(&101) && claimed.contains(&102));
    }
}
