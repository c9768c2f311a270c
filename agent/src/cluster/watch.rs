//! Follows a folder of manifests live.
//!
//! A file is read when its writer closes it, when it is renamed into place, or when a link changes (`..data`
//! of a mounted ConfigMap). A file that is written and never closed is read half a second after the last
//! write. The folder is also scanned every half second, because inotify may miss changes: it does not report
//! those of linked files in other folders, and its instances may be exhausted.

use std::collections::HashMap;
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use futures_util::StreamExt;
use inotify::{EventMask, EventOwned, EventStream, Inotify, WatchMask};
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout};

use super::manifests::{Hints, Manifests};
use super::{GATHER, QUIET, Update};

/// Interval between scans of the folder. A file that was written and not closed is read after the same time.
const LOOK: Duration = Duration::from_millis(500);
/// Events after which the watch is useless and is replaced.
const LOST: EventMask = EventMask::DELETE_SELF
    .union(EventMask::MOVE_SELF)
    .union(EventMask::IGNORED)
    .union(EventMask::UNMOUNT)
    .union(EventMask::Q_OVERFLOW);

#[derive(Debug, thiserror::Error)]
#[error("manifests folder {} {problem}", path.display())]
pub struct OpenError {
    path: PathBuf,
    problem: &'static str,
    source: io::Error,
}

/// Opens a folder for the node `node_name`, reads it and follows it until the receiver is dropped. The
/// first update is complete and ends with [`Change::Synced`]. Later updates report changes, new
/// problems and solved ones. Must be called within a tokio runtime.
///
/// [`Change::Synced`]: pathproof_facts::cluster::Change::Synced
pub fn follow(path: &Path, node_name: &str) -> Result<mpsc::Receiver<Update>, OpenError> {
    if let Err(source) = fs::read_dir(path) {
        let problem = match source.kind() {
            io::ErrorKind::NotFound => {
                "does not exist; create it or give another folder with --manifests"
            }
            io::ErrorKind::NotADirectory => {
                "is not a folder; give the folder that contains the files"
            }
            _ => "cannot be read; grant the agent's user read and execute rights",
        };
        return Err(OpenError {
            path: path.to_owned(),
            problem,
            source,
        });
    }
    let (sender, receiver) = mpsc::channel(4);
    let (manifests, follower) = (Manifests::new(path, node_name), Follower::new(path));
    tokio::spawn(async move {
        tokio::select! {
            () = run(manifests, follower, &sender) => {}
            () = sender.closed() => {}
        }
    });
    Ok(receiver)
}

async fn run(mut manifests: Manifests, mut follower: Follower, sender: &mpsc::Sender<Update>) {
    loop {
        let hints = follower.hints();
        // A panic in this task would be a bug. The manifests would be lost with it, so following ends.
        let refreshed = spawn_blocking(move || {
            let update = manifests.refresh(&hints);
            (manifests, update)
        });
        let Ok((kept, update)) = refreshed.await else {
            return;
        };
        manifests = kept;
        if let Some(update) = update {
            // A closed channel is no error: this task ends when the receiver is dropped.
            let _ = sender.send(update).await;
        }
        follower.next().await;
    }
}

struct Follower {
    folder: PathBuf,
    watch: Option<Watch>,
    /// Device and inode of the watched folder. They show that a link in the path of the folder has changed,
    /// which the watch does not report.
    identity: Option<(u64, u64)>,
    /// Files that were completely written since the last scan.
    written: Vec<OsString>,
    /// Time of the last write to files that are still open for writing.
    unfinished: HashMap<OsString, Instant>,
}

type Watch = EventStream<[u8; 4096]>;

impl Follower {
    fn new(folder: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
            identity: identity(folder),
            watch: watch(folder).ok(),
            written: Vec::new(),
            unfinished: HashMap::new(),
        }
    }

    fn hints(&mut self) -> Hints {
        // Without a watch, no event would report that a file was closed, so do not wait for one.
        let is_watched = self.watch.is_some();
        let old = |_: &OsString, at: &mut Instant| !is_watched || at.elapsed() >= LOOK;
        let old = self.unfinished.extract_if(old).map(|(name, _)| name);
        let written = self.written.drain(..).chain(old).collect();
        Hints {
            written,
            unfinished: self.unfinished.keys().cloned().collect(),
        }
    }

    /// Returns when the folder should be scanned.
    async fn next(&mut self) {
        let identity = identity(&self.folder);
        if self.watch.is_none() || self.identity != identity {
            self.identity = identity;
            self.watch = watch(&self.folder).ok();
            if self.watch.is_some() {
                // Scan at once: the watch did not report writes from before its start.
                return;
            }
        }
        let Ok(event) = timeout(LOOK, self.event()).await else {
            return;
        };
        self.note(event);
        let gather = async {
            while let Ok(event) = timeout(QUIET, self.event()).await {
                self.note(event);
            }
        };
        let _ = timeout(GATHER, gather).await;
    }

    /// The next event; `None` if the watch failed. Never returns without a watch.
    async fn event(&mut self) -> Option<EventOwned> {
        match &mut self.watch {
            Some(watch) => watch.next().await.and_then(Result::ok),
            None => std::future::pending().await,
        }
    }

    fn note(&mut self, event: Option<EventOwned>) {
        let Some(event) = event.filter(|event| !event.mask.intersects(LOST)) else {
            self.watch = None;
            return;
        };
        let Some(name) = event.name else { return };
        if event.mask.contains(EventMask::MODIFY) {
            self.unfinished.insert(name, Instant::now());
        } else {
            self.unfinished.remove(&name);
            self.written.push(name);
        }
    }
}

fn identity(folder: &Path) -> Option<(u64, u64)> {
    let found = fs::metadata(folder).ok()?;
    Some((found.dev(), found.ino()))
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
    inotify.into_event_stream([0; 4096])
}

#[cfg(test)]
mod tests;
