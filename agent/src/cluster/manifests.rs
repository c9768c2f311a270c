//! A folder of manifests as events for the [`Store`].
//!
//! If a file changes, it is read again, each object in turn, and if anything is wrong, all files are. A file that
//! cannot be read completely keeps its previous objects. If several files define an object, the first file by
//! name counts.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::{io, thread};

use pathproof_shared::input;

use super::facts::{Kind, Parsed, identity};
use super::store::{Event, Key, Store};
use super::yaml::{self, Item};
use super::{Problem, Update};
use crate::lifecycle::give_back_memory;

/// Device, inode and size, and time of status change. If any differs, the file has changed.
type Stamp = ((u64, u64, u64), (i64, i64));

fn stamp(file: &Metadata) -> Stamp {
    let content = (file.dev(), file.ino(), file.size());
    (content, (file.ctime(), file.ctime_nsec()))
}

/// Maximum size of a file; a cluster of 10,000 Services and 100,000 endpoints has 43 MB.
const MAX_FILE: u64 = 64 << 20;
/// Maximum size of all files together: the maps have no room for a larger cluster.
const MAX_BYTES: u64 = 256 << 20;
/// Maximum number of files: each object of a large cluster may have a separate file.
const MAX_FILES: usize = 65_536;

/// Files of this size together need enough memory for parsing to return it to the system.
const LARGE: u64 = 1 << 20;
/// Objects of a file that wait until those of the file before it are stored.
const QUEUE: usize = 256;

/// The manifest files. A stamp is `None` if it could not be read.
type Files = BTreeMap<OsString, Option<Stamp>>;

type Origins = BTreeMap<(Kind, Key), OsString>;

#[derive(Debug)]
pub(super) struct Manifests {
    folder: PathBuf,
    store: Store,
    /// The files at the last call; `None` if the folder could not be read.
    files: Option<Files>,
    /// Whether these files were read.
    is_read: bool,
    /// The files at the last read, without those that have documents of other kinds; empty after a problem.
    sound: Files,
    /// The file of each object of the view.
    origins: Origins,
    most: usize,
}

impl Manifests {
    /// Creates a reader for the node `node_name`. Reads nothing yet.
    pub(super) fn new(folder: &Path, node_name: &str) -> Self {
        Self {
            folder: folder.to_owned(),
            store: Store::unlimited(node_name),
            files: None,
            is_read: false,
            sound: BTreeMap::new(),
            origins: BTreeMap::new(),
            most: MAX_FILES,
        }
    }

    /// Reads the files if any of them changed, and returns the changes. Unless `at_once` and only one changed, files
    /// that changed since the previous call are left for the next one, because their writer may not have finished. The first update
    /// after a complete list ends with [`Change::Synced`](pathproof_facts::cluster::Change::Synced). Blocks on the
    /// disk.
    pub(super) fn refresh(&mut self, at_once: bool) -> Option<Update> {
        match self.list() {
            Ok(files) => {
                let is_same = self.files.as_ref() == Some(&files);
                if is_same && self.is_read {
                    return None;
                }
                // If several files changed, others may still be written.
                let changed = self.files.as_ref().map_or(0, |known| {
                    let is_new = |(name, stamp): &(_, _)| known.get(*name) != Some(*stamp);
                    files.iter().filter(is_new).count()
                });
                self.is_read = is_same || (at_once && changed <= 1);
                if self.is_read {
                    self.read_changed(&files);
                }
                self.files = Some(files);
            }
            Err(error) => {
                let folder = self.folder.display();
                self.store.problems = vec![Problem::silence(format!(
                    "{folder}: the folder cannot be read ({error}); its last good content stays in \
                     use"
                ))];
                self.files = None;
            }
        }
        self.store.update()
    }

    /// The manifest files with their stamps. Follows links but not subfolders: a mounted ConfigMap
    /// consists of links into a hidden folder.
    ///
    /// # Errors
    /// The folder cannot be read or is too large: then no file is read.
    fn list(&self) -> io::Result<Files> {
        let (mut present, mut bytes) = (BTreeMap::new(), 0);
        for entry in fs::read_dir(&self.folder)? {
            let name = entry?.file_name();
            if is_manifest(&name) {
                match fs::metadata(self.folder.join(&name)) {
                    // Reading a pipe would block, and opening a device may act on it.
                    Ok(metadata) if metadata.is_file() => {
                        bytes += metadata.len().min(MAX_FILE);
                        present.insert(name, Some(stamp(&metadata)));
                    }
                    Ok(_) => {}
                    // Removed in the meantime, or a broken link.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(_) => {
                        present.insert(name, None);
                    }
                }
            }
            if present.len() > self.most || bytes > MAX_BYTES {
                let (most, limit) = (self.most, MAX_BYTES >> 20);
                let error = format!(
                    "it has more than {most} manifests or {limit} MiB: keep only the manifests of \
                     this cluster"
                );
                return Err(io::Error::new(io::ErrorKind::FileTooLarge, error));
            }
        }
        Ok(present)
    }

    /// Replaces all objects by those of the files. Objects of sound files that did not change are kept. A problem
    /// may be an object that such a file defines too, so then all files are read.
    fn read_changed(&mut self, files: &Files) {
        let before = std::mem::replace(&mut self.sound, files.clone());
        let is_same = |(name, stamp): &(_, _)| before.get(*name) == Some(*stamp);
        let same: BTreeSet<&OsString> = files.iter().filter(is_same).map(|file| file.0).collect();
        self.read(files, &same);
        if !self.store.problems.is_empty() {
            if !same.is_empty() {
                self.read(files, &BTreeSet::new());
            }
            self.sound.clear();
        }
        for kind in Kind::ALL {
            self.store.take(Event::ListEnds(kind));
        }
        let sizes = files.values().flatten().map(|(content, _)| content.2);
        if sizes.sum::<u64>() > LARGE {
            give_back_memory();
        }
    }

    /// Reads files, except those whose objects are kept. Two files are parsed at a time, because parsing takes
    /// most of the time.
    fn read(&mut self, files: &Files, kept: &BTreeSet<&OsString>) {
        let origins = std::mem::take(&mut self.origins);
        self.store.problems.clear();
        self.store.ignored = 0;
        for kind in Kind::ALL {
            self.store.take(Event::ListBegins(kind));
        }
        for ((kind, key), origin) in origins.iter().filter(|(_, origin)| kept.contains(origin)) {
            self.origins.insert((*kind, *key), origin.clone());
            self.store.keep(*kind, *key);
        }
        let names: Vec<_> = files.keys().filter(|name| !kept.contains(name)).collect();
        for pair in names.chunks(2) {
            thread::scope(|scope| {
                let mut readers = Vec::new();
                for name in pair {
                    let (sender, items) = sync_channel(QUEUE);
                    let path = self.folder.join(name);
                    let reader = move || parse(&path, &sender);
                    let reader = thread::Builder::new().spawn_scoped(scope, reader);
                    readers.push((*name, items, reader));
                }
                for (name, items, reader) in readers {
                    let mut is_whole = true;
                    for item in items {
                        is_whole &= self.take(name, item);
                    }
                    let read = reader.and_then(|reader| {
                        let joined = reader.join();
                        joined.unwrap_or_else(|panic| resume_unwind(panic))
                    });
                    if let Err(error) = &read {
                        self.complain(&unreadable(&self.folder.join(name), error));
                    }
                    if !is_whole || read.is_err() {
                        self.keep_all_of(name, &origins);
                    }
                }
            });
        }
    }

    /// Stores an object of a file. Returns false for a document that could not be parsed.
    fn take(&mut self, name: &OsString, item: Item) -> bool {
        let path = self.folder.join(name);
        match item {
            Item::Ignored => {
                self.sound.remove(name);
                self.store.ignored += 1;
            }
            Item::Object(parsed) => self.put(name, &path, parsed),
            Item::Broken(why) => {
                let path = path.display();
                self.complain(&format!("{path}:{why}; its last good content stays in use"));
                return false;
            }
        }
        true
    }

    fn put(&mut self, name: &OsString, path: &Path, parsed: Parsed) {
        let (kind, metadata) = identity(&parsed);
        let key = (kind, self.store.key(kind, metadata));
        if let Some(first) = self.origins.get(&key) {
            let (path, title) = (path.display(), kind.title(metadata));
            let first = first.display();
            let twice = format!("{path}: {title} is also defined in {first}, which is used");
            return self.complain(&twice);
        }
        self.origins.insert(key, name.clone());
        self.store.place = path.display().to_string();
        self.store.take(Event::There(parsed));
    }

    /// Keeps the previous objects of a file, unless they are in another file.
    fn keep_all_of(&mut self, name: &OsString, before: &Origins) {
        for ((kind, key), _) in before.iter().filter(|(_, origin)| *origin == name) {
            self.origins
                .entry((*kind, *key))
                .or_insert_with(|| name.clone());
            self.store.keep(*kind, *key);
        }
    }

    fn complain(&mut self, message: &str) {
        self.store.problems.push(Problem::new(message.to_owned()));
    }
}

/// Parses a file.
///
/// # Errors
/// The file cannot be read.
fn parse(path: &Path, items: &SyncSender<Item>) -> io::Result<()> {
    let text = String::from_utf8(input::read(path, MAX_FILE)?).map_err(io::Error::other)?;
    yaml::read(&text, &mut |item| {
        // The receiver takes all items unless it panics.
        let _ = items.send(item);
    });
    if text.len() as u64 > LARGE {
        drop(text);
        give_back_memory();
    }
    Ok(())
}

fn unreadable(path: &Path, error: &io::Error) -> String {
    let remedy = match error.kind() {
        io::ErrorKind::FileTooLarge => ": split it into several files",
        _ => "",
    };
    format!(
        "{}: cannot be read ({error}){remedy}; its last good content, if any, stays in use",
        path.display()
    )
}

/// Whether this is the name of a manifest file. Hidden files are skipped.
fn is_manifest(name: &OsStr) -> bool {
    let extension = Path::new(name).extension().and_then(OsStr::to_str);
    let hidden = name.as_encoded_bytes().starts_with(b".");
    !hidden && matches!(extension, Some("yaml" | "yml" | "json"))
}

#[cfg(test)]
mod tests;
