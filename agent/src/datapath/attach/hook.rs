//! One program at one direction of one device: a TCX link, pinned where that is possible, or a
//! clsact filter.

use std::path::{Path, PathBuf};
use std::time::Duration;

use agent_common::abi::program;
use agent_common::packet::Link;
use aya::Ebpf;
use aya::pin::PinError;
use aya::programs::links::{FdLink, LinkError, LinkOrder, PinnedLink};
use aya::programs::tc::{SchedClassifierLink, TcAttachOptions, TcError};
use aya::programs::{ProgramError, ProgramId, SchedClassifier, TcAttachType};
use thiserror::Error;

use super::filter::Filter;
use super::{AttachError, Mode};
use crate::datapath::devices::Device;
use crate::datapath::load::classifier;
use crate::datapath::pins::Pins;
use crate::datapath::syscall::{BPF_TCX_EGRESS, BPF_TCX_INGRESS, programs_at};

/// Which way packets cross the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Into the node.
    Ingress,
    /// Out of the node.
    Egress,
}

impl Direction {
    /// Both, in the order of an attachment's hooks.
    pub const BOTH: [Direction; 2] = [Direction::Ingress, Direction::Egress];

    fn name(self) -> &'static str {
        match self {
            Direction::Ingress => "ingress",
            Direction::Egress => "egress",
        }
    }

    pub(in crate::datapath) fn program(self, link: Link) -> &'static str {
        match (self, link) {
            (Direction::Ingress, Link::Ethernet) => program::INGRESS,
            (Direction::Egress, Link::Ethernet) => program::EGRESS,
            (Direction::Ingress, Link::None) => program::INGRESS_L3,
            (Direction::Egress, Link::None) => program::EGRESS_L3,
        }
    }

    pub(super) fn attach_type(self) -> TcAttachType {
        match self {
            Direction::Ingress => TcAttachType::Ingress,
            Direction::Egress => TcAttachType::Egress,
        }
    }

    /// What filters of the clsact qdisc hang at (linux/pkt_sched.h).
    pub(super) fn parent(self) -> u32 {
        match self {
            Direction::Ingress => 0xffff_fff2,
            Direction::Egress => 0xffff_fff3,
        }
    }

    /// The attach type as `bpf(2)` knows it.
    pub(in crate::datapath) fn tcx(self) -> u32 {
        match self {
            Direction::Ingress => BPF_TCX_INGRESS,
            Direction::Egress => BPF_TCX_EGRESS,
        }
    }
}

/// How a program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mechanism {
    /// A TCX link (kernel 6.6).
    Tcx,
    /// A filter of the clsact qdisc.
    Clsact,
}

/// What the kernel or the file system refused.
#[derive(Debug, Error)]
pub enum HookError {
    /// An attach, detach or lookup of a program.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// A qdisc or filter.
    #[error(transparent)]
    Tc(#[from] TcError),
    /// A link.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// A pin.
    #[error(transparent)]
    Pin(#[from] PinError),
}

/// Where one of our programs stands among others, and how a former agent's filter of the same kind is
/// found again.
pub(in crate::datapath) struct Place {
    /// Among TCX links.
    order: fn() -> LinkOrder,
    /// The filter's handle.
    pub(super) handle: u32,
    /// The filter's priority.
    pub(super) priority: u16,
}

impl Place {
    /// The observer's: before every other program. Cilium can be told to leave priority 1 free
    /// (`bpf-filter-priority`).
    const FIRST: Self = Self {
        order: LinkOrder::first,
        handle: 0x7070,
        priority: 1,
    };
    /// The sentinel's: behind the observer's. As links they stand right behind it, before whatever
    /// else was attached to these devices: Cilium's programs end the chain.
    pub(in crate::datapath) const BEHIND: Self = Self {
        order: LinkOrder::first,
        handle: 0x7071,
        priority: 0xfff0,
    };
}

/// An attached program. Dropped, a link that is not pinned is detached by the kernel.
pub(super) struct Hook {
    direction: Direction,
    program: u32,
    held: Held,
}

enum Held {
    Tcx { _link: FdLink, pin: Option<PathBuf> },
    Clsact(Filter),
}

impl Hook {
    /// Attaches, or takes over what a former agent left.
    pub(super) fn attach(
        ebpf: &mut Ebpf,
        device: &Device,
        direction: Direction,
        mode: Mode,
        pins: Option<&Pins>,
    ) -> Result<Self, AttachError> {
        let classifier = classifier(ebpf, direction.program(device.link))?;
        let pin = pins.map(|pins| pins.link(device.index, direction.name()));
        let attached = match mode {
            Mode::Clsact => {
                if let Some(pin) = &pin {
                    // A former agent's TCX link would look at every packet a second time.
                    let _ = std::fs::remove_file(pin);
                }
                held_filter(classifier, device, direction)
            }
            Mode::Tcx => tcx(classifier, device, direction, pin),
            Mode::Auto => match tcx(classifier, device, direction, pin) {
                Err(error) if no_tcx(&error) => held_filter(classifier, device, direction),
                other => other,
            },
        };
        attached
            .and_then(|held| {
                Ok(Self {
                    direction,
                    program: classifier.info()?.id(),
                    held,
                })
            })
            .map_err(|source| AttachError::Hook {
                device: device.name.clone(),
                direction,
                source,
            })
    }

    /// How it is attached.
    pub(super) fn mechanism(&self) -> Mechanism {
        match self.held {
            Held::Tcx { .. } => Mechanism::Tcx,
            Held::Clsact(_) => Mechanism::Clsact,
        }
    }

    /// Whether it stands, before all others; nothing where the kernel does not tell.
    pub(super) fn is_first(&self, device: &Device) -> Option<bool> {
        match &self.held {
            Held::Tcx { .. } => {
                let programs = programs_at(device.index, self.direction.tcx()).ok()?;
                Some(programs.first() == Some(&self.program))
            }
            Held::Clsact(filter) => filter.stands(),
        }
    }

    /// Whether somebody removed the pin, so that the link would end with this process.
    pub(super) fn lost_its_pin(&self) -> bool {
        matches!(&self.held, Held::Tcx { pin: Some(pin), .. } if !pin.exists())
    }

    /// Gives up what the next attach would find, so that it makes a link of its own at the head.
    pub(super) fn let_go(&mut self) {
        if let Held::Tcx { pin: Some(pin), .. } = &mut self.held {
            let _ = std::fs::remove_file(pin);
        }
    }
}

/// TCX is there since kernel 6.6; before, the kernel does not know the attach type.
pub(in crate::datapath) fn no_tcx(error: &HookError) -> bool {
    match error {
        HookError::Program(ProgramError::SyscallError(error)) => {
            error.io_error.raw_os_error() == Some(libc::EINVAL)
        }
        _ => false,
    }
}

fn tcx(
    classifier: &mut SchedClassifier,
    device: &Device,
    direction: Direction,
    pin: Option<PathBuf>,
) -> Result<Held, HookError> {
    if let Some(pin) = &pin
        && let Some(link) = adopt(classifier, pin)
    {
        return Ok(Held::Tcx {
            _link: link,
            pin: Some(pin.clone()),
        });
    }
    let link = tcx_link(classifier, &device.name, direction, Place::FIRST.order)?;
    match pin {
        None => Ok(Held::Tcx {
            _link: link,
            pin: None,
        }),
        Some(pin) => {
            // Somebody's clean-up may have taken the folder away: a device that is observed and not
            // pinned is better than one that is neither.
            if let Some(folder) = pin.parent() {
                let _ = std::fs::create_dir_all(folder);
            }
            let pinned = link.pin(&pin)?;
            Ok(Held::Tcx {
                _link: pinned.into(),
                pin: Some(pin),
            })
        }
    }
}

/// A link that was let go may stand a moment longer, until the kernel has put its last reference
/// (a pin's inode, a child between fork and exec): the same program is then refused as there already.
const LET_GO: (u32, Duration) = (20, Duration::from_millis(5));

/// A new TCX link behind the program `observer`, or at the head where that does not stand there.
pub(in crate::datapath) fn tcx_link_behind(
    classifier: &mut SchedClassifier,
    device: &str,
    direction: Direction,
    observer: Option<u32>,
) -> Result<FdLink, HookError> {
    let behind = observer.map(|id| {
        tcx_link(classifier, device, direction, || {
            // SAFETY: the id is that of a program that is loaded, and the kernel checks it.
            LinkOrder::after_program_id(unsafe { ProgramId::new(id) })
        })
    });
    match behind {
        Some(Ok(link)) => Ok(link),
        _ => tcx_link(classifier, device, direction, Place::BEHIND.order),
    }
}

/// A new TCX link.
pub(in crate::datapath) fn tcx_link(
    classifier: &mut SchedClassifier,
    device: &str,
    direction: Direction,
    order: impl Fn() -> LinkOrder,
) -> Result<FdLink, HookError> {
    let (mut tries, pause) = LET_GO;
    loop {
        let options = TcAttachOptions::TcxOrder(order());
        match classifier.attach_with_options(device, direction.attach_type(), options) {
            Err(ProgramError::SyscallError(error))
                if error.io_error.raw_os_error() == Some(libc::EEXIST) && tries > 0 =>
            {
                tries -= 1;
                std::thread::sleep(pause);
            }
            other => return Ok(classifier.take_link(other?)?.try_into()?),
        }
    }
}

/// Takes over a pinned link: its program is replaced by ours in one step. A link whose device is
/// gone answers ENOLINK, also when a device of the same index is back: it is unpinned, and the
/// caller attaches anew (finding 22).
fn adopt(classifier: &mut SchedClassifier, pin: &Path) -> Option<FdLink> {
    let found = PinnedLink::from_pin(pin).ok()?;
    let adopted = SchedClassifierLink::try_from(FdLink::from(found))
        .map_err(HookError::from)
        .and_then(|link| {
            let id = classifier.attach_to_link(link)?;
            Ok(FdLink::try_from(classifier.take_link(id)?)?)
        });
    match adopted {
        Ok(link) => Some(link),
        Err(error) => {
            tracing::debug!(pin = %pin.display(), %error, "a pinned link is dead; attaching anew");
            let _ = std::fs::remove_file(pin);
            None
        }
    }
}

fn held_filter(
    classifier: &mut SchedClassifier,
    device: &Device,
    direction: Direction,
) -> Result<Held, HookError> {
    let at = (device.index, device.name.as_str());
    Filter::attach(classifier, at, direction, &Place::FIRST).map(Held::Clsact)
}
