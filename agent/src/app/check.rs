//! `pathproof check` without an agent: the agent's own parts, without listeners, pins and state,
//! for a few seconds; then everything is removed.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior};

use super::agent::{Agent, Published};
use super::probing::{Inbox, Probing};
use super::{AppError, CHECK, Delivered, Shutdown, TICK, load, next, source};
use crate::clock;
use crate::config::Config;
use crate::datapath::devices::{self, Interfaces};
use crate::metrics::Metrics;
use agent_core::ledger::Ledger;
use agent_core::limits::Limits;
use agent_core::report::{Report, SentinelState};

/// The cluster view is read and devices are made within this, or never.
const SETUP: Duration = Duration::from_secs(10);

/// Why nothing was checked.
#[derive(Debug, Error)]
pub enum CheckError {
    /// A part could not be had.
    #[error(transparent)]
    App(#[from] AppError),
    /// An agent that was not asked runs beside.
    #[error(
        "another process sends probes through {device}: an agent runs on this node; give its admin port with --admin-address, or end it"
    )]
    InUse {
        /// The sentinel's interface.
        device: String,
    },
    /// A signal came.
    #[error("ended by {signal} before anything was known; nothing is left behind")]
    Interrupted {
        /// Its name.
        signal: &'static str,
    },
    /// There was no report.
    #[error("nothing was judged")]
    Nothing,
}

impl CheckError {
    /// Whether more privileges would help.
    pub fn is_permission(&self) -> bool {
        matches!(self, Self::App(error) if error.is_permission())
    }
}

/// Probes for so long. Gives the last report, and how long it really was.
///
/// # Errors
/// What kept it from probing. Whatever happens, nothing is left behind.
pub async fn check(config: Config, time: Duration) -> Result<(Report, Duration), CheckError> {
    let mut shutdown = Shutdown::listen()?;
    let devices = devices::follow().await.map_err(AppError::from)?;
    let (probing, inbox) = config
        .sentinel
        .clone()
        .map(|of| Probing::new(of, None))
        .unzip();
    let beside = probing
        .as_ref()
        .and_then(|probing| in_use(probing, &devices.borrow()));
    if let Some(device) = beside {
        return Err(CheckError::InUse { device });
    }
    let (updates, _) = source::follow(&config).await?;
    let (observer, blind, no_pins) = load(&config)?;
    let (mut agent, published) =
        Agent::new(config, observer, blind, no_pins, probing, Metrics::new());
    agent.ledger = Ledger::new(Limits::one_shot());
    let mut checking = Checking {
        agent: &mut agent,
        published,
        time,
        end: Instant::now() + SETUP,
        begun: None,
    };
    let done = checking.turn(updates, devices, inbox, &mut shutdown).await;
    let observed = checking.observed();
    agent.end(false).await;
    done?;
    observed.ok_or(CheckError::Nothing)
}

struct Checking<'a> {
    agent: &'a mut Agent,
    published: Published,
    time: Duration,
    /// Until when it is waited or probed.
    end: Instant,
    /// When the first probe was to be sent.
    begun: Option<Instant>,
}

impl Checking<'_> {
    /// As the agent's main loop, without what serves.
    async fn turn(
        &mut self,
        mut updates: mpsc::Receiver<Delivered>,
        mut devices: watch::Receiver<Interfaces>,
        mut inbox: Option<Inbox>,
        shutdown: &mut Shutdown,
    ) -> Result<(), CheckError> {
        devices.mark_changed();
        let mut tick = tokio::time::interval(TICK);
        let mut check = tokio::time::interval(CHECK);
        for interval in [&mut tick, &mut check] {
            interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        }
        while !self.is_over() {
            tokio::select! {
                biased;
                signal = shutdown.requested() => return Err(CheckError::Interrupted { signal }),
                Some(update) = updates.recv() => self.agent.follow_view(update, clock::mono()),
                message = next(&mut inbox) => self.agent.take_in(message, clock::mono()),
                Ok(()) = devices.changed() => {
                    let interfaces = devices.borrow_and_update().clone();
                    let wanted = self.agent.watched(&interfaces);
                    self.agent.see(interfaces, clock::mono());
                    self.agent.follow_devices(wanted, clock::mono());
                }
                _ = check.tick() => self.agent.check(clock::mono()),
                _ = tick.tick() => tick.reset_after(self.agent.tick(clock::mono())),
            }
        }
        // What came last counts, and is judged.
        self.agent.tick(clock::mono());
        Ok(())
    }

    /// The time is up, or there is nothing to wait for.
    fn is_over(&mut self) -> bool {
        if Instant::now() >= self.end {
            return true;
        }
        let Some(probing) = &self.agent.probing else {
            return true;
        };
        if self.begun.is_none() && probing.is_running() {
            let now = Instant::now();
            self.begun = Some(now);
            self.end = now + self.time;
        }
        let synced = self.agent.view_synced();
        synced && probing.report(synced).state != SentinelState::Probing
    }

    fn observed(&self) -> Option<(Report, Duration)> {
        let report = self.published.report.borrow().as_ref().map(Arc::clone)?;
        let time = self.begun.map_or(Duration::ZERO, |begun| begun.elapsed());
        Some((Report::clone(&report), time))
    }
}

/// The sentinel's client end, where a process other than this one writes probes to it: its packet
/// socket receives nothing, so its protocol is 0. A capture's is not.
fn in_use(probing: &Probing, interfaces: &Interfaces) -> Option<String> {
    let [name, _] = probing.far_ends();
    let found = interfaces
        .devices
        .iter()
        .find(|device| device.name == name)?;
    let sockets = fs::read_to_string("/proc/net/packet").ok()?;
    is_written_to(&sockets, found.index).then_some(name)
}

/// Columns of /proc/net/packet: sk RefCnt Type Proto Iface R Rmem User Inode.
fn is_written_to(sockets: &str, index: u32) -> bool {
    let index = index.to_string();
    sockets.lines().skip(1).any(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        words.get(3) == Some(&"0000") && words.get(4) == Some(&&*index)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probers_are_told_from_captures() {
        let sockets = "\
sk               RefCnt Type Proto  Iface R Rmem   User   Inode
000000001d2a5a7f 3      3    0000   12    1 0      0      4711
000000001d2a5a80 3      3    0003   13    1 0      0      4712
";
        assert!(is_written_to(sockets, 12));
        assert!(!is_written_to(sockets, 13));
        assert!(!is_written_to(sockets, 1));
    }
}
