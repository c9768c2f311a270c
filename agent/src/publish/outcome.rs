//! Results of writes, for the metrics, the report and the log.

use std::sync::Arc;

use pathproof_report::condition::TYPE;
use pathproof_report::{PublishReport, WriteReport};
use tokio::sync::watch;

use super::node::Fault;
use crate::clock;
use crate::metrics::{Metrics, Published, WriteResult};

/// Shared by writers and readers.
#[derive(Clone, Debug)]
pub(super) struct Outcomes {
    metrics: Arc<Metrics>,
    current: watch::Sender<Current>,
}

#[derive(Debug)]
struct Current {
    report: PublishReport,
    last: [Option<WriteResult>; 2],
}

impl Outcomes {
    pub(super) fn new(condition: bool, events: bool, metrics: Arc<Metrics>) -> Self {
        if condition {
            metrics.expect_writes(Published::Condition);
        }
        if events {
            metrics.expect_writes(Published::Event);
        }
        let report = PublishReport {
            condition: condition.then(WriteReport::default),
            events: events.then(WriteReport::default),
        };
        Self {
            metrics,
            current: watch::Sender::new(Current {
                report,
                last: [None; 2],
            }),
        }
    }

    pub(super) fn report(&self) -> PublishReport {
        self.current.borrow().report.clone()
    }

    /// Records the result of a write. A failure is logged once, not at each try.
    pub(super) fn note(&self, kind: Published, node: &str, result: Result<(), Fault>) {
        let wall = clock::wall();
        let fault = result.err();
        let word = fault.as_ref().map_or(WriteResult::Ok, |fault| fault.result);
        self.metrics.wrote(kind, word);
        let problem = fault.map(|fault| sentence(kind, node, &fault));
        let mut before = None;
        self.current.send_modify(|current| {
            before = current.last[kind as usize].replace(word);
            let report = match kind {
                Published::Condition => &mut current.report.condition,
                Published::Event => &mut current.report.events,
            };
            if let Some(report) = report {
                if problem.is_none() {
                    report.written = Some(wall.timestamp());
                }
                report.problem.clone_from(&problem);
            }
        });
        match &problem {
            Some(problem) if before != Some(word) => {
                tracing::warn!(%problem, "the newest state could not be written to the API server");
            }
            None if before.is_some_and(|before| before != word) => {
                let kind = kind.name();
                tracing::info!(kind, "the newest state was written to the API server again");
            }
            _ => {}
        }
    }
}

/// The failed write, its reason, and the remedy.
fn sentence(kind: Published, node: &str, fault: &Fault) -> String {
    let (what, grant, option) = match kind {
        Published::Condition => (
            format!("the condition {TYPE} of Node {node}"),
            "patch on nodes/status",
            "--publish-condition=off",
        ),
        Published::Event => (
            format!("an Event about Node {node}"),
            "create and patch on events (events.k8s.io) in namespace default",
            "--publish-events=off",
        ),
    };
    let remedy = match fault.result {
        WriteResult::Forbidden => format!(
            "; grant {grant} to the agent's ServiceAccount, or set {option}; the agent retries \
             every 10 min"
        ),
        _ => String::new(),
    };
    format!("{what} cannot be written: {fault}{remedy}")
}
