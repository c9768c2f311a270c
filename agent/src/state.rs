//! Data that outlives the agent: a small JSON file, and recordings of the flight recorder. A restarted agent
//! continues from the file, which is valid until the node reboots. The journal of episodes stays valid, and
//! may have a folder that survives a reboot.

use std::path::{Path, PathBuf};
use std::{fs, io};

use pathproof_facts::time::Wall;
use pathproof_node::effect::PersistedState;
use pathproof_report::episodes::{self, Journal};
use pathproof_shared::recordings::{ENDING, files, folder};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::files::{sweep, write};

const FILE: &str = "state.json";
/// Prefix of temporary files that become [`FILE`] or [`JOURNAL`].
const FRESH: &str = "state.";
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

#[derive(Serialize, Deserialize)]
struct Stored {
    schema: u32,
    boot_id: String,
    #[serde(rename = "remembered")]
    persisted: PersistedState,
}

const SCHEMA: u32 = 1;

pub(crate) struct Memory {
    path: Option<PathBuf>,
    boot_id: String,
    broken: bool,
}

impl Memory {
    /// Stores the state in `dir`. Without a folder, no state is stored.
    pub(crate) fn in_dir(dir: Option<&Path>) -> Self {
        let boot_id = boot_id();
        // Without a boot id, stored state cannot be attributed to this boot, so none is stored.
        let path = dir.map(|dir| dir.join(FILE));
        let path = path.filter(|_| !boot_id.is_empty());
        if let Some(dir) = dir {
            sweep(dir, FRESH);
        }
        Self {
            path,
            boot_id,
            broken: false,
        }
    }

    /// Reads the state that an agent has written since the node booted.
    pub(crate) fn recall(&self) -> Option<PersistedState> {
        let stored: Stored = read(self.path.as_ref()?)?;
        let is_valid = stored.schema == SCHEMA && stored.boot_id == self.boot_id;
        is_valid.then_some(stored.persisted)
    }

    /// Writes the state atomically. Of consecutive failures, only the first is logged.
    pub(crate) fn remember(&mut self, persisted: PersistedState) {
        let Some(path) = &self.path else { return };
        let stored = Stored {
            schema: SCHEMA,
            boot_id: self.boot_id.clone(),
            persisted,
        };
        let write = || write(path, &serde_json::to_vec(&stored)?, false);
        let written = write().or_else(|error| {
            // If the disk is full, make room: the state matters more than recordings.
            let is_full = error.kind() == io::ErrorKind::StorageFull;
            let folder = path.parent().filter(|_| is_full).ok_or(error)?;
            Recordings::below(folder).remove()?;
            write()
        });
        match written {
            Ok(()) => self.broken = false,
            Err(error) if !self.broken => {
                self.broken = true;
                tracing::warn!(path = %path.display(), %error, "the state cannot be saved: after a \
                                                                restart the agent starts without \
                                                                it");
            }
            Err(_) => {}
        }
    }
}

/// Id of the current boot; empty if it is unknown.
pub(crate) fn boot_id() -> String {
    let boot_id = fs::read_to_string(BOOT_ID).unwrap_or_default();
    boot_id.trim().to_owned()
}

/// Reads a file of an earlier agent. An unreadable file is logged and ignored.
fn read<T: DeserializeOwned>(path: &Path) -> Option<T> {
    let read = fs::read(path).and_then(|text| Ok(serde_json::from_slice(&text)?));
    let read = read.inspect_err(|error: &io::Error| {
        if error.kind() != io::ErrorKind::NotFound {
            tracing::warn!(path = %path.display(), %error, "the saved state cannot be read: the agent \
                                                            starts without it");
        }
    });
    read.ok()
}

const JOURNAL: &str = "state.episodes.json";

pub(crate) fn read_journal(dir: &Path) -> Option<Journal> {
    sweep(dir, FRESH);
    let journal = read(&dir.join(JOURNAL));
    journal.filter(|journal: &Journal| journal.schema == episodes::SCHEMA)
}

/// Writes the journal to the disk. This may take long.
pub(crate) fn write_journal(dir: &Path, document: &str) -> io::Result<()> {
    write(&dir.join(JOURNAL), document.as_bytes(), true)
}

/// Maximum number of recordings, of at most 1 MiB each.
const KEPT: usize = 6;
/// RFC 3339, without characters that are unusual in file names.
const NAME: &str = "%Y-%m-%dT%H%M%S%.3fZ";

/// Recordings of the flight recorder below the state folder: a few files, of which the oldest is
/// deleted first. Each is named by the wall-clock time at which it ends, so names sort by time.
#[derive(Clone, Debug)]
pub struct Recordings {
    folder: PathBuf,
}

impl Recordings {
    pub fn below(state_dir: &Path) -> Self {
        Self {
            folder: folder(state_dir),
        }
    }

    /// Writes a recording atomically, and deletes the oldest ones beyond six.
    pub fn write(&self, now: Wall, recording: &[u8]) -> io::Result<PathBuf> {
        let time = now.timestamp().strftime(NAME);
        let path = self.folder.join(format!("{time}{ENDING}"));
        // Remove partial files of agents that were killed while they wrote.
        sweep(&self.folder, "");
        write(&path, recording, false)?;
        // Never delete the new recording: it may sort first, because the clock may have been set back.
        let mut others = self.files()?;
        others.retain(|other| *other != path);
        for old in &others[..(others.len() + 1).saturating_sub(KEPT)] {
            fs::remove_file(old)?;
        }
        Ok(path)
    }

    /// All recordings, the oldest first.
    pub fn files(&self) -> io::Result<Vec<PathBuf>> {
        files(&self.folder)
    }

    /// Whether the recording of this name is kept.
    pub fn has(&self, file: &str) -> bool {
        self.folder.join(file).is_file()
    }

    pub fn remove(&self) -> io::Result<()> {
        match fs::remove_dir_all(&self.folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use pathproof_facts::time::Mono;

    use super::*;
    use crate::files::remove_all;

    #[test]
    fn what_a_killed_agent_left_is_swept_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let make = |name: &str| fs::File::create(dir.path().join(name)).unwrap();
        for name in ["state.tmp", "state.7-99.tmp", "state.json", "other.tmp"] {
            make(name).set_modified(SystemTime::UNIX_EPOCH).unwrap();
        }
        make("state.8-99.tmp");
        let _memory = Memory::in_dir(Some(dir.path()));
        let names = || {
            let entries = fs::read_dir(dir.path()).unwrap();
            let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            let mut names: Vec<_> = names.collect();
            names.sort();
            names
        };
        assert_eq!(names(), ["other.tmp", "state.8-99.tmp", "state.json"]);
        make(JOURNAL);
        remove_all(dir.path()).unwrap();
        assert_eq!(names(), ["other.tmp"]);
    }

    #[test]
    fn a_journal_is_read_back_unless_it_is_of_another_version() {
        let dir = tempfile::tempdir().unwrap();
        let read = || read_journal(dir.path());
        assert_eq!(read(), None);
        let mut journal = Journal::resume(None, "worker-1", "boot-1", Mono(7));
        let document = journal.document();
        let later = document.replacen("\"schema\":1", "\"schema\":2", 1);
        for unread in [&document[1..], &later[..]] {
            write_journal(dir.path(), unread).unwrap();
            assert_eq!(read(), None);
        }
        write_journal(dir.path(), &document).unwrap();
        let read = read().map(|mut read| read.document());
        assert_eq!(read.as_deref(), Some(&*document));
        remove_all(dir.path()).unwrap();
        assert!(!dir.path().exists());
    }

    #[test]
    fn half_a_recording_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let recordings = Recordings::below(dir.path());
        let now = Wall(1_795_266_000_000_000_000);
        let path = recordings.write(now, &[1]).unwrap();
        fs::remove_file(&path).unwrap();
        // A folder at this path makes the rename fail.
        fs::create_dir_all(path.join("x")).unwrap();
        recordings.write(now, &[2]).unwrap_err();
        let left = fs::read_dir(path.parent().unwrap()).unwrap().count();
        assert_eq!(left, 1, "only the folder remains");
    }

    /// The clock may be set back, and an agent may be killed while it writes.
    #[test]
    fn a_recording_that_was_just_written_stays_and_parts_of_others_go() {
        let dir = tempfile::tempdir().unwrap();
        let recordings = Recordings::below(dir.path());
        let at = |second: i64| Wall(1_795_266_000_000_000_000 + second * 1_000_000_000);
        for second in 0..6 {
            recordings.write(at(7_200 + second), &[1]).unwrap();
        }
        let part = folder(dir.path()).join("2026-01-01T000000.000Z.tmp");
        let made = fs::File::create(&part).unwrap();
        made.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        let path = recordings.write(at(0), &[2]).unwrap();
        assert_eq!(fs::read(path).unwrap(), [2]);
        assert_eq!(recordings.files().unwrap().len(), 6);
        assert!(!part.exists());
    }

    #[test]
    fn the_oldest_are_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let recordings = Recordings::below(dir.path());
        for second in 0..10 {
            let now = Wall(1_795_266_000_000_000_000 + second * 1_000_000_000);
            recordings.write(now, &[second as u8]).unwrap();
        }
        let files = recordings.files().unwrap();
        let contents: Vec<u8> = files
            .iter()
            .flat_map(|file| fs::read(file).unwrap())
            .collect();
        assert_eq!(contents, [4, 5, 6, 7, 8, 9]);
        let name = files[0].file_name().unwrap().to_str().unwrap();
        assert_eq!(name, "2026-11-21T130004.000Z.pathproof");
        recordings.remove().unwrap();
        recordings.remove().unwrap();
        assert!(recordings.files().is_err());
    }
}
