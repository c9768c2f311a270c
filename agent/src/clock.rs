//! The only reader of clocks. Everything else takes `now` as an argument.

use std::time::Duration;

use jiff::Timestamp;
use nix::time::{ClockId, clock_gettime};
use pathproof_facts::time::{Mono, Wall, nanos};

/// `CLOCK_MONOTONIC`, the clock of `bpf_ktime_get_ns`.
pub fn mono() -> Mono {
    // The call cannot fail for this clock.
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from);
    Mono(nanos(time))
}

#[expect(clippy::disallowed_methods, reason = "this is where clocks are read")]
pub fn now() -> Timestamp {
    Timestamp::now()
}

/// The wall clock in nanoseconds. A time after 2262 becomes the latest that fits.
pub fn wall() -> Wall {
    Wall::of(now()).unwrap_or(Wall(i64::MAX))
}
