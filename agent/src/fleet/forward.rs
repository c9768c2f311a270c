//! One GET to a port of a pod's loopback, through the API server's port-forward.
//!
//! Messages begin with the number of a channel: 0 carries the port's bytes, 1 the kubelet's words
//! where the port cannot be had; each channel's first message is the port (kubelet's
//! `v4.channel.k8s.io`, k8s.io/cri-streaming/pkg/streaming/portforward/websocket.go).

use std::pin::Pin;
use std::time::Duration;

use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use kube::Client;
use kube::client::Body;
use serde::Deserialize;
use thiserror::Error;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::error::{FleetError, Right};
use super::lists::escaped;
use super::websocket::{self, Decoder, Handshake, Incoming, WebSocketError};
use crate::causes::chain;

const PROTOCOL: &str = "v4.channel.k8s.io";
/// The port's bytes.
const DATA: u8 = 0;
/// What went wrong with it.
const ERROR: u8 = 1;
/// Far more than a report of 150 Services and 4,096 interfaces.
const MAX_ANSWER: usize = 16 * 1024 * 1024;

/// Why a pod gave no answer.
#[derive(Debug, Error)]
pub enum ForwardError {
    /// The API server, or what stands before it, did not open the way.
    #[error(transparent)]
    Fleet(#[from] FleetError),
    /// It is no WebSocket that came back.
    #[error("the API server's port-forward cannot be used: {0}")]
    Protocol(String),
    /// The kubelet could not reach the port.
    #[error(
        "the node's kubelet cannot reach port {port} of it ({said}): where the agent's --admin-bind-address is not on loopback or has another port, see --agent-port"
    )]
    Port {
        /// Which.
        port: u16,
        /// The kubelet's words.
        said: String,
    },
    /// The way broke off.
    #[error("the connection through the API server and the kubelet broke off: {0}")]
    Broken(String),
    /// No answer.
    #[error("it did not answer within {} s (--request-timeout)", .0.as_secs())]
    Timeout(Duration),
}

impl From<WebSocketError> for ForwardError {
    fn from(error: WebSocketError) -> Self {
        ForwardError::Protocol(error.to_string())
    }
}

/// A port of a pod.
#[derive(Clone, Copy, Debug)]
pub(super) struct Door<'a> {
    pub(super) namespace: &'a str,
    pub(super) pod: &'a str,
    pub(super) port: u16,
}

/// The whole answer to `GET page`, head and body, as it came.
pub(super) async fn get(
    client: &Client,
    door: Door<'_>,
    page: &str,
    timeout: Duration,
) -> Result<Vec<u8>, ForwardError> {
    // One time for the way and the answer; each alone could take it all.
    match tokio::time::timeout(timeout, exchange(client, door, page)).await {
        Ok(answer) => answer,
        Err(_) => Err(ForwardError::Timeout(timeout)),
    }
}

async fn exchange(client: &Client, door: Door<'_>, page: &str) -> Result<Vec<u8>, ForwardError> {
    let stream = open(client, door).await?;
    let mut stream = Pin::new(Box::new(TokioIo::new(stream)));
    let mut message = vec![DATA];
    let host = door.port;
    message.extend_from_slice(
        format!(
            "GET {page} HTTP/1.0\r\nHost: localhost:{host}\r\nAccept: application/json\r\n\r\n"
        )
        .as_bytes(),
    );
    let broken = |error: std::io::Error| ForwardError::Broken(error.to_string());
    let frame = websocket::message(&message)?;
    stream.write_all(&frame).await.map_err(broken)?;
    stream.flush().await.map_err(broken)?;
    let mut answer = Answer::new(door.port);
    let mut decoder = Decoder::default();
    let mut chunk = vec![0; 32 * 1024];
    loop {
        while let Some(incoming) = decoder.next()? {
            match incoming {
                Incoming::Message(message) if !answer.take(&message)? => {}
                _ => return answer.end(),
            }
        }
        let read = stream.read(&mut chunk).await.map_err(broken)?;
        if read == 0 {
            return answer.end();
        }
        decoder.push(chunk.get(..read).unwrap_or_default());
    }
}

/// Opens the way.
async fn open(client: &Client, door: Door<'_>) -> Result<hyper::upgrade::Upgraded, ForwardError> {
    let (namespace, pod) = (escaped(door.namespace), escaped(door.pod));
    let url = format!(
        "/api/v1/namespaces/{namespace}/pods/{pod}/portforward?ports={}",
        door.port
    );
    let handshake = Handshake::new(PROTOCOL)?;
    let mut request = Request::get(url)
        .body(Body::empty())
        .map_err(|error| ForwardError::Protocol(error.to_string()))?;
    request.headers_mut().extend(handshake.headers()?);
    let response = client.send(request).await.map_err(|error| {
        let what = "forward a port";
        FleetError::of(error, what, right(door.namespace, "get"))
    })?;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Err(refused(response, door.namespace).await.into());
    }
    handshake.check(response.headers())?;
    hyper::upgrade::on(response)
        .await
        .map_err(|error| ForwardError::Broken(chain(&error)))
}

fn right(namespace: &str, verb: &'static str) -> Right {
    Right {
        verb,
        resource: "pods/portforward",
        namespace: Some(namespace.to_owned()),
    }
}

#[derive(Default, Deserialize)]
struct Said {
    #[serde(default)]
    message: String,
}

/// What is said instead of opening it, by the API server or the kubelet behind it.
async fn refused(response: hyper::Response<Body>, namespace: &str) -> FleetError {
    let code = response.status().as_u16();
    let body = response.into_body().collect_bytes().await;
    let body = body.map(|body| body.to_vec()).unwrap_or_default();
    let said = match serde_json::from_slice::<Said>(&body) {
        Ok(said) if !said.message.is_empty() => said.message,
        _ => {
            let text = String::from_utf8_lossy(&body);
            text.lines()
                .next()
                .unwrap_or_default()
                .chars()
                .take(200)
                .collect()
        }
    };
    // 1.35 and newer check a second right behind the first, and give no reason where it is missing
    // (kubernetes issue 133515).
    let verb = match said.contains("cannot get") {
        true => "get",
        false => "create",
    };
    let said = said.trim_end_matches([':', ' ']).to_owned();
    FleetError::of_status(code, said, "forward a port", right(namespace, verb))
}

/// An answer as it comes in.
struct Answer {
    port: u16,
    bytes: Vec<u8>,
    said: String,
    /// Whose first message, the port, has come.
    begun: [bool; 2],
}

impl Answer {
    fn new(port: u16) -> Self {
        Self {
            port,
            bytes: Vec::new(),
            said: String::new(),
            begun: [false; 2],
        }
    }

    /// Takes a message in. Whether the answer is whole.
    fn take(&mut self, message: &[u8]) -> Result<bool, ForwardError> {
        let [channel @ (DATA | ERROR), payload @ ..] = message else {
            let text = "it speaks of a channel that was not opened";
            return Err(ForwardError::Protocol(text.to_owned()));
        };
        let begun = &mut self.begun[usize::from(*channel)];
        if !std::mem::replace(begun, true) {
            return match payload == self.port.to_le_bytes() {
                true => Ok(false),
                false => Err(ForwardError::Protocol("it opened another port".to_owned())),
            };
        }
        if *channel == ERROR {
            self.said.push_str(&String::from_utf8_lossy(payload));
            return Ok(!payload.is_empty());
        }
        if self.bytes.len() + payload.len() > MAX_ANSWER {
            let text = "the answer is longer than any agent's";
            return Err(ForwardError::Broken(text.to_owned()));
        }
        self.bytes.extend_from_slice(payload);
        Ok(self.is_whole())
    }

    /// Not every runtime tells that the agent has closed, so the length counts where it is known.
    fn is_whole(&self) -> bool {
        let end = self.bytes.windows(4).position(|at| at == b"\r\n\r\n");
        let Some(end) = end else { return false };
        let head = String::from_utf8_lossy(self.bytes.get(..end).unwrap_or_default());
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            let is_length = name.eq_ignore_ascii_case("content-length");
            is_length.then(|| value.trim().parse::<usize>().ok())?
        });
        length.is_some_and(|length| self.bytes.len() >= (end + 4).saturating_add(length))
    }

    /// Nothing more comes.
    fn end(self) -> Result<Vec<u8>, ForwardError> {
        if !self.said.is_empty() {
            return Err(ForwardError::Port {
                port: self.port,
                said: self.said.trim().to_owned(),
            });
        }
        if self.bytes.is_empty() {
            let text = "it ended before the agent said anything; the agent's --admin-allow-cidr may not include 127.0.0.1";
            return Err(ForwardError::Broken(text.to_owned()));
        }
        Ok(self.bytes)
    }
}
