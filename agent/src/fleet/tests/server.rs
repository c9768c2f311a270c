//! An API server with kubelets behind it, for tests: lists in pages, port-forwards to agents, and
//! what it refuses.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_PROTOCOL, UPGRADE};
use hyper::service::service_fn;
use hyper::upgrade::Upgraded;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::fleet::websocket::accept;

/// How an agent behind a port-forward behaves.
#[derive(Clone, Debug)]
pub(super) enum Agent {
    /// It answers so, and the way stays open, as with runtimes that do not tell of an end.
    Says(String),
    /// The same, and it closes.
    SaysAndCloses(String),
    /// The kubelet cannot reach its port.
    Refused,
    /// It closes without a word.
    Closes,
    /// Nothing, for ever.
    Hangs,
}

/// The server; it ends with the test's runtime.
#[derive(Default)]
pub(super) struct Script {
    /// Lists by resource (`nodes`, `pods`), as pages.
    pub(super) pages: HashMap<&'static str, Vec<Value>>,
    /// Statuses instead, by `resource` or `portforward`, for so many requests.
    pub(super) refuses: Mutex<HashMap<&'static str, (usize, u16, &'static str)>>,
    /// Agents by pod.
    pub(super) agents: HashMap<String, Agent>,
    /// What was asked.
    pub(super) asked: Mutex<Vec<String>>,
    /// Port-forwards that are open, and the most that ever were at a time.
    open: AtomicUsize,
    pub(super) most_open: AtomicUsize,
}

impl Script {
    pub(super) fn refuse(
        self,
        what: &'static str,
        times: usize,
        code: u16,
        said: &'static str,
    ) -> Self {
        self.refuses
            .lock()
            .unwrap()
            .insert(what, (times, code, said));
        self
    }

    pub(super) fn count(&self, part: &str) -> usize {
        let asked = self.asked.lock().unwrap();
        asked.iter().filter(|url| url.contains(part)).count()
    }

    /// Starts it, and gives a client.
    pub(super) async fn start(self) -> (kube::Client, Arc<Self>) {
        let script = Arc::new(self);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let serving = Arc::clone(&script);
        tokio::spawn(async move {
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                let script = Arc::clone(&serving);
                let service = service_fn(move |request| {
                    let answer = answer(&script, request);
                    async move { Ok::<_, Infallible>(answer) }
                });
                let connection = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(socket), service)
                    .with_upgrades();
                tokio::spawn(connection);
            }
        });
        let mut config = kube::Config::new(url.parse().unwrap());
        config.default_retry = false;
        (kube::Client::try_from(config).unwrap(), script)
    }
}

fn page(code: u16, body: &Value) -> Response<Full<Bytes>> {
    let body = Full::new(Bytes::from(body.to_string()));
    Response::builder().status(code).body(body).unwrap()
}

fn answer(script: &Arc<Script>, request: Request<Incoming>) -> Response<Full<Bytes>> {
    let url = request.uri().to_string();
    script.asked.lock().unwrap().push(url.clone());
    let path = url.split('?').next().unwrap();
    let what = path.rsplit('/').next().unwrap();
    if let Some((left, code, said)) = script.refuses.lock().unwrap().get_mut(what)
        && *left > 0
    {
        *left -= 1;
        let status = json!({
            "kind": "Status", "apiVersion": "v1", "status": "Failure",
            "message": *said, "reason": "x", "code": *code,
        });
        return page(*code, &status);
    }
    if what == "portforward" {
        return forward(script, request, path);
    }
    let after = url.split("&continue=").nth(1).unwrap_or("0");
    let index: usize = after.parse().unwrap();
    match script.pages.get(what).and_then(|pages| pages.get(index)) {
        Some(body) => page(200, body),
        None => page(200, &json!({ "items": [] })),
    }
}

fn forward(script: &Arc<Script>, request: Request<Incoming>, path: &str) -> Response<Full<Bytes>> {
    let pod = path.rsplit('/').nth(1).unwrap().to_owned();
    let key = request.headers()["sec-websocket-key"]
        .to_str()
        .unwrap()
        .to_owned();
    assert_eq!(
        request.headers()["sec-websocket-protocol"],
        "v4.channel.k8s.io"
    );
    let script = Arc::clone(script);
    tokio::spawn(async move {
        let upgraded = hyper::upgrade::on(request).await.unwrap();
        let open = script.open.fetch_add(1, Ordering::SeqCst) + 1;
        script.most_open.fetch_max(open, Ordering::SeqCst);
        kubelet(TokioIo::new(upgraded), script.agents.get(&pod).cloned()).await;
        script.open.fetch_sub(1, Ordering::SeqCst);
    });
    Response::builder()
        .status(101)
        .header(UPGRADE, "websocket")
        .header(CONNECTION, "Upgrade")
        .header(SEC_WEBSOCKET_ACCEPT, accept(&key))
        .header(SEC_WEBSOCKET_PROTOCOL, "v4.channel.k8s.io")
        .body(Full::default())
        .unwrap()
}

/// A message of a channel, as golang.org/x/net/websocket frames it.
fn frame(channel: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0x82, 126];
    frame.extend((payload.len() as u16 + 1).to_be_bytes());
    frame.push(channel);
    frame.extend(payload);
    frame
}

async fn kubelet(mut stream: TokioIo<Upgraded>, agent: Option<Agent>) {
    let port = 19256_u16.to_le_bytes();
    for channel in [0, 1] {
        stream.write_all(&frame(channel, &port)).await.unwrap();
    }
    // The request: one masked frame.
    let mut head = [0; 2];
    stream.read_exact(&mut head).await.unwrap();
    let mut length = u16::from(head[1] & 0x7f);
    if length == 126 {
        length = stream.read_u16().await.unwrap();
    }
    let mut mask = [0; 4];
    stream.read_exact(&mut mask).await.unwrap();
    let mut request = vec![0; usize::from(length)];
    stream.read_exact(&mut request).await.unwrap();
    let request: Vec<u8> = request
        .iter()
        .zip(mask.iter().cycle())
        .map(|(byte, mask)| byte ^ mask)
        .collect();
    assert_eq!(request[0], 0);
    assert!(request[1..].starts_with(b"GET /verdict HTTP/1.0\r\n"));
    let forever = Duration::from_secs(3_600);
    match agent {
        Some(Agent::Says(text)) => {
            for piece in text.as_bytes().chunks(1_000) {
                stream.write_all(&frame(0, piece)).await.unwrap();
            }
            stream.flush().await.unwrap();
            let mut rest = Vec::new();
            let _ = stream.read_to_end(&mut rest).await;
        }
        Some(Agent::SaysAndCloses(text)) => {
            for piece in text.as_bytes().chunks(1_000) {
                stream.write_all(&frame(0, piece)).await.unwrap();
            }
            stream.write_all(&[0x88, 0]).await.unwrap();
        }
        Some(Agent::Refused) => {
            let said = b"error forwarding port 19256 to pod x: connect: connection refused";
            stream.write_all(&frame(1, said)).await.unwrap();
            stream.write_all(&[0x88, 0]).await.unwrap();
        }
        Some(Agent::Closes) | None => stream.write_all(&[0x88, 0]).await.unwrap(),
        Some(Agent::Hangs) => tokio::time::sleep(forever).await,
    }
    let _ = stream.flush().await;
}
