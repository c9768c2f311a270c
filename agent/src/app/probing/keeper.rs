//! Keeps the sentinel's devices: makes them once they are needed, looks after them, mends them,
//! removes them in the end. A task of its own, since netlink waits; it tells the main loop what it
//! found and decides nothing.

use std::net::IpAddr;
use std::time::Duration;

use agent_common::service::{FAMILIES, Family};
use ipnet::IpNet;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::domain::sentinel::DatapathOwners;
use crate::sentinel::devices::{
    Damage, Known, NodeState, SentinelDevices, Settings, conflict, ensure, forwarding, remove,
    verify,
};
use crate::sentinel::owners::owners;

/// The devices are looked at this often while all is well.
const LOOK: Duration = Duration::from_secs(5);
/// And at most this often while probes fail.
const PAUSE: Duration = Duration::from_millis(100);

/// What the main loop wants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Wish {
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
}

impl Keeper {
    async fn run(&mut self, mut wishes: watch::Receiver<Wish>) {
        loop {
            let wish = wishes.borrow_and_update().clone();
            if wish.needed {
                self.look(&wish).await;
            } else if self.devices.take().is_some() {
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
        match remove(&self.settings).await {
            Ok(removed) => tracing::debug!(removed, "the sentinel's devices are removed"),
            Err(error) => {
                tracing::warn!(%error, "the sentinel's devices stay behind; pathproof cleanup removes them")
            }
        }
    }

    async fn look(&mut self, wish: &Wish) {
        let sound = match &self.devices {
            Some(devices) if self.families == wish.families => {
                let damages = verify(devices, &self.settings).await;
                if !damages.is_empty() {
                    self.tell(News::Damaged(sentence(&damages)));
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
                self.families.clone_from(&wish.families);
                self.devices = Some(devices.clone());
                self.tell(News::Ready(devices));
            }
            Err(why) => {
                self.devices = None;
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

fn sentence(damages: &[Damage]) -> String {
    let all: Vec<String> = damages.iter().map(ToString::to_string).collect();
    all.join("; ")
}
