//! What outlives the agent below its state folder: within one boot of the node a small JSON file,
//! keyed by the boot's id (a restart of the agent changes nothing), and [`recordings`].

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub mod recordings;

use crate::clock;
use agent_core::effect::Remembered;
use agent_core::time::Mono;

const FILE: &str = "state.json";
/// Files that become [`FILE`] have names like this one, with something of the agent's between.
const FRESH: [&str; 2] = ["state.", ".tmp"];
/// One that is older was left by an agent that was killed: writing it takes milliseconds.
const LEFT: Duration = Duration::from_secs(60);
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

#[derive(Serialize, Deserialize)]
struct Stored {
    /// Version of this file's layout.
    schema: u32,
    boot_id: String,
    remembered: Remembered,
}

const SCHEMA: u32 = 1;

/// The file, and what was last written to it.
pub(crate) struct Memory {
    path: Option<PathBuf>,
    /// Where it is written first. Of two agents at once each has its own.
    fresh: PathBuf,
    boot_id: String,
    broken: bool,
}

impl Memory {
    /// In this directory, or nowhere.
    pub(crate) fn in_dir(dir: Option<&Path>) -> Self {
        let boot_id = fs::read_to_string(BOOT_ID)
            .unwrap_or_default()
            .trim()
            .to_owned();
        // Without a boot id nothing can be known to be of this boot.
        let path = dir
            .filter(|_| !boot_id.is_empty())
            .map(|dir| dir.join(FILE));
        if let Some(dir) = dir {
            sweep(dir, LEFT);
        }
        // In pods every agent may have the same process id.
        let [first, last] = FRESH;
        let (process, Mono(now)) = (std::process::id(), clock::mono());
        let fresh = dir
            .unwrap_or(Path::new(""))
            .join(format!("{first}{process}-{now}{last}"));
        Self {
            path,
            fresh,
            boot_id,
            broken: false,
        }
    }

    /// What an agent of this boot left. Anything unreadable is as good as nothing, and said.
    pub(crate) fn recall(&self) -> Option<Remembered> {
        let path = self.path.as_ref()?;
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "the state cannot be read");
                return None;
            }
        };
        match serde_json::from_str::<Stored>(&text) {
            Ok(stored) if stored.schema == SCHEMA && stored.boot_id == self.boot_id => {
                Some(stored.remembered)
            }
            Ok(_) => None,
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "the state is not understood");
                None
            }
        }
    }

    /// Writes, whole or not at all. A full disk is said once.
    pub(crate) fn remember(&mut self, remembered: Remembered) {
        let Some(path) = &self.path else { return };
        let stored = Stored {
            schema: SCHEMA,
            boot_id: self.boot_id.clone(),
            remembered,
        };
        let written = write(path, &self.fresh, &stored).or_else(|error| {
            // The state comes before what explains the past.
            let folder = path.parent().filter(|_| is_full(&error)).ok_or(error)?;
            recordings::Recordings::below(folder).remove()?;
            write(path, &self.fresh, &stored)
        });
        match written {
            Ok(()) => self.broken = false,
            Err(error) if !self.broken => {
                self.broken = true;
                tracing::warn!(path = %path.display(), %error, "the state cannot be kept: a restart begins anew");
            }
            Err(_) => {}
        }
    }
}

fn is_full(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::StorageFull
}

fn write(path: &Path, fresh: &Path, stored: &Stored) -> io::Result<()> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir)?;
    }
    fs::write(fresh, serde_json::to_vec(stored)?)?;
    fs::rename(fresh, path)
}

/// Removes what was begun and never became the file, where it is at least so old.
fn sweep(dir: &Path, age: Duration) {
    let [first, last] = FRESH;
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name();
        let name = name.to_str().unwrap_or_default();
        let begun = name.starts_with(first) && name.ends_with(last);
        let modified = entry.metadata().and_then(|metadata| metadata.modified());
        let is_old = modified.is_ok_and(|at| at.elapsed().is_ok_and(|elapsed| elapsed >= age));
        if begun && is_old {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Removes the file, and its directory where nothing else is in it.
pub(crate) fn remove(dir: &Path) -> io::Result<()> {
    match fs::remove_file(dir.join(FILE)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    recordings::Recordings::below(dir).remove()?;
    sweep(dir, Duration::ZERO);
    let _ = fs::remove_dir(dir);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn two_agents_write_into_two_files() {
        let dir = tempfile::tempdir().unwrap();
        let [one, other] = [(); 2].map(|()| Memory::in_dir(Some(dir.path())));
        assert_ne!(one.fresh, other.fresh);
        assert_eq!(one.path, other.path);
    }

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
        remove(dir.path()).unwrap();
        assert_eq!(names(), ["other.tmp"]);
    }
}
