//! Waiting for what comes of itself.

use std::io;
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

/// Binds a port that another socket of this process had until a moment ago. A program that another test
/// starts has a copy of every socket from its fork to its exec, so the port may be taken for that long.
pub fn bound<T>(mut bind: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let taken = |error: &io::Error| error.kind() == io::ErrorKind::AddrInUse;
    let tried = until(Duration::from_secs(2), || {
        Some(bind()).filter(|tried| !tried.as_ref().is_err_and(taken))
    });
    tried.unwrap_or_else(bind)
}

/// Variable for the agents of tests: how many milliseconds the sentinel must be unchanged before failed
/// probes count. Only debug builds read it; without it they wait for 10 s, as what is shipped does.
pub const SETTLED: &str = "PATHPROOF_TEST_SETTLED_MS";

/// Variable for the agents of tests, of the same kind: how many milliseconds a proxy has after a boot, and after
/// the sentinel changed, until a datapath that is declared is missed.
pub const BOOT: &str = "PATHPROOF_TEST_BOOT_MS";

/// Time after a change of the sentinel or its devices in which a test's agent counts no failed probe, and a second.
pub fn settled() -> Duration {
    let said = std::env::var(SETTLED).ok();
    let wait = said.and_then(|text| text.parse().ok()).unwrap_or(10_000);
    Duration::from_millis(wait) + Duration::from_secs(1)
}

/// Sleeps until failed probes count for sure.
pub fn settle() {
    thread::sleep(settled());
}

/// A limit as this machine needs it: `PATHPROOF_TEST_PATIENCE` says how many times slower it is than
/// those that the tests were written on, such as one whose processor is emulated.
pub fn scaled(limit: Duration) -> Duration {
    limit * slowness()
}

/// The number that [`scaled`] multiplies by: 1 on a desk.
pub fn slowness() -> u32 {
    let said = std::env::var("PATHPROOF_TEST_PATIENCE").ok();
    let factor: Option<u32> = said.and_then(|text| text.parse().ok());
    factor.unwrap_or(1).max(1)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_port_that_is_taken_for_a_moment_is_bound() {
        let held = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = held.local_addr().unwrap();
        let other = thread::spawn(move || {
            thread::sleep(5 * PAUSE);
            drop(held);
        });
        assert!(bound(|| TcpListener::bind(address)).is_ok());
        other.join().unwrap();
        let refused = bound(|| TcpListener::bind(("192.0.2.1", 1)));
        assert!(refused.is_err());
    }
}
