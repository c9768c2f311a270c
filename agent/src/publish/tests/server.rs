//! An API server for tests: records requests, and answers as configured.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::header::{ACCEPT, CONTENT_TYPE, HeaderName};
use axum::response::Response;
use serde_json::{Value, json};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Say {
    Ok,
    Status(u16),
    /// 502, with a body that is no JSON.
    Nonsense,
    /// No answer, ever.
    Hang,
    /// Half an answer, then the connection closes.
    Close,
}

#[derive(Clone, Debug)]
pub(super) struct Seen {
    method: String,
    pub(super) path: String,
    pub(super) content_type: String,
    pub(super) accept: String,
    pub(super) body: Value,
}

#[derive(Debug, Default)]
struct Book {
    seen: Vec<Seen>,
    says: HashMap<&'static str, Say>,
    conditions: Value,
}

/// The server; it ends with the test's runtime.
#[derive(Clone)]
pub(super) struct Server {
    address: SocketAddr,
    book: Arc<Mutex<Book>>,
}

impl Server {
    pub(super) async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = Self {
            address: listener.local_addr().unwrap(),
            book: Arc::default(),
        };
        let router = Router::new().fallback(answer).with_state(server.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        server
    }

    pub(super) fn client(&self) -> kube::Client {
        let url = format!("http://{}", self.address).parse().unwrap();
        let mut config = kube::Config::new(url);
        // `cluster::api::client` sets this too.
        config.default_retry = false;
        kube::Client::try_from(config).unwrap()
    }

    pub(super) fn says(&self, method: &'static str, say: Say) {
        self.book.lock().unwrap().says.insert(method, say);
    }

    pub(super) fn has_condition(&self, conditions: Value) {
        self.book.lock().unwrap().conditions = conditions;
    }

    pub(super) fn count(&self, method: &str) -> usize {
        self.of(method).len()
    }

    pub(super) fn last(&self, method: &str) -> Seen {
        self.of(method).pop().unwrap()
    }

    /// The n-th request of a method, from zero; waits for it.
    pub(super) async fn nth(&self, method: &str, n: usize) -> Seen {
        eventually(|| self.count(method) > n).await;
        self.of(method).swap_remove(n)
    }

    fn of(&self, method: &str) -> Vec<Seen> {
        let book = self.book.lock().unwrap();
        let of_method = |seen: &&Seen| seen.method == method;
        book.seen.iter().filter(of_method).cloned().collect()
    }
}

/// Waits until `holds` returns true; fails after a minute.
pub(super) async fn eventually(holds: impl Fn() -> bool) {
    for _ in 0..6_000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the condition did not hold within a minute");
}

async fn answer(State(server): State<Server>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let header = |name: HeaderName| match head.headers.get(name) {
        Some(value) => value.to_str().unwrap().to_owned(),
        None => String::new(),
    };
    let body = to_bytes(body, 1 << 20).await.unwrap();
    let seen = Seen {
        method: head.method.to_string(),
        path: head.uri.path_and_query().unwrap().to_string(),
        content_type: header(CONTENT_TYPE),
        accept: header(ACCEPT),
        body: serde_json::from_slice(&body).unwrap_or(Value::Null),
    };
    let (say, conditions) = {
        let mut book = server.book.lock().unwrap();
        book.seen.push(seen.clone());
        let say = book.says.get(seen.method.as_str()).copied();
        (say.unwrap_or(Say::Ok), book.conditions.clone())
    };
    match say {
        Say::Ok if seen.method == "GET" => {
            let conditions = if conditions.is_null() {
                json!([])
            } else {
                conditions
            };
            page(&json!({"kind": "Node", "status": {"conditions": conditions}}))
        }
        Say::Ok => page(&seen.body),
        Say::Status(code) => status(code),
        Say::Nonsense => {
            let mut response = Response::new(Body::from("<html>"));
            *response.status_mut() = axum::http::StatusCode::BAD_GATEWAY;
            response
        }
        Say::Hang => std::future::pending().await,
        Say::Close => {
            let broken = futures_util::stream::iter([
                Ok("{".to_owned()),
                Err(std::io::Error::other("closed")),
            ]);
            Response::new(Body::from_stream(broken))
        }
    }
}

fn page(body: &Value) -> Response {
    Response::new(Body::from(body.to_string()))
}

fn status(code: u16) -> Response {
    let body = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure",
        "message": "in its words", "reason": "Reason", "code": code,
    });
    let mut response = page(&body);
    *response.status_mut() = axum::http::StatusCode::from_u16(code).unwrap();
    response
}
