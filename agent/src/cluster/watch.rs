//! Follows a folder of manifests live.
//!
//! The folder is read when a writer closes a file, or when a file or link (`..data` of a mounted ConfigMap) is
//! renamed into place. It is also read if it stayed as it is for half a second after a change, because inotify
//! may miss changes: it does not report those of linked files in other folders, nor of files that are never
//! closed, and its instances may be exhausted.

use std::io;
use std::path::Path;
use std::time::Duration;

use futures_util::StreamExt;
use inotify::{EventStream, Inotify, WatchMask};
use tokio::sync::mpsc;
use tokio::task::{JoinError, spawn_blocking};
use tokio::time::{sleep, timeout};

use super::manifests::Manifests;
use super::{GATHER, QUIET, Update};

/// Interval between scans of the folder.
const LOOK: Duration = Duration::from_millis(500);

type Watch = EventStream<[u8; 4096]>;

/// Reads a folder for the node `node_name`, and follows it until the receiver is dropped. The first update is
/// complete and ends with [`Change::Synced`]. Later updates report changes, new problems and solved ones. Must
/// be called within a tokio runtime.
///
/// [`Change::Synced`]: pathproof_facts::cluster::Change::Synced
pub fn follow(path: &Path, node_name: &str) -> mpsc::Receiver<Update> {
    let (sender, receiver) = mpsc::channel(4);
    let (manifests, folder) = (Manifests::new(path, node_name), path.to_owned());
    tokio::spawn(async move {
        tokio::select! {
            _ = run(manifests, &folder, &sender) => {}
            () = sender.closed() => {}
        }
    });
    receiver
}

/// Returns an error if reading the folder panicked. That would be a bug, and the manifests are lost with it.
async fn run(
    mut manifests: Manifests,
    folder: &Path,
    sender: &mpsc::Sender<Update>,
) -> Result<(), JoinError> {
    let mut is_changed = true;
    loop {
        // A new watch, because the folder may have been replaced, or a link in its path. It begins before the
        // scan, so that it reports later changes.
        let mut watch = watch(folder).ok();
        loop {
            let refreshed = spawn_blocking(move || {
                let update = manifests.refresh(is_changed);
                (manifests, update)
            });
            let (kept, update) = refreshed.await?;
            manifests = kept;
            if let Some(update) = update {
                // A closed channel is no error: this task ends when the receiver is dropped.
                let _ = sender.send(update).await;
            }
            is_changed = wait(watch.as_mut()).await;
            if !is_changed {
                break;
            }
        }
        // The kernel may need 20 ms to end a watch.
        spawn_blocking(move || drop(watch));
    }
}

/// Waits for events until none followed for [`QUIET`], at most for [`GATHER`]. Returns false if none came in
/// time.
async fn wait(watch: Option<&mut Watch>) -> bool {
    let Some(watch) = watch else {
        sleep(LOOK).await;
        return false;
    };
    let is_event = matches!(timeout(LOOK, watch.next()).await, Ok(Some(Ok(_))));
    if is_event {
        let gather = async { while timeout(QUIET, watch.next()).await.is_ok() {} };
        let _ = timeout(GATHER, gather).await;
    }
    is_event
}

fn watch(folder: &Path) -> io::Result<Watch> {
    let inotify = Inotify::init()?;
    let mask = WatchMask::CLOSE_WRITE
        | WatchMask::ATTRIB
        | WatchMask::MOVE
        | WatchMask::DELETE
        | WatchMask::ONLYDIR;
    inotify.watches().add(folder, mask)?;
    inotify.into_event_stream([0; 4096])
}

#[cfg(test)]
mod tests;
