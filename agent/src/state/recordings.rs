//! Recordings of the flight recorder below the state folder: a few files, the oldest dropped. Their
//! names are the wall-clock time at which each ends, so that they sort and can be found by time.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use agent_core::time::Wall;
use jiff::Timestamp;

/// Below the state folder.
const FOLDER: &str = "recordings";
const ENDING: &str = ".pathproof";
/// How many are kept: a MiB each at most.
const KEPT: usize = 6;
/// As RFC 3339, without the characters that file names should not have.
const NAME: &str = "%Y-%m-%dT%H%M%S%.3fZ";

/// The folder of recordings.
#[derive(Clone, Debug)]
pub struct Recordings {
    folder: PathBuf,
}

impl Recordings {
    /// Below this state folder.
    pub fn below(state_dir: &Path) -> Self {
        Self {
            folder: state_dir.join(FOLDER),
        }
    }

    /// Writes one, whole or not at all, and drops the oldest beyond six.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn write(&self, now: Wall, recording: &[u8]) -> io::Result<PathBuf> {
        fs::create_dir_all(&self.folder)?;
        let time = Timestamp::from_nanosecond(now.0.into()).unwrap_or_default();
        let path = self.folder.join(format!("{}{ENDING}", time.strftime(NAME)));
        let fresh = path.with_extension("tmp");
        let written = fs::write(&fresh, recording).and_then(|()| fs::rename(&fresh, &path));
        if let Err(error) = written {
            // Half a recording is none, and takes the room of the state.
            let _ = fs::remove_file(&fresh);
            return Err(error);
        }
        let files = self.files()?;
        for old in &files[..files.len().saturating_sub(KEPT)] {
            fs::remove_file(old)?;
        }
        Ok(path)
    }

    /// All of them, the oldest first.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn files(&self) -> io::Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let path = entry?.path();
            if path.to_str().is_some_and(|path| path.ends_with(ENDING)) {
                files.push(path);
            }
        }
        files.sort();
        Ok(files)
    }

    /// Removes all of them.
    ///
    /// # Errors
    /// One stays.
    pub fn remove(&self) -> io::Result<()> {
        match fs::remove_dir_all(&self.folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_a_recording_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let recordings = Recordings::below(dir.path());
        let now = Wall(1_795_266_000_000_000_000);
        let path = recordings.write(now, &[1]).unwrap();
        fs::remove_file(&path).unwrap();
        // A folder in its place: it cannot be renamed.
        fs::create_dir_all(path.join("x")).unwrap();
        recordings.write(now, &[2]).unwrap_err();
        let left = fs::read_dir(path.parent().unwrap()).unwrap().count();
        assert_eq!(left, 1, "the folder alone");
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
