//! Keeps the sentinel's devices: makes them once they are needed, looks after them, mends them,
//! removes them in the end. A task of its own, since netlink waits; it tells the main loop what it
//! found and decides nothing.

use std::pin::pin;
use std::time::Duration;

use agent_common::service::Family;
use agent_core::effect::DesiredDevices;
use agent_core::event::{Event, KernelState, SentinelEvent};
use agent_core::time::Mono;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::clock;
use crate::config::SentinelConfig;
use crate::sentinel::devices::{Role, SentinelDevices, conflict, ensure, remove, verify};
use crate::sentinel::kernel::{forwarding, has_ipv6, overridden, owners};

/// The devices are looked at this often while all is well.
const LOOK: Duration = Duration::from_secs(5);
/// A look that takes longer is given up: netlink answers in milliseconds, or is broken.
const STUCK: Duration = Duration::from_secs(3);
/// So is making the devices. All routes of the node are read for it, which may be a million.
const MAKING: Duration = Duration::from_secs(20);
/// And at most this often while probes fail.
const PAUSE: Duration = Duration::from_millis(100);

/// State that the node wants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DesiredState {
    /// Nothing while the view is not known: then what is not needed may not be removed either.
    pub(super) devices: Option<DesiredDevices>,
    /// Counts how often a check was asked for.
    pub(super) asked: u64,
}

/// The task; it ends, and removes the devices, when `desires` has no sender any more.
pub(super) fn start(
    config: SentinelConfig,
    desires: watch::Receiver<DesiredState>,
    made: watch::Sender<Option<SentinelDevices>>,
    events: mpsc::UnboundedSender<Event>,
) -> JoinHandle<()> {
    let mut keeper = Keeper {
        config,
        made,
        events,
        families: Vec::new(),
        off: None,
        touched: None,
    };
    tokio::spawn(async move { keeper.run(desires).await })
}

struct Keeper {
    config: SentinelConfig,
    /// The devices that are there.
    made: watch::Sender<Option<SentinelDevices>>,
    events: mpsc::UnboundedSender<Event>,
    families: Vec<Family>,
    /// Last reported reason why there are no devices.
    off: Option<String>,
    /// Whether devices of ours may be there, in part or whole; `None` before this agent made or removed
    /// any.
    touched: Option<bool>,
}

impl Keeper {
    async fn run(&mut self, mut desires: watch::Receiver<DesiredState>) {
        loop {
            let desired = desires.borrow_and_update().devices.clone();
            let mut sound_since = None;
            match desired {
                Some(devices) if devices.needed => {
                    sound_since = self.look(&devices.families, &desires).await;
                }
                Some(_) if self.touched != Some(false) => {
                    self.remove().await;
                    self.off = None;
                }
                _ => {}
            }
            self.report_kernel(sound_since);
            sleep(PAUSE).await;
            if let Ok(Err(_)) = timeout(LOOK, desires.changed()).await {
                break;
            }
        }
        // Devices that this agent never touched may be another's.
        if self.touched == Some(true) {
            self.remove().await;
        }
    }

    /// Without devices too: that the node does not forward keeps clients outside from being served. What could
    /// not be read changes nothing.
    fn report_kernel(&self, sound_since: Option<Mono>) {
        let [v4, v6] = Family::ALL.map(|family| forwarding(&self.config.devices, family));
        match (v4, v6) {
            (Ok(v4), Ok(v6)) => self.report(SentinelEvent::Kernel(KernelState {
                sound_since,
                forwarding: [v4, v6],
                owners: owners(),
            })),
            (Err(error), _) | (_, Err(error)) => {
                tracing::warn!(%error, "cannot read whether the kernel forwards");
            }
        }
    }

    async fn remove(&mut self) {
        let was = self.made.send_replace(None);
        let removed = remove(&self.config.devices).await;
        self.touched = Some(removed.is_err());
        match removed {
            Ok(removed) => tracing::debug!(removed, "removed the sentinel's interfaces"),
            Err(error) if was.is_some() => {
                tracing::warn!(%error, "the sentinel's interfaces could not be removed; remove \
                                        them with pathproof cleanup")
            }
            Err(error) => tracing::debug!(%error, "the sentinel's interfaces could not be removed \
                                                   yet; trying again"),
        }
    }

    /// Checks the devices, and makes what is not as it has to be. Returns when the check began that found
    /// them sound.
    async fn look(
        &mut self,
        families: &[Family],
        desires: &watch::Receiver<DesiredState>,
    ) -> Option<Mono> {
        let began = clock::mono();
        let made = self.made.borrow().clone();
        let mut damage = None;
        let sound = match &made {
            Some(devices) if self.families == families && !self.has_more(devices) => {
                let verified = verify(devices, &self.config);
                // They may be as they were, and making them anew costs seconds of probes.
                let mut damages = match timeout(STUCK, verified).await {
                    Ok(Ok(damages)) => damages,
                    Ok(Err(error)) => {
                        tracing::warn!(%error, "the sentinel's interfaces could not be checked");
                        return None;
                    }
                    Err(_) => {
                        tracing::warn!("the sentinel's interfaces could not be checked in time");
                        return None;
                    }
                };
                damages.extend(overridden(&self.config.devices).ok().flatten());
                damage = (!damages.is_empty()).then(|| SentinelEvent::Damaged(damages.join("; ")));
                damage.is_none()
            }
            _ => false,
        };
        if !sound && !self.make_in_time(families, damage, desires).await {
            let why = format!(
                "the sentinel's interfaces could not be made within {} s: netlink does not answer, \
                 or this node has millions of routes",
                MAKING.as_secs()
            );
            tracing::warn!("{why}");
            if self.made.borrow().is_none() {
                self.turn_off(why);
                // Half a pair must not stay. What does not answer may not answer this either.
                let _ = timeout(STUCK, self.remove()).await;
            }
        }
        sound.then_some(began)
    }

    /// Makes the devices, and gives up once nobody wants them any more. Returns false if it takes too long.
    /// For some time after damage failed probes do not count: it is reported again until it is repaired.
    async fn make_in_time(
        &mut self,
        families: &[Family],
        damage: Option<SentinelEvent>,
        desires: &watch::Receiver<DesiredState>,
    ) -> bool {
        let events = self.events.clone();
        let tell = || {
            damage
                .clone()
                .map(|damage| events.send(Event::Sentinel(damage)))
        };
        let mut making = pin!(self.make(families));
        let end = clock::mono().plus(MAKING);
        while clock::mono() < end {
            tell();
            let is_over = timeout(STUCK, making.as_mut()).await.is_ok();
            if is_over || desires.has_changed().is_err() {
                tell();
                return true;
            }
        }
        false
    }

    async fn make(&mut self, families: &[Family]) {
        self.touched = Some(true);
        match self.try_make(families).await {
            Ok(devices) => {
                self.off = None;
                self.families = families.to_vec();
                self.made.send_replace(Some(devices));
                self.report(SentinelEvent::Ready);
            }
            Err(why) => {
                // Addresses that are somebody else's must not lead to us, nor half a pair stay.
                self.remove().await;
                self.turn_off(why);
            }
        }
    }

    fn turn_off(&mut self, why: String) {
        if self.off.as_ref() != Some(&why) {
            self.report(SentinelEvent::Off(why.clone()));
            self.off = Some(why);
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

    fn report(&self, parts: SentinelEvent) {
        // The main loop ends before the keeper does: then nobody needs to know.
        let _ = self.events.send(Event::Sentinel(parts));
    }

    /// Whether IPv6 was not to be had, is wanted, and can be had now.
    fn has_more(&self, devices: &SentinelDevices) -> bool {
        let lacks = self.families.iter().any(|family| !devices.has(*family));
        let has_ipv6 = |role: &Role| has_ipv6(&role.name(&self.config.devices));
        lacks && Role::NEAR.iter().all(has_ipv6)
    }
}
