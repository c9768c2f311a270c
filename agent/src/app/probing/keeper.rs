//! Keeps the sentinel's devices: makes them once they are needed, looks after them, mends them,
//! removes them in the end. A task of its own, since netlink waits; it tells the main loop what it
//! found and decides nothing.

use std::time::Duration;

use agent_common::service::Family;
use agent_core::effect::DesiredDevices;
use agent_core::event::{Event, KernelState, Parts};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use super::Message;
use crate::clock;
use crate::config::SentinelConfig;
use crate::sentinel::devices::{Role, SentinelDevices, conflict, ensure, remove, verify};
use crate::sentinel::kernel::{forwarding, has_ipv6, overridden, owners};

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
    /// Counts how often a check was asked for.
    pub(super) asked: u64,
}

/// The task; it ends, and removes the devices, when `desires` has no sender any more.
pub(super) fn start(
    config: SentinelConfig,
    desires: watch::Receiver<DesiredState>,
    messages: mpsc::UnboundedSender<Message>,
) -> JoinHandle<()> {
    let mut keeper = Keeper {
        client: Role::ClientNear.name(&config.devices),
        config,
        messages,
        devices: None,
        families: Vec::new(),
        off: None,
        removed: false,
    };
    tokio::spawn(async move { keeper.run(desires).await })
}

struct Keeper {
    config: SentinelConfig,
    /// Name of the device by which probes enter the node.
    client: String,
    messages: mpsc::UnboundedSender<Message>,
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
        match remove(&self.config.devices).await {
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
                if self.families == desired.devices.families && !self.has_more(devices) =>
            {
                let mut damages = verify(devices, &self.config).await;
                damages.extend(overridden(&self.client));
                if !damages.is_empty() {
                    self.report(Parts::Damaged(damages.join("; ")));
                }
                damages.is_empty()
            }
            _ => false,
        };
        if !sound {
            self.make(desired).await;
        }
        if self.devices.is_some() {
            self.report(Parts::Kernel(KernelState {
                sound_since: sound.then_some(began),
                forwarding: Family::ALL.map(|family| forwarding(&self.client, family)),
                owners: owners(),
            }));
        }
    }

    async fn make(&mut self, desired: &DesiredState) {
        match self.try_make(&desired.devices.families).await {
            Ok(devices) => {
                self.off = None;
                self.removed = false;
                self.families.clone_from(&desired.devices.families);
                self.devices = Some(devices.clone());
                self.send(Message::Ready(devices));
            }
            Err(why) => {
                // Addresses that are somebody else's must not lead to us, nor half a pair stay.
                self.remove().await;
                if self.off.as_ref() != Some(&why) {
                    self.report(Parts::Off(why.clone()));
                    self.off = Some(why);
                }
            }
        }
    }

    async fn try_make(&self, families: &[Family]) -> Result<SentinelDevices, String> {
        let found = conflict(&self.config, families).await;
        if let Some(conflict) = found.map_err(|error| error.to_string())? {
            return Err(conflict);
        }
        let made = ensure(&self.config, families).await;
        made.map_err(|error| error.to_string())
    }

    fn report(&self, parts: Parts) {
        self.send(Message::Event(Box::new(Event::Parts(parts))));
    }

    fn send(&self, message: Message) {
        // The main loop ends before the keeper does: then nobody needs to know.
        let _ = self.messages.send(message);
    }

    /// Whether IPv6 was not to be had, is wanted, and can be had now.
    fn has_more(&self, devices: &SentinelDevices) -> bool {
        let lacks = self.families.iter().any(|family| !devices.has(*family));
        lacks && has_ipv6(&self.client)
    }
}
