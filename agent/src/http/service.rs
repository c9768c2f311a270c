//! Health check node ports of Services, as in kube-proxy 1.36: every request, by any path and
//! method, gets the answer for the Service whose port was dialled.

use std::sync::Arc;

use axum::http::{HeaderName, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::{Extension, Router};
use pathproof_judge::answer::of_service;
use pathproof_judge::health_ports::PortTable;
use pathproof_judge::health_ports::owner::OwnerRefusals;
use pathproof_wire::service::Family;
use pathproof_wire::steer::Dialled;
use tokio::sync::watch;

use super::health::{CurrentAnswers, JSON, not_found};
use crate::metrics::Metrics;

/// Header with the number of ready endpoints on the node, by which load balancers can weigh nodes.
const WEIGHT: HeaderName = HeaderName::from_static("x-load-balancing-endpoint-weight");

#[derive(Clone)]
pub struct ServiceState {
    pub answers: CurrentAnswers,
    pub ports: watch::Receiver<Arc<PortTable>>,
    pub refusals: watch::Receiver<Arc<OwnerRefusals>>,
    pub metrics: Arc<Metrics>,
}

pub fn router(state: ServiceState) -> Router {
    Router::new().fallback(move |dialled: Option<Extension<Dialled>>| async move {
        let answer = state.answer(dialled).unwrap_or_else(not_found);
        let status = answer.status().as_u16();
        state.metrics.answered_of_service(status);
        answer
    })
}

impl ServiceState {
    /// `None` if no Service has this port in this family. Clients may dial a Service's port just after its
    /// removal.
    fn answer(&self, dialled: Option<Extension<Dialled>>) -> Option<Response> {
        let Extension(dialled) = dialled?;
        let family = Family::of(&dialled.destination);
        let number = u16::try_from(dialled.port).ok()?;
        let ports = Arc::clone(&self.ports.borrow());
        let port = ports.get(&number)?;
        // In audit mode too, because the owner's answer would be 503 without the agent.
        let refused = self.refusals.borrow().contains_key(&(family, number));
        let healthy = !refused && self.answers.get().0.serve(&port.service, family);
        let answer = of_service(port, family, healthy)?;
        let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
        let weight = [(WEIGHT, answer.endpoints.to_string())];
        Some((status, JSON, weight, answer.body).into_response())
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use axum::body::{Body, to_bytes};
    use axum::http::Request;
    use pathproof_facts::cluster::ObjectName;
    use pathproof_facts::node_context::address;
    use pathproof_facts::time::Mono;
    use pathproof_judge::health_ports::HealthPort;
    use pathproof_judge::health_ports::owner::OwnerRefusal;
    use pathproof_node::effect::Answers;
    use rstest::rstest;
    use tower::ServiceExt as _;

    use super::*;

    const BODY: &str = "{\n\t\"service\": {\n\t\t\"namespace\": \"shop\",\n\t\t\"name\": \"web\"\n\t},\n\t\"localEndpoints\": 2,\n\t\"serviceProxyHealthy\": true\n}";

    fn state(broken: &[&str]) -> ServiceState {
        let port = HealthPort {
            service: ObjectName::new("shop", "web"),
            local: [Some(2), Some(0)],
        };
        let v4_alone = HealthPort {
            service: ObjectName::new("shop", "api"),
            local: [Some(1), None],
        };
        let both = HealthPort {
            service: ObjectName::new("shop", "both"),
            local: [Some(1), Some(3)],
        };
        let broken = broken
            .iter()
            .map(|name| (ObjectName::new("shop", name), Family::V4));
        let answers = Answers {
            broken_services: broken.collect(),
            ..Answers::before_the_first()
        };
        let ports = PortTable::from([(30_500, port), (30_501, v4_alone), (30_502, both)]);
        ServiceState {
            answers: CurrentAnswers::alive(answers),
            ports: watch::Sender::new(Arc::new(ports)).subscribe(),
            refusals: watch::Sender::default().subscribe(),
            metrics: Metrics::new(),
        }
    }

    async fn ask(state: &ServiceState, dialled: &str) -> (u16, String, String) {
        let dialled: SocketAddr = dialled.parse().unwrap();
        let request = Request::builder()
            .uri("/any")
            .extension(Dialled {
                source: [0; 16],
                destination: address(&dialled.ip()),
                port: dialled.port().into(),
            })
            .body(Body::empty());
        let answer = router(state.clone()).oneshot(request.unwrap()).await;
        let (head, body) = answer.unwrap().into_parts();
        let weight = head.headers.get(WEIGHT);
        let weight = weight.map_or("", |value| value.to_str().unwrap());
        let body = to_bytes(body, 4_096).await.unwrap();
        let body = String::from_utf8(body.to_vec()).unwrap();
        (head.status.as_u16(), weight.to_owned(), body)
    }

    /// The listener serves both families: IPv4 addresses arrive as IPv4-mapped IPv6 addresses.
    #[rstest]
    #[case::v4("[::ffff:192.0.2.10]:30500", 200, "2")]
    #[case::plain_v4("192.0.2.10:30500", 200, "2")]
    #[case::no_endpoint_of_its_family("[2001:db8::10]:30500", 503, "0")]
    #[case::not_of_its_family("[2001:db8::10]:30501", 404, "")]
    #[case::nobodys("192.0.2.10:30503", 404, "")]
    #[tokio::test]
    async fn the_dialled_service_is_answered_for(
        #[case] dialled: &str,
        #[case] status: u16,
        #[case] weight: &str,
    ) {
        let answer = ask(&state(&[]), dialled).await;
        assert_eq!((answer.0, &*answer.1), (status, weight), "{}", answer.2);
        assert_eq!(answer.2 == BODY, status == 200);
    }

    #[tokio::test]
    async fn closed_is_503_once_the_main_loop_stalls() {
        let mut state = state(&[]);
        for second in 1..=11 {
            state.answers.stall.run(Mono(second * 1_000_000_000));
        }
        state.answers.mono = || Mono(11_000_000_000);
        let (status, weight, body) = ask(&state, "192.0.2.10:30500").await;
        assert_eq!((status, &*weight), (503, "2"));
        assert_eq!(body, BODY.replace("true", "false"));
    }

    #[tokio::test]
    async fn a_port_is_503_where_its_owner_refuses() {
        let mut state = state(&[]);
        let refused = ((Family::V4, 30_502), OwnerRefusal::Unhealthy);
        let refusals = Arc::new(OwnerRefusals::from([refused]));
        state.refusals = watch::Sender::new(refusals).subscribe();
        assert_eq!(ask(&state, "192.0.2.10:30502").await.0, 503);
        assert_eq!(ask(&state, "[2001:db8::10]:30502").await.0, 200);
        assert_eq!(ask(&state, "192.0.2.10:30500").await.0, 200);
    }

    #[tokio::test]
    async fn a_service_that_is_broken_is_503_alone() {
        let state = state(&["web", "both"]);
        let (status, weight, body) = ask(&state, "192.0.2.10:30500").await;
        assert_eq!((status, &*weight), (503, "2"));
        assert_eq!(body, BODY.replace("true", "false"));
        assert_eq!(ask(&state, "192.0.2.10:30501").await.0, 200);
        let of_v6 = ask(&state, "[2001:db8::10]:30502").await;
        assert_eq!((of_v6.0, &*of_v6.1), (200, "3"), "it fails in IPv4 alone");
        assert_eq!(ask(&state, "192.0.2.10:30502").await.0, 503);
        let page = state.metrics.encode();
        for code in ["200", "503"] {
            let line =
                format!("pathproof_healthz_requests_total{{check=\"service\",code=\"{code}\"}} 2");
            assert!(page.contains(&line), "{page}");
        }
    }
}
