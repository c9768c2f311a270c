//! Keeps the observer attached to every wanted device, in both directions, before every other
//! program (Cilium's end the chain; docs/adr/0002-isn-matching.md).
//!
//! A link that is gone or no longer the first is put back, but the same device at most once in
//! [`REPAIR_PAUSE`]: two programs that both insist on being first must not fight at full speed.
//! The old link goes a moment before the new one stands, since the kernel takes a program only once
//! at a hook; what is lost then is not counted (see `app`'s coverage).

use std::collections::BTreeMap;
use std::time::Duration;

use aya::Ebpf;
use thiserror::Error;

use super::devices::Device;
use super::load::LoadError;
use super::pins::Pins;
use crate::causes::chain;
use agent_core::time::Mono;

pub(super) mod filter;
pub(super) mod hook;

use hook::Hook;
pub use hook::{Direction, HookError, Mechanism};

/// How long a device is left alone after a repair.
pub const REPAIR_PAUSE: Duration = Duration::from_secs(10);

/// How programs are to be attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// TCX, and clsact where the kernel has no TCX.
    Auto,
    /// TCX alone.
    Tcx,
    /// clsact alone.
    Clsact,
}

/// Why a device could not be attached to.
#[derive(Debug, Error)]
pub enum AttachError {
    /// The object lacks a program.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The kernel refused.
    #[error("cannot attach to {device} {direction:?}: {}", chain(source))]
    Hook {
        /// Name of the device.
        device: String,
        /// Which way.
        direction: Direction,
        /// What the kernel said.
        source: HookError,
    },
}

/// One device and its two hooks.
pub struct Attachment {
    /// The device as it was last listed.
    pub device: Device,
    /// Ingress, egress; nothing where it is not attached.
    hooks: [Option<Hook>; 2],
    /// Whether each hook was the first when it was last looked at.
    pub first: [Option<bool>; 2],
    /// What stands in the way, in words.
    pub problem: Option<String>,
    repaired: Option<Mono>,
}

impl Attachment {
    /// How it is attached, if in both directions.
    pub fn mechanism(&self) -> Option<Mechanism> {
        match &self.hooks {
            [Some(ingress), Some(_)] => Some(ingress.mechanism()),
            _ => None,
        }
    }
}

/// All attachments.
pub struct Attacher {
    mode: Mode,
    pins: Option<Pins>,
    attachments: BTreeMap<u32, Attachment>,
    /// Links put back because they, or their pins, were gone, or because they were not the first.
    pub repairs: u64,
}

impl Attacher {
    /// Attached to nothing yet.
    pub fn new(mode: Mode, pins: Option<Pins>) -> Self {
        Self {
            mode,
            pins,
            attachments: BTreeMap::new(),
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
    pub fn follow(&mut self, ebpf: &mut Ebpf, wanted: &[Device]) {
        let keep: BTreeMap<_, _> = wanted.iter().map(|device| (device.index, device)).collect();
        self.attachments.retain(|index, _| keep.contains_key(index));
        self.sweep_pins(&keep);
        for device in wanted {
            let attachment = self
                .attachments
                .entry(device.index)
                .or_insert_with(|| Attachment {
                    device: device.clone(),
                    hooks: [None, None],
                    first: [None, None],
                    problem: None,
                    repaired: None,
                });
            attachment.device = device.clone();
            attach(ebpf, attachment, self.mode, self.pins.as_ref());
        }
    }

    /// Looks whether every hook still stands, stands first and is pinned; puts back what does not.
    pub fn check(&mut self, ebpf: &mut Ebpf, now: Mono) {
        for attachment in self.attachments.values_mut() {
            let rested = attachment
                .repaired
                .is_none_or(|at| now.since(at) >= REPAIR_PAUSE);
            let mut replaced = 0;
            for (slot, first) in attachment.hooks.iter_mut().zip(&mut attachment.first) {
                let Some(hook) = slot else { continue };
                *first = hook.is_first(&attachment.device);
                if (*first == Some(false) || hook.lost_its_pin()) && rested {
                    hook.let_go();
                    // Gone before its successor stands: the kernel refuses the same program twice
                    // at one hook. What passes within these microseconds is not seen.
                    *slot = None;
                    replaced += 1;
                }
            }
            if replaced > 0 {
                self.repairs += replaced;
                attachment.repaired = Some(now);
                let device = &attachment.device.name;
                tracing::warn!(%device, "the observer was not first here any more, or its pin was gone; put back");
            }
            attach(ebpf, attachment, self.mode, self.pins.as_ref());
        }
    }

    /// Detaches everything that would outlive this process and is not pinned: clsact filters.
    /// Pinned links stay, on purpose: the next agent finds them.
    pub fn release(&mut self) {
        self.attachments.clear();
    }

    /// Removes pins of devices that are gone or no longer wanted.
    fn sweep_pins(&self, keep: &BTreeMap<u32, &Device>) {
        let Some(pins) = &self.pins else { return };
        for (index, _, path) in pins.pinned_links() {
            if !keep.contains_key(&index) {
                let _ = std::fs::remove_file(path);
            }
        }
    }
}

/// Fills in the hooks that are missing.
fn attach(ebpf: &mut Ebpf, attachment: &mut Attachment, mode: Mode, pins: Option<&Pins>) {
    let mut problems = Vec::new();
    for (slot, direction) in attachment.hooks.iter_mut().zip(Direction::BOTH) {
        if slot.is_some() {
            continue;
        }
        match Hook::attach(ebpf, &attachment.device, direction, mode, pins) {
            Ok(hook) => {
                *slot = Some(hook);
                tracing::debug!(device = %attachment.device.name, ?direction, "attached");
            }
            Err(error) => problems.push(error.to_string()),
        }
    }
    let problem = (!problems.is_empty()).then(|| problems.join("; "));
    // It is tried again and again: what stays the same is said once.
    if let Some(error) = problem.as_ref().filter(|_| problem != attachment.problem) {
        tracing::warn!(device = %attachment.device.name, %error, "not attached");
    }
    attachment.problem = problem;
}
