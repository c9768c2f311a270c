//! Waiting for a condition.

use std::time::{Duration, Instant};
use std::{io, thread};

/// Pause between two checks.
const PAUSE: Duration = Duration::from_millis(20);

/// Repeats a check until it returns a value; `None` on timeout.
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

/// Binds a port that another socket of this process has just released. Between fork and exec, a program that
/// another test starts holds a copy of every socket, so the port may still be in use for that time.
pub fn bound<T>(mut bind: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let taken = |error: &io::Error| error.kind() == io::ErrorKind::AddrInUse;
    let tried = until(Duration::from_secs(2), || {
        Some(bind()).filter(|tried| !tried.as_ref().is_err_and(taken))
    });
    tried.unwrap_or_else(bind)
}

/// Environment variable for the agents of tests: milliseconds for which the sentinel must be unchanged before
/// failed probes count. Only debug builds read it; without it the time is 10 s, as in released builds.
pub const SETTLED: &str = "PATHPROOF_TEST_SETTLED_MS";

/// Environment variable for the agents of tests: milliseconds after a boot or a change of the sentinel in
/// which a declared datapath may be missing. Only debug builds read it.
pub const BOOT: &str = "PATHPROOF_TEST_BOOT_MS";

/// Time after a change of the sentinel until a test's agent counts failed probes again, plus a second.
pub fn settled() -> Duration {
    let said = std::env::var(SETTLED).ok();
    let wait = said.and_then(|text| text.parse().ok()).unwrap_or(10_000);
    Duration::from_millis(wait) + Duration::from_secs(1)
}

/// Sleeps until failed probes certainly count.
pub fn settle() {
    thread::sleep(settled());
}

/// A time limit that suits this machine. `PATHPROOF_TEST_PATIENCE` is the machine's slowness relative to a
/// normal one, for example because its processor is emulated.
pub fn scaled(limit: Duration) -> Duration {
    limit * slowness()
}

/// The factor of [`scaled`]: 1 on a normal machine.
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
