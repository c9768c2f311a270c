//! Answers the pod probes of other nodes. Other clients get no byte and are disconnected.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use super::frame::Frame;

/// Maximum number of concurrent connections; further ones wait in the listen queue.
const AT_ONCE: usize = 64;
/// Timeout for each message, so that idle clients do not occupy connections.
const PATIENCE: Duration = Duration::from_millis(900);
const MESSAGES: usize = 2;
/// Pause after the listener failed, for example for lack of file descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Answers the messages of each connection. Never ends.
pub(super) async fn answer(listener: &TcpListener) {
    let room = Arc::new(Semaphore::new(AT_ONCE));
    loop {
        // The semaphore is never closed.
        let Ok(place) = Arc::clone(&room).acquire_owned().await else {
            return;
        };
        let stream = next(listener).await;
        tokio::spawn(async move {
            // The client notices a failure by itself.
            let _ = answer_one(stream).await;
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

/// Ends with an error if the peer closes, is too slow, or is not a pod probe.
async fn answer_one(mut stream: TcpStream) -> io::Result<()> {
    for _ in 0..MESSAGES {
        let frame = timeout(PATIENCE, Frame::read(&mut stream)).await??;
        timeout(PATIENCE, frame.write(&mut stream)).await??;
    }
    Ok(())
}
