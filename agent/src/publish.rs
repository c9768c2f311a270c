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
use node::{Fault, Found};
use outcome::Outcomes;
use pathproof_facts::time::Mono;
use pathproof_judge::eligibility::Eligibility;
use pathproof_report::condition::{
    AgentSeen, Announcer, ConditionState, Pace, Schedule, Status, condition, message,
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
const TIMEOUT: Duration = Duration::from_secs(10);
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
    pub timeout: Duration,
}

impl Settings {
    /// Settings with the numbers of docs/behaviour.md.
    pub fn new(node: Arc<str>, condition: bool, events: bool) -> Self {
        Self {
            node,
            condition,
            events,
            pace: Pace::default(),
            timeout: TIMEOUT,
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
    let publisher = Publisher::new(settings, client, outcomes.clone());
    let task = tokio::spawn(async move { publisher.run(reports).await });
    Publishing { outcomes, task }
}

/// Writes about one Node to the API server.
struct Publisher {
    settings: Settings,
    client: Client,
    recorder: Recorder,
    /// Object that Events are about.
    regarding: ObjectReference,
    outcomes: Outcomes,
}

impl Publisher {
    fn new(settings: Settings, client: Client, outcomes: Outcomes) -> Self {
        let name = settings.node.to_string();
        let reporter = Reporter {
            controller: REPORTER.to_owned(),
            instance: Some(name.chars().take(INSTANCE_MAX).collect()),
        };
        Self {
            settings,
            recorder: Recorder::new(client.clone(), reporter),
            client,
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

    /// Publishes until the reports end.
    async fn run(&self, reports: Reports) {
        let (name, pace) = (&self.settings.node, self.settings.pace);
        let mut ended = reports.clone();
        let (found, shown) = tokio::select! {
            found = self.find_condition() => found,
            () = async { while ended.changed().await.is_ok() {} } => return,
        };
        // Two loops, so that neither waits for an answer to the other's request.
        let condition = async {
            if self.settings.condition {
                let schedule = Schedule::new(name, pace, found, clock::mono());
                self.keep_condition(schedule, shown, reports.clone()).await;
            }
        };
        let events = async {
            if self.settings.events {
                let announcer = Announcer::new(name, pace, found);
                self.send_events(announcer, reports.clone()).await;
            }
        };
        tokio::join!(condition, events);
    }

    /// Reads the condition that an earlier agent wrote, once. The read is retried only after faults that may
    /// pass, such as an unreachable API server: meanwhile nothing can be written either.
    async fn find_condition(&self) -> Found {
        let mut pause = self.settings.pace.retry;
        loop {
            match self.read_condition().await {
                Ok(found) => return found,
                Err(error) if error.is_temporary() => {
                    tracing::debug!(%error, "the Node's condition cannot be read yet; trying again");
                    sleep(pause).await;
                    pause = (pause * 2).min(self.settings.pace.retry_max);
                }
                Err(error) => {
                    tracing::info!(%error, "the Node's previous condition cannot be read: \
                                            lastTransitionTime starts again");
                    return Found::default();
                }
            }
        }
    }

    /// Keeps the condition up to date. `shown` is the agent in the API server's copy.
    async fn keep_condition(
        &self,
        mut schedule: Schedule,
        mut shown: Option<AgentSeen>,
        mut reports: Reports,
    ) {
        let mut due = Some(Mono(0));
        while wait(&mut reports, due.take()).await {
            let report = reports.borrow_and_update().clone();
            let Some(report) = report else { continue };
            if report.port.succeeded {
                // Another agent answers on this node or shares the port, and writes the condition. Once it
                // ends, it is unknown what it wrote last.
                schedule.set_uncertain();
            } else {
                let agent = AgentSeen::of(&report);
                if (shown.as_ref()).is_none_or(|shown| shown.mode() != agent.mode()) {
                    schedule.renew(clock::mono());
                }
                shown = Some(agent);
                due = self.update_condition(&mut schedule, &report).await;
            }
        }
    }

    /// Writes the condition if that is due. Returns when it was or will be due.
    async fn update_condition(&self, schedule: &mut Schedule, report: &Report) -> Option<Mono> {
        let (condition, now, wall) = (state(report), clock::mono(), clock::wall());
        if let Some(uid) = &report.node_uid {
            schedule.follow(uid);
        }
        schedule.observe(condition, now, wall);
        let due = schedule.due()?;
        if due <= now {
            let transition = schedule.transition().unwrap_or(wall);
            let words = AgentSeen::of(report).sign(&words(report, condition));
            let result = self
                .write_condition(condition, words, wall, transition)
                .await;
            match &result {
                Ok(()) => schedule.wrote(condition, transition, clock::mono()),
                Err(fault) => schedule.failed(fault.refusal(), clock::mono()),
            }
            self.outcomes
                .note(Published::Condition, &report.node, result);
        }
        Some(due)
    }

    async fn send_events(&self, mut announcer: Announcer, mut reports: Reports) {
        let mut due = Some(Mono(0));
        while wait(&mut reports, due.take()).await {
            let report = reports.borrow_and_update().clone();
            if let Some(report) = report.filter(|report| !report.port.succeeded) {
                due = self.send_event(&mut announcer, &report).await;
            }
        }
    }

    /// Sends an Event if one is due. Returns when one was or will be due.
    async fn send_event(&self, announcer: &mut Announcer, report: &Report) -> Option<Mono> {
        // A starting agent has not seen the Node yet, so it must not announce that the node is not leaving.
        if report.verdict.eligibility == Eligibility::NeverSeen {
            return None;
        }
        let (condition, now) = (state(report), clock::mono());
        announcer.observe(condition, now);
        let due = announcer.due()?;
        if due <= now {
            let event = Event {
                // Recovery and leaving are expected, so they are no warnings.
                type_: match condition.status {
                    Status::False => EventType::Warning,
                    Status::True | Status::Unknown => EventType::Normal,
                },
                reason: condition.reason.name(),
                note: Some(words(report, condition)),
                action: ACTION.to_owned(),
                secondary: None,
            };
            let sent = self.recorder.publish(&event, &self.regarding);
            let result = self.in_time(sent).await;
            let refusal = result.as_ref().copied().map_err(Fault::refusal);
            self.outcomes.note(Published::Event, &report.node, result);
            announcer.sent(condition, refusal, clock::mono());
        }
        Some(due)
    }
}

/// Waits for the next report, at most until `due`. Returns false once the reports end.
async fn wait(reports: &mut Reports, due: Option<Mono>) -> bool {
    let until = async {
        match due {
            Some(due) => sleep(due.since(clock::mono())).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        changed = reports.changed() => changed.is_ok(),
        () = until => true,
    }
}

fn state(report: &Report) -> ConditionState {
    condition(&report.verdict, !report.answers.livez.would_fail)
}

fn words(report: &Report, condition: ConditionState) -> String {
    let lenience = report.answers.lenience();
    message(&report.verdict, condition, lenience.as_deref())
}
