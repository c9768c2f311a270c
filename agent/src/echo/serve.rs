//! Answers the pod probes of other nodes. Whoever else comes is cut off: no byte goes to one that did not
//! begin as they do, and none gets more than it sent.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use super::frame::Frame;

/// Connections that are answered at once; further ones wait for their turn in the listen queue.
const AT_ONCE: usize = 64;
/// A peer that takes longer is cut off.
const PATIENCE: Duration = Duration::from_secs(3);
/// Pause after the listener failed, as it does while there are no free files.
const PAUSE: Duration = Duration::from_millis(100);

/// Answers every frame of a connection, for a while. Never ends.
pub(super) async fn answer(listener: &TcpListener) {
    let room = Arc::new(Semaphore::new(AT_ONCE));
    loop {
        // It is never closed.
        let Ok(place) = Arc::clone(&room).acquire_owned().await else {
            return;
        };
        let stream = next(listener).await;
        tokio::spawn(async move {
            // Whoever was cut off notices by himself.
            let _ = timeout(PATIENCE, answer_one(stream)).await;
            drop(place);
        });
    }
}

/// Takes connections and closes them. Never ends.
pub(super) async fn accept(listener: &TcpListener) {
    loop {
        drop(next(listener).await);
    }
}

async fn next(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            Err(_) => sleep(PAUSE).await,
        }
    }
}

/// Ends by an error: when the peer closes, or is none of ours.
async fn answer_one(mut stream: TcpStream) -> io::Result<()> {
    loop {
        let frame = Frame::read(&mut stream).await?;
        frame.write(&mut stream).await?;
    }
}
