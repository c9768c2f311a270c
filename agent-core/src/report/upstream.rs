//! What the node's own proxy says of its health, where it is asked.

use serde::{Deserialize, Serialize};

use crate::time::Mono;
use crate::upstream::{Heard, Upstream};

/// The last answer, and what is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpstreamReport {
    /// Who is asked.
    pub url: String,
    /// How it answered last.
    pub state: UpstreamState,
    /// When; nothing before the first answer.
    pub heard: Option<Mono>,
    /// What it gave as its reason, or why it could not be heard.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub said: Option<String>,
    /// It counts against the node: it was said several times in a row.
    #[serde(default)]
    pub counts: bool,
}

/// How an upstream answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UpstreamState {
    /// Not asked yet.
    #[default]
    Unasked,
    /// 200.
    Healthy,
    /// 503.
    Unhealthy,
    /// Not at all.
    Silent,
    /// Like no health server of a proxy.
    Unusable,
}

impl UpstreamState {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Unasked,
        Self::Healthy,
        Self::Unhealthy,
        Self::Silent,
        Self::Unusable,
    ];

    /// Name as metrics and `/verdict` show it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unasked => "unasked",
            Self::Healthy => "healthy",
            Self::Unhealthy => "unhealthy",
            Self::Silent => "silent",
            Self::Unusable => "unusable",
        }
    }
}

impl UpstreamReport {
    /// Of what was heard by `now`.
    pub fn new(url: String, upstream: &Upstream, now: Mono) -> Self {
        let (state, said) = match upstream.last().map(|(_, heard)| heard) {
            None => (UpstreamState::Unasked, None),
            Some(Heard::Healthy) => (UpstreamState::Healthy, None),
            Some(Heard::Unhealthy { said, .. }) => (UpstreamState::Unhealthy, Some(said)),
            Some(Heard::Silent(why)) => (UpstreamState::Silent, Some(why)),
            Some(Heard::Unusable(why)) => (UpstreamState::Unusable, Some(why)),
        };
        Self {
            url,
            state,
            heard: upstream.last().map(|(at, _)| *at),
            said: said.map(|said| said.to_string()),
            counts: upstream.voice(now).is_some(),
        }
    }
}
