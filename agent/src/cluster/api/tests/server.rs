//! A small server that serves scripted watches.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use futures_util::{StreamExt, future, stream};
use tokio::net::TcpListener;

pub(crate) enum Answer {
    /// Sends these lines, and stays open.
    Open(Vec<String>),
    /// Sends these lines, and ends after this time.
    OpenFor(Duration, Vec<String>),
    /// Sends these lines, and ends.
    Closed(Vec<String>),
    Status(u16, String),
}

/// A script per resource; after its end the server sends nothing.
#[derive(Default)]
pub(crate) struct Script(HashMap<&'static str, VecDeque<Answer>>);

impl Script {
    /// Sets the answers to requests for a resource (`nodes`, `services`, `endpointslices`), in order.
    pub(crate) fn with(mut self, resource: &'static str, answers: Vec<Answer>) -> Self {
        self.0.insert(resource, answers.into());
        self
    }
}

#[derive(Clone)]
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    script: Arc<Mutex<Script>>,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Server {
    pub(crate) async fn start(script: Script) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = Self {
            address: listener.local_addr().unwrap(),
            script: Arc::new(Mutex::new(script)),
            asked: Arc::default(),
        };
        let router = Router::new().fallback(answer).with_state(server.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        server
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn asked(&self, resource: &str) -> Vec<String> {
        let asked = self.asked.lock().unwrap();
        let of = |url: &&String| resource_of(url) == resource;
        asked.iter().filter(of).cloned().collect()
    }

    /// Waits for this many requests of a resource; a minute is for very busy machines.
    pub(crate) async fn until_asked(&self, resource: &str, times: usize) -> Vec<String> {
        for _ in 0..6_000 {
            let asked = self.asked(resource);
            if asked.len() >= times {
                return asked;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!(
            "fewer than {times} requests for {resource}: {:?}",
            self.asked(resource)
        );
    }
}

fn resource_of(url: &str) -> &str {
    let path = url.split('?').next().unwrap();
    path.rsplit('/').next().unwrap()
}

async fn answer(State(server): State<Server>, uri: Uri) -> Response {
    const EVER: Duration = Duration::from_secs(86_400);
    let url = uri.to_string();
    let mut script = server.script.lock().unwrap();
    let answers = script.0.get_mut(resource_of(&url));
    let next = answers.and_then(VecDeque::pop_front);
    server.asked.lock().unwrap().push(url);
    let (status, lines, open) = match next {
        None => (200, Vec::new(), EVER),
        Some(Answer::Open(lines)) => (200, lines, EVER),
        Some(Answer::OpenFor(time, lines)) => (200, lines, time),
        Some(Answer::Closed(lines)) => (200, lines, Duration::ZERO),
        Some(Answer::Status(status, body)) => (status, vec![body], Duration::ZERO),
    };
    let lines = stream::iter(lines.into_iter().map(|line| Ok(line + "\n")));
    let end = async move {
        if !open.is_zero() {
            tokio::time::sleep(open).await;
        }
        None::<Result<String, Infallible>>
    };
    let end = stream::once(end).filter_map(future::ready);
    let mut response = Response::new(Body::from_stream(lines.chain(end)));
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    response
}
