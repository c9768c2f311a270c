//! Writes the verdict to the API server: the Node's condition and Events about it.
//!
//! Takes published reports and a client, and decides nothing: what is said and when is
//! `agent_core::condition`. Nobody waits for it, and nothing is queued: what is written is what stands
//! at that moment, also after the API server was away. What it cannot write is said once in the
//! log, and for as long as it lasts in the report.
//!
//! When the agent ends the condition stays as it is: its heartbeat tells its age.

mod condition;
mod events;
mod fault;
mod node;
mod outcome;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::metrics::{Metrics, Published};
use agent_core::condition::{Pace, Standing, Written, standing};
use agent_core::report::PublishReport;
use agent_core::report::Report;
use agent_core::time::{Mono, Wall};
pub use kube::Client;
use node::NodeApi;
use outcome::Outcomes;

/// Published reports, as `/verdict` gets them.
pub type Reports = watch::Receiver<Option<Arc<Report>>>;

/// An answer comes within this, or the try has failed.
const PATIENCE: Duration = Duration::from_secs(10);

/// What is written, about whom, and how often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `metadata.name` of the Node.
    pub node: Arc<str>,
    /// The Node's condition is written.
    pub condition: bool,
    /// Events are.
    pub events: bool,
    /// How often.
    pub pace: Pace,
    /// An answer of the API server comes within this, or the try has failed.
    pub patience: Duration,
}

impl Settings {
    /// With the numbers of docs/behaviour.md.
    pub fn new(node: Arc<str>, condition: bool, events: bool) -> Self {
        Self {
            node,
            condition,
            events,
            pace: Pace::default(),
            patience: PATIENCE,
        }
    }
}

/// Clocks, as `crate::clock` reads them.
#[derive(Clone, Copy, Debug)]
pub struct Clocks {
    /// `CLOCK_MONOTONIC`.
    pub mono: fn() -> Mono,
    /// The wall clock: only what is written carries it.
    pub wall: fn() -> Wall,
}

/// What runs. Dropping it ends it at once; so does the end of the reports.
#[derive(Debug)]
pub struct Publishing {
    outcomes: Outcomes,
    task: JoinHandle<()>,
}

impl Publishing {
    /// How it goes.
    pub fn report(&self) -> PublishReport {
        self.outcomes.report()
    }
}

impl Drop for Publishing {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Begins to write what `reports` say. Must be called within a tokio runtime.
pub fn start(
    settings: Settings,
    client: Client,
    reports: Reports,
    metrics: Arc<Metrics>,
    clocks: Clocks,
) -> Publishing {
    let outcomes = Outcomes::new(settings.condition, settings.events, metrics, clocks);
    let task = tokio::spawn(run(settings, client, reports, outcomes.clone(), clocks));
    Publishing { outcomes, task }
}

async fn run(
    settings: Settings,
    client: Client,
    mut reports: Reports,
    outcomes: Outcomes,
    clocks: Clocks,
) {
    let node = NodeApi::new(client, Arc::clone(&settings.node), settings.patience);
    let found = tokio::select! {
        found = find(&node, settings.pace) => found,
        () = ended(&mut reports) => return,
    };
    let condition = async {
        if settings.condition {
            condition::run(&settings, &node, found, reports.clone(), &outcomes, clocks).await;
        }
    };
    let events = async {
        if settings.events {
            events::run(&settings, &node, found, reports.clone(), &outcomes, clocks).await;
        }
    };
    tokio::join!(condition, events);
}

/// What an agent before wrote. Read once; only an API server that is away is asked again, since
/// nothing can be written then either.
async fn find(node: &NodeApi, pace: Pace) -> Option<Written> {
    let mut pause = pace.retry;
    loop {
        match node.read().await {
            Ok(found) => return found,
            Err(error) if error.is_passing() => {
                tracing::debug!(%error, "the Node's condition cannot be read yet");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(pace.retry_max);
            }
            Err(error) => {
                tracing::info!(%error, "the Node's condition cannot be read: it begins anew");
                return None;
            }
        }
    }
}

async fn ended(reports: &mut Reports) {
    while reports.changed().await.is_ok() {}
}

/// What the newest report amounts to.
fn newest(reports: &mut Reports) -> Option<(Arc<Report>, Standing)> {
    let report = reports.borrow_and_update().clone()?;
    let standing = standing(&report.verdict, !report.answers.livez.would_fail);
    Some((report, standing))
}

/// Waits for a report, or until `due`. False when no more reports will come.
async fn wait(reports: &mut Reports, due: Option<Mono>, now: Mono) -> bool {
    let until = async {
        match due {
            Some(due) => tokio::time::sleep(due.since(now)).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        changed = reports.changed() => changed.is_ok(),
        () = until => true,
    }
}
