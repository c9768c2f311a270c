//! Waiting for what comes of itself.

use std::thread;
use std::time::{Duration, Instant};

/// How long between two questions.
const PAUSE: Duration = Duration::from_millis(20);

/// Asks again and again until there is an answer; nothing if there is none in time.
pub fn until<T>(patience: Duration, mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + patience;
    loop {
        if let Some(answer) = ask() {
            return Some(answer);
        }
        if Instant::now() >= end {
            return None;
        }
        thread::sleep(PAUSE);
    }
}
