//! Where an agent keeps recordings of its flight recorder.

use std::path::{Path, PathBuf};
use std::{fs, io};

const FOLDER: &str = "recordings";
/// Ending of a recording's file name.
pub const ENDING: &str = ".pathproof";

/// The folder of recordings below a state folder.
pub fn folder(state_dir: &Path) -> PathBuf {
    state_dir.join(FOLDER)
}

/// All recordings in their folder, the oldest first.
///
/// # Errors
/// The folder cannot be read.
pub fn files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder)?;
    let paths = entries.map(|entry| Ok(entry?.path()));
    let mut files = paths.collect::<io::Result<Vec<_>>>()?;
    files.retain(|path| path.to_str().is_some_and(|path| path.ends_with(ENDING)));
    files.sort();
    Ok(files)
}
