//! The only reader of clocks. Everything else takes `now` as an argument.

use jiff::Timestamp;
use pathproof_facts::time::{Mono, Wall};

/// `CLOCK_MONOTONIC`, the clock of `bpf_ktime_get_ns`.
pub fn mono() -> Mono {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the clock is valid, and the pointer is to a struct of the right type. The call cannot fail for
    // this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    let part = |number: i64| u64::try_from(number).unwrap_or(0);
    Mono(part(time.tv_sec) * 1_000_000_000 + part(time.tv_nsec))
}

#[expect(clippy::disallowed_methods, reason = "this is where clocks are read")]
pub fn now() -> Timestamp {
    Timestamp::now()
}

/// The wall clock in nanoseconds. A time after 2262 becomes the latest that fits.
pub fn wall() -> Wall {
    Wall::of(now()).unwrap_or(Wall(i64::MAX))
}
