//! Ctrl-C and SIGTERM end the demo in order: a flag that every wait looks at, so that the values
//! that clean up are dropped.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, bail};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn note(_signal: i32) {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// Begins to catch the signals.
pub(super) fn catch() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler only stores to an atomic, which is async-signal-safe; the cast is
        // the form that sigaction's handler field has in libc.
        unsafe { libc::signal(signal, note as extern "C" fn(i32) as libc::sighandler_t) };
    }
}

/// Whether one came.
pub(super) fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// An error where one came.
pub(super) fn check() -> Result<()> {
    if interrupted() {
        bail!("by a signal");
    }
    Ok(())
}
