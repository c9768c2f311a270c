//! Waiting: one `ppoll` for everything the prober waits for, and the descriptor that wakes it.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::time::Duration;

/// An event descriptor: readable from [`raise`](Self::raise) to [`lower`](Self::lower).
#[derive(Debug)]
pub(super) struct Wake(OwnedFd);

impl Wake {
    pub(super) fn new() -> io::Result<Self> {
        // SAFETY: eventfd takes numbers only.
        match unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) } {
            -1 => Err(io::Error::last_os_error()),
            // SAFETY: the descriptor is new and nobody else's.
            fd => Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) })),
        }
    }

    pub(super) fn raise(&self) {
        let one = 1_u64;
        // SAFETY: eight bytes of a live u64. It fails only where the counter is full, which is as
        // readable as can be.
        unsafe {
            libc::write(
                self.0.as_raw_fd(),
                (&raw const one).cast(),
                size_of::<u64>(),
            )
        };
    }

    pub(super) fn lower(&self) {
        let mut count = 0_u64;
        // SAFETY: eight bytes of a live u64. It fails only where nothing was raised.
        unsafe {
            libc::read(
                self.0.as_raw_fd(),
                (&raw mut count).cast(),
                size_of::<u64>(),
            )
        };
    }
}

impl AsRawFd for Wake {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// A descriptor and whether it is waited for to be writable rather than readable.
pub(super) type Waiting = (RawFd, bool);

/// At most this many descriptors: events, wake, and one socket for each family.
const MOST: usize = 8;

/// Waits until one of the descriptors is ready, `wait` is over or a signal came; without `wait`
/// for as long as it takes.
pub(super) fn poll(
    readable: &[RawFd],
    sockets: &[Option<Waiting>],
    wait: Option<Duration>,
) -> io::Result<()> {
    let mut fds = [libc::pollfd {
        fd: -1, // passed over
        events: 0,
        revents: 0,
    }; MOST];
    let all = readable
        .iter()
        .map(|fd| (*fd, false))
        .chain(sockets.iter().flatten().copied());
    for (slot, (fd, writable)) in fds.iter_mut().zip(all) {
        slot.fd = fd;
        slot.events = if writable {
            libc::POLLOUT
        } else {
            libc::POLLIN
        };
    }
    let wait = wait.map(|wait| libc::timespec {
        tv_sec: libc::time_t::try_from(wait.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: wait.subsec_nanos().into(),
    });
    let wait = wait.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: the array and the time live through the call; no signal mask is given.
    let ready = unsafe { libc::ppoll(fds.as_mut_ptr(), MOST as libc::nfds_t, wait, ptr::null()) };
    if ready >= 0 {
        return Ok(());
    }
    match io::Error::last_os_error() {
        error if error.kind() == io::ErrorKind::Interrupted => Ok(()),
        error => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raised_is_readable_until_lowered() {
        let wake = Wake::new().unwrap();
        wake.raise();
        wake.raise();
        poll(&[wake.as_raw_fd()], &[], None).unwrap();
        wake.lower();
        wake.lower();
        // Returns by its time, not by the descriptor.
        poll(&[wake.as_raw_fd()], &[], Some(Duration::ZERO)).unwrap();
    }
}
