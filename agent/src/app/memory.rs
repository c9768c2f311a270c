//! What outlives the agent within one boot of the node: a small JSON file below /run, keyed by the
//! boot's id (design rule: a restart of the agent changes nothing).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::domain::verdict::Remembered;

const FILE: &str = "state.json";
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
pub(super) struct Memory {
    path: Option<PathBuf>,
    boot_id: String,
    broken: bool,
}

impl Memory {
    /// In this directory, or nowhere.
    pub(super) fn in_dir(dir: Option<&Path>) -> Self {
        let boot_id = fs::read_to_string(BOOT_ID)
            .unwrap_or_default()
            .trim()
            .to_owned();
        // Without a boot id nothing can be known to be of this boot.
        let path = dir
            .filter(|_| !boot_id.is_empty())
            .map(|dir| dir.join(FILE));
        Self {
            path,
            boot_id,
            broken: false,
        }
    }

    /// What an agent of this boot left. Anything unreadable is as good as nothing, and said.
    pub(super) fn recall(&self) -> Option<Remembered> {
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
    pub(super) fn remember(&mut self, remembered: Remembered) {
        let Some(path) = &self.path else { return };
        let stored = Stored {
            schema: SCHEMA,
            boot_id: self.boot_id.clone(),
            remembered,
        };
        match write(path, &stored) {
            Ok(()) => self.broken = false,
            Err(error) if !self.broken => {
                self.broken = true;
                tracing::warn!(path = %path.display(), %error, "the state cannot be kept: a restart begins anew");
            }
            Err(_) => {}
        }
    }
}

fn write(path: &Path, stored: &Stored) -> io::Result<()> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir)?;
    }
    let fresh = path.with_extension("tmp");
    fs::write(&fresh, serde_json::to_vec(stored)?)?;
    fs::rename(fresh, path)
}

/// Removes the file, and its directory where nothing else is in it.
pub(super) fn remove(dir: &Path) -> io::Result<()> {
    match fs::remove_file(dir.join(FILE)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let _ = fs::remove_dir(dir);
    Ok(())
}
