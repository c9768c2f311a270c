//! The sentinel's five programs at the four ends of its veth pairs, right behind the observer's.
//!
//! Never pinned: probes end with the agent that sends them, and the far ends' own settings drop what
//! reaches them then. Devices are not made here, and none but the four is touched.

use std::ffi::CStr;
use std::io;
use std::sync::Arc;

use agent_common::abi::program;
use agent_common::packet::Link;
use aya::Ebpf;
use aya::programs::links::FdLink;
use thiserror::Error;

use super::attach::filter::Filter;
use super::attach::hook::{Place, no_tcx, tcx_link_behind};
use super::attach::{Direction, HookError, Mechanism, Mode};
use super::load::{LoadError, classifier, load_sentinel};
use super::syscall::programs_at;
use crate::causes::chain;

/// Interface indexes of the ends of the two pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeEnds {
    /// Where probes come into the node.
    pub client_near: u32,
    /// Where they are sent, and answers collected.
    pub client_far: u32,
    /// Where they leave for the echo.
    pub server_near: u32,
    /// Where the echo is.
    pub server_far: u32,
}

impl ProbeEnds {
    /// Every program with its device and direction. The far ends first: an answer that finds
    /// nobody to collect it would be the node's own.
    fn places(&self) -> [(&'static str, u32, Direction); 5] {
        [
            (program::COLLECT, self.client_far, Direction::Ingress),
            (program::ECHO, self.server_far, Direction::Ingress),
            (program::RETURNED, self.server_near, Direction::Ingress),
            (program::TRANSLATED, self.server_near, Direction::Egress),
            (program::ARRIVED, self.client_near, Direction::Ingress),
        ]
    }
}

/// Why the sentinel's programs do not stand.
#[derive(Debug, Error)]
pub enum ProbeHooksError {
    /// They could not be loaded: the observer is not concerned.
    #[error("the sentinel's programs cannot be loaded: {0}")]
    Load(Arc<LoadError>),
    /// No such device.
    #[error("the sentinel's device with index {index} cannot be found: {source}")]
    Device {
        /// Its interface index.
        index: u32,
        /// Why not.
        source: io::Error,
    },
    /// The kernel refused.
    #[error("cannot attach {program} to {device}: {}", chain(source))]
    Attach {
        /// Name of the program.
        program: &'static str,
        /// Name of the device.
        device: String,
        /// What the kernel said.
        source: HookError,
    },
}

impl From<LoadError> for ProbeHooksError {
    fn from(error: LoadError) -> Self {
        Self::Load(Arc::new(error))
    }
}

/// The five programs, attached. Dropped, they are detached.
pub struct ProbeHooks {
    hooks: Vec<ProbeHook>,
}

struct ProbeHook {
    id: u32,
    index: u32,
    direction: Direction,
    held: Held,
}

/// Dropped, either detaches its program.
enum Held {
    Tcx { _link: FdLink },
    Clsact(Filter),
}

impl ProbeHooks {
    /// Loads the programs, if they are not, and attaches all five or none.
    pub fn attach(ebpf: &mut Ebpf, ends: &ProbeEnds, mode: Mode) -> Result<Self, ProbeHooksError> {
        load_sentinel(ebpf)?;
        let hooks = ends
            .places()
            .into_iter()
            .map(|(program, index, direction)| {
                ProbeHook::attach(ebpf, program, index, direction, mode)
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { hooks })
    }

    /// How they are attached.
    pub fn mechanism(&self) -> Mechanism {
        match self.hooks.first().map(|hook| &hook.held) {
            Some(Held::Clsact(_)) => Mechanism::Clsact,
            _ => Mechanism::Tcx,
        }
    }

    /// Whether all five still stand. Where one does not, drop these and attach anew.
    pub fn stand(&self) -> bool {
        self.hooks.iter().all(ProbeHook::stands)
    }
}

impl ProbeHook {
    fn attach(
        ebpf: &mut Ebpf,
        program: &'static str,
        index: u32,
        direction: Direction,
        mode: Mode,
    ) -> Result<Self, ProbeHooksError> {
        let device = name_of(index).map_err(|source| ProbeHooksError::Device { index, source })?;
        // The observer is not at the far ends.
        let observer = classifier(ebpf, direction.program(Link::Ethernet))?.info();
        let observer = observer.ok().map(|info| info.id());
        let classifier = classifier(ebpf, program)?;
        let filter = |classifier: &mut _| {
            Filter::attach(classifier, (index, &device), direction, &Place::BEHIND)
                .map(Held::Clsact)
        };
        let held = match mode {
            Mode::Clsact => filter(classifier),
            Mode::Tcx | Mode::Auto => {
                match tcx_link_behind(classifier, &device, direction, observer) {
                    Err(error) if mode == Mode::Auto && no_tcx(&error) => filter(classifier),
                    other => other.map(|link| Held::Tcx { _link: link }),
                }
            }
        };
        held.and_then(|held| Ok((held, classifier.info().map_err(HookError::from)?.id())))
            .map(|(held, id)| Self {
                id,
                index,
                direction,
                held,
            })
            .map_err(|source| ProbeHooksError::Attach {
                program,
                device,
                source,
            })
    }

    /// Where the kernel does not tell, it is taken to stand.
    fn stands(&self) -> bool {
        match &self.held {
            Held::Tcx { .. } => programs_at(self.index, self.direction.tcx())
                .is_ok_and(|programs| programs.contains(&self.id)),
            Held::Clsact(filter) => filter.stands() != Some(false),
        }
    }
}

/// Name of a device now: aya attaches by name.
fn name_of(index: u32) -> io::Result<String> {
    let mut name = [0; libc::IF_NAMESIZE];
    // SAFETY: the buffer has the length that the call asks for.
    if unsafe { libc::if_indextoname(index, name.as_mut_ptr()) }.is_null() {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call ended what it wrote with NUL.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) };
    Ok(name.to_string_lossy().into_owned())
}
