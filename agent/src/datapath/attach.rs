//! Keeps the observer attached to every wanted device, in both directions, and before every other program,
//! because Cilium's programs end the chain (docs/internal/design/evidence.md#matching).
//!
//! A link that is gone or no longer first is attached again, but at most once per device in [`REPAIR_PAUSE`].
//! Otherwise two programs that both require the first place would replace each other continuously. The old
//! link is removed just before the new one is attached, since the kernel accepts a program only once per
//! hook. Packets missed in between are not counted (see `app`'s coverage).

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use aya::Ebpf;
use clap::ValueEnum;
use pathproof_facts::time::Mono;
use pathproof_report::{Attached, DeviceReport};
use pathproof_shared::causes::chain;
use pathproof_witness::coverage;

use super::devices::Device;
use super::load::classifier;
use super::pins::{KeptPins, Pins};

pub(super) mod filters;
pub(super) mod hook;
pub mod left;
mod qdisc;

pub use hook::{Direction, HookError, Mechanism};
use hook::{Hook, Place, Spot};
use qdisc::Added;

/// Time for which a device is left alone after a repair.
pub const REPAIR_PAUSE: Duration = Duration::from_secs(10);

/// Time for which the agent adds no qdisc to an interface that appeared while it ran and may be a pod's.
/// Filters need a qdisc. A CNI plugin that adds one later (`bandwidth`) would fail, and the pod with it.
const LEFT_TO_PLUGINS: Duration = Duration::from_secs(15);

/// Other programs' filters are listed once in this many checks: listing takes two requests per device.
const LOOK_FOR_OTHERS: u32 = 12;

/// Mechanism by which programs are to be attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// TCX, and clsact where the kernel has no TCX
    #[default]
    Auto,
    /// TCX only (kernel 6.6 and newer)
    Tcx,
    /// clsact filters only
    Clsact,
}

/// Whether foreign programs are attached beside pathproof's at a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Company {
    pub(super) is_there: bool,
    /// Consecutive checks that found no foreign programs.
    alone: u32,
}

impl Company {
    /// Records one check of each hook; `None` is an unknown result. Foreign programs count as gone after two
    /// checks found none. Checks with unknown results do not count.
    fn note(&mut self, found: &[Option<bool>]) {
        if found.contains(&Some(true)) {
            (self.is_there, self.alone) = (true, 0);
        } else if !found.contains(&None) {
            self.alone = self.alone.saturating_add(1);
            self.is_there &= self.alone < 2;
        }
    }
}

/// Why the agent adds no qdisc to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LeftTo {
    /// A CNI plugin may still add one.
    Plugins,
    /// Another program's qdisc is there.
    Owner,
}

pub struct Attachment {
    pub device: Device,
    /// Ingress and egress; `None` if not attached.
    hooks: [Option<Hook>; 2],
    /// Whether each hook was first at the last check.
    pub first: [Option<bool>; 2],
    pub(super) company: Company,
    pub problem: Option<String>,
    /// Time at which the device appeared; `None` if it was there when the agent started.
    came: Option<Mono>,
    /// Why it is left unattached: a qdisc that another program added or may add.
    left_to: Option<LeftTo>,
    repaired: Option<Mono>,
    looks: u32,
}

impl Attachment {
    /// Whether the device is too new to be attached to, which is no fault.
    pub fn is_new(&self) -> bool {
        self.left_to == Some(LeftTo::Plugins)
    }

    pub fn is_left_to_others(&self) -> bool {
        self.left_to.is_some()
    }

    /// Its state as input of the verdict.
    pub fn hook(&self) -> coverage::Hook {
        coverage::Hook {
            device: self.device.name.clone(),
            uplink: self.device.uplink,
            attached: self.mechanism().is_some(),
            first: !self.first.contains(&Some(false)),
            problem: self.problem.clone(),
        }
    }

    /// Its state as shown by `/verdict`.
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

    /// Checks for foreign programs beside pathproof's. A CNI attaches its programs just after the
    /// device was created, or at any later time. Links are checked every time. Filters cost a dump
    /// each, so they are checked rarely, and at different times for different devices.
    fn look_for_others(&mut self) {
        let turn = self.looks.wrapping_add(self.device.index);
        let filters_too = self.looks < 4 || turn.is_multiple_of(LOOK_FOR_OTHERS);
        self.looks = self.looks.wrapping_add(1);
        let hooks = self.hooks.iter().flatten();
        let found: Vec<_> = hooks.map(|hook| hook.has_company(filters_too)).collect();
        self.company.note(&found);
    }

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
                        // A qdisc that a previous agent added has lost its last filter now.
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
        // Both directions usually have the same problem: report it once.
        problems.dedup();
        let problem = (!problems.is_empty()).then(|| problems.join("; "));
        self.look_for_others();
        // Attaching is retried at every check: log a problem once.
        if let Some(error) = problem
            .as_ref()
            .filter(|_| problem != self.problem && !self.is_new())
        {
            tracing::warn!(device = %self.device.name, %error, "not attached");
        }
        self.problem = problem;
    }
}

struct With {
    mode: Mode,
    pins: Option<KeptPins>,
    added: Added,
}

impl With {
    /// Restores the pins, and returns them if links can be pinned.
    fn restore_pins(&mut self) -> Option<&KeptPins> {
        let kept = self.pins.as_mut()?;
        kept.restore().then_some(kept)
    }

    /// Path at which a hook's link is pinned; `None` if pinning is off or fails.
    fn pin(&self, device: u32, direction: Direction) -> Option<PathBuf> {
        let kept = self.pins.as_ref().filter(|kept| kept.problem.is_none())?;
        Some(kept.pins.link(device, direction.name()))
    }
}

pub struct Attacher {
    with: With,
    attachments: BTreeMap<u32, Attachment>,
    /// Whether the interfaces present at start-up were attached.
    began: bool,
    /// Number of links attached again because they were gone or not first.
    pub repairs: u64,
}

impl Attacher {
    pub fn new(mode: Mode, pins: Option<Pins>) -> Self {
        let added = Added::read(pins.as_ref().map(|pins| Pins::qdiscs(&pins.root)));
        let pins = pins.map(KeptPins::new);
        Self {
            with: With { mode, pins, added },
            attachments: BTreeMap::new(),
            began: false,
            repairs: 0,
        }
    }

    /// The attachments, ordered by interface index.
    pub fn attachments(&self) -> impl Iterator<Item = &Attachment> {
        self.attachments.values()
    }

    pub fn name_of(&self, index: u32) -> Option<&str> {
        let attachment = self.attachments.get(&index)?;
        Some(&attachment.device.name)
    }

    /// Attaches to the `wanted` devices and detaches from all others. If a device cannot be attached,
    /// perhaps because it just vanished, the problem is recorded and the next check retries.
    pub fn follow(&mut self, ebpf: &mut Ebpf, wanted: &[Device], now: Mono) {
        // If a previous agent's qdiscs exist, an interface without one was too new for that agent, so it
        // counts as new here too.
        let succeeds = !self.with.added.indexes().is_empty();
        let came = (std::mem::replace(&mut self.began, true) || succeeds).then_some(now);
        let mut keep: BTreeMap<u32, &str> = wanted.iter().map(Device::identity).collect();
        self.attachments.retain(|index, attachment| {
            let is_same = keep.get(index) == Some(&attachment.device.name.as_str());
            if !is_same {
                // A new device got this index between two checks: its old pin and qdisc record do
                // not apply.
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

    /// Why a link or map is no longer pinned, although pinning is enabled.
    pub fn not_pinned(&self) -> Option<String> {
        let problem = self.with.pins.as_ref()?.problem.as_deref();
        let hooks = self
            .attachments
            .values()
            .flat_map(|attachment| &attachment.hooks);
        let mut of_links = hooks.flatten().filter_map(Hook::not_pinned);
        let problem = problem.or_else(|| of_links.next());
        problem.map(ToOwned::to_owned)
    }

    /// Reattaches every hook that is gone or not first, and pins every link whose pin is gone. A hook that
    /// a successor replaced while this runs is left to it.
    pub fn check(&mut self, ebpf: &mut Ebpf, now: Mono, has_successor: impl Fn() -> bool) {
        self.with.restore_pins();
        for attachment in self.attachments.values_mut() {
            let rested = attachment
                .repaired
                .is_none_or(|at| now.since(at) >= REPAIR_PAUSE);
            let mut lost = [false; 2];
            let hooks = attachment.hooks.iter_mut().zip(&mut attachment.first);
            for (((slot, first), direction), lost) in hooks.zip(Direction::BOTH).zip(&mut lost) {
                let Some(hook) = slot else { continue };
                *first = hook.is_first();
                let pin = self.with.pin(attachment.device.index, direction);
                // A link that cannot be pinned is replaced.
                *lost = *first == Some(false) || rested && pin.is_some_and(|pin| !hook.pin(pin));
            }
            // Asked after the hooks were read: a successor steers connections before it touches a hook.
            let is_incomplete = attachment.hooks.iter().any(Option::is_none);
            if (is_incomplete || lost.contains(&true)) && has_successor() {
                return;
            }
            let mut replaced = 0;
            for (slot, lost) in attachment.hooks.iter_mut().zip(lost) {
                // An interface that is gone is handled when the device list changes.
                if lost
                    && rested
                    && attachment.device.exists()
                    && let Some(hook) = slot
                {
                    hook.remove_pin();
                    // Drop the old link first: the kernel refuses the same program twice at one
                    // hook. Packets within these microseconds are missed.
                    *slot = None;
                    replaced += 1;
                }
            }
            if replaced == 2 {
                // The qdisc was removed together with the filters. A qdisc that exists now may be another
                // program's.
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

    /// Detaches everything that is not pinned and would outlive this process: clsact filters, and
    /// the qdiscs unless a `successor` needs them. Pinned links stay for the next agent.
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
