//! What people, Prometheus and `pathproof status` ask.
//!
//! | path | answer |
//! |---|---|
//! | `/metrics` | OpenMetrics |
//! | `/verdict` | the whole report as JSON: verdict, reasons, evidence, coverage |
//! | `/agent/readyz` | 200 once every part of the agent is ready, else 503 and the parts missing |
//! | `/agent/livez` | 200 while the main loop turns; a broken datapath is no reason to restart |
//! | `/` | this list |
//!
//! Read only: GET and HEAD. Nothing here changes state.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::sync::watch;

use super::health::not_found;
use crate::domain::time::{Mono, Spoken};
use crate::lifecycle::heartbeat::Heartbeat;
use crate::lifecycle::ready::Readiness;
use crate::metrics::{self, Metrics};
use crate::report::Report;

/// What a request needs.
#[derive(Clone)]
pub struct AdminState {
    /// The published report; none before the first verdict.
    pub report: watch::Receiver<Option<Arc<Report>>>,
    /// What `/metrics` writes.
    pub metrics: Arc<Metrics>,
    /// What is still missing.
    pub readiness: Readiness,
    /// When the main loop last turned.
    pub heartbeat: Heartbeat,
    /// The monotonic clock.
    pub now: fn() -> Mono,
}

/// The router of the admin port.
pub fn router(state: AdminState) -> Router {
    Router::new()
        .route("/", get(index))
        .route("/metrics", get(metrics))
        .route("/verdict", get(verdict))
        .route("/agent/readyz", get(readyz))
        .route("/agent/livez", get(livez))
        .fallback(|| async { not_found() })
        .with_state(state)
}

async fn metrics(State(state): State<AdminState>) -> Response {
    page(
        StatusCode::OK,
        metrics::CONTENT_TYPE,
        state.metrics.encode(),
    )
}

async fn verdict(State(state): State<AdminState>) -> Response {
    let report = state.report.borrow().clone();
    let Some(report) = report else {
        let body = serde_json::json!({
            "error": "no verdict yet: the agent has just started",
            "pending": state.readiness.pending(),
        });
        return json(StatusCode::SERVICE_UNAVAILABLE, body.to_string());
    };
    match serde_json::to_string(&*report) {
        Ok(body) => json(StatusCode::OK, body),
        // Plain structs with string keys: this would be a defect.
        Err(error) => {
            let body = serde_json::json!({ "error": error.to_string() });
            json(StatusCode::INTERNAL_SERVER_ERROR, body.to_string())
        }
    }
}

fn json(status: StatusCode, body: String) -> Response {
    page(status, "application/json", body + "\n")
}

async fn readyz(State(state): State<AdminState>) -> Response {
    let pending = state.readiness.pending();
    if pending.is_empty() {
        return text(StatusCode::OK, "ready\n".to_owned());
    }
    let body = format!("not ready, waiting for: {}\n", pending.join(", "));
    text(StatusCode::SERVICE_UNAVAILABLE, body)
}

async fn livez(State(state): State<AdminState>) -> Response {
    let Mono(now) = (state.now)();
    let age = Spoken(state.heartbeat.age(now));
    if state.heartbeat.is_alive(now) {
        text(StatusCode::OK, "alive\n".to_owned())
    } else {
        text(
            StatusCode::SERVICE_UNAVAILABLE,
            format!("the main loop last turned {age} ago\n"),
        )
    }
}

async fn index(State(state): State<AdminState>) -> Response {
    let report = state.report.borrow().clone();
    let heading = match &report {
        Some(report) => format!(
            "{}: {}. {}",
            escape(&report.node),
            report.verdict.state.name(),
            escape(&report.verdict.reason)
        ),
        None => "no verdict yet".to_owned(),
    };
    let body = format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>pathproof</title>\n\
         <h1>pathproof</h1>\n<p>{heading}</p>\n<ul>\n\
         <li><a href=\"/verdict\">/verdict</a>: the verdict, its reasons and evidence (JSON)</li>\n\
         <li><a href=\"/metrics\">/metrics</a>: OpenMetrics</li>\n\
         <li><a href=\"/agent/readyz\">/agent/readyz</a>: whether the agent is ready</li>\n\
         <li><a href=\"/agent/livez\">/agent/livez</a>: whether the agent is alive</li>\n</ul>\n\
         <p>For people: <code>pathproof status</code></p>\n</html>\n"
    );
    page(StatusCode::OK, "text/html; charset=utf-8", body)
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

fn text(status: StatusCode, body: String) -> Response {
    page(status, "text/plain; charset=utf-8", body)
}

fn page(status: StatusCode, content_type: &'static str, body: String) -> Response {
    let mut response = (status, body).into_response();
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    seal(&mut response);
    response
}

/// Neither kept nor guessed at.
fn seal(response: &mut Response) {
    let headers = response.headers_mut();
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
}

#[cfg(test)]
mod tests;
