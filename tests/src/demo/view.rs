//! The node as the demo sees it, over and over: what a load balancer is answered, and the agent's
//! verdict.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::Value;

use super::timeline::{Line, Style, plain, span};
use crate::http;
use crate::watch::Poll;
use crate::world::{ADMIN_PORT, Family, HEALTHZ_PORT, World};

/// How often the node is looked at.
const EVERY: Duration = Duration::from_millis(20);
/// How long one request may take.
const PATIENCE: Duration = Duration::from_secs(1);

/// What is seen at a moment.
#[derive(Clone, Debug, Default)]
pub(super) struct View {
    /// Of /healthz and /livez, asked from outside; 0 where nobody answered.
    pub(super) codes: Option<[u16; 2]>,
    /// State and cause, such as "broken (leaked)"; empty where nobody answered.
    pub(super) verdict: String,
    /// All that /verdict says.
    pub(super) report: Value,
}

/// Counts in the report change all the time; state and cause do not.
impl PartialEq for View {
    fn eq(&self, other: &Self) -> bool {
        (self.codes, &self.verdict) == (other.codes, &other.verdict)
    }
}

impl View {
    /// Whether both codes are this one, and this is the verdict's state or cause.
    pub(super) fn is(&self, code: u16, verdict: &str) -> bool {
        self.codes == Some([code; 2]) && self.verdict.contains(verdict)
    }

    pub(super) fn codes_line(&self) -> Line {
        let codes = self.codes.unwrap_or_default();
        let words = |(path, code): (&str, u16)| {
            let code = match code {
                0 => span(Style::WARN, "no answer"),
                200 => span(Style::GOOD, "200"),
                code => span(Style::BAD, code.to_string()),
            };
            [span(Style::PLAIN, path), code]
        };
        let paths = ["/healthz ", "   /livez "].into_iter();
        paths.zip(codes).flat_map(words).collect()
    }

    pub(super) fn verdict_line(&self) -> Line {
        let style = match self.verdict.split(' ').next() {
            Some("proven") => Style::GOOD,
            Some("broken" | "stale") => Style::BAD,
            _ => Style::WARN,
        };
        vec![span(Style::PLAIN, "verdict "), span(style, &*self.verdict)]
    }

    /// In words.
    pub(super) fn shown(&self) -> String {
        let lines = [self.codes_line(), self.verdict_line()];
        lines.map(|line| plain(&line)).join("   ")
    }
}

/// Looks at a node from now on.
pub(super) fn watch(world: &World) -> Result<Poll<View>> {
    let health = SocketAddr::new(world.node_address(Family::V4), HEALTHZ_PORT);
    let admin = SocketAddr::from(([127, 0, 0, 1], ADMIN_PORT));
    let node = world.node.clone();
    let code = move |path| http::get(health, path, PATIENCE).map_or(0, |answer| answer.status);
    Poll::start(&world.outside, "watch", EVERY, move || {
        let codes = Some(["/healthz", "/livez"].map(code));
        let answer = node.run(|| http::get(admin, "/verdict", PATIENCE));
        let body = answer.map(|answer| answer.body).unwrap_or_default();
        let report: Value = serde_json::from_str(&body).unwrap_or_default();
        let word = |name: &str| report["verdict"][name].as_str();
        let verdict = match (word("state"), word("cause")) {
            (Some(state), Some(cause)) => format!("{state} ({cause})"),
            (state, _) => state.unwrap_or_default().to_owned(),
        };
        let view = View {
            codes,
            verdict,
            report,
        };
        Some((Instant::now(), view))
    })
}
