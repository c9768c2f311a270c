//! The only reader of clocks. Everything else takes `now` as an argument.

use agent_core::time::{Mono, Wall};

/// `CLOCK_MONOTONIC`, the clock of `bpf_ktime_get_ns`.
pub fn mono() -> Mono {
    Mono(read(libc::CLOCK_MONOTONIC))
}

/// The wall clock. A time before 1970 or after 2262 reads as the nearest of the two.
pub fn wall() -> Wall {
    Wall(i64::try_from(read(libc::CLOCK_REALTIME)).unwrap_or(i64::MAX))
}

fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a valid clock and a struct of the right size; it cannot fail for these clocks.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds
        .saturating_mul(1_000_000_000)
        .saturating_add(u64::try_from(time.tv_nsec).unwrap_or(0))
}
