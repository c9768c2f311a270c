//! The node as the demo observes it: the answers to a load balancer, and the agent's verdict.

use anyhow::Result;

use super::timeline::{GREEN, RED, YELLOW, paint};
use crate::http;
use crate::prelude::*;
use crate::watch::Poll;
use crate::world::ADMIN_PORT;

/// Pause between two requests.
pub(super) const EVERY: Duration = Duration::from_millis(20);
/// Timeout of a request for the verdict.
const PATIENCE: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, Default)]
pub(super) struct View {
    /// Answers to requests from outside.
    pub(super) codes: Codes,
    pub(super) verdict: Verdict,
}

/// The report at /verdict.
#[derive(Clone, Debug, Default)]
pub(super) struct Verdict(pub(super) Value);

/// Compares state and cause only, because counts change all the time.
impl PartialEq for Verdict {
    fn eq(&self, other: &Self) -> bool {
        ["state", "cause"]
            .iter()
            .all(|name| self.word(name) == other.word(name))
    }
}

impl View {
    /// Whether /healthz and /livez both answered this code.
    pub(super) fn is(&self, code: u16) -> bool {
        [self.codes.healthz, self.codes.livez] == [code; 2]
    }

    /// Whether /healthz and /livez both answered this code, and the verdict has this state.
    pub(super) fn has(&self, code: u16, state: &str) -> bool {
        self.is(code) && self.verdict.word("state") == state
    }

    /// Whether /healthz and /livez both answered this code, and the verdict has this cause.
    pub(super) fn names(&self, code: u16, cause: &str) -> bool {
        self.is(code) && self.verdict.word("cause") == cause
    }
}

impl Verdict {
    /// A field of the verdict such as the state, or an empty string.
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

/// Polls the verdict on the node. It has its own poller, so that a late verdict cannot hide a gap in the
/// codes.
pub(super) fn verdicts(world: &World) -> Result<Poll<Verdict>> {
    let admin = SocketAddr::from(([127, 0, 0, 1], ADMIN_PORT));
    Poll::start(&world.node, "verdict", EVERY, move || {
        let answer = http::get(admin, "/verdict", PATIENCE).ok();
        let report = answer.and_then(|answer| serde_json::from_str(&answer.body).ok());
        // Treat a missing answer as an empty verdict: the last verdict does not hold for an agent that is
        // gone.
        Some((Instant::now(), report.map(Verdict).unwrap_or_default()))
    })
}
