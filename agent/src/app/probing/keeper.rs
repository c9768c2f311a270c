//! Maintains the sentinel's devices: creates them on demand, checks and repairs them, and finally removes
//! them. It is a separate task because netlink requests take time. It reports to the main loop and decides
//! nothing.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use pathproof_facts::node_context::address;
use pathproof_facts::time::Mono;
use pathproof_node::effect::DesiredDevices;
use pathproof_node::event::{Event, KernelState, SentinelEvent};
use pathproof_wire::service::{FAMILIES, Family};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::clock;
use crate::config::SentinelConfig;
use crate::sentinel::devices::{
    Role, SentinelDevices, address_conflict, answering, ensure, remove, uplinks, verify,
};
use crate::sentinel::kernel::{forwarding, has_ipv6, overridden, owners};

/// Interval between checks while all is well.
const LOOK: Duration = Duration::from_secs(5);
/// Timeout of a check: netlink answers in milliseconds, or is broken.
const STUCK: Duration = Duration::from_secs(3);
/// Timeout for creating the devices, which reads all routes of the node: there may be a million.
const MAKING: Duration = Duration::from_secs(20);
/// Interval of trying the sentinel's addresses again while somebody else answers there.
const AGAIN: Duration = Duration::from_secs(60);
/// Minimum interval between checks while probes fail.
const PAUSE: Duration = Duration::from_millis(100);

/// Devices that should exist. `None` while the view is unknown: existing devices must not be removed then.
pub(super) type Desired = Option<DesiredDevices>;

/// Starts the task. It checks the devices whenever `desires` are sent, even the same again. When their sender
/// is dropped, it removes the devices and ends.
pub(super) fn start(
    config: SentinelConfig,
    desires: watch::Receiver<Desired>,
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
        tried: None,
    };
    tokio::spawn(async move { keeper.run(desires).await })
}

struct Keeper {
    config: SentinelConfig,
    made: watch::Sender<Option<SentinelDevices>>,
    events: mpsc::UnboundedSender<Event>,
    families: Vec<Family>,
    /// Last reported reason why there are no devices.
    off: Option<String>,
    /// Whether devices of this agent may exist, even in part; `None` before it created or removed any.
    touched: Option<bool>,
    /// The last attempt to find somebody else at the sentinel's addresses.
    tried: Option<Tried>,
}

struct Tried {
    at: Mono,
    tries: Vec<SocketAddr>,
    /// Addresses that were not tried, because no route leads to them.
    untried: Vec<SocketAddr>,
    /// A sentence about who answers; `None` if nobody does.
    in_use: Option<String>,
}

impl Keeper {
    async fn run(&mut self, mut desires: watch::Receiver<Desired>) {
        loop {
            let desired = desires.borrow_and_update().clone();
            let mut sound_since = None;
            match desired {
                Some(devices) if devices.needed => {
                    sound_since = match self.in_use(&devices).await {
                        // At each check, because during an update the older agent may make the devices
                        // again and then leave them.
                        Some(why) => {
                            self.remove().await;
                            self.turn_off(why);
                            None
                        }
                        None => self.look(&devices.families, &desires).await,
                    };
                }
                Some(_) if self.touched != Some(false) => {
                    self.remove().await;
                    (self.off, self.tried) = (None, None);
                }
                _ => {}
            }
            self.report_kernel(sound_since);
            sleep(PAUSE).await;
            if let Ok(Err(_)) = timeout(LOOK, desires.changed()).await {
                break;
            }
        }
        // Devices that this agent never touched may belong to another agent.
        if self.touched == Some(true) {
            self.remove().await;
        }
    }

    /// Reports the kernel's state, even if there are no devices: a node that does not forward cannot serve
    /// outside clients. If the state cannot be read, nothing is reported.
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

    /// Returns a sentence if somebody else answers at the sentinel's addresses. The addresses are tried before
    /// the first devices are made, when claims of other Services to these addresses change, and again every
    /// minute while somebody answers or no route of a family leads to them.
    async fn in_use(&mut self, desired: &DesiredDevices) -> Option<String> {
        let family_of = |to: &SocketAddr| Family::of(&address(&to.ip()));
        let mut tries = desired.tries.clone();
        tries.retain(|to| desired.families.contains(&family_of(to)));
        let last = self.tried.as_ref().filter(|last| last.tries == tries);
        let due = match last {
            None => tries.clone(),
            Some(last) if clock::mono().since(last.at) < AGAIN => return last.in_use.clone(),
            Some(last) if last.in_use.is_some() => tries.clone(),
            Some(last) if last.untried.is_empty() => return None,
            Some(last) => last.untried.clone(),
        };
        let mut found = <[BTreeSet<String>; FAMILIES]>::default();
        for family in Family::ALL {
            let tried = due.iter().copied().filter(|to| family_of(to) == family);
            let addresses: Vec<_> = tried.map(|to| to.ip()).collect();
            if !addresses.is_empty() {
                let listed = uplinks(family, addresses).await.inspect_err(|error| {
                    tracing::warn!(%error, "the sentinel's addresses could not be tried yet");
                });
                found[family as usize] = listed.unwrap_or_default();
            }
        }
        let in_use = answering(&due, &found).await;
        let mut untried = due;
        untried.retain(|to| found[family_of(to) as usize].is_empty());
        self.tried = Some(Tried {
            at: clock::mono(),
            tries,
            untried,
            in_use: in_use.clone(),
        });
        in_use
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

    /// Checks the devices and repairs them. If they were sound, returns when the check began.
    async fn look(
        &mut self,
        families: &[Family],
        desires: &watch::Receiver<Desired>,
    ) -> Option<Mono> {
        let began = clock::mono();
        let made = self.made.borrow().clone();
        let mut damage = None;
        let sound = match &made {
            Some(devices) if self.families == families && !self.has_more(devices) => {
                let verified = verify(devices, &self.config);
                // On an error the devices stay: they may be sound, and recreating them costs
                // seconds of probes.
                let verified = timeout(STUCK, verified).await;
                let verified = verified.map_err(|_| "netlink does not answer".to_owned());
                let verified = verified.and_then(|found| found.map_err(|error| error.to_string()));
                let verified = verified.inspect_err(|error| {
                    tracing::warn!(%error, "the sentinel's interfaces could not be checked");
                });
                let mut damages = verified.ok()?;
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
                // Half a pair must not stay. If netlink does not answer, this may time out too.
                let _ = timeout(STUCK, self.remove()).await;
            }
        }
        sound.then_some(began)
    }

    /// Creates the devices, and stops once nobody needs them. Returns false if it takes too long.
    /// Failed probes do not count for some time after damage is reported, so the report is repeated
    /// until the damage is repaired.
    async fn make_in_time(
        &mut self,
        families: &[Family],
        damage: Option<SentinelEvent>,
        desires: &watch::Receiver<Desired>,
    ) -> bool {
        let events = self.events.clone();
        let damage = damage.map(Event::Sentinel);
        let tell = || damage.clone().map(|damage| events.send(damage));
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
                // Addresses of another program must not lead to the sentinel, and half a pair must not stay.
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
        let found = address_conflict(&self.config, families).await;
        if let Some(conflict) = found.map_err(|error| error.to_string())? {
            return Err(conflict);
        }
        let made = ensure(&self.config, families).await;
        made.map_err(|error| error.to_string())
    }

    fn report(&self, event: SentinelEvent) {
        // The main loop ends before the keeper does, and then needs no reports.
        let _ = self.events.send(Event::Sentinel(event));
    }

    /// Whether IPv6 was unavailable, is wanted, and is available now.
    fn has_more(&self, devices: &SentinelDevices) -> bool {
        let lacks = self.families.iter().any(|family| !devices.has(*family));
        let has_ipv6 = |role: &Role| has_ipv6(&role.name(&self.config.devices));
        lacks && Role::NEAR.iter().all(has_ipv6)
    }
}
