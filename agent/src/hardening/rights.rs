//! Capabilities of this thread, and of those that it will start.

use caps::errors::CapsError;
use caps::{CapSet, Capability, CapsHashSet};

use super::failed;

/// No program that this process starts has more rights than it, whatever its file says.
///
/// # Errors
/// What the kernel said.
pub(super) fn no_new_privileges() -> std::io::Result<()> {
    // SAFETY: takes numbers alone.
    failed(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })
}

/// Keeps those of `wanted` that this thread has, and no other, in any set. The bounding set is
/// emptied where that is allowed (CAP_SETPCAP); where it is not, a container's own holds.
///
/// # Errors
/// What the kernel said.
pub(super) fn keep(wanted: &[Capability]) -> Result<(), CapsError> {
    if caps::has_cap(None, CapSet::Effective, Capability::CAP_SETPCAP)? {
        caps::clear(None, CapSet::Bounding)?;
    }
    // Kernels before 4.3 have none; what is not permitted leaves this set by itself anyway.
    let _ = caps::clear(None, CapSet::Ambient);
    let wanted: CapsHashSet = wanted.iter().copied().collect();
    for set in [CapSet::Effective, CapSet::Permitted] {
        let held = caps::read(None, set)?;
        let kept = held.intersection(&wanted).copied().collect();
        caps::set(None, set, &kept)?;
    }
    caps::clear(None, CapSet::Inheritable)
}

/// Names of the capabilities that this thread has, sorted.
pub(super) fn held() -> Vec<String> {
    let held = caps::read(None, CapSet::Permitted).unwrap_or_default();
    let mut names: Vec<_> = held.iter().map(ToString::to_string).collect();
    names.sort_unstable();
    names
}

/// Whether `act` succeeds without these capabilities, which this thread has again afterwards.
/// Where that cannot be tried it is taken to fail.
pub fn can_without(these: &[Capability], act: impl FnOnce() -> bool) -> bool {
    let Ok(before) = caps::read(None, CapSet::Effective) else {
        return false;
    };
    let less = before.iter().copied().filter(|one| !these.contains(one));
    if caps::set(None, CapSet::Effective, &less.collect()).is_err() {
        return false;
    }
    let done = act();
    // Never refused: they were not given up, and what is permitted may be taken up.
    let restored = caps::set(None, CapSet::Effective, &before);
    done && restored.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In a thread of its own: the others keep what they have.
    fn apart<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> T {
        std::thread::spawn(act).join().unwrap()
    }

    #[test]
    fn nothing_is_gained() {
        let before = caps::read(None, CapSet::Permitted).unwrap();
        let after = apart(|| {
            keep(&[Capability::CAP_NET_ADMIN]).unwrap();
            caps::read(None, CapSet::Permitted).unwrap()
        });
        let wanted = CapsHashSet::from([Capability::CAP_NET_ADMIN]);
        assert_eq!(after, before.intersection(&wanted).copied().collect());
        let here = caps::read(None, CapSet::Permitted).unwrap();
        assert_eq!(here, before, "this thread is none of its business");
    }

    #[test]
    fn what_is_tried_without_is_had_again() {
        let before = caps::read(None, CapSet::Effective).unwrap();
        let all: Vec<_> = before.iter().copied().collect();
        for succeeds in [true, false] {
            let act = || {
                let now = caps::read(None, CapSet::Effective).unwrap();
                assert!(now.is_empty(), "{now:?}");
                succeeds
            };
            assert_eq!(can_without(&all, act), succeeds);
            assert_eq!(caps::read(None, CapSet::Effective).unwrap(), before);
        }
    }
}
