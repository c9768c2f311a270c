//! A folder of manifests as facts: the current content of its files, and the changes since the last
//! read.
//!
//! A file that cannot be read completely keeps its previous objects. An object is gone only when its
//! file is gone or was parsed to the end without it. If several files define an object, the first
//! file by name counts.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs::{self, Metadata};
use std::hash::{BuildHasher, RandomState};
use std::os::unix::fs::MetadataExt;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::{io, thread};

use pathproof_facts::cluster::Change;

use super::convert::{Converter, NODES_NAMED, known_nodes};
use super::facts::{Kind, ObjectFacts, compare};
use super::yaml::{self, Item, Position};
use super::{Problem, Update};
use crate::input;
use crate::lifecycle::give_back_memory;

/// Reports of inotify about files since the last read.
#[derive(Clone, Debug, Default)]
pub(super) struct Hints {
    /// Files that were certainly written. They are read even if time and size are unchanged, as after two
    /// writes within one clock tick.
    pub(super) written: HashSet<OsString>,
    /// Files that are still being written. They are skipped, because half a file must not be read.
    pub(super) unfinished: HashSet<OsString>,
}

/// Device, inode and size, time of modification, time of status change. If any differs, the file has changed.
type Stamp = ((u64, u64, u64), (i64, i64), (i64, i64));

fn stamp(file: &Metadata) -> Stamp {
    let content = (file.dev(), file.ino(), file.size());
    let modified = (file.mtime(), file.mtime_nsec());
    let changed = (file.ctime(), file.ctime_nsec());
    (content, modified, changed)
}

/// Maximum size of a file; a cluster of 10,000 Services and 100,000 endpoints has 43 MB.
const MAX_FILE: u64 = 64 << 20;
/// Maximum size of all files together: the maps have no room for a larger cluster.
const MAX_BYTES: u64 = 256 << 20;
/// Maximum number of files: each object of a large cluster may have a separate file.
const MAX_FILES: usize = 65_536;

/// Files of this size together need enough memory for parsing to return it to the system.
const LARGE: u64 = 1 << 20;

/// Hash of an object's kind and name, so that 10,000 names are not stored twice. Hashes of 64 bits with a
/// random key are practically unique among a million objects.
type Key = u64;

/// The content of a file when it was last read.
#[derive(Clone, Debug, Default)]
struct File {
    /// `None` if its metadata could not be read. Such a file is read at every refresh.
    stamp: Option<Stamp>,
    /// Objects of the file, each with its line and column.
    objects: BTreeMap<Key, (Position, ObjectFacts)>,
    problems: Vec<Problem>,
    ignored: u64,
    /// Whether the file was read and parsed completely.
    is_whole: bool,
    /// Names of Nodes other than the agent's.
    other_nodes: BTreeSet<String>,
}

#[derive(Debug)]
pub(super) struct Manifests {
    folder: PathBuf,
    converter: Mutex<Converter>,
    hasher: RandomState,
    files: BTreeMap<OsString, File>,
    most: usize,
    /// Objects of the view.
    objects: BTreeMap<Key, ObjectFacts>,
    /// The last update, without its changes; `None` before the first.
    last: Option<Update>,
    /// Whether the folder was ever listed completely.
    is_synced: bool,
}

impl Manifests {
    /// Creates a reader for the node `node_name`. Reads nothing yet.
    pub(super) fn new(folder: &Path, node_name: &str) -> Self {
        Self {
            folder: folder.to_owned(),
            converter: Mutex::new(Converter::new(node_name)),
            hasher: RandomState::new(),
            files: BTreeMap::new(),
            most: MAX_FILES,
            objects: BTreeMap::new(),
            last: None,
            is_synced: false,
        }
    }

    /// Reads every file that changed since the last call, and returns the changes. The first update
    /// after a complete list ends with [`Change::Synced`]. Blocks on the disk.
    pub(super) fn refresh(&mut self, hints: &Hints) -> Option<Update> {
        let mut update = Update::default();
        let listed = self.list();
        let is_whole = listed.is_ok();
        match listed {
            Ok(present) => {
                let had_folder =
                    |last: &Update| last.problems.iter().all(|problem| !problem.is_silence);
                if !self.read_changed(present, hints) && self.last.as_ref().is_some_and(had_folder)
                {
                    return None;
                }
            }
            Err(error) => {
                let folder = self.folder.display();
                update.problems.push(Problem::silence(format!(
                    "{folder}: the folder cannot be read ({error}); its last good content stays in \
                     use"
                )));
            }
        }
        let mut changes = self.merge(&mut update);
        if is_whole && !std::mem::replace(&mut self.is_synced, true) {
            changes.push(Change::Synced);
        }
        // Do not report a missing Node while a file cannot be read, or a new one is being written: that file may
        // contain the Node.
        let is_new = |name: &OsString| !self.files.contains_key(name);
        let is_partial = |file: &File| !file.is_whole;
        let is_incomplete =
            hints.unfinished.iter().any(is_new) || self.files.values().any(is_partial);
        if !self.is_synced || is_incomplete {
            update.missing_node = None;
        }
        let last = self.last.replace(update.clone());
        if last.is_some_and(|last| last == update) && changes.is_empty() {
            return None;
        }
        Some(Update { changes, ..update })
    }

    /// Merges all files: adds their problems to the update, and returns the changes.
    fn merge(&mut self, update: &mut Update) -> Vec<Change> {
        let converter = self
            .converter
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        let mut changes: Vec<Change> = converter.new_peers().into_iter().collect();
        let mut first: HashMap<Key, &OsStr> = HashMap::with_capacity(self.objects.len());
        for (name, file) in &self.files {
            update.problems.extend_from_slice(&file.problems);
            update.ignored += file.ignored;
            for (key, (position, facts)) in &file.objects {
                if let Some(first) = first.get(key) {
                    let (path, first) = (self.folder.join(name), first.display().to_string());
                    let twice = duplicate(&path, *position, facts, &first);
                    update.problems.push(twice);
                    continue;
                }
                first.insert(*key, name);
                let before = self.objects.get(key);
                if before != Some(facts) {
                    compare(before, Some(facts), &mut changes);
                    self.objects.insert(*key, facts.clone());
                }
            }
        }
        let gone = self
            .objects
            .extract_if(.., |key, _| !first.contains_key(key));
        changes.extend(gone.map(|(_, facts)| facts.gone()));
        let is_node = |facts: &ObjectFacts| matches!(facts, ObjectFacts::Node(_));
        if !self.objects.values().any(is_node) {
            update.missing_node = Some(converter.missing_node(&other_nodes(&self.files)));
        }
        changes
    }

    /// The manifest files with their stamps. Follows links but not subfolders: a mounted ConfigMap
    /// consists of links into a hidden folder.
    ///
    /// # Errors
    /// The folder cannot be read or is too large: then no file is read.
    fn list(&self) -> io::Result<BTreeMap<OsString, Option<Stamp>>> {
        let (mut present, mut bytes) = (BTreeMap::new(), 0);
        for entry in fs::read_dir(&self.folder)? {
            let name = entry?.file_name();
            if is_manifest(&name) {
                match fs::metadata(self.folder.join(&name)) {
                    // Pipes, sockets and devices are included, so that reading one reports a problem of that
                    // file.
                    Ok(metadata) if !metadata.is_dir() => {
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

    /// Reads new and changed files, two at a time, because parsing takes most of the time. Returns whether
    /// any file is new, changed or gone.
    fn read_changed(&mut self, present: BTreeMap<OsString, Option<Stamp>>, hints: &Hints) -> bool {
        let count = self.files.len();
        self.files.retain(|name, _| present.contains_key(name));
        let mut is_new = self.files.len() < count;
        let is_changed = |(name, stamp): &(OsString, Option<Stamp>)| {
            let known = self.files.get(name).and_then(|file| file.stamp);
            let changed = known.is_none() || known != *stamp || hints.written.contains(name);
            changed && !hints.unfinished.contains(name)
        };
        let changed: Vec<_> = present.into_iter().filter(is_changed).collect();
        is_new |= !changed.is_empty();
        let size = |stamp: &Option<Stamp>| stamp.map_or(0, |(content, ..)| content.2);
        for pair in changed.chunks(2) {
            let this = &*self;
            let mut read = Vec::new();
            thread::scope(|scope| {
                let mut readers = Vec::new();
                for (name, stamp) in pair {
                    let reader = move || {
                        let file = this.read(name, *stamp);
                        if size(stamp) > LARGE {
                            give_back_memory();
                        }
                        file
                    };
                    readers.push(thread::Builder::new().spawn_scoped(scope, reader));
                }
                for ((name, _), reader) in pair.iter().zip(readers) {
                    let file = match reader {
                        Ok(reader) => reader.join().unwrap_or_else(|panic| resume_unwind(panic)),
                        Err(error) => this.unreadable(name, None, &error),
                    };
                    read.push((name.clone(), file));
                }
            });
            self.files.extend(read);
        }
        if changed.iter().map(|(_, stamp)| size(stamp)).sum::<u64>() > LARGE {
            give_back_memory();
        }
        is_new
    }

    fn read(&self, name: &OsString, stamp: Option<Stamp>) -> File {
        let path = self.folder.join(name);
        // Use the stamp of the opened file: the file may have been replaced since the folder was listed.
        let (stamp, text) = match input::read_regular(&path, MAX_FILE) {
            Ok((metadata, text)) => (Some(self::stamp(&metadata)), text),
            Err(error) => return self.unreadable(name, stamp, &error),
        };
        let none = BTreeMap::new();
        let before = self.files.get(name).map_or(&none, |file| &file.objects);
        let mut file = File {
            stamp,
            ..File::default()
        };
        // Keys of parsed objects that have no facts. Their previous facts are dropped even if the rest of the
        // file cannot be parsed.
        let mut dropped = HashSet::new();
        let mut is_whole = true;
        yaml::read(&text, &mut |position, item| {
            let object = match item {
                Item::Object(object) => object,
                Item::Ignored => {
                    file.ignored += 1;
                    return;
                }
                Item::Broken(reason) => {
                    is_whole = false;
                    let why =
                        format!("cannot be parsed: {reason}; its last good content stays in use");
                    file.problems.push(problem(&path, position, &why));
                    return;
                }
            };
            let (kind, name) = (object.kind(), object.metadata().name.clone());
            let key = self.hasher.hash_one(kind.identity(object.metadata()));
            let mut converter = self
                .converter
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            let converted = converter.facts(object);
            if let Some(invalid) = converter.left_out.take() {
                let why = format!("{invalid}; the object is used without it");
                file.problems.push(problem(&path, position, &why));
            }
            match converted {
                Ok(Some(facts)) => match file.objects.entry(key) {
                    Entry::Vacant(free) => drop(free.insert((position, facts))),
                    Entry::Occupied(first) => {
                        let first = format!("line {}", first.get().0.line);
                        file.problems
                            .push(duplicate(&path, position, &facts, &first));
                    }
                },
                Ok(None) => {
                    file.ignored += 1;
                    dropped.insert(key);
                    file.other_nodes.extend(name.filter(|_| kind == Kind::Node));
                }
                Err(invalid) => {
                    let why = format!("{invalid}; its last good version stays in use");
                    file.problems.push(problem(&path, position, &why));
                    if let Some(known) = before.get(&key) {
                        file.objects.entry(key).or_insert_with(|| known.clone());
                    }
                }
            }
        });
        if !is_whole {
            for (key, known) in before.iter().filter(|(key, _)| !dropped.contains(key)) {
                file.objects.entry(*key).or_insert_with(|| known.clone());
            }
        }
        file.is_whole = is_whole;
        file
    }

    fn unreadable(&self, name: &OsString, stamp: Option<Stamp>, error: &io::Error) -> File {
        let path = self.folder.join(name);
        let mut file = self.files.get(name).cloned().unwrap_or_default();
        (file.stamp, file.is_whole) = (stamp, false);
        let remedy = match error.kind() {
            io::ErrorKind::FileTooLarge => ": split it into several files",
            _ => "",
        };
        let effect = match file.objects.is_empty() {
            true => "it is skipped",
            false => "its last good content stays in use",
        };
        file.problems = vec![Problem::new(format!(
            "{}: cannot be read ({error}){remedy}; {effect}",
            path.display()
        ))];
        file
    }
}

/// The Nodes of all files, as the end of a sentence.
fn other_nodes(files: &BTreeMap<OsString, File>) -> String {
    let names: BTreeSet<&String> = files.values().flat_map(|file| &file.other_nodes).collect();
    let named: Vec<&str> = names
        .iter()
        .take(NODES_NAMED as usize)
        .map(|name| name.as_str())
        .collect();
    known_nodes("the manifests have", &named, names.len() - named.len())
}

fn problem(path: &Path, position: Position, why: &str) -> Problem {
    let (path, Position { line, column }) = (path.display(), position);
    Problem::new(match column {
        0 => format!("{path}:{line}: {why}"),
        _ => format!("{path}:{line}:{column}: {why}"),
    })
}

fn duplicate(path: &Path, position: Position, facts: &ObjectFacts, first: &str) -> Problem {
    let title = facts.title();
    let why = format!("{title} is also defined in {first}, which is used");
    problem(path, position, &why)
}

/// Whether this is the name of a manifest file. Hidden files are skipped.
fn is_manifest(name: &OsStr) -> bool {
    let extension = Path::new(name).extension().and_then(OsStr::to_str);
    let hidden = name.as_encoded_bytes().starts_with(b".");
    !hidden && matches!(extension, Some("yaml" | "yml" | "json"))
}

#[cfg(test)]
mod tests;
