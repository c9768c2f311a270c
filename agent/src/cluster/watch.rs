//! Follows a folder of manifests live.
//!
//! A file is read when its writer has closed it, when it was renamed into place, or when a link
//! changed (`..data` of a mounted ConfigMap); a file that is written and never closed, half a
//! second after the last write. Where the kernel gives no notice (no inotify instance left, the
//! folder gone) the folder is looked at four times a second instead.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::StreamExt;
use inotify::{EventMask, EventOwned, EventStream, Inotify, WatchMask};
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout_at};

use super::manifests::{Hints, Manifests};
pub use super::manifests::{Problem, Reason, Update};
use agent_core::cluster::Change;

/// Events that come closer together than this are taken as one change...
const QUIET: Duration = Duration::from_millis(5);
/// ...for at most this long.
const GATHER: Duration = Duration::from_millis(30);
/// A file that was written and not closed is read after this.
const UNFINISHED: Duration = Duration::from_millis(500);
/// Everything is looked at this often, whatever the kernel said: links to files elsewhere change
/// without notice.
const RESCAN: Duration = Duration::from_secs(5);
/// As above, while the kernel gives no notice at all.
const UNWATCHED: Duration = Duration::from_millis(250);

/// Why a folder cannot be the source of the view.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// It is not there.
    #[error("manifests folder {} does not exist; create it or name another with --manifests", path.display())]
    Missing {
        /// The folder.
        path: PathBuf,
    },
    /// It is something else.
    #[error("manifests folder {} is not a folder; name the folder that the files are in", path.display())]
    NotAFolder {
        /// The path.
        path: PathBuf,
    },
    /// It cannot be listed.
    #[error("manifests folder {} cannot be read; give the agent's user read and execute rights to it", path.display())]
    Unreadable {
        /// The folder.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

/// A folder that can be followed.
#[derive(Debug)]
pub struct Folder {
    manifests: Manifests,
}

impl Folder {
    /// Opens a folder for the node of that name. Its files are read by [`Folder::follow`].
    pub fn open(path: &Path, node_name: &str) -> Result<Self, OpenError> {
        let path = path.to_owned();
        match fs::read_dir(&path) {
            Ok(_) => Ok(Self {
                manifests: Manifests::new(&path, node_name),
            }),
            Err(error) => Err(match error.kind() {
                io::ErrorKind::NotFound => OpenError::Missing { path },
                io::ErrorKind::NotADirectory => OpenError::NotAFolder { path },
                _ => OpenError::Unreadable {
                    path,
                    source: error,
                },
            }),
        }
    }

    /// Reads the folder and follows it until the receiver is dropped. The first update has
    /// everything and ends with [`Change::Synced`]; later ones come when something changed, was
    /// found wrong or was put right. Must be called within a tokio runtime.
    pub fn follow(self) -> mpsc::Receiver<Update> {
        let (sender, receiver) = mpsc::channel(4);
        tokio::spawn(run(self.manifests, sender));
        receiver
    }
}

async fn run(mut manifests: Manifests, sender: mpsc::Sender<Update>) {
    let mut follower = Follower::new(manifests.folder());
    let mut hints = Hints::default();
    let mut last: Option<Update> = None;
    loop {
        let asked = hints.clone();
        // A panic in there would be a bug; without the manifests there is nothing left to follow.
        let refreshed = spawn_blocking(move || {
            let update = manifests.refresh(&asked);
            (manifests, update)
        });
        let Ok((kept, mut update)) = refreshed.await else {
            return;
        };
        manifests = kept;
        if last.is_none() {
            update.changes.push(Change::Synced);
        }
        let news = last.as_ref().is_none_or(|last| {
            !update.changes.is_empty()
                || last.problems != update.problems
                || last.ignored != update.ignored
        });
        if news {
            last = Some(Update {
                changes: Vec::new(),
                ..update.clone()
            });
            if sender.send(update).await.is_err() {
                return;
            }
        }
        hints.written.clear();
        tokio::select! {
            () = follower.next(&mut hints) => {}
            () = sender.closed() => return,
        }
    }
}

/// Waits for reasons to look at the folder again.
struct Follower {
    folder: PathBuf,
    watch: Option<Watch>,
    /// When the last write to a file was that nobody closed since.
    last_write: Option<Instant>,
}

struct Watch {
    events: EventStream<[u8; 4096]>,
    /// Device and inode of the folder that is watched: another may take its path.
    folder: (u64, u64),
}

impl Follower {
    fn new(folder: &Path) -> Self {
        let watch = watch(folder).ok();
        Self {
            folder: folder.to_owned(),
            watch,
            last_write: None,
        }
    }

    /// Returns when the folder is to be looked at, with what is known of its files.
    async fn next(&mut self, hints: &mut Hints) {
        if self.renew() {
            // What came before the watch was not noticed.
            return;
        }
        let rescan = if self.watch.is_some() {
            RESCAN
        } else {
            UNWATCHED
        };
        let mut until = Instant::now() + rescan;
        let mut first = None;
        loop {
            let unfinished = self.last_write.map(|at| at + UNFINISHED);
            let deadline = unfinished.map_or(until, |at| at.min(until));
            match timeout_at(deadline, self.event()).await {
                Ok(event) => {
                    if self.note(event, hints) {
                        let now = Instant::now();
                        let gathered = *first.get_or_insert(now) + GATHER;
                        until = (now + QUIET).min(gathered);
                    }
                }
                Err(_) => {
                    if unfinished.is_some_and(|at| at <= Instant::now()) {
                        self.last_write = None;
                        hints.written.extend(hints.unfinished.drain());
                    }
                    return;
                }
            }
        }
    }

    /// Watches again where the folder is back, or another; returns whether it did.
    fn renew(&mut self) -> bool {
        let now = identity(&self.folder).ok();
        let watched = self.watch.as_ref().map(|watch| watch.folder);
        if watched.is_some() && watched == now {
            return false;
        }
        self.watch = watch(&self.folder).ok();
        self.watch.is_some()
    }

    /// The next event; `None` where the watch has broken down. Never, where there is none.
    async fn event(&mut self) -> Option<EventOwned> {
        match &mut self.watch {
            Some(watch) => watch.events.next().await.and_then(Result::ok),
            None => std::future::pending().await,
        }
    }

    /// Takes an event into account; returns whether it is a reason to look.
    fn note(&mut self, event: Option<EventOwned>, hints: &mut Hints) -> bool {
        let lost = EventMask::DELETE_SELF
            | EventMask::MOVE_SELF
            | EventMask::IGNORED
            | EventMask::UNMOUNT
            | EventMask::Q_OVERFLOW;
        let Some(event) = event.filter(|event| !event.mask.intersects(lost)) else {
            self.watch = None;
            self.last_write = None;
            hints.written.extend(hints.unfinished.drain());
            return true;
        };
        let Some(name) = event.name else { return false };
        if event.mask.contains(EventMask::MODIFY) {
            hints.written.remove(&name);
            hints.unfinished.insert(name);
            self.last_write = Some(Instant::now());
            return false;
        }
        self.finish(name, hints);
        true
    }

    fn finish(&mut self, name: OsString, hints: &mut Hints) {
        hints.unfinished.remove(&name);
        hints.written.insert(name);
        if hints.unfinished.is_empty() {
            self.last_write = None;
        }
    }
}

fn watch(folder: &Path) -> io::Result<Watch> {
    let inotify = Inotify::init()?;
    let mask = WatchMask::CREATE
        | WatchMask::MODIFY
        | WatchMask::CLOSE_WRITE
        | WatchMask::ATTRIB
        | WatchMask::MOVE
        | WatchMask::DELETE
        | WatchMask::DELETE_SELF
        | WatchMask::MOVE_SELF
        | WatchMask::ONLYDIR;
    inotify.watches().add(folder, mask)?;
    let folder = identity(folder)?;
    Ok(Watch {
        events: inotify.into_event_stream([0; 4096])?,
        folder,
    })
}

fn identity(folder: &Path) -> io::Result<(u64, u64)> {
    let metadata = fs::metadata(folder)?;
    Ok((metadata.dev(), metadata.ino()))
}

#[cfg(test)]
mod tests;
