//! Asks the agent's /verdict inside the node, over and over, and keeps what changes.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Deserialize;

use crate::http;
use crate::watch::Poll;
use crate::world::{ADMIN_PORT, World};

/// How often it asks.
const EVERY: Duration = Duration::from_millis(40);

/// What the demo shows of a verdict.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Seen {
    /// State in words, such as "broken".
    pub(super) state: String,
    /// Cause in words, where there is one.
    pub(super) cause: Option<String>,
    /// A sentence.
    pub(super) reason: String,
    /// Services in trouble.
    pub(super) services: Vec<Trouble>,
}

/// A Service in trouble.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Trouble {
    /// Name.
    pub(super) service: String,
    /// Whether it is confirmed.
    pub(super) confirmed: bool,
}

#[derive(Deserialize)]
struct Document {
    verdict: Seen,
}

impl Seen {
    /// Whether a confirmed trouble names this Service ("namespace/name").
    pub(super) fn blames(&self, service: &str) -> bool {
        let named = |trouble: &Trouble| {
            trouble.service.split(':').next() == Some(service) && trouble.confirmed
        };
        self.services.iter().any(named)
    }
}

/// Counts in the reason change all the time; state and cause do not.
impl PartialEq for Seen {
    fn eq(&self, other: &Self) -> bool {
        (&self.state, &self.cause) == (&other.state, &other.cause)
    }
}

/// Asks all the time.
pub(super) fn watch(world: &World) -> Result<Poll<Seen>> {
    Poll::start(&world.node, "verdict", EVERY, || {
        ask().map(|verdict| (Instant::now(), verdict))
    })
}

fn ask() -> Option<Seen> {
    let address = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), ADMIN_PORT);
    let response = http::get(address, "/verdict", Duration::from_secs(1)).ok()?;
    serde_json::from_str::<Document>(&response.body)
        .ok()
        .map(|document| document.verdict)
}
