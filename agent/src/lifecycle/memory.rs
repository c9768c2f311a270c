//! What the process keeps of its memory: a large view is read once, and most of what that took is
//! free afterwards (docs/adr/0025-plain-builds.md has the figures).

/// Returns freed memory to the kernel; some milliseconds at scale, so only after a large change.
/// Other C libraries than glibc do so by themselves.
pub(crate) fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes a number and touches free memory alone.
    unsafe {
        libc::malloc_trim(0);
    }
}
