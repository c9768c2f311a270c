//! Announces transitions by Events about the Node.

use kube::runtime::events::{Event, EventType, Recorder, Reporter};

use k8s_openapi::api::core::v1::ObjectReference;

use super::fault::Fault;
use super::node::NodeApi;
use super::outcome::Outcomes;
use super::{Clocks, Published, Reports, Settings, newest, wait};
use agent_core::condition::{Announcer, Severity, Standing, Written, message};
use agent_core::eligibility::Eligibility;
use agent_core::report::Report;

/// The reporting controller.
const REPORTER: &str = "pathproof";
/// The API wants an action; ours is always the same.
const ACTION: &str = "Judge";
/// The longest name of a reporting instance that the API takes.
const INSTANCE_MAX: usize = 128;

/// Until no more reports come.
pub(super) async fn run(
    settings: &Settings,
    node: &NodeApi,
    found: Option<Written>,
    mut reports: Reports,
    outcomes: &Outcomes,
    clocks: Clocks,
) {
    let bulletin = Bulletin::new(settings, node);
    let mut announcer = Announcer::new(&settings.node, settings.pace, found);
    loop {
        let newest = newest(&mut reports).filter(|(report, _)| is_node_known(report));
        let now = (clocks.mono)();
        if let Some((_, standing)) = &newest {
            announcer.observe(*standing, now);
        }
        let due = announcer.due();
        match newest {
            Some((report, standing)) if due.is_some_and(|due| due <= now) => {
                let result = bulletin.publish(&report, standing).await;
                let now = (clocks.mono)();
                match &result {
                    Ok(()) => announcer.announced(standing, now),
                    Err(fault) => announcer.failed(fault.refusal(), now),
                }
                outcomes.note(Published::Event, &report.node, result);
            }
            newest => {
                // Without a Node nothing is announced, whatever was due.
                let due = due.filter(|_| newest.is_some());
                if !wait(&mut reports, due, now).await {
                    return;
                }
            }
        }
    }
}

/// An agent that begins has not seen the Node yet: that it is not leaving is no news then.
fn is_node_known(report: &Report) -> bool {
    report.verdict.eligibility != Eligibility::NeverSeen
}

/// Where Events about the Node go.
struct Bulletin<'a> {
    recorder: Recorder,
    node: ObjectReference,
    api: &'a NodeApi,
}

impl<'a> Bulletin<'a> {
    fn new(settings: &Settings, api: &'a NodeApi) -> Self {
        let mut instance = settings.node.to_string();
        instance.truncate(INSTANCE_MAX);
        let reporter = Reporter {
            controller: REPORTER.to_owned(),
            instance: Some(instance),
        };
        Self {
            recorder: Recorder::new(api.client(), reporter),
            node: ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Node".to_owned()),
                name: Some(settings.node.to_string()),
                // As kubelet does, and as `kubectl describe node` looks for.
                uid: Some(settings.node.to_string()),
                ..ObjectReference::default()
            },
            api,
        }
    }

    async fn publish(&self, report: &Report, standing: Standing) -> Result<(), Fault> {
        let event = Event {
            type_: match Announcer::severity(standing) {
                Severity::Normal => EventType::Normal,
                Severity::Warning => EventType::Warning,
            },
            reason: standing.reason.name(),
            note: Some(message(&report.verdict, standing, report.agent.enforcement)),
            action: ACTION.to_owned(),
            secondary: None,
        };
        self.api
            .patient(self.recorder.publish(&event, &self.node))
            .await
    }
}
