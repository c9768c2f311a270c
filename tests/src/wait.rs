//! Waiting for what comes of itself.

use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

/// How long between two questions.
const PAUSE: Duration = Duration::from_millis(20);

/// Asks again and again until there is an answer; nothing if there is none in time.
pub fn until<T>(patience: Duration, mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + scaled(patience);
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

/// A limit as this machine needs it: `PATHPROOF_TEST_PATIENCE` says how many times slower it is than
/// those that the tests were written on, such as one whose processor is emulated.
pub fn scaled(limit: Duration) -> Duration {
    static FACTOR: OnceLock<u32> = OnceLock::new();
    let factor = FACTOR.get_or_init(|| {
        let said = std::env::var("PATHPROOF_TEST_PATIENCE").ok();
        said.and_then(|text| text.parse().ok()).unwrap_or(1)
    });
    limit * (*factor).max(1)
}
