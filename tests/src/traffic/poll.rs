//! poll(2) on a list of sockets.

use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

/// What to wait for, and what came.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(super) struct Interest(libc::pollfd);

impl Interest {
    pub(super) fn read(fd: RawFd) -> Self {
        Self(libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        })
    }

    pub(super) fn write(fd: RawFd) -> Self {
        Self(libc::pollfd {
            fd,
            events: libc::POLLOUT,
            revents: 0,
        })
    }

    /// Whether anything came: readiness, an error or a hang-up.
    pub(super) fn came(&self) -> bool {
        self.0.revents != 0
    }
}

/// Waits until one of them is ready, at most `timeout` (rounded up to a millisecond).
pub(super) fn wait(interests: &mut [Interest], timeout: Duration) -> io::Result<()> {
    let count = libc::nfds_t::try_from(interests.len()).map_err(io::Error::other)?;
    let millis = i32::try_from(timeout.as_micros().div_ceil(1000)).unwrap_or(i32::MAX);
    // SAFETY: `Interest` is a transparent pollfd; the pointer and the count are the slice's.
    let result = unsafe { libc::poll(interests.as_mut_ptr().cast(), count, millis) };
    let error = io::Error::last_os_error();
    if result < 0 && error.kind() != io::ErrorKind::Interrupted {
        Err(error)
    } else {
        Ok(())
    }
}
