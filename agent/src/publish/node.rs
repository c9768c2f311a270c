//! Reads and writes one condition of this Node in the API, and nothing else of it.

use std::time::Duration;

use hyper::header::{ACCEPT, HeaderValue};
use k8s_openapi::api::core::v1::{Node, NodeCondition};
use kube::Api;
use kube::api::{Patch, PatchParams, Request};
use pathproof_facts::time::Wall;
use pathproof_report::condition::{
    AgentSeen, ConditionState, Reason, Refusal, Status, TYPE, Written,
};
use pathproof_shared::causes::chain;
use serde_json::json;
use thiserror::Error;

use super::Publisher;
use crate::metrics::WriteResult;

const NODES: &str = "/api/v1/nodes";
const MANAGER: &str = "pathproof";
/// Media type that requests only metadata in answers to writes: a whole Node is tens of kilobytes, and is not
/// needed.
const METADATA_ALONE: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";

/// The condition that an earlier agent wrote, and that agent.
pub(super) type Found = (Option<Written>, Option<AgentSeen>);

impl Publisher {
    /// Reads the condition that an earlier agent wrote.
    pub(super) async fn read_condition(&self) -> Result<Found, Fault> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let node = self.in_time(nodes.get(&self.settings.node)).await?;
        let conditions = node.status.and_then(|status| status.conditions);
        let ours = |condition: &&NodeCondition| condition.type_ == TYPE;
        let found = conditions.iter().flatten().find(ours);
        let message = found.and_then(|condition| condition.message.as_deref());
        let agent = message.and_then(|message| AgentSeen::read(message).1);
        Ok((found.and_then(written), agent))
    }

    /// Sets the condition by a strategic merge patch with the conditions' merge key. It touches no
    /// other condition, and reads nothing first.
    pub(super) async fn write_condition(
        &self,
        condition: ConditionState,
        message: String,
        heartbeat: Wall,
        transition: Wall,
    ) -> Result<(), Fault> {
        let patch = Patch::Strategic(json!({ "status": { "conditions": [{
            "type": TYPE,
            "status": condition.status.name(),
            "reason": condition.reason.name(),
            "message": message,
            "lastHeartbeatTime": time(heartbeat),
            "lastTransitionTime": time(transition),
        }] } }));
        let params = PatchParams::apply(MANAGER);
        let mut request = Request::new(NODES)
            .patch_subresource("status", &self.settings.node, &params, &patch)
            .map_err(kube::Error::BuildRequest)?;
        let headers = request.headers_mut();
        headers.insert(ACCEPT, HeaderValue::from_static(METADATA_ALONE));
        self.in_time(self.client.request_text(request)).await?;
        Ok(())
    }

    /// Waits for an answer, up to the timeout.
    pub(super) async fn in_time<T>(
        &self,
        answer: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, Fault> {
        let most = self.settings.timeout;
        match tokio::time::timeout(most, answer).await {
            Ok(result) => Ok(result?),
            Err(_) => Err(Fault {
                why: format!("the API server did not answer within {} s", most.as_secs()),
                result: WriteResult::Timeout,
                wait: None,
            }),
        }
    }
}

/// `None` for a condition that no agent wrote.
fn written(condition: &NodeCondition) -> Option<Written> {
    let at = condition.last_transition_time.as_ref()?.0;
    Some(Written {
        status: Status::parse(&condition.status)?,
        reason: Reason::parse(condition.reason.as_deref().unwrap_or_default()),
        transition: Wall::of(at)?,
    })
}

/// The time in the format of `metav1.Time`: whole seconds.
fn time(at: Wall) -> String {
    Wall(at.0 - at.0.rem_euclid(1_000_000_000)).to_string()
}

#[derive(Debug, Error)]
#[error("{why}")]
pub(super) struct Fault {
    /// A sentence, without its period.
    why: String,
    /// Label of the result in metrics.
    pub(super) result: WriteResult,
    /// Pause that the API server requested.
    wait: Option<Duration>,
}

impl Fault {
    pub(super) fn refusal(&self) -> Refusal {
        match self.result {
            WriteResult::Forbidden => Refusal::Denied,
            _ => Refusal::Failed { wait: self.wait },
        }
    }

    /// Whether the fault may soon pass by itself.
    pub(super) fn is_temporary(&self) -> bool {
        !matches!(self.result, WriteResult::Forbidden | WriteResult::NotFound)
    }
}

impl From<kube::Error> for Fault {
    fn from(error: kube::Error) -> Self {
        let kube::Error::Api(status) = error else {
            return Fault {
                why: format!("the API server cannot be reached: {}", chain(&error)),
                result: WriteResult::Unreachable,
                wait: None,
            };
        };
        let (result, what) = match status.code {
            401 => (
                WriteResult::Rejected,
                "does not accept the agent's token or certificate",
            ),
            403 => (WriteResult::Forbidden, "does not allow it"),
            404 => (WriteResult::NotFound, "does not find it"),
            409 => (
                WriteResult::Conflict,
                "reported a conflict with another write",
            ),
            429 => (WriteResult::Throttled, "is busy"),
            400..500 => (WriteResult::Rejected, "refuses it"),
            _ => (WriteResult::ServerError, "failed"),
        };
        let details = status.details.as_ref();
        let details = details.filter(|_| result == WriteResult::Throttled);
        Fault {
            why: format!(
                "the API server {what} ({}: {})",
                status.code, status.message
            ),
            result,
            wait: details.map(|details| Duration::from_secs(details.retry_after_seconds.into())),
        }
    }
}
