//! Limits of the process that are raised at start.

use std::io;

/// Raises the number of files that may be open to the most that is allowed without privileges,
/// and says how many that is. Shells set it to 1,024, which is fewer than the connections that a
/// health port must bear.
///
/// # Errors
/// What the kernel said; the old limit stays.
pub fn raise_open_files() -> io::Result<u64> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the pointer is to a local that outlives the call, which writes no more than it.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    if limit.rlim_cur < limit.rlim_max {
        limit.rlim_cur = limit.rlim_max;
        // SAFETY: the pointer is to a local that outlives the call, which only reads it.
        if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(limit.rlim_cur)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_limit_can_be_raised_again_and_again() {
        let first = super::raise_open_files().unwrap();
        assert_eq!(super::raise_open_files().unwrap(), first);
    }
}
