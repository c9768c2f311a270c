//! One program at one direction of one device: a TCX link, pinned where that is wanted, or a filter
//! of the clsact qdisc.
//!
//! A filter is named by its place alone, which is the same for every agent: before one is deleted the
//! kernel is asked whether it is still ours, since a successor puts its own in place of it.

use std::cell::Cell;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use agent_common::abi::program;
use agent_common::packet;
use aya::pin::PinError;
use aya::programs::links::{FdLink, LinkError, LinkOrder, PinnedLink};
use aya::programs::tc::{self, NlOptions, SchedClassifierLink, TcAttachOptions, TcHandle};
use aya::programs::{ProgramError, ProgramId, SchedClassifier, TcAttachType};
use thiserror::Error;

use super::filters::{self, filters};
use super::{Mode, qdisc};
use crate::causes::chain;
use crate::datapath::load::LoadError;
use crate::datapath::syscall::{BPF_TCX_INGRESS, programs_at};

/// Direction in which packets cross the device.
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

    /// Name in the paths of pins.
    pub(super) fn name(self) -> &'static str {
        ["ingress", "egress"][self as usize]
    }

    /// The observer's program here, by what stands before packets' network header.
    pub(in crate::datapath) fn program(self, link: packet::Link) -> &'static str {
        match link {
            packet::Link::Ethernet => [program::INGRESS, program::EGRESS][self as usize],
            packet::Link::None => [program::INGRESS_L3, program::EGRESS_L3][self as usize],
        }
    }

    fn attach_type(self) -> TcAttachType {
        [TcAttachType::Ingress, TcAttachType::Egress][self as usize]
    }

    /// Parent of filters of the clsact qdisc (linux/pkt_sched.h).
    pub(super) fn parent(self) -> u32 {
        0xffff_fff2 + self as u32
    }

    /// The attach type as `bpf(2)` has it; that of egress is the next one.
    pub(in crate::datapath) fn tcx(self) -> u32 {
        BPF_TCX_INGRESS + self as u32
    }
}

/// Mechanism by which a program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mechanism {
    /// A TCX link (kernel 6.6).
    Tcx,
    /// A filter of the clsact qdisc.
    Clsact,
}

/// Operation that the kernel or the file system refused.
#[derive(Debug, Error)]
pub enum HookError {
    /// The object lacks the program.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// An attach, detach or lookup of a program.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// A link.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// A pin.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// The qdisc that has the filters cannot be read.
    #[error("cannot read the interface's qdisc: {0}")]
    Qdisc(io::Error),
    /// The place of clsact is taken. What is added as an egress filter would become an ingress filter.
    #[error(
        "another program added a qdisc of kind {0}, which has no egress filters, in the place of \
         clsact"
    )]
    OtherQdisc(String),
    /// A qdisc that is added too early makes a plugin fail.
    #[error(
        "it is new, and no qdisc is added to a new interface for 15 s, in which plugins of the CNI \
         may add theirs"
    )]
    New,
    /// The kernel refused to add clsact.
    #[error("cannot add the clsact qdisc")]
    Clsact(#[from] tc::TcError),
}

/// Position of one of our programs among others, and the means to find a former agent's filter of
/// the same kind again.
#[derive(Clone, Copy)]
pub(in crate::datapath) struct Place {
    /// The program that a link stands right behind; at the head without one, or where it is not there.
    behind: Option<u32>,
    /// The filter's handle.
    pub(super) handle: u32,
    /// The filter's priority.
    pub(super) priority: u16,
}

impl Place {
    /// The observer's: before every other program. Cilium can be told to leave priority 1 free
    /// (`bpf-filter-priority`).
    pub(super) const FIRST: Self = Self {
        behind: None,
        handle: 0x7070,
        priority: 1,
    };

    /// Places of both programs' filters.
    pub(super) fn all() -> [Self; 2] {
        [Self::FIRST, Self::behind(None)]
    }

    /// The sentinel's: behind the observer's program, before whatever else was attached to these
    /// devices: Cilium's programs end the chain.
    pub(in crate::datapath) fn behind(observer: Option<u32>) -> Self {
        Self {
            behind: observer,
            handle: 0x7071,
            priority: 0xfff0,
        }
    }
}

/// One direction of one device, by its index and name, and our place there.
pub(in crate::datapath) struct Spot<'a> {
    pub(in crate::datapath) index: u32,
    pub(in crate::datapath) device: &'a str,
    pub(in crate::datapath) direction: Direction,
    pub(in crate::datapath) place: Place,
    /// A qdisc may be added where filters need one and there is none.
    pub(in crate::datapath) may_add_qdisc: bool,
    /// One was added.
    pub(in crate::datapath) added_qdisc: Cell<bool>,
}

/// An attached program. Dropped, it is detached, unless its link is pinned or another agent's filter
/// stands in its place by then.
pub(in crate::datapath) struct Hook {
    index: u32,
    direction: Direction,
    place: Place,
    program: u32,
    held: Held,
}

enum Held {
    Tcx(Link),
    Clsact(Option<SchedClassifierLink>),
}

/// A link of TCX, attached for as long as it is open or pinned.
struct Link {
    /// Nothing after an attempt to pin it that failed.
    open: Option<FdLink>,
    pin: Option<PathBuf>,
    /// Why it is not pinned, if it was to be.
    not_pinned: Option<String>,
}

impl Hook {
    /// Attaches, or takes over what a former agent left.
    pub(in crate::datapath) fn attach(
        classifier: &mut SchedClassifier,
        spot: &Spot<'_>,
        mode: Mode,
        pin: Option<PathBuf>,
    ) -> Result<Self, HookError> {
        let program = classifier.info()?.id();
        let held = match mode {
            Mode::Clsact => {
                if let Some(pin) = &pin {
                    // A former agent's TCX link would look at every packet a second time.
                    let _ = std::fs::remove_file(pin);
                }
                filter(classifier, spot)?
            }
            Mode::Tcx | Mode::Auto => match tcx(classifier, spot, pin.as_deref()) {
                Err(error) if mode == Mode::Auto && no_tcx(&error) => filter(classifier, spot)?,
                link => {
                    let held = Held::Tcx(link?);
                    // A former agent's filter would look at every packet a second time.
                    let _ = filters::remove(spot.index, spot.direction, &[spot.place]);
                    held
                }
            },
        };
        Ok(Self {
            index: spot.index,
            direction: spot.direction,
            place: spot.place,
            program,
            held,
        })
    }

    pub(in crate::datapath) fn mechanism(&self) -> Mechanism {
        match self.held {
            Held::Tcx(_) => Mechanism::Tcx,
            Held::Clsact(_) => Mechanism::Clsact,
        }
    }

    /// Ids of the programs here, in the order in which they run; of filters, those in this place.
    fn programs(&self) -> io::Result<Vec<u32>> {
        if let Held::Tcx(_) = self.held {
            return programs_at(self.index, self.direction.tcx());
        }
        let filters = filters(self.index, self.direction, self.place.priority)?.into_iter();
        let in_place = filters.filter(|filter| filter.handle == self.place.handle);
        Ok(in_place.map(|filter| filter.program).collect())
    }

    /// Whether it stands, before all others; nothing where the kernel does not tell.
    pub(super) fn is_first(&self) -> Option<bool> {
        Some(self.programs().ok()?.first() == Some(&self.program))
    }

    /// Whether programs of others stand here, as links or, where `filters_too`, as filters; `None`
    /// where that is not known. Those of another agent, while one follows the other, are taken for
    /// others'.
    pub(super) fn has_company(&self, filters_too: bool) -> Option<bool> {
        let beside = |id: &u32| *id != self.program;
        match programs_at(self.index, self.direction.tcx()) {
            Ok(links) if links.iter().any(beside) => return Some(true),
            Err(_) if self.mechanism() != Mechanism::Clsact => return None,
            _ => {}
        }
        let asked = filters_too.then(|| filters(self.index, self.direction, 0))?;
        let filters = asked.ok()?;
        Some(filters.iter().any(|filter| beside(&filter.program)))
    }

    /// Whether it stands. A link's device may be gone; of a filter the kernel may not tell, and it is
    /// taken to stand.
    pub(in crate::datapath) fn stands(&self) -> bool {
        self.programs()
            .map_or(self.mechanism() == Mechanism::Clsact, |programs| {
                programs.contains(&self.program)
            })
    }

    /// Pins the link if nothing is in the pin's place. Returns whether it is still attached.
    pub(super) fn pin(&mut self, pin: PathBuf) -> bool {
        let Held::Tcx(link) = &mut self.held else {
            return true;
        };
        if pin.exists() {
            return true;
        }
        let pinned = link.open.take().and_then(|open| open.pin(&pin).ok());
        let is_pinned = pinned.is_some();
        *link = Link {
            open: pinned.map(FdLink::from),
            pin: Some(pin),
            not_pinned: None,
        };
        is_pinned
    }

    /// Why the link is not pinned, if it was to be.
    pub(super) fn not_pinned(&self) -> Option<&str> {
        match &self.held {
            Held::Tcx(link) => link.not_pinned.as_deref(),
            Held::Clsact(_) => None,
        }
    }

    /// Gives up what the next attach would find, so that it makes a link of its own at the head.
    pub(super) fn let_go(&mut self) {
        if let Held::Tcx(Link { pin: Some(pin), .. }) = &self.held {
            let _ = std::fs::remove_file(pin);
        }
    }
}

impl Drop for Hook {
    fn drop(&mut self) {
        // Dropping a filter's link deletes what stands at its place, whoever put it there. A filter
        // too many does less harm than a successor without.
        if self.mechanism() == Mechanism::Clsact
            && self.is_first() != Some(true)
            && let Held::Clsact(link) = &mut self.held
        {
            std::mem::forget(link.take());
        }
    }
}

/// TCX is there since kernel 6.6; before, the kernel does not know the attach type.
fn no_tcx(error: &HookError) -> bool {
    matches!(error, HookError::Program(ProgramError::SyscallError(error))
        if error.io_error.raw_os_error() == Some(libc::EINVAL))
}

fn tcx(
    classifier: &mut SchedClassifier,
    spot: &Spot<'_>,
    pin: Option<&Path>,
) -> Result<Link, HookError> {
    let held = |open, not_pinned| Link {
        open: Some(open),
        pin: pin.map(Path::to_owned),
        not_pinned,
    };
    if let Some(adopted) = pin.and_then(|pin| adopt(classifier, pin)) {
        return Ok(held(adopted, None));
    }
    let link = make(classifier, spot)?;
    let Some(pin) = pin else {
        return Ok(held(link, None));
    };
    match link.pin(pin) {
        Ok(pinned) => Ok(held(pinned.into(), None)),
        // The attempt took the link. A device that is observed and not pinned is better than one that is neither.
        Err(error) => {
            let why = format!("cannot pin {}: {}", pin.display(), chain(&error));
            Ok(held(make(classifier, spot)?, Some(why)))
        }
    }
}

/// A new link in its place.
fn make(classifier: &mut SchedClassifier, spot: &Spot<'_>) -> Result<FdLink, HookError> {
    // SAFETY: the id is that of a program that is loaded, and the kernel checks it.
    let behind = |id| LinkOrder::after_program_id(unsafe { ProgramId::new(id) });
    let behind = |id| link(classifier, spot, || behind(id));
    match spot.place.behind.map(behind) {
        Some(Ok(link)) => Ok(link),
        _ => link(classifier, spot, LinkOrder::first),
    }
}

/// A link that was let go may stand a moment longer, until the kernel has put its last reference
/// (a pin's inode, a child between fork and exec): the same program is then refused as there already.
const LET_GO: (u32, Duration) = (20, Duration::from_millis(5));

/// A new TCX link.
fn link(
    classifier: &mut SchedClassifier,
    spot: &Spot<'_>,
    order: impl Fn() -> LinkOrder,
) -> Result<FdLink, HookError> {
    let (mut tries, pause) = LET_GO;
    loop {
        let options = TcAttachOptions::TcxOrder(order());
        match classifier.attach_with_options(spot.device, spot.direction.attach_type(), options) {
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
    adopted
        .inspect_err(|error| {
            tracing::debug!(pin = %pin.display(), %error, "a pinned link is no longer attached; \
                                                           attaching again");
            let _ = std::fs::remove_file(pin);
        })
        .ok()
}

/// Adds a filter, in place of a former agent's.
fn filter(classifier: &mut SchedClassifier, spot: &Spot<'_>) -> Result<Held, HookError> {
    let &Spot { device, place, .. } = spot;
    let attach_type = spot.direction.attach_type();
    qdisc::ready(spot)?;
    let mut add = || {
        let options = NlOptions {
            priority: place.priority,
            handle: TcHandle::from(place.handle),
            classid: None,
        };
        classifier.attach_with_options(device, attach_type, TcAttachOptions::Netlink(options))
    };
    let id = add().or_else(|_| {
        // A former agent's filter stands there: dropping a link of its place deletes it.
        let handle = TcHandle::from(place.handle);
        let priority = place.priority;
        drop(SchedClassifierLink::attached(
            device,
            attach_type,
            priority,
            handle,
            None,
        ));
        add()
    })?;
    Ok(Held::Clsact(Some(classifier.take_link(id)?)))
}
