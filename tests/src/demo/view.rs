//! The node as the demo sees it, over and over: what a load balancer is answered, and the agent's
//! verdict.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::Value;

use super::timeline::{GREEN, RED, YELLOW, paint};
use crate::http;
use crate::watch::{Codes, Poll};
use crate::world::{ADMIN_PORT, World};

/// Pause between two looks at the node.
pub(super) const EVERY: Duration = Duration::from_millis(20);
/// Limit on the agent's time to a verdict.
const PATIENCE: Duration = Duration::from_secs(1);

/// State that is seen at a moment.
#[derive(Clone, Debug, Default)]
pub(super) struct View {
    /// Asked from outside.
    pub(super) codes: Codes,
    pub(super) verdict: Verdict,
}

/// All that /verdict says.
#[derive(Clone, Debug, Default)]
pub(super) struct Verdict(pub(super) Value);

/// Counts in the report change all the time; state and cause do not.
impl PartialEq for Verdict {
    fn eq(&self, other: &Self) -> bool {
        ["state", "cause"]
            .iter()
            .all(|name| self.word(name) == other.word(name))
    }
}

impl View {
    /// Whether both codes are this one.
    pub(super) fn is(&self, code: u16) -> bool {
        [self.codes.healthz, self.codes.livez] == [code; 2]
    }

    /// Whether they are, and this is the verdict's state.
    pub(super) fn has(&self, code: u16, state: &str) -> bool {
        self.is(code) && self.verdict.word("state") == state
    }

    /// Whether they are, and this is the verdict's cause.
    pub(super) fn names(&self, code: u16, cause: &str) -> bool {
        self.is(code) && self.verdict.word("cause") == cause
    }
}

impl Verdict {
    /// One of its words, such as the state; empty where there is none.
    pub(super) fn word(&self, name: &str) -> &str {
        self.0["verdict"][name].as_str().unwrap_or_default()
    }

    /// State and cause, such as "broken (leaked)".
    pub(super) fn line(&self) -> String {
        let state = self.word("state");
        let code = match state {
            "proven" => GREEN,
            "broken" | "stale" => RED,
            _ => YELLOW,
        };
        let words = match self.word("cause") {
            "" => state.to_owned(),
            cause => format!("{state} ({cause})"),
        };
        format!("verdict {}", paint(code, &words))
    }
}

pub(super) fn codes_line(codes: Codes) -> String {
    let [healthz, livez] = [codes.healthz, codes.livez].map(|code| match code {
        0 => paint(YELLOW, "no answer"),
        200 => paint(GREEN, "200"),
        code => paint(RED, &code.to_string()),
    });
    format!("/healthz {healthz}   /livez {livez}")
}

/// Asks for the verdict in the node from now on. Beside the codes: a late verdict must not hide a gap there.
pub(super) fn verdicts(world: &World) -> Result<Poll<Verdict>> {
    let admin = SocketAddr::from(([127, 0, 0, 1], ADMIN_PORT));
    Poll::start(&world.node, "verdict", EVERY, move || {
        let answer = http::get(admin, "/verdict", PATIENCE).ok();
        let report = answer.and_then(|answer| serde_json::from_str(&answer.body).ok());
        // No answer is no verdict: the last one is not that of an agent which is gone.
        Some((Instant::now(), report.map(Verdict).unwrap_or_default()))
    })
}
