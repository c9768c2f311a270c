//! Asks the node's own proxy for its health, every few seconds (`--upstream`): `/livez`, or
//! `/healthz` where the upstream has no such page (kube-proxy before 1.28, Cilium). What an answer is
//! worth is not decided here.

use std::sync::Arc;
use std::time::Duration;

use agent_common::service::{FAMILIES, Family};
use axum::body::Body;
use axum::http::{Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, timeout};

use agent_core::time::Spoken;
use agent_core::upstream::{HEADER, Heard};

/// Pause between questions.
const PAUSE: Duration = Duration::from_secs(5);
/// A proxy that runs answers in milliseconds.
const PATIENCE: Duration = Duration::from_secs(2);
const MAX_BODY: usize = 64 * 1024;
/// Bytes of a reason that are repeated.
const SHOWN: usize = 120;

/// Asks until the receiver is gone. The task does nothing else.
pub fn follow(url: &Uri) -> mpsc::Receiver<Heard> {
    // One is enough: an answer that is not taken in time is old.
    let (heard, hears) = mpsc::channel(1);
    let url = url.to_string().trim_end_matches('/').to_owned();
    tokio::spawn(async move {
        let mut asker = Asker::new(url);
        let mut due = interval(PAUSE);
        due.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            due.tick().await;
            let answer = asker.ask().await;
            if heard.send(answer).await.is_err() {
                return;
            }
        }
    });
    hears
}

struct Asker {
    client: Client<HttpConnector, Body>,
    url: String,
    /// There is no /livez.
    old: bool,
}

impl Asker {
    fn new(url: String) -> Self {
        // Each time anew: whether it takes connections is what is asked.
        let client = Client::builder(TokioExecutor::new())
            .pool_max_idle_per_host(0)
            .build_http();
        Self {
            client,
            url,
            old: false,
        }
    }

    async fn ask(&mut self) -> Heard {
        if !self.old {
            match self.get("/livez").await {
                Err(silent) => return silent,
                Ok((StatusCode::NOT_FOUND, _)) => self.old = true,
                Ok((status, body)) => return heard(status, &body, false),
            }
        }
        match self.get("/healthz").await {
            // It may be another version when it is back.
            Err(silent) => {
                self.old = false;
                silent
            }
            Ok((status, body)) => heard(status, &body, true),
        }
    }

    async fn get(&self, path: &str) -> Result<(StatusCode, Vec<u8>), Heard> {
        let silent = |why: String| Heard::Silent(Arc::from(why));
        let request = Request::get(format!("{}{path}", self.url))
            .header(HEADER, env!("CARGO_PKG_VERSION"))
            .body(Body::empty())
            .map_err(|error| Heard::Unusable(error.to_string().into()))?;
        let exchange = async {
            let answer = self.client.request(request).await.map_err(|error| {
                use std::error::Error as _;
                let cause = error.source().map(ToString::to_string);
                silent(cause.unwrap_or_else(|| error.to_string()))
            })?;
            let status = answer.status();
            let body = Limited::new(answer.into_body(), MAX_BODY).collect().await;
            let body = body.map_err(|error| silent(error.to_string()))?;
            Ok((status, body.to_bytes().to_vec()))
        };
        timeout(PATIENCE, exchange)
            .await
            .unwrap_or_else(|_| Err(silent(format!("no answer within {}", Spoken(PATIENCE)))))
    }
}

/// What an answer means.
fn heard(status: StatusCode, body: &[u8], mixed: bool) -> Heard {
    match status {
        StatusCode::OK => Heard::Healthy,
        StatusCode::SERVICE_UNAVAILABLE => {
            let body = Said::read(body);
            Heard::Unhealthy {
                families: body.families,
                mixed,
                said: body.reason,
            }
        }
        StatusCode::MISDIRECTED_REQUEST => {
            Heard::Silent("nobody but pathproof itself listens there".into())
        }
        other => Heard::Unusable(format!("it answers {other}").into()),
    }
}

struct Said {
    families: [bool; FAMILIES],
    reason: Arc<str>,
}

impl Said {
    /// kube-proxy's body, as far as it is one: when its rules were last brought up to date, and which
    /// families are late (pkg/proxy/healthcheck/proxy_health.go).
    fn read(body: &[u8]) -> Self {
        let value: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
        let healthy = |family: Family| value["status"][name(family)]["healthy"].as_bool();
        let mut families = Family::ALL.map(|family| healthy(family) == Some(false));
        if families == [false; FAMILIES] {
            families = [true; FAMILIES];
        }
        let time = |key: &str| value[key].as_str()?.parse::<jiff::Timestamp>().ok();
        let reason = match (time("lastUpdated"), time("currentTime")) {
            (Some(last), Some(now)) if last.as_second() > 0 => {
                let age = u64::try_from(now.duration_since(last).as_secs()).unwrap_or_default();
                let age = Duration::from_secs(age);
                format!("503, last brought up to date {} before", Spoken(age))
            }
            _ => format!("503{}", quoted(body)),
        };
        Self {
            families,
            reason: reason.into(),
        }
    }
}

fn name(family: Family) -> &'static str {
    match family {
        Family::V4 => "IPv4",
        Family::V6 => "IPv6",
    }
}

/// The beginning of a body, as text.
fn quoted(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let shown: String = text
        .trim()
        .chars()
        .filter(|sign| !sign.is_control())
        .take(SHOWN)
        .collect();
    match shown.is_empty() {
        true => String::new(),
        false => format!(", {shown}"),
    }
}

#[cfg(test)]
mod tests;
