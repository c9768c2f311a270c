//! What the kernel asks of those who use maps that are open already. Before Linux 5.19 bpf(2) as a
//! whole wants CAP_BPF where kernel.unprivileged_bpf_disabled is set, which is usual; since then
//! only bringing something in does. Distributions carry the change back, so it is tried.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

use super::syscall::{read_scratch, scratch_map};

/// A map of no meaning.
#[derive(Debug)]
pub struct ScratchMap(OwnedFd);

impl ScratchMap {
    /// Makes it.
    ///
    /// # Errors
    /// The kernel refused: for lack of CAP_BPF, as a rule.
    pub fn create() -> io::Result<Self> {
        scratch_map().map(Self)
    }

    /// Whether this thread may read it.
    pub fn is_readable(&self) -> bool {
        read_scratch(self.0.as_fd()).is_ok()
    }
}
