//! What load balancers and kubelet ask: `/healthz` and `/livez`, as kube-proxy 1.36 serves them.
//!
//! | path | answer |
//! |---|---|
//! | `/healthz` | 200 or 503: may the node be sent new connections? |
//! | `/livez` | 200 or 503: does the node route Service traffic? |
//! | anything else | 404, as Go's net/http says it |
//!
//! Any method is answered alike. The answer is the published one; a request only adds the time.

use std::sync::Arc;

use axum::Router;
use axum::http::header::{CONTENT_TYPE, HeaderName, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use tokio::sync::watch;

use crate::domain::answer::{Answer, Endpoint};
use crate::domain::time::Wall;
use crate::metrics::Metrics;

/// Both answers, computed together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answers {
    /// To `/healthz`.
    pub healthz: Answer,
    /// To `/livez`.
    pub livez: Answer,
}

/// What a request needs.
#[derive(Clone)]
pub struct HealthState {
    /// The published answers.
    pub answers: watch::Receiver<Arc<Answers>>,
    /// The wall clock.
    pub now: fn() -> Wall,
    /// Where requests are counted.
    pub metrics: Arc<Metrics>,
}

/// The router of the health port.
pub fn router(state: HealthState) -> Router {
    let answer = |endpoint| {
        let state = state.clone();
        any(move || async move { state.answer(endpoint) })
    };
    let unknown = {
        let metrics = Arc::clone(&state.metrics);
        move |_: Uri| async move {
            metrics
                .http()
                .answered(None, StatusCode::NOT_FOUND.as_u16());
            not_found()
        }
    };
    Router::new()
        .route("/healthz", answer(Endpoint::Healthz))
        .route("/livez", answer(Endpoint::Livez))
        .fallback(unknown)
}

impl HealthState {
    fn answer(&self, endpoint: Endpoint) -> Response {
        let answers = Arc::clone(&self.answers.borrow());
        let answer = match endpoint {
            Endpoint::Healthz => &answers.healthz,
            Endpoint::Livez => &answers.livez,
        };
        self.metrics.http().answered(Some(endpoint), answer.status);
        let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
        (
            status,
            headers("application/json"),
            answer.body((self.now)()),
        )
            .into_response()
    }
}

/// What Go's `http.NotFound` says.
pub(super) fn not_found() -> Response {
    let headers = headers("text/plain; charset=utf-8");
    (StatusCode::NOT_FOUND, headers, "404 page not found\n").into_response()
}

fn headers(content_type: &'static str) -> [(HeaderName, HeaderValue); 2] {
    [
        (CONTENT_TYPE, HeaderValue::from_static(content_type)),
        (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    ]
}

#[cfg(test)]
mod tests;
