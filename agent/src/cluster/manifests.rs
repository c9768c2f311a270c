//! A folder of manifests as facts: what its files say now, and what changed since they were read
//! last.
//!
//! A file that cannot be read whole keeps what it said before: an object is gone only when its
//! file is gone or was understood to the end without it. The first file (in the order of names)
//! that has an object keeps it until it lets go.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, SyncSender};
use std::thread;

use super::convert::Converter;
use super::facts::{Facts, identity, is_gone};
use super::yaml::{self, Item, Place};
use agent_core::cluster::Change;

mod problem;
mod reading;

pub use problem::{Problem, Reason};
use reading::Reading;

/// What changed in a folder since the last look, and what is wrong with it now.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Update {
    /// Changes of the view, to be applied as one batch.
    pub changes: Vec<Change>,
    /// Everything that is wrong now, not only what is new.
    pub problems: Vec<Problem>,
    /// Objects that are there and do not matter, by kind or reason.
    pub ignored: BTreeMap<String, u64>,
}

/// What is known of files before they are looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hints {
    /// Surely written: read even where time and size are as before, which a clock's tick allows.
    pub written: HashSet<OsString>,
    /// Somebody is still writing: not read, half of a file is not what it says.
    pub unfinished: HashSet<OsString>,
}

/// What tells whether a file changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// Bytes of a file that is read; a cluster of 10,000 Services and 100,000 endpoints has 43 MB.
const MAX_FILE: u64 = 64 << 20;

/// Parsed items of a file that wait until those of the file before it have been taken.
const ITEMS_AHEAD: usize = 256;

/// A file's name and stamp.
type Named<'a> = (&'a OsString, &'a Option<Stamp>);

/// Kind and name of an object, hashed: 10,000 names are not kept twice. 64 bits under a random
/// key: no two of a million objects meet.
type Key = u64;

/// An object that is there.
#[derive(Debug)]
struct Known {
    file: u32,
    facts: Facts,
}

/// A file as it was read last.
#[derive(Debug)]
struct File {
    id: u32,
    stamp: Stamp,
    problems: Vec<Problem>,
    ignored: BTreeMap<String, u64>,
    /// Whether an object in it stands in another file too, and may become its own.
    has_duplicates: bool,
}

/// A folder of manifests.
#[derive(Debug)]
pub struct Manifests {
    folder: PathBuf,
    converter: Converter,
    hasher: RandomState,
    files: BTreeMap<OsString, File>,
    objects: HashMap<Key, Known>,
    next_file: u32,
    folder_problem: Option<Problem>,
}

impl Manifests {
    /// Of a folder, for the node of that name. Reads nothing yet.
    pub fn new(folder: &Path, node_name: &str) -> Self {
        Self {
            folder: folder.to_owned(),
            converter: Converter::new(node_name),
            hasher: RandomState::new(),
            files: BTreeMap::new(),
            objects: HashMap::new(),
            next_file: 0,
            folder_problem: None,
        }
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Looks at every file that changed since the last look. Blocks on the disk.
    pub fn refresh(&mut self, hints: &Hints) -> Update {
        let mut changes = Vec::new();
        match self.list() {
            Ok(present) => {
                self.folder_problem = None;
                self.drop_absent(&present, &mut changes);
                self.read_changed(&present, hints, &mut changes);
                // What one file let go of may stand in another.
                if changes.iter().any(is_gone) {
                    self.reread_duplicates(&present, hints, &mut changes);
                }
            }
            Err(error) => {
                let reason = Reason::Folder {
                    error: error.to_string(),
                };
                let path = self.folder.clone();
                self.folder_problem = Some(Problem {
                    path,
                    place: None,
                    reason,
                });
            }
        }
        Update {
            changes,
            problems: self.problems(),
            ignored: self.ignored(),
        }
    }

    fn problems(&self) -> Vec<Problem> {
        let files = self.files.values().flat_map(|file| &file.problems);
        self.folder_problem.iter().chain(files).cloned().collect()
    }

    fn ignored(&self) -> BTreeMap<String, u64> {
        let mut sum = BTreeMap::new();
        for (what, count) in self.files.values().flat_map(|file| &file.ignored) {
            *sum.entry(what.clone()).or_default() += count;
        }
        sum
    }

    /// The manifest files that are there, with their stamps. Links are followed, subfolders not:
    /// a mounted ConfigMap is links into a hidden folder.
    fn list(&self) -> io::Result<BTreeMap<OsString, Option<Stamp>>> {
        let mut present = BTreeMap::new();
        for entry in fs::read_dir(&self.folder)? {
            let name = entry?.file_name();
            if is_manifest(&name) {
                match fs::metadata(self.folder.join(&name)) {
                    Ok(metadata) if metadata.is_file() => {
                        present.insert(name, Some(Stamp::of(&metadata)));
                    }
                    Ok(_) => {}
                    // Gone again, or a link to nowhere.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(_) => {
                        present.insert(name, None);
                    }
                }
            }
        }
        Ok(present)
    }

    fn read_changed(
        &mut self,
        present: &BTreeMap<OsString, Option<Stamp>>,
        hints: &Hints,
        changes: &mut Vec<Change>,
    ) {
        let changed = |(name, stamp): &Named<'_>| {
            let known = self.files.get(*name).map(|file| file.stamp);
            known.is_none() || known != **stamp || hints.written.contains(*name)
        };
        let files = present.iter().filter(changed);
        self.read_files(files.collect(), hints, changes);
    }

    /// Parses two files at a time, which is most of the work, and takes their items in order.
    fn read_files(&mut self, mut files: Vec<Named<'_>>, hints: &Hints, changes: &mut Vec<Change>) {
        files.retain(|(name, _)| !hints.unfinished.contains(*name));
        for pair in files.chunks(2) {
            thread::scope(|scope| {
                let parsers = pair.iter().map(|(name, _)| {
                    let path = self.folder.join(name);
                    let (sender, items) = mpsc::sync_channel(ITEMS_AHEAD);
                    let parser = sender.clone();
                    let spawned =
                        thread::Builder::new().spawn_scoped(scope, move || parse(&path, &parser));
                    if let Err(error) = spawned {
                        let _ = sender.send(Err(error));
                    }
                    items
                });
                let parsers: Vec<_> = parsers.collect();
                for ((name, stamp), items) in pair.iter().zip(parsers) {
                    self.take_file(name, **stamp, &items, changes);
                }
            });
        }
    }

    fn drop_absent(
        &mut self,
        present: &BTreeMap<OsString, Option<Stamp>>,
        changes: &mut Vec<Change>,
    ) {
        let absent: HashSet<u32> = self
            .files
            .extract_if(.., |name, _| !present.contains_key(name))
            .map(|(_, file)| file.id)
            .collect();
        if !absent.is_empty() {
            self.drop_objects(changes, |known, _| absent.contains(&known.file));
        }
    }

    fn reread_duplicates(
        &mut self,
        present: &BTreeMap<OsString, Option<Stamp>>,
        hints: &Hints,
        changes: &mut Vec<Change>,
    ) {
        let again = |(name, _): &Named<'_>| {
            let file = self.files.get(*name);
            file.is_some_and(|file| file.has_duplicates)
        };
        let files = present.iter().filter(again);
        self.read_files(files.collect(), hints, changes);
    }

    fn drop_objects(&mut self, changes: &mut Vec<Change>, gone: impl Fn(&Known, &Key) -> bool) {
        let dropped = self.objects.extract_if(|key, known| gone(known, key));
        changes.extend(dropped.map(|(_, known)| known.facts.gone()));
    }

    fn take_file(
        &mut self,
        name: &OsString,
        stamp: Option<Stamp>,
        items: &mpsc::Receiver<io::Result<(Place, Item)>>,
        changes: &mut Vec<Change>,
    ) {
        let path = self.folder.join(name);
        let id = self.files.get(name).map_or(self.next_file, |file| file.id);
        let is_new = id == self.next_file;
        self.next_file = self.next_file.max(id + 1);
        let mut reading = Reading {
            id,
            path,
            seen: HashMap::new(),
            problems: Vec::new(),
            ignored: BTreeMap::new(),
            has_duplicates: false,
            whole: true,
        };
        for item in items {
            match item {
                Ok((place, item)) => self.take(place, item, &mut reading, changes),
                Err(error) => {
                    return self.note_unreadable(name, id, reading.path, stamp, &error);
                }
            }
        }
        // A walk of all objects, which at start would be one for each file.
        if reading.whole && !is_new {
            let seen = &reading.seen;
            self.drop_objects(changes, |known, key| {
                known.file == id && !seen.contains_key(key)
            });
        }
        if let Some(stamp) = stamp {
            let Reading {
                problems,
                ignored,
                has_duplicates,
                ..
            } = reading;
            let file = File {
                id,
                stamp,
                problems,
                ignored,
                has_duplicates,
            };
            self.files.insert(name.clone(), file);
        }
    }

    fn note_unreadable(
        &mut self,
        name: &OsString,
        id: u32,
        path: PathBuf,
        stamp: Option<Stamp>,
        error: &io::Error,
    ) {
        let reason = Reason::File {
            error: error.to_string(),
        };
        let problems = vec![Problem {
            path,
            place: None,
            reason,
        }];
        match self.files.get_mut(name) {
            Some(file) => {
                file.problems = problems;
                file.stamp = stamp.unwrap_or(Stamp::NONE);
            }
            None => {
                let stamp = stamp.unwrap_or(Stamp::NONE);
                let ignored = BTreeMap::new();
                let file = File {
                    id,
                    stamp,
                    problems,
                    ignored,
                    has_duplicates: false,
                };
                self.files.insert(name.clone(), file);
            }
        }
    }

    /// Takes what stands at one place of a file.
    fn take(&mut self, place: Place, item: Item, reading: &mut Reading, changes: &mut Vec<Change>) {
        let object = match item {
            Item::Object(object) => object,
            Item::Ignored { kind } => return reading.ignore(kind),
            Item::Broken(reason) => {
                reading.whole = false;
                let document = place.document;
                return reading.complain(place, Reason::Syntax { document, reason });
            }
        };
        let key = self.hasher.hash_one(identity(&object));
        match Facts::of(&mut self.converter, &object) {
            Ok(Ok(facts)) => self.put(key, facts, place, reading, changes),
            Ok(Err(skipped)) => {
                reading.ignore(format!("{} ({})", identity(&object).0, skipped.words()));
                if self
                    .objects
                    .get(&key)
                    .is_some_and(|known| known.file == reading.id)
                {
                    changes.extend(self.objects.remove(&key).map(|known| known.facts.gone()));
                }
            }
            Err(invalid) => {
                // It is there, if only in words nobody understands.
                reading.seen.insert(key, place.line);
                reading.complain(place, Reason::Invalid(invalid));
            }
        }
    }

    fn put(
        &mut self,
        key: Key,
        facts: Facts,
        place: Place,
        reading: &mut Reading,
        changes: &mut Vec<Change>,
    ) {
        if let Some(line) = reading.seen.get(&key) {
            return reading.duplicate(place, &facts, format!("line {line}"));
        }
        match self.objects.get_mut(&key) {
            Some(known) if known.file != reading.id => {
                let first = file_name(&self.files, known.file);
                reading.has_duplicates = true;
                return reading.duplicate(place, &facts, first);
            }
            Some(known) => {
                if known.facts != facts {
                    changes.extend(facts.moved_from(&known.facts));
                    changes.push(facts.clone().put());
                    known.facts = facts;
                }
            }
            None => {
                changes.push(facts.clone().put());
                self.objects.insert(
                    key,
                    Known {
                        file: reading.id,
                        facts,
                    },
                );
            }
        }
        reading.seen.insert(key, place.line);
    }
}

impl Stamp {
    /// Of a file that could not be looked at: it differs from all others.
    const NONE: Stamp = Stamp {
        device: 0,
        inode: 0,
        size: 0,
        modified: (0, 0),
        changed: (0, 0),
    };
}

/// Sends what a file has, or why it cannot be read.
fn parse(path: &Path, items: &SyncSender<io::Result<(Place, Item)>>) {
    // All of them are received: a send never fails.
    let send = |item| drop(items.send(item));
    match read_text(path) {
        Ok(text) => yaml::read(&text, &mut |place, item| send(Ok((place, item)))),
        Err(error) => send(Err(error)),
    }
}

fn read_text(path: &Path) -> io::Result<String> {
    let file = fs::File::open(path)?;
    if file.metadata()?.len() > MAX_FILE {
        let limit = MAX_FILE >> 20;
        let error = format!("it is larger than {limit} MiB: split it into several files");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, error));
    }
    io::read_to_string(file.take(MAX_FILE))
}

fn file_name(files: &BTreeMap<OsString, File>, id: u32) -> String {
    let found = files.iter().find(|(_, file)| file.id == id);
    found.map_or_else(
        || "another file".to_owned(),
        |(name, _)| name.display().to_string(),
    )
}

/// Whether a name is that of a manifest file. Hidden ones are somebody's business.
fn is_manifest(name: &OsString) -> bool {
    let path = Path::new(name);
    let extension = path.extension().and_then(|extension| extension.to_str());
    let hidden = name.as_encoded_bytes().starts_with(b".");
    !hidden && matches!(extension, Some("yaml" | "yml" | "json"))
}

#[cfg(test)]
mod tests;
