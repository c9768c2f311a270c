//! The upstream's voice: what the health server of the node's own proxy says (kube-proxy's, or
//! Cilium's), asked every few seconds where `--upstream` names it.
//!
//! It knows whether a sync loop runs, which packets do not show; it knows nothing of packets. What
//! that is worth beside the evidence is the verdict's to say.

use std::sync::Arc;
use std::time::Duration;

use agent_common::service::FAMILIES;

use crate::time::Mono;

/// Header of our own questions. Where nobody else listens at the port they come to pathproof itself,
/// which must not bear witness for itself.
pub const HEADER: &str = "pathproof-upstream";

/// So many answers in a row are believed.
const CONFIRMED: u32 = 3;
/// Over this long at least.
const SPREAD: Duration = Duration::from_secs(9);
/// And nothing after this long without one.
const FRESH: Duration = Duration::from_secs(20);

/// What became of one question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    /// 200.
    Healthy,
    /// 503.
    Unhealthy {
        /// Families that it says are unhealthy, by `Family`; all where it does not tell.
        families: [bool; FAMILIES],
        /// It was asked /healthz, for lack of /livez (kube-proxy before 1.28, Cilium): a node that
        /// leaves is 503 there as well (KEP-3836).
        mixed: bool,
        /// What it gave as its reason, for people.
        said: Arc<str>,
    },
    /// Nobody answered; why, for people.
    Silent(Arc<str>),
    /// What answers is no health server of a proxy; what it said, for people.
    Unusable(Arc<str>),
}

/// What the upstream says now, confirmed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Voice {
    /// What it says.
    pub kind: Kind,
    /// Since when it says so.
    pub since: Mono,
    /// Families that are meant, by `Family`.
    pub families: [bool; FAMILIES],
    /// What it said last, for people.
    pub said: Arc<str>,
}

/// What an upstream can say against the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// That it cannot bring its rules up to date.
    Unhealthy,
    /// Nothing: it does not answer.
    Silent,
}

/// What was heard so far.
#[derive(Clone, Debug, Default)]
pub struct Upstream {
    last: Option<(Mono, Heard)>,
    run: Option<Run>,
    /// It was 200 since the node last left, as far as this agent heard: a 503 by /healthz means its
    /// rules. Else it may mean the node: Cilium says so even after the node came back.
    means_rules: bool,
}

#[derive(Clone, Copy, Debug)]
struct Run {
    kind: Kind,
    since: Mono,
    answers: u32,
}

impl Upstream {
    /// Takes in an answer. `leaving`: the Node object says that the node is being removed.
    pub fn hear(&mut self, heard: Heard, leaving: bool, now: Mono) {
        let kind = match &heard {
            Heard::Unhealthy { mixed, .. } => {
                self.means_rules &= !(*mixed && leaving);
                Some(Kind::Unhealthy)
            }
            Heard::Silent(_) => Some(Kind::Silent),
            Heard::Healthy => {
                self.means_rules = true;
                None
            }
            Heard::Unusable(_) => None,
        };
        self.run = kind.map(|kind| match self.run {
            Some(run) if run.kind == kind => Run {
                answers: run.answers.saturating_add(1),
                ..run
            },
            _ => Run {
                kind,
                since: now,
                answers: 1,
            },
        });
        self.last = Some((now, heard));
    }

    /// What was heard last, and when.
    pub fn last(&self) -> Option<&(Mono, Heard)> {
        self.last.as_ref()
    }

    /// What it says against the node, where that is confirmed and young.
    pub fn voice(&self, now: Mono) -> Option<Voice> {
        let run = self.run?;
        let (at, heard) = self.last.as_ref()?;
        let confirmed = run.answers >= CONFIRMED && at.since(run.since) >= SPREAD;
        if !confirmed || now.since(*at) > FRESH {
            return None;
        }
        let (families, said) = match heard {
            Heard::Unhealthy { mixed: true, .. } if !self.means_rules => return None,
            Heard::Unhealthy { families, said, .. } => (*families, said),
            Heard::Silent(why) => ([true; FAMILIES], why),
            Heard::Healthy | Heard::Unusable(_) => return None,
        };
        Some(Voice {
            kind: run.kind,
            since: run.since,
            families,
            said: Arc::clone(said),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Mono {
        Mono(seconds * 1_000_000_000)
    }

    fn unhealthy(mixed: bool) -> Heard {
        Heard::Unhealthy {
            families: [true, false],
            mixed,
            said: "late".into(),
        }
    }

    /// Hears the same at these seconds.
    fn hears(heard: Heard, leaving: bool, seconds: &[u64]) -> Upstream {
        let mut upstream = Upstream::default();
        for second in seconds {
            upstream.hear(heard.clone(), leaving, at(*second));
        }
        upstream
    }

    #[test]
    fn three_answers_are_believed() {
        let twice = hears(unhealthy(false), false, &[0, 10]);
        assert_eq!(twice.voice(at(10)), None);
        let thrice = hears(unhealthy(false), false, &[0, 5, 10]);
        let voice = thrice.voice(at(12)).unwrap();
        assert_eq!((voice.kind, voice.since), (Kind::Unhealthy, at(0)));
        assert_eq!(voice.families, [true, false]);
        assert_eq!(thrice.voice(at(31)), None, "too old");
        let hasty = hears(unhealthy(false), false, &[0, 1, 2, 3]);
        assert_eq!(hasty.voice(at(3)), None);
    }

    #[test]
    fn one_that_is_well_again_is_believed_at_once() {
        let mut upstream = hears(Heard::Silent("refused".into()), false, &[0, 5, 10]);
        assert_eq!(
            upstream.voice(at(10)).map(|voice| voice.kind),
            Some(Kind::Silent)
        );
        upstream.hear(Heard::Healthy, false, at(15));
        assert_eq!(upstream.voice(at(15)), None);
    }

    // It restarts: neither counts for the other.
    #[test]
    fn silence_and_503_do_not_add_up() {
        let mut upstream = hears(unhealthy(false), false, &[0, 5]);
        upstream.hear(Heard::Silent("refused".into()), false, at(10));
        assert_eq!(upstream.voice(at(10)), None);
    }

    #[test]
    fn a_node_that_leaves_is_not_meant() {
        let leaving = hears(unhealthy(true), true, &[0, 5, 10]);
        assert_eq!(leaving.voice(at(10)), None);
        // Cilium stays so when the node is back.
        let mut back = leaving.clone();
        back.hear(unhealthy(true), false, at(15));
        assert_eq!(back.voice(at(15)), None);
        back.hear(Heard::Healthy, false, at(20));
        for second in [25, 30, 35] {
            back.hear(unhealthy(true), false, at(second));
        }
        assert!(back.voice(at(35)).is_some(), "it was well in between");
        // An agent that was restarted does not know which it is.
        assert_eq!(
            hears(unhealthy(true), false, &[0, 5, 10]).voice(at(10)),
            None
        );
        // /livez does not mean the node.
        assert!(
            hears(unhealthy(false), true, &[0, 5, 10])
                .voice(at(10))
                .is_some()
        );
    }
}
