//! Writes files atomically, even if two agents write at the same time or one is killed. This module must
//! not depend on the contents of the files.

use std::fs::{DirBuilder, DirEntry, OpenOptions, Permissions};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use pathproof_facts::time::Mono;

use crate::clock;

/// Age from which a temporary file counts as abandoned: a write takes milliseconds.
const ABANDONED_AFTER: Duration = Duration::from_secs(60);

/// Temporary path of a file. It contains the time too, because agents in pods may have the same process id.
pub(crate) fn part(file: &Path) -> PathBuf {
    let (process, Mono(now)) = (std::process::id(), clock::mono());
    file.with_extension(format!("{process}-{now}.tmp"))
}

/// Names of everything in an agent's folders except temporary files.
const OWN: [&str; 6] = [
    "agents",
    "api-servers.json",
    "recordings",
    "starting",
    "state.episodes.json",
    "state.json",
];

fn is_own(entry: &DirEntry) -> bool {
    let name = entry.file_name();
    let name = name.to_str().unwrap_or_default();
    let is_temporary = ["api-servers.", "state."]
        .iter()
        .any(|prefix| name.starts_with(prefix))
        && name.ends_with(".tmp");
    OWN.contains(&name) || is_temporary
}

/// Makes a folder that only its owner can read. kubelet and older agents create it with mode 0755, so the mode
/// of a folder with nothing but an agent's files is changed. A folder with other content may belong to others,
/// such as /run, and keeps its mode.
pub(crate) fn make_private(folder: &Path) -> io::Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)?;
    if fs::read_dir(folder)?.all(|entry| entry.is_ok_and(|entry| is_own(&entry))) {
        // A folder of another owner cannot be changed, and is used as it is.
        let _ = fs::set_permissions(folder, Permissions::from_mode(0o700));
    }
    Ok(())
}

/// Writes a file atomically, readable only by its owner. With `sync` it waits for the disk, so that a machine that
/// loses power keeps the old or the new file.
pub(crate) fn write(path: &Path, bytes: &[u8], sync: bool) -> io::Result<()> {
    let fresh = &part(path);
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let written = options
        .open(fresh)
        .and_then(|mut file| {
            file.write_all(bytes)?;
            if sync { file.sync_all() } else { Ok(()) }
        })
        .and_then(|()| fs::rename(fresh, path));
    written.inspect_err(|_| {
        // Remove a partial file: it is useless and takes space.
        let _ = fs::remove_file(fresh);
    })
}

/// Removes abandoned temporary files with this prefix.
pub(crate) fn sweep(dir: &Path, prefix: &str) {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name();
        let name = name.to_str().unwrap_or_default();
        let begun = name.starts_with(prefix) && name.ends_with(".tmp");
        let modified = entry.metadata().and_then(|metadata| metadata.modified());
        let is_old =
            modified.is_ok_and(|at| at.elapsed().is_ok_and(|elapsed| elapsed >= ABANDONED_AFTER));
        if begun && is_old {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Removes an agent's files from its folder, and then the folder if it is empty.
///
/// # Errors
/// The first failure; everything else is still removed.
pub(crate) fn remove_all(folder: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    let remove = |entry: DirEntry| match entry.file_type()?.is_dir() {
        true => fs::remove_dir_all(entry.path()),
        false => fs::remove_file(entry.path()),
    };
    let removed: Vec<_> = entries.flatten().filter(is_own).map(remove).collect();
    let _ = fs::remove_dir(folder);
    removed.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_of_an_agent_is_removed_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        for folder in ["agents", "recordings"] {
            fs::create_dir(path(folder)).unwrap();
            fs::write(path(folder).join("1"), "").unwrap();
        }
        let own = [
            "api-servers.json",
            "starting",
            "state.json",
            "state.7-9.tmp",
        ];
        let others = ["agents-of-others", "state", "state.db", "other.tmp"];
        for file in own.into_iter().chain(others) {
            fs::write(path(file), "").unwrap();
        }
        remove_all(dir.path()).unwrap();
        assert!(others.iter().all(|file| path(file).exists()));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), others.len());
        for file in others {
            fs::remove_file(path(file)).unwrap();
        }
        remove_all(dir.path()).unwrap();
        assert!(!dir.path().exists());
        remove_all(dir.path()).unwrap();
    }

    #[test]
    fn two_agents_write_into_two_files() {
        let file = Path::new("/run/state.json");
        assert_ne!(part(file), part(file));
    }

    #[test]
    fn only_empty_folders_and_those_of_agents_become_private() {
        let dir = tempfile::tempdir().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let path = |name| dir.path().join(name);
        let [made, empty, older, used] = ["made", "empty", "older", "used"].map(path);
        for folder in [&empty, &older, &used] {
            fs::create_dir(folder).unwrap();
            fs::set_permissions(folder, Permissions::from_mode(0o755)).unwrap();
        }
        fs::write(used.join("of-another-program"), "").unwrap();
        for folder in [&older, &used] {
            fs::create_dir(folder.join("recordings")).unwrap();
            fs::write(folder.join("state.json"), "").unwrap();
        }
        let all = [&*made, &*empty, &*older, &*used];
        for folder in all {
            make_private(folder).unwrap();
        }
        assert_eq!(all.map(mode), [0o700, 0o700, 0o700, 0o755]);
    }
}
