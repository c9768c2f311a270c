//! Keeps the sentinel's devices: makes them once they are needed, looks after them, mends them,
//! removes them in the end. A task of its own, since netlink waits; it tells the main loop what it
//! found and decides nothing.

use std::net::IpAddr;
use std::time::Duration;

use agent_common::service::Family;
use agent_core::effect::DesiredDevices;
use agent_core::event::KernelState;
use ipnet::IpNet;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::clock;
use crate::sentinel::devices::{
    Damage, Known, NodeState, SentinelDevices, Settings, conflict, ensure, forwarding, is_enabled,
    overridden, remove, verify,
};
use crate::sentinel::owners::owners;

/// The devices are looked at this often while all is well.
const LOOK: Duration = Duration::from_secs(5);
/// A look that takes longer is given up.
const STUCK: Duration = Duration::from_secs(3);
/// And at most this often while probes fail.
const PAUSE: Duration = Duration::from_millis(100);

/// What the node wants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DesiredState {
    /// The view is known: what is not needed may be removed.
    pub(super) known: bool,
    pub(super) devices: DesiredDevices,
    /// Ranges of this node's pods.
    pub(super) pod_cidrs: Vec<IpNet>,
    /// Addresses of this node, as its Node object has them.
    pub(super) node_addresses: Vec<IpAddr>,
    /// Counts how often a check was asked for.
    pub(super) asked: u64,
}

/// What the keeper found.
pub(in crate::app) enum Observed {
    /// The devices are there; they may be others than before.
    Ready(SentinelDevices),
    /// They cannot be had, in words.
    Off(String),
    /// They were damaged, in words; what comes next tells whether they could be mended.
    Damaged(String),
    /// What the kernel says of itself.
    Kernel(KernelState),
}

/// The task; it ends, and removes the devices, when `desires` has no sender any more.
pub(super) fn start(
    settings: Settings,
    desires: watch::Receiver<DesiredState>,
    observed: mpsc::UnboundedSender<Observed>,
) -> JoinHandle<()> {
    tokio::spawn(async move {
        let mut keeper = Keeper {
            settings,
            observed,
            devices: None,
            families: Vec::new(),
            off: None,
            removed: false,
        };
        keeper.run(desires).await;
    })
}

struct Keeper {
    settings: Settings,
    observed: mpsc::UnboundedSender<Observed>,
    devices: Option<SentinelDevices>,
    families: Vec<Family>,
    /// What was said last of why there are none.
    off: Option<String>,
    /// Nothing of ours is there, as far as we know.
    removed: bool,
}

impl Keeper {
    async fn run(&mut self, mut desires: watch::Receiver<DesiredState>) {
        loop {
            let desired = desires.borrow_and_update().clone();
            if desired.devices.needed {
                // Netlink answers in milliseconds, or is broken.
                if tokio::time::timeout(STUCK, self.look(&desired))
                    .await
                    .is_err()
                {
                    tracing::warn!("the sentinel's devices could not be looked at in time");
                }
            } else if desired.known && !self.removed {
                self.remove().await;
                self.off = None;
            }
            tokio::time::sleep(PAUSE).await;
            if let Ok(Err(_)) = tokio::time::timeout(LOOK, desires.changed()).await {
                break;
            }
        }
        self.remove().await;
    }

    async fn remove(&mut self) {
        self.devices = None;
        self.removed = true;
        match remove(&self.settings).await {
            Ok(removed) => tracing::debug!(removed, "the sentinel's devices are removed"),
            Err(error) => {
                tracing::warn!(%error, "the sentinel's devices stay behind; pathproof cleanup removes them")
            }
        }
    }

    async fn look(&mut self, desired: &DesiredState) {
        let began = clock::mono();
        let sound = match &self.devices {
            Some(devices)
                if self.families == desired.devices.families && !has_more(devices, desired) =>
            {
                let mut damages = sentences(&verify(devices, &self.settings).await);
                damages.extend(overridden(devices));
                if !damages.is_empty() {
                    self.report(Observed::Damaged(damages.join("; ")));
                }
                damages.is_empty()
            }
            _ => false,
        };
        if !sound {
            self.make(desired).await;
        }
        if let Some(devices) = &self.devices {
            let state = KernelState {
                sound_since: sound.then_some(began),
                forwarding: Family::ALL.map(|family| forwarding(devices, family)),
                owners: owners(),
            };
            self.report(Observed::Kernel(state));
        }
    }

    async fn make(&mut self, desired: &DesiredState) {
        match self.try_make(desired).await {
            Ok(devices) => {
                for note in &devices.notes {
                    tracing::info!(%note, "the sentinel's devices");
                }
                self.off = None;
                self.removed = false;
                self.families.clone_from(&desired.devices.families);
                self.devices = Some(devices.clone());
                self.report(Observed::Ready(devices));
            }
            Err(why) => {
                // Addresses that are somebody else's must not lead to us, nor half a pair stay.
                self.remove().await;
                if self.off.as_ref() != Some(&why) {
                    self.report(Observed::Off(why.clone()));
                    self.off = Some(why);
                }
            }
        }
    }

    async fn try_make(&self, desired: &DesiredState) -> Result<SentinelDevices, String> {
        let node = NodeState::read(&self.settings)
            .await
            .map_err(|error| error.to_string())?;
        if let Some(conflict) = conflict(
            &self.settings,
            &desired.devices.families,
            known(desired),
            &node,
        ) {
            return Err(conflict.to_string());
        }
        ensure(&self.settings, &desired.devices.families)
            .await
            .map_err(|error| error.to_string())
    }

    fn report(&self, observed: Observed) {
        // The main loop ends before the keeper does: then nobody needs to know.
        let _ = self.observed.send(observed);
    }
}

/// The main loop looks into the cluster's Services, this one at the node alone.
fn known(desired: &DesiredState) -> Known<'_> {
    Known {
        pod_cidrs: &desired.pod_cidrs,
        node_addresses: &desired.node_addresses,
        services: Box::new(std::iter::empty()),
        endpoints: Box::new(std::iter::empty()),
    }
}

fn sentences(damages: &[Damage]) -> Vec<String> {
    damages.iter().map(ToString::to_string).collect()
}

/// Whether a family that was not to be had can be had now.
fn has_more(devices: &SentinelDevices, desired: &DesiredState) -> bool {
    desired
        .devices
        .families
        .iter()
        .any(|family| !devices.has(*family) && is_enabled(devices, *family))
}
