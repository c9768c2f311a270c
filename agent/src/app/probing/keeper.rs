//! Keeps the sentinel's devices: makes them once they are needed, looks after them, mends them,
//! removes them in the end. A task of its own, since netlink waits; it tells the main loop what it
//! found and decides nothing.

use std::net::IpAddr;
use std::time::Duration;

use agent_common::service::{FAMILIES, Family};
use ipnet::IpNet;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::clock;
use crate::sentinel::devices::{
    Damage, Known, NodeState, SentinelDevices, Settings, conflict, ensure, forwarding, is_enabled,
    overridden, remove, verify,
};
use crate::sentinel::owners::owners;
use agent_core::owners::DatapathOwners;
use agent_core::time::Mono;

/// The devices are looked at this often while all is well.
const LOOK: Duration = Duration::from_secs(5);
/// A look that takes longer is given up.
const STUCK: Duration = Duration::from_secs(3);
/// And at most this often while probes fail.
const PAUSE: Duration = Duration::from_millis(100);

/// What the main loop wants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Wish {
    /// The view is known: what is not needed may be removed.
    pub(super) known: bool,
    /// There is something to probe.
    pub(super) needed: bool,
    /// In these families.
    pub(super) families: Vec<Family>,
    /// Ranges of this node's pods.
    pub(super) pod_cidrs: Vec<IpNet>,
    /// Addresses of this node, as its Node object says.
    pub(super) node_addresses: Vec<IpAddr>,
    /// Counts how often a look was asked for.
    pub(super) asked: u64,
}

/// What the keeper found.
pub(super) enum News {
    /// The devices stand; they may be others than before.
    Ready(SentinelDevices),
    /// They cannot be had, in words.
    Off(String),
    /// They were damaged, in words; what comes next tells whether they could be mended.
    Damaged(String),
    /// What the kernel says of itself.
    Facts(Facts),
}

/// Beside the devices, by [`Family`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    /// When the look began that found the devices sound; nothing where it did not.
    pub(super) sound_since: Option<Mono>,
    pub(super) forwarding: [Option<bool>; FAMILIES],
    pub(super) owners: [DatapathOwners; FAMILIES],
}

/// The task; it ends, and removes the devices, when `wishes` has no sender any more.
pub(super) fn start(
    settings: Settings,
    wishes: watch::Receiver<Wish>,
    news: mpsc::UnboundedSender<News>,
) -> JoinHandle<()> {
    tokio::spawn(async move {
        let mut keeper = Keeper {
            settings,
            news,
            devices: None,
            families: Vec::new(),
            off: None,
            removed: false,
        };
        keeper.run(wishes).await;
    })
}

struct Keeper {
    settings: Settings,
    news: mpsc::UnboundedSender<News>,
    devices: Option<SentinelDevices>,
    families: Vec<Family>,
    /// What was said last of why there are none.
    off: Option<String>,
    /// Nothing of ours is there, as far as we know.
    removed: bool,
}

impl Keeper {
    async fn run(&mut self, mut wishes: watch::Receiver<Wish>) {
        loop {
            let wish = wishes.borrow_and_update().clone();
            if wish.needed {
                // Netlink answers in milliseconds, or is broken.
                if tokio::time::timeout(STUCK, self.look(&wish)).await.is_err() {
                    tracing::warn!("the sentinel's devices could not be looked at in time");
                }
            } else if wish.known && !self.removed {
                self.remove().await;
            }
            tokio::time::sleep(PAUSE).await;
            if let Ok(Err(_)) = tokio::time::timeout(LOOK, wishes.changed()).await {
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

    async fn look(&mut self, wish: &Wish) {
        let began = clock::mono();
        let sound = match &self.devices {
            Some(devices) if self.families == wish.families && !has_more(devices, wish) => {
                let mut damages = sentences(&verify(devices, &self.settings).await);
                damages.extend(overridden(devices));
                if !damages.is_empty() {
                    self.tell(News::Damaged(damages.join("; ")));
                }
                damages.is_empty()
            }
            _ => false,
        };
        if !sound {
            self.make(wish).await;
        }
        if let Some(devices) = &self.devices {
            let facts = Facts {
                sound_since: sound.then_some(began),
                forwarding: Family::ALL.map(|family| forwarding(devices, family)),
                owners: owners(),
            };
            self.tell(News::Facts(facts));
        }
    }

    async fn make(&mut self, wish: &Wish) {
        match self.try_make(wish).await {
            Ok(devices) => {
                for note in &devices.notes {
                    tracing::info!(%note, "the sentinel's devices");
                }
                self.off = None;
                self.removed = false;
                self.families.clone_from(&wish.families);
                self.devices = Some(devices.clone());
                self.tell(News::Ready(devices));
            }
            Err(why) => {
                // Addresses that are somebody else's must not lead to us, nor half a pair stay.
                self.remove().await;
                if self.off.as_ref() != Some(&why) {
                    self.tell(News::Off(why.clone()));
                    self.off = Some(why);
                }
            }
        }
    }

    async fn try_make(&self, wish: &Wish) -> Result<SentinelDevices, String> {
        let node = NodeState::read(&self.settings)
            .await
            .map_err(|error| error.to_string())?;
        if let Some(conflict) = conflict(&self.settings, &wish.families, known(wish), &node) {
            return Err(conflict.to_string());
        }
        ensure(&self.settings, &wish.families)
            .await
            .map_err(|error| error.to_string())
    }

    fn tell(&self, news: News) {
        // The main loop ends before the keeper does: then nobody needs to know.
        let _ = self.news.send(news);
    }
}

/// The main loop looks into the cluster's Services, this one at the node alone.
fn known(wish: &Wish) -> Known<'_> {
    Known {
        pod_cidrs: &wish.pod_cidrs,
        node_addresses: &wish.node_addresses,
        services: Box::new(std::iter::empty()),
        endpoints: Box::new(std::iter::empty()),
    }
}

fn sentences(damages: &[Damage]) -> Vec<String> {
    damages.iter().map(ToString::to_string).collect()
}

/// Whether a family that was not to be had can be had now.
fn has_more(devices: &SentinelDevices, wish: &Wish) -> bool {
    wish.families
        .iter()
        .any(|family| !devices.has(*family) && is_enabled(devices, *family))
}
