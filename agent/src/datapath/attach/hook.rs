//! One program at one direction of one device: a TCX link, pinned if enabled, or a filter of the
//! clsact qdisc.
//!
//! A filter is identified only by its place, which is the same for every agent, and a successor
//! replaces its predecessor's filter. So an agent checks that a filter still has its program before
//! it deletes it.

use std::cell::Cell;
use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use aya::programs::links::{FdLink, LinkError, LinkOrder, PinnedLink};
use aya::programs::tc::{self, NlOptions, SchedClassifierLink, TcAttachOptions, TcHandle};
use aya::programs::{ProgramError, ProgramId, SchedClassifier, TcAttachType};
use nix::unistd::{AccessFlags, access};
use pathproof_shared::causes::chain;
use pathproof_wire::abi::program;
use pathproof_wire::packet;

use super::filters::{self, filters};
use super::{Mode, qdisc};
use crate::datapath::load::LoadError;
use crate::datapath::syscall::{BPF_TCX_INGRESS, programs_at};

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

    /// The observer's program for this direction and kind of link-layer header.
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

    /// The attach type for `bpf(2)`; the number of egress follows that of ingress.
    pub(in crate::datapath) fn tcx(self) -> u32 {
        BPF_TCX_INGRESS + self as u32
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mechanism {
    /// A TCX link (kernel 6.6).
    Tcx,
    /// A filter of the clsact qdisc.
    Clsact,
}

#[derive(Debug, thiserror::Error)]
pub enum HookError {
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error(transparent)]
    Program(#[from] ProgramError),
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error("cannot read the interface's qdisc: {0}")]
    Qdisc(io::Error),
    /// Another qdisc is in the place of clsact. There an egress filter would become an ingress filter.
    #[error(
        "another program added a qdisc of kind {0}, which has no egress filters, in the place of \
         clsact"
    )]
    OtherQdisc(String),
    /// The interface is new: a qdisc that is added now can make a CNI plugin fail.
    #[error(
        "it is new, and no qdisc is added to a new interface for 15 s, in which plugins of the CNI \
         may add theirs"
    )]
    New,
    #[error("cannot add the clsact qdisc")]
    Clsact(#[from] tc::TcError),
}

/// Position of a pathproof program among others. A previous agent's filter for the same purpose is found by
/// it.
#[derive(Clone, Copy)]
pub(in crate::datapath) struct Place {
    /// Program right before the link. If there is none, or if it is not attached, the link is first.
    behind: Option<u32>,
    pub(super) handle: u32,
    pub(super) priority: u16,
}

impl Place {
    /// Place of the observer: before every other program. Its filters have priority 1, which Cilium can leave
    /// free (`bpf-filter-priority`).
    pub(super) const FIRST: Self = Self {
        behind: None,
        handle: 0x7070,
        priority: 1,
    };

    /// Places of the observer's and the sentinel's filters.
    pub(super) fn all() -> [Self; 2] {
        [Self::FIRST, Self::behind(None)]
    }

    /// Place of the sentinel's programs: behind the observer, and before other programs at these
    /// devices, because Cilium's programs end the chain.
    pub(in crate::datapath) fn behind(observer: Option<u32>) -> Self {
        Self {
            behind: observer,
            handle: 0x7071,
            priority: 0xfff0,
        }
    }
}

/// One direction of one device, by index and name, and the program's place there.
pub(in crate::datapath) struct Spot<'a> {
    pub(in crate::datapath) index: u32,
    pub(in crate::datapath) device: &'a str,
    pub(in crate::datapath) direction: Direction,
    pub(in crate::datapath) place: Place,
    /// Whether a missing qdisc may be added for filters.
    pub(in crate::datapath) may_add_qdisc: bool,
    pub(in crate::datapath) added_qdisc: Cell<bool>,
}

/// An attached program. Dropping it detaches it, unless its link is pinned or another agent has
/// replaced its filter.
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

/// A TCX link, attached while it is open or pinned.
struct Link {
    /// `None` after a failed attempt to pin it.
    open: Option<FdLink>,
    pin: Option<PathBuf>,
    /// Why it is not pinned, although pinning is enabled.
    not_pinned: Option<String>,
}

impl Link {
    /// Pins it. Returns whether it is still attached: if the kernel refuses the pin, the link is gone.
    fn pin(&mut self, pin: PathBuf) -> bool {
        let not_pinned = |error: &(dyn Error + 'static)| {
            Some(format!("cannot pin {}: {}", pin.display(), chain(error)))
        };
        let folder = pin.parent().unwrap_or(&pin);
        if let Err(error) = access(folder, AccessFlags::W_OK) {
            // For example, the file system became read-only. An attempt to pin would fail and detach the
            // program.
            self.not_pinned = not_pinned(&io::Error::from(error));
            return true;
        }
        match self.open.take().map(|open| open.pin(&pin)) {
            Some(Ok(pinned)) => {
                self.open = Some(pinned.into());
                self.not_pinned = None;
            }
            Some(Err(error)) => self.not_pinned = not_pinned(&error),
            None => {}
        }
        self.pin = Some(pin);
        self.open.is_some()
    }
}

impl Hook {
    /// Attaches, or takes over a previous agent's link or filter.
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
                    // A previous agent's TCX link would process every packet a second time.
                    let _ = std::fs::remove_file(pin);
                }
                filter(classifier, spot)?
            }
            Mode::Tcx | Mode::Auto => match tcx(classifier, spot, pin) {
                Err(error) if mode == Mode::Auto && no_tcx(&error) => filter(classifier, spot)?,
                link => {
                    let held = Held::Tcx(link?);
                    // A previous agent's filter would process every packet a second time.
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

    /// Ids of the programs at this hook, in the order in which they run; of filters, only those in its place.
    fn programs(&self) -> io::Result<Vec<u32>> {
        if let Held::Tcx(_) = self.held {
            return programs_at(self.index, self.direction.tcx());
        }
        let filters = filters(self.index, self.direction, self.place.priority)?.into_iter();
        let in_place = filters.filter(|filter| filter.handle == self.place.handle);
        Ok(in_place.map(|filter| filter.program).collect())
    }

    /// Whether it is attached before all others; `None` if unknown.
    pub(super) fn is_first(&self) -> Option<bool> {
        Some(self.programs().ok()?.first() == Some(&self.program))
    }

    /// Whether foreign programs are attached here, as links or, with `filters_too`, as filters; `None`
    /// if unknown. During a succession the other agent's programs count as foreign.
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

    /// Whether it is attached. False if a link's device is gone. If the kernel does not list filters, a
    /// filter counts as attached.
    pub(in crate::datapath) fn is_attached(&self) -> bool {
        self.programs()
            .map_or(self.mechanism() == Mechanism::Clsact, |programs| {
                programs.contains(&self.program)
            })
    }

    /// Pins the link, unless the pin exists. Returns whether it is still attached.
    pub(super) fn pin(&mut self, pin: PathBuf) -> bool {
        match &mut self.held {
            Held::Tcx(link) if !pin.exists() => link.pin(pin),
            _ => true,
        }
    }

    pub(super) fn not_pinned(&self) -> Option<&str> {
        match &self.held {
            Held::Tcx(link) => link.not_pinned.as_deref(),
            Held::Clsact(_) => None,
        }
    }

    /// Removes the pin, so that the next attach creates a new link at the head.
    pub(super) fn remove_pin(&mut self) {
        if let Held::Tcx(Link { pin: Some(pin), .. }) = &self.held {
            let _ = std::fs::remove_file(pin);
        }
    }
}

impl Drop for Hook {
    fn drop(&mut self) {
        // Dropping a filter's link deletes any filter in its place, even a successor's. So the link is leaked
        // unless the filter still has this program: a leftover filter does less harm than a successor without
        // a filter.
        if self.mechanism() == Mechanism::Clsact
            && self.is_first() != Some(true)
            && let Held::Clsact(link) = &mut self.held
        {
            std::mem::forget(link.take());
        }
    }
}

/// TCX needs kernel 6.6; older kernels do not know the attach type.
fn no_tcx(error: &HookError) -> bool {
    matches!(error, HookError::Program(ProgramError::SyscallError(error))
        if error.io_error.raw_os_error() == Some(libc::EINVAL))
}

fn tcx(
    classifier: &mut SchedClassifier,
    spot: &Spot<'_>,
    pin: Option<PathBuf>,
) -> Result<Link, HookError> {
    let adopted = pin.as_ref().and_then(|pin| adopt(classifier, pin));
    let is_new = adopted.is_none();
    let mut link = Link {
        open: Some(adopted.map_or_else(|| make(classifier, spot), Ok)?),
        pin: pin.clone(),
        not_pinned: None,
    };
    if let Some(pin) = pin.filter(|_| is_new)
        && !link.pin(pin)
    {
        // It is better to observe a device without a pin than not at all.
        link.open = Some(make(classifier, spot)?);
    }
    Ok(link)
}

/// Creates a link in the program's place.
fn make(classifier: &mut SchedClassifier, spot: &Spot<'_>) -> Result<FdLink, HookError> {
    // SAFETY: the id is that of a program that is loaded, and the kernel checks it.
    let behind = |id| LinkOrder::after_program_id(unsafe { ProgramId::new(id) });
    let behind = |id| link(classifier, spot, || behind(id));
    match spot.place.behind.map(behind) {
        Some(Ok(link)) => Ok(link),
        _ => link(classifier, spot, LinkOrder::first),
    }
}

/// Retries and pause while an old link is still attached. The kernel keeps a link until its last reference is
/// gone (a pin's inode, a child between fork and exec), and until then refuses to attach its program again.
const WHILE_ATTACHED: (u32, Duration) = (20, Duration::from_millis(5));

fn link(
    classifier: &mut SchedClassifier,
    spot: &Spot<'_>,
    order: impl Fn() -> LinkOrder,
) -> Result<FdLink, HookError> {
    let (mut tries, pause) = WHILE_ATTACHED;
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

/// Takes over a pinned link by replacing its program in one step. If the link's device is gone, the
/// kernel returns ENOLINK, even if a new device has the same index. Then the pin is removed, and the
/// caller attaches a new link (finding 22).
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

/// Adds a filter, replacing a previous agent's.
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
        // Probably a previous agent's filter is there. Dropping a link for its place deletes that filter.
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
