//! Reads and parses files ahead of whoever takes them in: at start there may be a hundred, and the
//! first verdict waits for them.
//!
//! Files come back in the order they were asked for. Few are parsed at a time, so that memory does
//! not grow with their number.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::sync_channel;
use std::thread;

use crate::cluster::yaml::{self, Item, Place};

/// What stands in a file, in its order.
pub(super) type Content = io::Result<Vec<(Place, Item)>>;

/// Threads that parse; whoever takes in is one more.
const PARSERS: usize = 2;
/// Fewer files than this are not worth a thread.
const WORTH_IT: usize = 8;

/// Calls `take` with the content of each file, in order.
pub(super) fn each(paths: &[PathBuf], mut take: impl FnMut(usize, Content)) {
    if paths.len() < WORTH_IT {
        for (index, path) in paths.iter().enumerate() {
            take(index, read(path));
        }
        return;
    }
    thread::scope(|scope| {
        let parsers: Vec<_> = (0..PARSERS)
            .map(|first| {
                // One waits to be taken while the next is parsed.
                let (sender, receiver) = sync_channel(1);
                scope.spawn(move || {
                    for path in paths.iter().skip(first).step_by(PARSERS) {
                        if sender.send(read(path)).is_err() {
                            return;
                        }
                    }
                });
                receiver
            })
            .collect();
        for index in 0..paths.len() {
            // A parser that died left a file unread; it is told as unreadable, not lost.
            let content = parsers[index % PARSERS]
                .recv()
                .unwrap_or_else(|_| Err(io::Error::other("the parser ended early")));
            take(index, content);
        }
    });
}

fn read(path: &PathBuf) -> Content {
    let text = fs::read_to_string(path)?;
    let mut items = Vec::new();
    yaml::read(&text, &mut |place, item| items.push((place, item)));
    Ok(items)
}
