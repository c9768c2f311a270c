//! The main loop's turns: what comes to it, and what follows each turn.

use std::time::Duration;

use futures_util::future::OptionFuture;
use tokio::sync::mpsc::Receiver;
use tokio::sync::watch;
use tokio::time::{Interval, MissedTickBehavior};

use agent_core::limits::SAMPLE_INTERVAL;

use super::agent::Agent;
use super::probing::{Inbox, Message};
use crate::clock;
use crate::cluster::watch::Update;
use crate::datapath::devices::{self, DevicesError, Interfaces};
use crate::http::admin::RecordingRequest;
use crate::lifecycle::heartbeat::Heartbeat;
use crate::lifecycle::ready::{Guard, Readiness};
use crate::port::Takeover;

/// How often hooks and the sentinel are checked.
const CHECK: Duration = Duration::from_secs(5);

/// Guards of what is not ready yet.
pub(super) struct Pending {
    pub(super) view: Option<Guard>,
    pub(super) devices: Option<Guard>,
}

/// What follows the main loop turn by turn.
pub(super) struct Beside<'a> {
    pub(super) pending: Pending,
    pub(super) readiness: Readiness,
    /// Held while the verdict fails that did not before this agent.
    pub(super) upgrade: Option<Guard>,
    pub(super) heartbeat: Heartbeat,
    pub(super) takeover: &'a Takeover,
}

/// What an agent waits for that closed its upgrade gate.
const UPGRADE: &str = "node became unhealthy after this agent started";

impl Beside<'_> {
    pub(super) fn follow(&mut self, agent: &Agent, devices_known: bool) {
        if agent.view_synced() {
            self.pending.view = None;
        }
        if devices_known {
            self.pending.devices = None;
        }
        if self.pending.view.is_none() && self.pending.devices.is_none() {
            self.takeover.ready();
        }
        match (agent.node.judge().gate.closed, &self.upgrade) {
            (true, None) => self.upgrade = Some(self.readiness.guard(UPGRADE)),
            (false, Some(_)) => self.upgrade = None,
            _ => {}
        }
        self.heartbeat.beat(clock::mono().0);
    }
}

/// Everything that comes to the main loop.
pub(super) struct Inputs {
    pub(super) updates: Receiver<Update>,
    pub(super) inbox: Option<Inbox>,
    pub(super) devices: watch::Receiver<Interfaces>,
    pub(super) devices_known: bool,
    pub(super) recordings: Receiver<RecordingRequest>,
    pub(super) sample: Interval,
    pub(super) check: Interval,
}

/// One thing that came.
pub(super) enum Input {
    View(Update),
    Message(Message),
    Interfaces(Interfaces),
    Recording(RecordingRequest),
    Check,
    Sample,
}

impl Inputs {
    pub(super) async fn new(
        updates: Receiver<Update>,
        inbox: Option<Inbox>,
        recordings: Receiver<RecordingRequest>,
    ) -> Result<Self, DevicesError> {
        let mut devices = devices::follow().await?;
        devices.mark_changed();
        let interval = |period| {
            let mut interval = tokio::time::interval(period);
            interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
            interval
        };
        Ok(Self {
            updates,
            inbox,
            devices,
            devices_known: false,
            recordings,
            sample: interval(SAMPLE_INTERVAL),
            check: interval(CHECK),
        })
    }

    pub(super) async fn next(&mut self) -> Input {
        let inbox = OptionFuture::from(self.inbox.as_mut().map(Inbox::next));
        tokio::select! {
            biased;
            Some(update) = self.updates.recv() => Input::View(update),
            Some(message) = inbox => Input::Message(message),
            Ok(()) = self.devices.changed() => {
                Input::Interfaces(self.devices.borrow_and_update().clone())
            }
            Some(wanted) = self.recordings.recv() => Input::Recording(wanted),
            _ = self.check.tick() => Input::Check,
            _ = self.sample.tick() => Input::Sample,
        }
    }
}

impl Agent {
    /// Takes one input in. Returns when the kernel's evidence is to be read again, where it was read.
    pub(super) fn take(&mut self, input: Input) -> Option<Duration> {
        match input {
            Input::View(update) => self.follow_view(update),
            Input::Message(message) => self.take_in(message),
            Input::Interfaces(interfaces) => self.follow_interfaces(interfaces),
            Input::Recording(wanted) => {
                // Whoever asked may be gone.
                let _ = wanted.send(self.node.recording());
            }
            Input::Check => self.check(),
            Input::Sample => return Some(self.sample()),
        }
        None
    }
}
