//! Writes the verdict to the API server: the Node's condition and Events about it.
//!
//! It takes published reports and a client, and decides nothing: `pathproof_report::condition` decides what
//! is written and when. The main loop never waits for it. Nothing is queued: it always writes the current
//! state, also after the API server was unreachable. A failure to write is logged once, and is in the report
//! for as long as it lasts.
//!
//! When the agent ends, the condition stays as it is. Its heartbeat shows how old it is.

mod node;
mod outcome;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
pub use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use node::{Fault, NodeApi};
use outcome::Outcomes;
use pathproof_facts::time::Mono;
use pathproof_judge::eligibility::Eligibility;
use pathproof_report::condition::{
    Announcer, CONFLICT_REASON, ConditionState, ConflictAnnouncer, Pace, Refusal, Schedule, Status,
    Written, bounded, condition, message,
};
use pathproof_report::{PublishReport, Report};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::clock;
use crate::metrics::{Metrics, Published};

/// Published reports, as `/verdict` gets them.
pub type Reports = watch::Receiver<Option<Arc<Report>>>;

/// Timeout of a request.
const PATIENCE: Duration = Duration::from_secs(10);
const REPORTER: &str = "pathproof";
/// The API requires an action; pathproof always reports the same.
const ACTION: &str = "Judge";
/// Maximum length of a reporting instance's name in the API.
const INSTANCE_MAX: usize = 128;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `metadata.name` of the Node.
    pub node: Arc<str>,
    pub condition: bool,
    pub events: bool,
    pub pace: Pace,
    pub patience: Duration,
}

impl Settings {
    /// Settings with the numbers of docs/behaviour.md.
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

/// The running publisher. It ends at once when dropped, or when the reports end.
#[derive(Debug)]
pub struct Publishing {
    outcomes: Outcomes,
    task: JoinHandle<()>,
}

impl Publishing {
    pub fn report(&self) -> PublishReport {
        self.outcomes.report()
    }
}

impl Drop for Publishing {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Starts to publish `reports`. Must be called within a tokio runtime.
pub fn start(
    settings: Settings,
    client: Client,
    reports: Reports,
    metrics: Arc<Metrics>,
) -> Publishing {
    let outcomes = Outcomes::new(settings.condition, settings.events, metrics);
    let noted = outcomes.clone();
    let task = tokio::spawn(async move {
        let node = NodeApi::new(client.clone(), &settings);
        let mut ended = reports.clone();
        let found = tokio::select! {
            found = find(&node, settings.pace) => found,
            () = async { while ended.changed().await.is_ok() {} } => return,
        };
        // Two publishers, so that neither waits for an answer to the other's request.
        let publisher = |condition, events| {
            let part = Settings {
                condition: condition && settings.condition,
                events: events && settings.events,
                ..settings.clone()
            };
            let noted = noted.clone();
            Publisher::new(&part, client.clone(), node.clone(), found, noted)
        };
        let condition = publisher(true, false).run(reports.clone());
        tokio::join!(condition, publisher(false, true).run(reports));
    });
    Publishing { outcomes, task }
}

/// Reads the condition that an earlier agent wrote, once. The read is retried only after faults that may
/// pass, such as an unreachable API server: meanwhile nothing can be written either.
async fn find(node: &NodeApi, pace: Pace) -> Option<Written> {
    let mut pause = pace.retry;
    loop {
        match node.read().await {
            Ok(found) => return found,
            Err(error) if error.is_passing() => {
                tracing::debug!(%error, "the Node's condition cannot be read yet; trying again");
                sleep(pause).await;
                pause = (pause * 2).min(pace.retry_max);
            }
            Err(error) => {
                tracing::info!(%error, "the Node's previous condition cannot be read: \
                                        lastTransitionTime starts again");
                return None;
            }
        }
    }
}

/// Keeps the Node's condition up to date, and announces transitions by Events.
struct Publisher {
    /// `None` if the condition is not written.
    schedule: Option<Schedule>,
    /// `None` if Events are not written.
    announcer: Option<Announcer>,
    /// Announces frontends that several Services use; `None` if Events are not written.
    conflicts: Option<ConflictAnnouncer>,
    node: NodeApi,
    recorder: Recorder,
    /// Object that Events are about.
    regarding: ObjectReference,
    outcomes: Outcomes,
}

impl Publisher {
    fn new(
        settings: &Settings,
        client: Client,
        node: NodeApi,
        found: Option<Written>,
        outcomes: Outcomes,
    ) -> Self {
        let name = settings.node.to_string();
        let schedule = || Schedule::new(&name, settings.pace, found, clock::mono());
        let announcer = || Announcer::new(&name, settings.pace, found);
        let reporter = Reporter {
            controller: REPORTER.to_owned(),
            instance: Some(name.chars().take(INSTANCE_MAX).collect()),
        };
        Self {
            schedule: settings.condition.then(schedule),
            announcer: settings.events.then(announcer),
            conflicts: settings
                .events
                .then(|| ConflictAnnouncer::new(&name, settings.pace)),
            node,
            recorder: Recorder::new(client, reporter),
            regarding: ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Node".to_owned()),
                // The same uid as in kubelet's Events; `kubectl describe node` searches for it.
                uid: Some(name.clone()),
                name: Some(name),
                ..ObjectReference::default()
            },
            outcomes,
        }
    }

    async fn run(mut self, mut reports: Reports) {
        while self.turn(&mut reports).await {}
    }

    /// Writes what is due, or waits. Returns false once the reports end.
    async fn turn(&mut self, reports: &mut Reports) -> bool {
        let mut report = reports.borrow_and_update().clone();
        // Write nothing while another agent answers on this node or shares the port, because that agent
        // writes the condition. If it ends, the condition that it wrote is unknown.
        let succeeded = report.take_if(|report| report.port.succeeded).is_some();
        if let Some(schedule) = self.schedule.as_mut().filter(|_| succeeded) {
            schedule.doubt();
        }
        let now = clock::mono();
        let mut due = None;
        if let Some(report) = report {
            let condition = condition(&report.verdict, !report.answers.livez.would_fail);
            let write = self.condition_due(&report, condition, now);
            let announce = self.event_due(&report, condition, now);
            let conflict = self.conflict_due(&report, now);
            due = write.into_iter().chain(announce).chain(conflict).min();
            if write.is_some_and(|due| due <= now) {
                self.write(&report, condition).await;
            } else if announce.is_some_and(|due| due <= now) {
                self.announce(&report, condition).await;
            } else if conflict.is_some_and(|due| due <= now) {
                self.announce_conflicts(&report).await;
            }
        }
        let until = async {
            match due {
                Some(due) => sleep(due.since(now)).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = reports.changed() => changed.is_ok(),
            () = until => true,
        }
    }

    fn condition_due(
        &mut self,
        report: &Report,
        condition: ConditionState,
        now: Mono,
    ) -> Option<Mono> {
        let schedule = self.schedule.as_mut()?;
        if let Some(uid) = &report.node_uid {
            schedule.of(uid);
        }
        schedule.observe(condition, now, clock::wall());
        schedule.due()
    }

    fn event_due(&mut self, report: &Report, condition: ConditionState, now: Mono) -> Option<Mono> {
        // A starting agent has not seen the Node yet, so it must not announce that the node is not leaving.
        let is_known = report.verdict.eligibility != Eligibility::NeverSeen;
        let announcer = self.announcer.as_mut().filter(|_| is_known)?;
        announcer.observe(condition, now);
        announcer.due()
    }

    fn conflict_due(&mut self, report: &Report, now: Mono) -> Option<Mono> {
        let conflicts = self.conflicts.as_mut()?;
        conflicts.observe(report.conflicts.begun, report.conflicts.count() > 0, now);
        conflicts.due()
    }

    async fn write(&mut self, report: &Report, condition: ConditionState) {
        let Some(schedule) = &mut self.schedule else {
            return;
        };
        let wall = clock::wall();
        let transition = schedule.transition().unwrap_or(wall);
        let words = words(report, condition);
        let result = self.node.write(condition, words, wall, transition).await;
        match &result {
            Ok(()) => schedule.wrote(condition, transition, clock::mono()),
            Err(fault) => schedule.failed(fault.refusal, clock::mono()),
        }
        self.outcomes
            .note(Published::Condition, &report.node, result);
    }

    async fn announce(&mut self, report: &Report, condition: ConditionState) {
        // Recovery and leaving are expected, so they are no warnings.
        let type_ = match condition.status {
            Status::False => EventType::Warning,
            Status::True | Status::Unknown => EventType::Normal,
        };
        let (reason, note) = (condition.reason.name(), words(report, condition));
        let refused = self.publish(report, type_, reason, note).await.err();
        let Some(announcer) = &mut self.announcer else {
            return;
        };
        match refused {
            None => announcer.announced(condition, clock::mono()),
            Some(refusal) => announcer.failed(refusal, clock::mono()),
        }
    }

    /// Publishes one Event for all conflicts that began.
    async fn announce_conflicts(&mut self, report: &Report) {
        let note = bounded(report.conflicts.sentence().unwrap_or_default());
        let published = self.publish(report, EventType::Warning, CONFLICT_REASON.to_owned(), note);
        let refused = published.await.err();
        let Some(conflicts) = &mut self.conflicts else {
            return;
        };
        match refused {
            None => conflicts.announced(clock::mono()),
            Some(refusal) => conflicts.failed(refusal, clock::mono()),
        }
    }

    async fn publish(
        &self,
        report: &Report,
        type_: EventType,
        reason: String,
        note: String,
    ) -> Result<(), Refusal> {
        let event = Event {
            type_,
            reason,
            note: Some(note),
            action: ACTION.to_owned(),
            secondary: None,
        };
        let published = self.recorder.publish(&event, &self.regarding);
        let result: Result<(), Fault> = self.node.patient(published).await;
        let refusal = result.as_ref().map(|_| ()).map_err(|fault| fault.refusal);
        self.outcomes.note(Published::Event, &report.node, result);
        refusal
    }
}

fn words(report: &Report, condition: ConditionState) -> String {
    let lenience = report.answers.lenience();
    message(&report.verdict, condition, lenience.as_deref())
}
