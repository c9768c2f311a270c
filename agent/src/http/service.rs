//! Health check node ports of Services, as kube-proxy 1.36 serves them: whatever is asked there, by any
//! method, is answered about the Service whose port was dialled.

use std::sync::Arc;

use agent_common::service::Family;
use agent_core::answer::of_service;
use agent_core::effect::Answers;
use agent_core::health_ports::PortTable;
use axum::http::{HeaderName, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::{Extension, Router};
use tokio::sync::watch;

use super::health::{Dialled, JSON, not_found};
use crate::metrics::Metrics;

/// Ready endpoints on the node, for load balancers that weigh nodes by them.
const WEIGHT: HeaderName = HeaderName::from_static("x-load-balancing-endpoint-weight");

#[derive(Clone)]
pub struct ServiceState {
    pub answers: watch::Receiver<Arc<Answers>>,
    pub ports: watch::Receiver<Arc<PortTable>>,
    pub metrics: Arc<Metrics>,
}

pub fn router(state: ServiceState) -> Router {
    Router::new().fallback(move |dialled: Option<Extension<Dialled>>| async move {
        let answer = state.answer(dialled).unwrap_or_else(not_found);
        state
            .metrics
            .http()
            .answered_of_service(answer.status().as_u16());
        answer
    })
}

impl ServiceState {
    /// Nothing where the port was a Service's a moment ago.
    fn answer(&self, dialled: Option<Extension<Dialled>>) -> Option<Response> {
        let Extension(Dialled(at)) = dialled?;
        let ports = Arc::clone(&self.ports.borrow());
        let port = ports.get(&at.port())?;
        let family = match at.ip().to_canonical().is_ipv4() {
            true => Family::V4,
            false => Family::V6,
        };
        let healthy = self.answers.borrow().serve(&port.service);
        let answer = of_service(port, family, healthy)?;
        let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
        let weight = [(WEIGHT, answer.endpoints.to_string())];
        Some((status, JSON, weight, answer.body).into_response())
    }
}
