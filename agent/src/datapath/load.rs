//! Loads the checked-in eBPF object (docs/internal/design/building.md#checked-in-object). It reuses the maps
//! that a previous agent pinned, if any.

use std::collections::BTreeSet;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use aya::maps::{Array, Map, MapData, MapError};
use aya::programs::{Program, ProgramError, SchedClassifier};
use aya::{Ebpf, EbpfError, EbpfLoader, Pod};
use caps::{CapSet, Capability};
use nix::time::{ClockId, clock_getres};
use pathproof_shared::causes::chain;
use pathproof_shared::docs::address;
use pathproof_wire::abi::{FOLLOW_ALL, SEED, WINDOW_SHIFT, map, program};
use pathproof_wire::gate::window_shift;
use thiserror::Error;

use super::pins::Pins;

/// The object, aligned for aya's ELF reader.
pub static OBJECT: &[u8] =
    aya::include_bytes_aligned!(concat!(env!("CARGO_MANIFEST_DIR"), "/ebpf/pathproof.bpf.o"));

#[derive(Debug, Error)]
pub enum LoadError {
    #[error(
        "the kernel refused the observer for lack of privileges ({}): no capability is missing: check for a \
         user namespace, a seccomp profile, SELinux or AppArmor",
        chain(.0)
    )]
    NoPrivileges(#[source] Box<EbpfError>),
    #[error(
        "not enough memory for the observer ({}): raise the memory limit of the agent's container, or free \
         memory on the node; then restart the agent",
        chain(.0)
    )]
    NoMemory(#[source] Box<EbpfError>),
    #[error(
        "the kernel refused the observer ({}): it needs Linux 6.1 or newer with CONFIG_BPF_SYSCALL and \
         CONFIG_NET_CLS_ACT",
        chain(.0)
    )]
    OldKernel(#[source] Box<EbpfError>),
    /// The kernel would refuse the object for lack of these capabilities: without CAP_PERFMON the verifier
    /// rejects the pointer arithmetic that reading packets needs, but only after most of a minute.
    #[error(
        "the kernel does not load the observer without {0}: run as root, or as uid 0 with every capability \
         in {page}",
        page = address("docs/capabilities.md")
    )]
    Unprivileged(String),
    /// The object lacks a program or map that this agent was built for.
    #[error("the eBPF object has no {kind} {name}: run cargo xtask build-ebpf")]
    Missing {
        /// `program` or `map`.
        kind: &'static str,
        name: &'static str,
    },
}

impl LoadError {
    fn of(source: EbpfError) -> Self {
        let error: fn(Box<EbpfError>) -> Self = match &source {
            error if permission_denied(error) => Self::NoPrivileges,
            error if out_of_memory(error) => Self::NoMemory,
            _ => Self::OldKernel,
        };
        error(Box::new(source))
    }

    pub fn is_permission(&self) -> bool {
        matches!(self, Self::NoPrivileges(_) | Self::Unprivileged(_))
    }
}

#[derive(Debug, Error)]
pub enum MapsError {
    /// The map is missing in the object, or the object was not loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error("cannot {operation} the map {map}: {}", chain(&**source))]
    Refused {
        /// `open`, `read`, `sweep`, `write to`.
        operation: &'static str,
        map: &'static str,
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl MapsError {
    pub fn is_permission(&self) -> bool {
        matches!(self, Self::Load(error) if error.is_permission())
    }
}

pub(super) fn refused<E: Into<Box<dyn std::error::Error + Send + Sync>>>(
    operation: &'static str,
    map: &'static str,
) -> impl FnOnce(E) -> MapsError {
    move |source| MapsError::Refused {
        operation,
        map,
        source: source.into(),
    }
}

/// Takes a map out of the object, converted to its type.
pub(super) fn take<T: TryFrom<Map, Error = MapError>>(
    ebpf: &mut Ebpf,
    name: &'static str,
) -> Result<T, MapsError> {
    let map = ebpf.take_map(name).ok_or(missing("map", name))?;
    T::try_from(map).map_err(refused("open", name))
}

pub(super) fn missing(kind: &'static str, name: &'static str) -> LoadError {
    LoadError::Missing { kind, name }
}

pub(super) fn read<T: Pod>(
    array: &Array<MapData, T>,
    map: &'static str,
    index: u32,
) -> Result<T, MapsError> {
    array.get(&index, 0).map_err(refused("read", map))
}

pub(super) fn write<T: Pod>(
    array: &mut Array<MapData, T>,
    map: &'static str,
    index: u32,
    value: T,
) -> Result<(), MapsError> {
    let written = array.set(index, value, 0);
    written.map_err(refused("write to", map))
}

/// The programs that the agent attaches; `program::EMPTY` and `program::GLANCE` are for benchmarks.
pub const ATTACHED: [&str; 4] = [
    program::INGRESS,
    program::EGRESS,
    program::INGRESS_L3,
    program::EGRESS_L3,
];

/// The sentinel's programs, which only [`load_sentinel`] loads.
pub const SENTINEL: [&str; 5] = [
    program::ARRIVED,
    program::TRANSLATED,
    program::RETURNED,
    program::ECHO,
    program::COLLECT,
];

/// Loads maps and programs. With `pins`, reuses the maps pinned there, and pins new ones there.
pub fn load(pins: Option<&Pins>) -> Result<Ebpf, LoadError> {
    load_with(pins, &[])
}

/// Like [`load`], with other capacities for the maps in `capacities`: tests of full maps use small ones.
pub fn load_with(
    pins: Option<&Pins>,
    capacities: &[(&'static str, u32)],
) -> Result<Ebpf, LoadError> {
    check_capabilities(|one| caps::has_cap(None, CapSet::Effective, one).unwrap_or(true))?;
    let mut ebpf = match insist(|| create(pins, capacities)) {
        // Pinned maps can be unusable: their layout differs from its version number, or a crash
        // left them incomplete. Then counting restarts with new maps.
        Err(error) if pins.is_some() && !permission_denied(&error) && !out_of_memory(&error) => {
            // Give up if the kernel refuses new maps as well: then the pinned maps are not the cause.
            drop(create(None, capacities).map_err(LoadError::of)?);
            tracing::warn!(%error, "the pinned maps could not be reused; creating new ones");
            if let Some(pins) = pins {
                pins.forget_maps();
            }
            create(pins, capacities).map_err(LoadError::of)?
        }
        other => other.map_err(LoadError::of)?,
    };
    for name in ATTACHED {
        verify(classifier(&mut ebpf, name)?)?;
    }
    Ok(ebpf)
}

/// Loads those of the sentinel's programs that are not loaded yet. If the kernel refuses them, the
/// observer still works.
pub fn load_sentinel(ebpf: &mut Ebpf) -> Result<(), LoadError> {
    for name in SENTINEL {
        let classifier = classifier(ebpf, name)?;
        if classifier.fd().is_err() {
            verify(classifier)?;
        }
    }
    Ok(())
}

/// Loads a program, which runs the verifier.
fn verify(classifier: &mut SchedClassifier) -> Result<(), LoadError> {
    insist(|| classifier.load()).map_err(|error| LoadError::of(EbpfError::ProgramError(error)))
}

/// Number of retries for all maps and programs together, and the pause before a retry if memory is short.
/// They take 20 s at most, since the agent answers nobody in the meantime. An agent that stops retrying
/// observes nothing until its restart.
static TRIES: AtomicUsize = AtomicUsize::new(100);
const PAUSE: Duration = Duration::from_millis(200);

/// Retries while the kernel is out of memory: its allocations for maps and programs are charged to
/// the container, and they fail at once. Also retries if a signal interrupts the verifier, which
/// returns EAGAIN as soon as one is pending for this thread (`bpf_check`, kernel/bpf/verifier.c).
pub(super) fn insist<T, E: std::error::Error + 'static>(
    mut make: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    let one_less = |left: usize| left.checked_sub(1);
    loop {
        let error = match make() {
            Ok(made) => return Ok(made),
            Err(error) => error,
        };
        let no_memory = out_of_memory(&error);
        let interrupted = codes(&error).any(|code| code == (libc::EAGAIN, true));
        let may_try = || TRIES.fetch_update(Relaxed, Relaxed, one_less).is_ok();
        if !(no_memory || interrupted) || !may_try() {
            return Err(error);
        }
        tracing::debug!(%error, "trying again");
        if no_memory {
            std::thread::sleep(PAUSE);
        }
    }
}

fn create(pins: Option<&Pins>, capacities: &[(&'static str, u32)]) -> Result<Ebpf, EbpfError> {
    let pinned = pins.map(|pins| map::PINNED.map(|name| (name, pins.map(name))));
    let seed = RandomState::new().build_hasher().finish();
    // The coarse clock's resolution is the time between two kernel ticks.
    let tick = clock_getres(ClockId::CLOCK_MONOTONIC_COARSE);
    let tick_ns = tick.map_or(4_000_000, |tick| tick.tv_nsec().unsigned_abs());
    let window = window_shift(tick_ns);
    let follow_all = u32::from(capacities.iter().any(|(name, _)| *name == FOLLOW_ALL));
    let capacities = capacities.iter().filter(|(name, _)| *name != FOLLOW_ALL);
    let mut loader = EbpfLoader::new();
    // Nothing in the object is relocated against the kernel's types: do not keep them in memory.
    loader.btf(None);
    for (name, path) in pinned.iter().flatten() {
        loader.map_pin_path(name, path.as_path());
    }
    for (name, entries) in capacities {
        loader.map_max_entries(name, *entries);
    }
    loader.override_global(SEED, &seed, true);
    loader.override_global(WINDOW_SHIFT, &window, true);
    // Set by tests that fill maps of reduced capacity.
    loader.override_global(FOLLOW_ALL, &follow_all, true);
    loader.load(OBJECT)
}

pub(super) fn ids(ebpf: &Ebpf) -> BTreeSet<u32> {
    let id = |(_, program): (_, &Program)| Some(program.info().ok()?.id());
    ebpf.programs().filter_map(id).collect()
}

pub fn classifier<'a>(
    ebpf: &'a mut Ebpf,
    name: &'static str,
) -> Result<&'a mut SchedClassifier, LoadError> {
    program(ebpf, name)
}

pub(super) fn program<'a, T>(ebpf: &'a mut Ebpf, name: &'static str) -> Result<&'a mut T, LoadError>
where
    &'a mut T: TryFrom<&'a mut Program>,
{
    let program = ebpf.program_mut(name);
    program
        .and_then(|program| program.try_into().ok())
        .ok_or(missing("program", name))
}

type Cause<'a> = &'a (dyn std::error::Error + 'static);

fn permission_denied(error: Cause<'_>) -> bool {
    codes(error).any(|(code, _)| code == libc::EPERM)
}

/// Whether more memory would help. The verifier also returns `EFAULT` if it has no memory for one more branch
/// (`push_stack` and its callers, kernel/bpf/verifier.c); seen with 6.18.
fn out_of_memory(error: Cause<'_>) -> bool {
    codes(error).any(|code| code.0 == libc::ENOMEM || code == (libc::EFAULT, true))
}

/// The errno values among the causes, and whether each came from the verifier.
fn codes<'a>(error: Cause<'a>) -> impl Iterator<Item = (i32, bool)> + 'a {
    std::iter::successors(Some(error), |current| current.source()).filter_map(|error| {
        let (error, verifier) = match error.downcast_ref::<ProgramError>() {
            Some(ProgramError::LoadError { io_error, .. }) => (io_error, true),
            _ => (error.downcast_ref::<io::Error>()?, false),
        };
        Some((error.raw_os_error()?, verifier))
    })
}

/// Names the capabilities for loading that are missing. CAP_SYS_ADMIN includes two of them.
fn check_capabilities(has: impl Fn(Capability) -> bool) -> Result<(), LoadError> {
    use Capability::{CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON, CAP_SYS_ADMIN};
    let lacks = |one: &Capability| !has(*one) && (*one == CAP_NET_ADMIN || !has(CAP_SYS_ADMIN));
    let needed = [CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN].into_iter();
    let missing: Vec<String> = needed.filter(lacks).map(|one| one.to_string()).collect();
    match missing.is_empty() {
        true => Ok(()),
        false => Err(LoadError::Unprivileged(missing.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(code: i32) -> ProgramError {
        let io_error = io::Error::from_raw_os_error(code);
        ProgramError::SyscallError(aya::sys::SyscallError {
            call: "bpf_prog_load",
            io_error,
        })
    }

    #[test]
    fn out_of_memory_is_retried() {
        let mut answers = [libc::ENOMEM; 2].into_iter();
        insist(|| answers.next().map_or(Ok(()), |code| Err(refused(code)))).expect("loaded");
        assert!(answers.next().is_none());
        let mut tries = 0;
        let no: Result<(), _> = insist(|| {
            tries += 1;
            Err(refused(libc::E2BIG))
        });
        assert!(no.is_err() && tries == 1, "{tries} tries");
    }

    #[rstest::rstest]
    #[case(&[Capability::CAP_BPF, Capability::CAP_NET_ADMIN], "CAP_PERFMON:")]
    #[case(&[Capability::CAP_SYS_ADMIN], "CAP_NET_ADMIN:")]
    #[case(&[], "CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN:")]
    fn only_missing_capabilities_are_named(#[case] held: &[Capability], #[case] named: &str) {
        let error = check_capabilities(|one| held.contains(&one)).unwrap_err();
        let said = error.to_string();
        assert!(
            said.contains(&format!("without {named} run as root")),
            "{said}"
        );
        assert!(error.is_permission());
    }

    #[test]
    fn the_missing_resource_is_named() {
        let of = |code| LoadError::of(EbpfError::ProgramError(refused(code))).to_string();
        assert!(
            of(libc::ENOMEM).contains("memory limit"),
            "{}",
            of(libc::ENOMEM)
        );
        assert!(
            of(libc::EINVAL).contains("it needs Linux"),
            "{}",
            of(libc::EINVAL)
        );
    }
}
