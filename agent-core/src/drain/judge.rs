//! Whether it is quiet: pure, from what is known, what is asked and now.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Ask, DrainView};
use crate::time::{Mono, Spoken};

/// What was not looked at for so long is not known: the agent was stopped or starved.
const UNSEEN: Duration = Duration::from_secs(5);

/// Why the answer is what it is. Only [`Reason::Quiet`] is 200.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Reason {
    /// Nothing came for the quiet time.
    Quiet,
    /// Something came, and the quiet time since then is not over.
    Connections,
    /// Nothing came so far, and the quiet time is not over.
    Waiting,
    /// Neither the Node object nor the caller says that the node leaves.
    NotLeaving,
    /// Connections may come unseen.
    Blind,
}

/// The answer to a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Why.
    pub reason: Reason,
    /// Since when the node leaves: by its Node object or by the caller's word, whichever is earlier.
    pub since: Option<Mono>,
    /// How long nothing came, as far as that was seen; zero where it does not leave.
    pub quiet_for: Duration,
    /// The reason in a sentence, without its period.
    pub message: String,
}

impl DrainView {
    /// Answers. Time that nobody watched, and time before the node left, is not quiet.
    pub fn judge(&self, ask: &Ask, now: Mono) -> Finding {
        let told = ask.waited.map(|waited| now.minus(waited));
        let since = self.since.into_iter().chain(told).min();
        let quiet_for = since.map_or(Duration::ZERO, |since| self.quiet_since(since));
        let (reason, message) = match since {
            None => not_leaving(),
            Some(since) => match self.unseen(now) {
                Some(why) => (Reason::Blind, format!("this cannot be told: {why}")),
                None => self.tell(since, quiet_for, ask.quiet, now),
            },
        };
        Finding {
            reason,
            since,
            quiet_for,
            message,
        }
    }

    /// How long no connection came, up to the last look; nothing before somebody watched.
    pub fn quiet(&self) -> Option<Duration> {
        self.watched.map(|watched| self.quiet_since(watched))
    }

    fn quiet_since(&self, since: Mono) -> Duration {
        let (Some(seen), Some(watched)) = (self.seen, self.watched) else {
            return Duration::ZERO;
        };
        let from = since.max(watched).max(self.last.unwrap_or_default());
        seen.since(from)
    }

    fn unseen(&self, now: Mono) -> Option<String> {
        if let Some(why) = &self.blind {
            return Some(why.clone());
        }
        let Some(seen) = self.seen else {
            return Some("the agent has not looked yet".to_owned());
        };
        let age = now.since(seen);
        (age > UNSEEN).then(|| format!("the agent last looked {} ago", Spoken(age)))
    }

    fn tell(&self, since: Mono, quiet: Duration, wanted: Duration, now: Mono) -> (Reason, String) {
        // What came before the quiet time could begin is not what it waits for.
        let begun = self.watched.map_or(since, |watched| since.max(watched));
        let last = self.last.filter(|last| *last >= begun);
        if quiet >= wanted {
            let message = format!("no new connection from outside for {}", Spoken(quiet));
            return (Reason::Quiet, message);
        }
        match last {
            Some(last) => {
                let ago = Spoken(now.since(last));
                let message =
                    format!("new connections from outside still come, the last {ago} ago");
                (Reason::Connections, message)
            }
            None => {
                let (quiet, wanted) = (Spoken(quiet), Spoken(wanted));
                let message = format!(
                    "no new connection from outside so far: watched for {quiet} of {wanted}"
                );
                (Reason::Waiting, message)
            }
        }
    }
}

fn not_leaving() -> (Reason, String) {
    let message = "the node is not being removed, so nothing is waited for; whoever drains it all \
                   the same says how long by waited=SECONDS";
    (Reason::NotLeaving, message.to_owned())
}
