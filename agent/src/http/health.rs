//! Endpoints for load balancers and kubelet: `/healthz` and `/livez`, as kube-proxy 1.36 serves
//! them.
//!
//! | path | answer |
//! |---|---|
//! | `/healthz` | 200 or 503: may the node be sent new connections? |
//! | `/livez` | 200 or 503: does the node route Service traffic? |
//! | anything else | 404 |
//!
//! Every method gets the same answer: the published one, with the current time.
//!
//! If the agent runs in kube-proxy's place, `/healthz` answers loopback clients with the liveness of the
//! agent instead of the node's health. On RKE 1, such a client checks whether the process works
//! (docs/rke1.md).

use std::sync::Arc;
use std::time::Duration;

use axum::http::header::{CONTENT_TYPE, HeaderName, X_CONTENT_TYPE_OPTIONS};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Router};
use pathproof_facts::time::{Mono, Wall, nanos};
use pathproof_judge::answer::{Answer, Endpoint, UnknownPolicy};
use pathproof_node::effect::Answers;
use pathproof_wire::steer::{Dialled, is_loopback};
use tokio::sync::watch;

use super::go;
use crate::lifecycle::stall::Stall;
use crate::metrics::Metrics;

#[derive(Clone)]
pub struct HealthState {
    pub answers: CurrentAnswers,
    pub now: fn() -> Wall,
    pub metrics: Arc<Metrics>,
    /// Whether loopback clients get the liveness of the agent at `/healthz`, rather than the node's health
    /// like all others.
    pub loopback: bool,
}

/// The published answers. If the main loop hangs, the node's state is unknown, so `--unknown-policy` decides,
/// and `lastUpdated` no longer advances.
#[derive(Clone)]
pub struct CurrentAnswers {
    pub published: watch::Receiver<Arc<Answers>>,
    pub policy: UnknownPolicy,
    pub stall: Stall,
    pub mono: fn() -> Mono,
}

impl CurrentAnswers {
    /// The answers, and since when they have not been confirmed, if the main loop hangs. With the policy
    /// `open` the last answers stay: a failure that was seen is not forgotten.
    pub fn get(&self) -> (Arc<Answers>, Option<Duration>) {
        let answers = Arc::clone(&self.published.borrow());
        let hangs = self.stall.hangs_for((self.mono)());
        match self.policy {
            UnknownPolicy::Closed if hangs.is_some() => (Arc::new(answers.refused()), hangs),
            UnknownPolicy::Closed | UnknownPolicy::Open => (answers, hangs),
        }
    }
}

pub fn router(state: HealthState) -> Router {
    let answer = |uri: Uri, connection: Option<Extension<Dialled>>| async move {
        let other = match &*go::path(&uri) {
            b"/healthz" => return state.answer(Endpoint::Healthz, connection),
            b"/livez" => return state.answer(Endpoint::Livez, connection),
            b"*" => (StatusCode::BAD_REQUEST, go::CLOSE).into_response(),
            _ => not_found(),
        };
        state.metrics.answered(None, other.status().as_u16());
        other
    };
    Router::new().fallback(answer)
}

impl HealthState {
    fn answer(&self, endpoint: Endpoint, connection: Option<Extension<Dialled>>) -> Response {
        let (answers, hangs) = self.answers.get();
        let own = self.own_answer(endpoint, connection, hangs.is_none());
        let answer = own.as_ref().unwrap_or(match endpoint {
            Endpoint::Healthz => &answers.healthz,
            Endpoint::Livez => &answers.livez,
        });
        self.metrics.answered(Some(endpoint), answer.status);
        let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
        let now = (self.now)();
        let judged = (now.0).saturating_sub_unsigned(nanos(hangs.unwrap_or_default()));
        let body = answer.body(Wall(judged), now);
        (status, JSON, body).into_response()
    }

    /// Answer about the agent alone, without eligibility and families; `None` if the client gets the node's
    /// answer. The listener sets `connection`; without it, no client counts as loopback.
    fn own_answer(
        &self,
        endpoint: Endpoint,
        connection: Option<Extension<Dialled>>,
        healthy: bool,
    ) -> Option<Answer> {
        let Extension(connection) = connection.filter(|_| endpoint == Endpoint::Healthz)?;
        if !self.loopback || !is_loopback(&connection.source) {
            return None;
        }
        Some(Answer {
            status: if healthy { 200 } else { 503 },
            healthy,
            node_eligible: None,
            families: Vec::new(),
            would_fail: false,
        })
    }
}

pub(super) const JSON: [(HeaderName, &str); 2] = [
    (CONTENT_TYPE, "application/json"),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
];

/// Answer of Go's `http.NotFound`.
pub(super) fn not_found() -> Response {
    let sealed = [(X_CONTENT_TYPE_OPTIONS, "nosniff")];
    (StatusCode::NOT_FOUND, sealed, "404 page not found\n").into_response()
}

#[cfg(test)]
mod tests;
