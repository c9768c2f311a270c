//! Loads the checked-in object (docs/adr/0001-checked-in-object.md), on the maps that a former
//! agent pinned where there are any.

use std::error::Error as _;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io;

use agent_common::abi::{SEED, map, program};
use aya::programs::{ProgramError, SchedClassifier};
use aya::{Ebpf, EbpfError, EbpfLoader};
use thiserror::Error;

use super::pins::Pins;

/// The object, aligned for aya's ELF reader.
pub static OBJECT: &[u8] =
    aya::include_bytes_aligned!(concat!(env!("CARGO_MANIFEST_DIR"), "/ebpf/pathproof.bpf.o"));

/// Why the observer could not be loaded.
#[derive(Debug, Error)]
pub enum LoadError {
    /// The kernel refused for lack of privileges.
    #[error(
        "the kernel refused the observer for lack of privileges ({}): run as root, or as uid 0 with CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON and CAP_NET_RAW (docs/capabilities.md)",
        chain(source)
    )]
    Permission {
        /// What the kernel said.
        source: EbpfError,
    },
    /// The kernel lacks something.
    #[error(
        "the kernel refused the observer ({}): it needs Linux 5.12 or newer with CONFIG_BPF_SYSCALL and CONFIG_NET_CLS_ACT",
        chain(source)
    )]
    Kernel {
        /// What the kernel said.
        source: EbpfError,
    },
    /// The object does not hold what this agent was built for.
    #[error("the eBPF object has no {kind} {name}: run cargo xtask build-ebpf")]
    Missing {
        /// `program` or `map`.
        kind: &'static str,
        /// Its name.
        name: &'static str,
    },
}

impl LoadError {
    fn of(source: EbpfError) -> Self {
        match permission_denied(&source) {
            true => Self::Permission { source },
            false => Self::Kernel { source },
        }
    }

    /// Whether more privileges would help.
    pub fn is_permission(&self) -> bool {
        matches!(self, Self::Permission { .. })
    }
}

/// The programs that are attached; `program::EMPTY` is for benchmarks.
pub const ATTACHED: [&str; 4] = [
    program::INGRESS,
    program::EGRESS,
    program::INGRESS_L3,
    program::EGRESS_L3,
];

/// The sentinel's programs, loaded by [`load_sentinel`] alone.
pub const SENTINEL: [&str; 5] = [
    program::ARRIVED,
    program::TRANSLATED,
    program::RETURNED,
    program::ECHO,
    program::COLLECT,
];

/// Loads maps and programs. With `pins`, maps are found there or pinned there.
pub fn load(pins: Option<&Pins>) -> Result<Ebpf, LoadError> {
    load_with(pins, &[])
}

/// As [`load`], with other capacities for the maps that `capacities` names: what happens when a
/// map is full is tested with small ones.
pub fn load_with(
    pins: Option<&Pins>,
    capacities: &[(&'static str, u32)],
) -> Result<Ebpf, LoadError> {
    let mut ebpf = match create(pins, capacities) {
        // Maps that cannot be used are a former agent's of a layout that lied about its version,
        // or half-made by a crash: counting begins anew rather than not at all.
        Err(error) if pins.is_some() && !permission_denied(&error) => {
            // Only if it is the maps: where the kernel refuses fresh ones as well, it is not.
            drop(create(None, capacities).map_err(LoadError::of)?);
            tracing::warn!(%error, "pinned maps could not be used; they are made anew");
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

/// Loads the sentinel's programs; those that are loaded already stay. They are not loaded with the
/// observer: a kernel that refuses these has its use of that.
pub fn load_sentinel(ebpf: &mut Ebpf) -> Result<(), LoadError> {
    for name in SENTINEL {
        let classifier = classifier(ebpf, name)?;
        if classifier.fd().is_ok() {
            continue;
        }
        verify(classifier)?;
    }
    Ok(())
}

/// How often a load is begun anew that a signal interrupted.
const INTERRUPTED: usize = 20;

/// Hands a program to the verifier.
fn verify(classifier: &mut SchedClassifier) -> Result<(), LoadError> {
    insist(|| classifier.load()).map_err(|error| LoadError::of(EbpfError::ProgramError(error)))
}

/// Loads a program, and begins anew where a signal interrupts that: the verifier stops with EAGAIN
/// as soon as one waits for this thread (`bpf_check`, kernel/bpf/verifier.c), which says nothing of
/// the program.
pub(super) fn insist(
    mut load: impl FnMut() -> Result<(), ProgramError>,
) -> Result<(), ProgramError> {
    for _ in 0..INTERRUPTED {
        match load() {
            Err(ProgramError::LoadError { io_error, .. })
                if io_error.raw_os_error() == Some(libc::EAGAIN) => {}
            other => return other,
        }
    }
    load()
}

fn create(pins: Option<&Pins>, capacities: &[(&'static str, u32)]) -> Result<Ebpf, EbpfError> {
    let paths: Vec<_> = pins
        .map(|pins| {
            map::PINNED
                .iter()
                .map(|name| (*name, pins.map(name)))
                .collect()
        })
        .unwrap_or_default();
    let level = log_level();
    let seed = RandomState::new().build_hasher().finish();
    let mut loader = EbpfLoader::new();
    // Nothing in the object is relocated against the kernel's types: they need not be kept.
    loader.btf(None);
    for (name, path) in &paths {
        loader.map_pin_path(name, path.as_path());
    }
    for (name, entries) in capacities {
        loader.map_max_entries(name, *entries);
    }
    // The programs' own diagnostics stay silent, and the verifier cuts them out, unless asked for.
    loader.override_global(aya_log::LEVEL, &level, false);
    loader.override_global(SEED, &seed, true);
    loader.load(OBJECT)
}

/// Level of the programs' own diagnostics: none, or what PATHPROOF_EBPF_LOG names (1 error to 5
/// trace), for developers.
fn log_level() -> u8 {
    std::env::var("PATHPROOF_EBPF_LOG")
        .ok()
        .and_then(|level| level.parse().ok())
        .unwrap_or(0)
}

/// Reads what the programs said into the log, each time it is called; nothing unless they were told
/// to speak.
pub fn diagnostics(ebpf: &mut Ebpf) -> Option<Box<dyn FnMut() + Send>> {
    if log_level() == 0 {
        return None;
    }
    match aya_log::EbpfLogger::init(ebpf) {
        Ok(mut logger) => Some(Box::new(move || logger.flush())),
        Err(error) => {
            tracing::warn!(%error, "the programs' own diagnostics cannot be read");
            None
        }
    }
}

/// A classifier of the object by name.
pub fn classifier<'a>(
    ebpf: &'a mut Ebpf,
    name: &'static str,
) -> Result<&'a mut SchedClassifier, LoadError> {
    ebpf.program_mut(name)
        .and_then(|program| program.try_into().ok())
        .ok_or(LoadError::Missing {
            kind: "program",
            name,
        })
}

/// Whether more privileges would help. `EPERM` says so. `EACCES` is the verifier's word for every
/// refusal; without CAP_PERFMON it refuses the arithmetic with pointers that reading packets takes,
/// in words that depend on where it meets it first.
pub fn permission_denied(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut cause = Some(error);
    std::iter::from_fn(|| {
        let current = cause?;
        cause = current.source();
        Some(current)
    })
    .filter_map(|error| match error.downcast_ref::<ProgramError>() {
        Some(ProgramError::LoadError { io_error, .. }) => Some((io_error, true)),
        _ => error
            .downcast_ref::<io::Error>()
            .map(|error| (error, false)),
    })
    .any(|(error, verifier)| match error.raw_os_error() {
        Some(libc::EPERM) => true,
        Some(libc::EACCES) => verifier && !is_trusted(),
        _ => false,
    })
}

/// Whether this process has CAP_PERFMON, or CAP_SYS_ADMIN, which includes it. Where that cannot be
/// told, privileges are not what is blamed.
fn is_trusted() -> bool {
    const TRUSTED: u64 = 1 << 38 | 1 << 21;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    effective.is_none_or(|mask| mask & TRUSTED != 0)
}

/// Lines of the verifier's log that are repeated: the last ones tell why.
const LOG_LINES: usize = 4;

/// An error and its causes in one line.
pub fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.contains(&next) {
            text = format!("{text}: {next}");
        }
        cause = error.source();
    }
    shortened(text)
}

/// A verifier's log can be megabytes long.
fn shortened(text: String) -> String {
    let lines: Vec<_> = text.lines().collect();
    if lines.len() <= LOG_LINES + 1 {
        return text;
    }
    format!(
        "{} ... {}",
        lines[0],
        lines[lines.len() - LOG_LINES..].join(" | ")
    )
}

/// What the observer was loaded with, for status and the log.
pub fn describe(error: &LoadError) -> String {
    match error.source() {
        Some(_) => chain(error),
        None => error.to_string(),
    }
}
