//! Keeps the observer attached to every wanted device, in both directions, before every other
//! program (Cilium's end the chain; docs/adr/0002-isn-matching.md).
//!
//! A link that is gone or no longer the first is put back, but the same device at most once in
//! [`REPAIR_PAUSE`]: two programs that both insist on being first must not fight at full speed.
//! The old link goes a moment before the new one stands, since the kernel takes a program only once
//! at a hook; what is lost then is not counted (see `app`'s coverage).

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use aya::Ebpf;

use super::devices::Device;
use super::load::classifier;
use super::pins::{KeptPins, Pins};
use crate::causes::chain;
use agent_core::coverage;
use agent_core::report::{Attached, DeviceReport};
use agent_core::time::Mono;

pub(super) mod filters;
pub(super) mod hook;
pub mod left;
mod qdisc;

pub use hook::{Direction, HookError, Mechanism};
use hook::{Hook, Place, Spot};
use qdisc::Added;

/// Time for which a device is left alone after a repair.
pub const REPAIR_PAUSE: Duration = Duration::from_secs(10);

/// Time for which no qdisc is added to an interface that came while the agent ran and may be a pod's. Filters
/// need one, and a plugin of the CNI that adds one after us (`bandwidth`) would fail, and the pod with it.
const LEFT_TO_PLUGINS: Duration = Duration::from_secs(15);

/// Programs of others are looked for at every so many checks: it takes two questions to netlink for
/// each device.
const LOOK_FOR_OTHERS: u32 = 12;

/// Mechanism by which programs are to be attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// TCX, and clsact where the kernel has no TCX.
    Auto,
    /// TCX alone.
    Tcx,
    /// clsact alone.
    Clsact,
}

/// Whether programs of others stand beside ours at a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Company {
    pub(super) is_there: bool,
    /// Looks in a row that found none.
    alone: u32,
}

impl Company {
    /// Takes in one look at each hook; `None` where it is not known. Such a look changes nothing, and
    /// that the others are gone is believed at the second one.
    fn note(&mut self, found: &[Option<bool>]) {
        if found.contains(&Some(true)) {
            (self.is_there, self.alone) = (true, 0);
        } else if !found.contains(&None) {
            self.alone = self.alone.saturating_add(1);
            self.is_there &= self.alone < 2;
        }
    }
}

/// A program that needs the place of our qdisc.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LeftTo {
    /// A plugin that may still add its own.
    Plugins,
    /// The owner of the qdisc that is there.
    Owner,
}

/// One device and its two hooks.
pub struct Attachment {
    /// The device as it was last listed.
    pub device: Device,
    /// Ingress, egress; nothing where it is not attached.
    hooks: [Option<Hook>; 2],
    /// Whether each hook was the first when it was last looked at.
    pub first: [Option<bool>; 2],
    /// Programs of others beside ours.
    pub(super) company: Company,
    /// The current problem, in words.
    pub problem: Option<String>,
    /// Time at which it came; nothing if it was there when the agent began.
    came: Option<Mono>,
    /// The qdisc of another program for whose sake it is not attached.
    left_to: Option<LeftTo>,
    repaired: Option<Mono>,
    looks: u32,
}

impl Attachment {
    /// Whether it is too new to be attached, which is no fault.
    pub fn is_new(&self) -> bool {
        self.left_to == Some(LeftTo::Plugins)
    }

    /// Whether it is left to another program's qdisc.
    pub fn is_left_to_others(&self) -> bool {
        self.left_to.is_some()
    }

    /// As the judge sees it.
    pub fn hook(&self) -> coverage::Hook {
        coverage::Hook {
            device: self.device.name.clone(),
            uplink: self.device.uplink,
            attached: self.mechanism().is_some(),
            first: !self.first.contains(&Some(false)),
            problem: self.problem.clone(),
        }
    }

    /// As `/verdict` shows it.
    pub fn report(&self) -> DeviceReport {
        DeviceReport {
            name: self.device.name.clone(),
            index: self.device.index,
            attached: match self.mechanism() {
                Some(Mechanism::Tcx) => Attached::Tcx,
                Some(Mechanism::Clsact) => Attached::Clsact,
                None => Attached::None,
            },
            ingress_head: self.first[0],
            egress_head: self.first[1],
            uplink: self.device.uplink,
            problem: self.problem.clone(),
        }
    }

    /// Mechanism of the attachment, if it is attached in both directions.
    pub fn mechanism(&self) -> Option<Mechanism> {
        match &self.hooks {
            [Some(ingress), Some(_)] => Some(ingress.mechanism()),
            _ => None,
        }
    }

    /// Looks whether programs of others stand beside ours. A CNI attaches its own a moment after the
    /// device was made, or at any time later: links are looked at each time, filters, which cost a
    /// dump each, seldom, and not those of all devices at once.
    fn look_for_others(&mut self) {
        let turn = self.looks.wrapping_add(self.device.index);
        let filters_too = self.looks < 4 || turn.is_multiple_of(LOOK_FOR_OTHERS);
        self.looks = self.looks.wrapping_add(1);
        let hooks = self.hooks.iter().flatten();
        let found: Vec<_> = hooks.map(|hook| hook.has_company(filters_too)).collect();
        self.company.note(&found);
    }

    /// Fills in the hooks that are missing.
    fn attach(&mut self, ebpf: &mut Ebpf, with: &mut With, now: Mono) {
        let device = &self.device;
        let is_recent = |came| now.since(came) < LEFT_TO_PLUGINS;
        let may_add_qdisc = !(device.may_be_a_pods && self.came.is_some_and(is_recent));
        self.left_to = None;
        let mut problems = Vec::new();
        for (slot, direction) in self.hooks.iter_mut().zip(Direction::BOTH) {
            if slot.is_some() {
                continue;
            }
            let spot = Spot {
                index: device.index,
                device: &device.name,
                direction,
                place: Place::FIRST,
                may_add_qdisc,
                added_qdisc: Cell::default(),
            };
            let pin = with.pin(device.index, direction);
            let hook = classifier(ebpf, direction.program(device.link))
                .map_err(HookError::from)
                .and_then(|classifier| Hook::attach(classifier, &spot, with.mode, pin));
            if spot.added_qdisc.get() {
                with.added.record(device.index);
            }
            match hook {
                Ok(hook) => {
                    if hook.mechanism() == Mechanism::Tcx {
                        // A former agent's, of whose filters the last has gone now.
                        with.added.delete(device.index);
                    }
                    *slot = Some(hook);
                    tracing::debug!(device = %device.name, ?direction, "attached");
                }
                Err(error @ (HookError::OtherQdisc(_) | HookError::New)) => {
                    self.left_to = Some(match error {
                        HookError::New => LeftTo::Plugins,
                        _ => LeftTo::Owner,
                    });
                    problems.push(format!("{} is not observed: {error}", device.name));
                }
                Err(error) => problems.push(format!(
                    "cannot attach to {} {direction:?}: {}",
                    device.name,
                    chain(&error)
                )),
            }
        }
        // Of both directions the same is said once.
        problems.dedup();
        let problem = (!problems.is_empty()).then(|| problems.join("; "));
        self.look_for_others();
        // It is tried again and again: what stays the same is said once.
        if let Some(error) = problem
            .as_ref()
            .filter(|_| problem != self.problem && !self.is_new())
        {
            tracing::warn!(device = %self.device.name, %error, "not attached");
        }
        self.problem = problem;
    }
}

/// Parts that every attachment needs.
struct With {
    mode: Mode,
    pins: Option<KeptPins>,
    /// Qdiscs of agents.
    added: Added,
}

impl With {
    /// The pins, if links can be pinned.
    fn restore_pins(&mut self) -> Option<&KeptPins> {
        let kept = self.pins.as_mut()?;
        kept.restore().then_some(kept)
    }

    /// Where a hook's link is pinned, unless nothing can be or is to be pinned.
    fn pin(&self, device: u32, direction: Direction) -> Option<PathBuf> {
        let kept = self.pins.as_ref().filter(|kept| kept.problem().is_none())?;
        Some(kept.pins.link(device, direction.name()))
    }
}

/// All attachments.
pub struct Attacher {
    with: With,
    attachments: BTreeMap<u32, Attachment>,
    /// The interfaces that were there when the agent began are attached.
    began: bool,
    /// Links put back because they were gone or not the first.
    pub repairs: u64,
}

impl Attacher {
    /// Attached to nothing yet.
    pub fn new(mode: Mode, pins: Option<Pins>) -> Self {
        let added = Added::read(pins.as_ref().map(|pins| Pins::qdiscs(pins.root())));
        let pins = pins.map(KeptPins::new);
        Self {
            with: With { mode, pins, added },
            attachments: BTreeMap::new(),
            began: false,
            repairs: 0,
        }
    }

    /// By device, in the order of their indexes.
    pub fn attachments(&self) -> impl Iterator<Item = &Attachment> {
        self.attachments.values()
    }

    /// Name of a device that is wanted.
    pub fn name_of(&self, index: u32) -> Option<&str> {
        self.attachments
            .get(&index)
            .map(|attachment| attachment.device.name.as_str())
    }

    /// Attaches to `wanted` and lets go of everything else. A device that cannot be attached to,
    /// perhaps because it just vanished, is noted and tried again at the next look.
    pub fn follow(&mut self, ebpf: &mut Ebpf, wanted: &[Device], now: Mono) {
        // If a former agent's qdiscs stand, an interface without one was too new for that agent as well.
        let succeeds = !self.with.added.indexes().is_empty();
        let came = (std::mem::replace(&mut self.began, true) || succeeds).then_some(now);
        let mut keep: BTreeMap<u32, &str> = wanted.iter().map(Device::identity).collect();
        self.attachments.retain(|index, of| {
            let is_same = keep.get(index) == Some(&of.device.name.as_str());
            if !is_same {
                // The next one that got this index between two looks is as new as any.
                keep.remove(index);
            }
            is_same
        });
        let kept = self.with.restore_pins().map(|kept| &kept.pins);
        let pinned = kept.into_iter().flat_map(Pins::pinned_links);
        for (_, path) in pinned.filter(|(index, _)| !keep.contains_key(index)) {
            let _ = std::fs::remove_file(path);
        }
        let added = self.with.added.indexes().into_iter();
        for index in added.filter(|index| !keep.contains_key(index)) {
            // The interface is gone, or is not wanted any more.
            let _ = left::remove(index);
            self.with.added.delete(index);
            self.with.added.forget(index);
        }
        for device in wanted {
            let attachment = self
                .attachments
                .entry(device.index)
                .or_insert_with(|| Attachment {
                    device: device.clone(),
                    hooks: [None, None],
                    first: [None, None],
                    company: Company::default(),
                    problem: None,
                    came,
                    left_to: None,
                    repaired: None,
                    looks: 0,
                });
            attachment.device.clone_from(device);
            attachment.attach(ebpf, &mut self.with, now);
        }
    }

    /// Why a link or map is not pinned, though that is wanted.
    pub fn not_pinned(&self) -> Option<String> {
        let problem = self.with.pins.as_ref()?.problem();
        let hooks = self.attachments.values().flat_map(|of| &of.hooks);
        let mut of_links = hooks.flatten().filter_map(Hook::not_pinned);
        let problem = problem.or_else(|| of_links.next());
        problem.map(ToOwned::to_owned)
    }

    /// Attaches every hook again that is gone or not the first, and pins every link whose pin is gone.
    pub fn check(&mut self, ebpf: &mut Ebpf, now: Mono) {
        self.with.restore_pins();
        for attachment in self.attachments.values_mut() {
            let rested = attachment
                .repaired
                .is_none_or(|at| now.since(at) >= REPAIR_PAUSE);
            let mut replaced = 0;
            let hooks = attachment.hooks.iter_mut().zip(&mut attachment.first);
            for ((slot, first), direction) in hooks.zip(Direction::BOTH) {
                let Some(hook) = slot else { continue };
                *first = hook.is_first();
                let pin = self.with.pin(attachment.device.index, direction);
                // A link that the kernel does not pin is lost.
                let is_lost =
                    *first == Some(false) || rested && pin.is_some_and(|pin| !hook.pin(pin));
                // Of an interface that is gone the list of interfaces will say so.
                if is_lost && rested && attachment.device.exists() {
                    hook.let_go();
                    // Gone before its successor stands: the kernel refuses the same program twice
                    // at one hook. What passes within these microseconds is not seen.
                    *slot = None;
                    replaced += 1;
                }
            }
            if replaced == 2 {
                // The qdisc went with the filters, and what is there now may be another program's.
                self.with.added.forget(attachment.device.index);
            }
            if replaced > 0 {
                self.repairs += replaced;
                attachment.repaired = Some(now);
                let device = &attachment.device.name;
                tracing::warn!(%device, "attached the observer again: another program had moved before it, or its link could not be pinned");
            }
            attachment.attach(ebpf, &mut self.with, now);
        }
    }

    /// Detaches everything that would outlive this process and is not pinned: clsact filters, and unless a
    /// `successor` needs them the qdiscs. Pinned links stay, on purpose: the next agent finds them.
    pub fn release(&mut self, successor: bool) {
        self.attachments.clear();
        for index in self.with.added.indexes().into_iter().filter(|_| !successor) {
            self.with.added.delete(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const SEEN: &[Option<bool>] = &[Some(false), Some(true)];
    const UNKNOWN: &[Option<bool>] = &[Some(false), None];
    const HALF: &[Option<bool>] = &[Some(true), None];
    const ALONE: &[Option<bool>] = &[Some(false), Some(false)];

    #[rstest]
    #[case::never(&[ALONE, UNKNOWN], false)]
    #[case::at_one_hook(&[SEEN], true)]
    #[case::beside_one_that_is_not_known(&[HALF], true)]
    #[case::gone_at_one_look(&[SEEN, ALONE], true)]
    #[case::gone(&[SEEN, ALONE, ALONE], false)]
    #[case::gone_with_a_look_that_failed_between(&[SEEN, ALONE, UNKNOWN, ALONE], false)]
    #[case::not_known_since(&[SEEN, UNKNOWN, UNKNOWN, UNKNOWN], true)]
    #[case::back_between(&[SEEN, ALONE, SEEN, ALONE], true)]
    fn company(#[case] looks: &[&[Option<bool>]], #[case] expected: bool) {
        let mut company = Company::default();
        looks.iter().for_each(|found| company.note(found));
        assert_eq!(company.is_there, expected);
    }
}
