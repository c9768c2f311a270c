//! The allocator's settings: a node agent's memory is charged to every node of the cluster, and a
//! large view is read once and freed.

/// Settings that glibc would otherwise adapt to the largest allocation ever made, and one arena for
/// the few threads there are. Other C libraries give memory back by themselves.
pub fn keep_small() {
    #[cfg(target_env = "gnu")]
    // SAFETY: two parameters of the allocator, set before there is a second thread.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 128 * 1024);
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

/// Gives freed memory back to the kernel; some milliseconds at scale, so only after a large change.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes a number and touches free memory alone.
    unsafe {
        libc::malloc_trim(0);
    }
}
