//! Endpoints for people, Prometheus and `pathproof status`.
//!
//! | path | answer |
//! |---|---|
//! | `/metrics` | OpenMetrics |
//! | `/verdict` | the whole report as JSON: verdict, reasons, evidence, coverage |
//! | `/episodes` | the journal of 503s, as `pathproof report` reads it |
//! | `/recording` | the events of the last minutes, as `pathproof replay` reads them |
//! | `/drainz` | 200 once no new connection came from outside for `quiet` seconds, else 503 |
//! | `/agent/readyz` | 200 once every part of the agent is ready, else 503 and the parts missing |
//! | `/agent/startupz` | 503 while this agent or its successor starts, else 200 |
//! | `/agent/livez` | 200 while the main loop turns; a broken datapath is no reason to restart |
//!
//! The parameter `waited` of `/drainz` is the number of seconds that the caller has waited. It declares
//! that the node is leaving, even if the Node object does not show it. A successor that has started answers
//! `/agent/startupz` itself.
//!
//! Read only: GET and HEAD. Nothing here changes state.
//!
//! `/verdict`, `/episodes` and `/recording` contain clients' addresses or names of Services. They are for the
//! node itself, even if other clients may scrape metrics.

use std::path::PathBuf;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderValue, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use pathproof_facts::text;
use pathproof_facts::time::{HumanDuration, Mono};
use pathproof_judge::drain::Ask;
use pathproof_report::Report;
use pathproof_report::drain::DrainReport;
use pathproof_wire::steer::Dialled;
use tokio::sync::{mpsc, oneshot, watch};

use super::health::{JSON, not_found};
use crate::lifecycle::starting::is_any_starting;
use crate::lifecycle::{Heartbeat, Readiness};
use crate::metrics::{self, Metrics};

#[derive(Clone)]
pub struct AdminState {
    /// The published report; `None` before the first verdict.
    pub report: watch::Receiver<Option<Arc<Report>>>,
    /// The journal of episodes in JSON; empty before the first verdict.
    pub episodes: watch::Receiver<Arc<str>>,
    pub metrics: Arc<Metrics>,
    pub readiness: Readiness,
    pub heartbeat: Heartbeat,
    /// Sends requests for a recording to the main loop.
    pub recordings: mpsc::Sender<RecordingRequest>,
    /// Folder with the locks of agents that are starting.
    pub state_dir: Option<PathBuf>,
    pub now: fn() -> Mono,
}

/// Request for a recording: the sender for the reply.
pub type RecordingRequest = oneshot::Sender<Vec<u8>>;

pub fn router(state: AdminState) -> Router {
    let evidence = Router::new()
        .route("/verdict", get(verdict))
        .route("/episodes", get(episodes))
        .route("/recording", get(recording))
        .layer(axum::middleware::from_fn(for_the_node_itself));
    evidence
        .route("/metrics", get(metrics))
        .route("/drainz", get(drainz))
        .route("/agent/readyz", get(readyz))
        .route("/agent/livez", get(livez))
        .route("/agent/startupz", get(startupz))
        .fallback(|| async { not_found() })
        .layer(axum::middleware::map_response(seal))
        .with_state(state)
}

/// The rotator's port: /metrics, and /livez, which is 200 while the process's only thread is not blocked.
pub fn of_rotator(shown: Arc<Metrics>) -> Router {
    let page = || async move { ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], shown.encode()) };
    Router::new()
        .route("/metrics", get(page))
        .route("/livez", get(|| async { "alive\n" }))
        .fallback(|| async { not_found() })
        .layer(axum::middleware::map_response(seal))
}

/// Passes on requests of the node itself: from loopback, or from the address that the client dialled.
async fn for_the_node_itself(
    connection: Option<Extension<Dialled>>,
    request: Request,
    next: Next,
) -> Response {
    if connection.is_some_and(|Extension(connection)| connection.is_own()) {
        return next.run(request).await;
    }
    let error = "only the node itself may read this, at 127.0.0.1: use `kubectl pathproof`, or \
                 `kubectl port-forward` to the agent's pod";
    json(
        StatusCode::FORBIDDEN,
        &serde_json::json!({ "error": error }),
    )
}

async fn metrics(State(state): State<AdminState>) -> Response {
    let page = state.metrics.encode();
    ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], page).into_response()
}

async fn verdict(State(state): State<AdminState>) -> Response {
    let report = state.report.borrow().clone();
    match report {
        Some(report) => json(StatusCode::OK, &*report),
        None => too_early(&state),
    }
}

async fn episodes(State(state): State<AdminState>) -> Response {
    let journal = Arc::clone(&state.episodes.borrow());
    match journal.is_empty() {
        true => too_early(&state),
        false => (JSON, format!("{journal}\n")).into_response(),
    }
}

async fn recording(State(state): State<AdminState>) -> Response {
    let (wanted, recording) = oneshot::channel();
    // If the main loop is gone, the request is dropped.
    let _ = state.recordings.send(wanted).await;
    match recording.await {
        Ok(recording) => ([(CONTENT_TYPE, "application/gzip")], recording).into_response(),
        Err(_) => too_early(&state),
    }
}

/// Computed for each request, because it depends on the query; it changes nothing.
async fn drainz(State(state): State<AdminState>, uri: Uri) -> Response {
    let ask = match Ask::parse(uri.query().unwrap_or_default()) {
        Ok(ask) => ask,
        Err(error) => {
            let body = serde_json::json!({ "error": error.to_string() });
            return json(StatusCode::BAD_REQUEST, &body);
        }
    };
    let report = state.report.borrow().clone();
    let Some(report) = report else {
        return too_early(&state);
    };
    let found = DrainReport::of(&report, &ask, (state.now)());
    let status = match found.is_quiet() {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    };
    json(status, &found)
}

fn too_early(state: &AdminState) -> Response {
    let body = serde_json::json!({
        "error": "no verdict yet: the agent has just started",
        "pending": state.readiness.pending(),
    });
    json(StatusCode::SERVICE_UNAVAILABLE, &body)
}

fn json(status: StatusCode, document: &impl serde::Serialize) -> Response {
    match serde_json::to_string(document) {
        Ok(body) => (status, JSON, text::json(&body).into_owned() + "\n").into_response(),
        // Plain structs with string keys can always be encoded, so an error is a defect.
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn readyz(State(state): State<AdminState>) -> (StatusCode, String) {
    let pending = state.readiness.pending();
    if pending.is_empty() {
        return (StatusCode::OK, "ready\n".to_owned());
    }
    let body = format!("not ready, waiting for: {}\n", pending.join(", "));
    (StatusCode::SERVICE_UNAVAILABLE, body)
}

async fn livez(State(state): State<AdminState>) -> (StatusCode, String) {
    let Mono(now) = (state.now)();
    if state.heartbeat.is_alive(now) {
        return (StatusCode::OK, "alive\n".to_owned());
    }
    let age = HumanDuration(state.heartbeat.age(now));
    let body = format!("the agent's main loop last ran {age} ago\n");
    (StatusCode::SERVICE_UNAVAILABLE, body)
}

async fn startupz(State(state): State<AdminState>) -> (StatusCode, &'static str) {
    match state.state_dir.as_deref().is_some_and(is_any_starting) {
        false => (StatusCode::OK, "started\n"),
        true => (
            StatusCode::SERVICE_UNAVAILABLE,
            "an agent is starting, this one or its successor\n",
        ),
    }
}

/// Forbids caching and content sniffing.
async fn seal(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests;
