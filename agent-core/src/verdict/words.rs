//! The sentences: what was seen, for whom, for how long. A platform engineer reads them in
//! `/verdict`, in the log and in `pathproof status`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use agent_common::service::SourceClass;

use super::judge::Case;
use super::lane_words;
use crate::cause::Failure;
use crate::cause::{Cause, Why};
use crate::ledger::{Lacking, Ledger, Streak, Track, WINDOW};
use crate::names;
use crate::time::{Mono, Spoken};

/// Services that a sentence names; the rest is a number.
const NAMED: usize = 3;

/// `a, b, c and 4 more`.
fn listed<T: AsRef<str>>(names: impl ExactSizeIterator<Item = T>) -> String {
    let more = names.len().saturating_sub(NAMED);
    let mut text = String::new();
    for name in names.take(NAMED) {
        if !text.is_empty() {
            text.push_str(", ");
        }
        text.push_str(name.as_ref());
    }
    if more > 0 {
        // Writing to a String cannot fail.
        let _ = write!(text, " and {more} more");
    }
    text
}

fn labels(tracks: &[&Track]) -> String {
    listed(tracks.iter().map(|track| &*track.label))
}

pub(super) fn broken(case: &Case<'_>, streak: &Streak) -> String {
    format!(
        "{}: every Service with new connections failed for {} ({}: {}); no connection got through \
         meanwhile",
        names::of_family(case.family),
        Spoken(case.now.since(streak.since)),
        listed(streak.services.keys()),
        Cause::of(streak.commonest()),
    )
}

pub(super) fn stale(case: &Case<'_>, tracks: &[&Track], age: Duration) -> String {
    let fresh = case.ledger.limits().stale_fresh;
    let oldest = tracks
        .iter()
        .flat_map(|track| track.stale_pods(age, fresh, case.now))
        .max_by_key(|seen| seen.age);
    let mut text = format!(
        "{}: new connections of pods to {} still go to an endpoint that left its slice",
        names::of_family(case.family),
        labels(tracks),
    );
    if let Some(seen) = oldest {
        let _ = write!(text, " {} before", Spoken(seen.age));
        if let Some(destination) = seen.destination {
            let _ = write!(text, " ({destination})");
        }
    }
    text
}

pub(super) fn degraded(case: &Case<'_>, broken: &[(&Track, Failure)]) -> String {
    let mut by_cause: BTreeMap<Cause, Vec<&Track>> = BTreeMap::new();
    for (track, failure) in broken.iter().take(NAMED) {
        by_cause.entry(Cause::of(*failure)).or_default().push(track);
    }
    let mut text = format!(
        "{}: connections get through, but not to ",
        names::of_family(case.family)
    );
    for (index, (cause, tracks)) in by_cause.iter().enumerate() {
        if index > 0 {
            text.push_str(", ");
        }
        let failures: u64 = tracks.iter().flat_map(|track| track.failures).sum();
        let _ = write!(
            text,
            "{} ({cause}; {failures} failed so far)",
            labels(tracks)
        );
    }
    let more = broken.len().saturating_sub(NAMED);
    if more > 0 {
        let _ = write!(text, " and {more} more");
    }
    text
}

pub(super) fn unheard(case: &Case<'_>, clients: usize) -> String {
    let recent = |track: &&Track| {
        track.failures[Failure::Unheard.index()] > 0 && case.now.since(track.last) <= WINDOW
    };
    let tracks: Vec<&Track> = case.tracks().filter(recent).collect();
    let of = if tracks.is_empty() {
        String::new()
    } else {
        format!(" of {}", labels(&tracks))
    };
    format!(
        "{}: answers{of} leave, but {clients} clients asked again as if they had not heard them; \
         the way out may be broken",
        names::of_family(case.family),
    )
}

pub(super) fn suspect(case: &Case<'_>, streak: &Streak) -> String {
    let limits = case.ledger.limits();
    let lacking = match streak.lacking(case.ledger.seen(case.now), limits) {
        Some(Lacking::Services) if limits.broken_services == 2 => {
            "a single Service does not accuse the node".to_owned()
        }
        Some(Lacking::Services) => {
            format!(
                "fewer than {} Services do not accuse the node",
                limits.broken_services
            )
        }
        Some(Lacking::Endpoints) => {
            format!(
                "there are fewer than {} endpoints behind them",
                limits.broken_endpoints
            )
        }
        Some(Lacking::Pod) => "no pod of this node is among the clients".to_owned(),
        Some(Lacking::Sources) => {
            format!("seen from fewer than {} clients", limits.broken_sources)
        }
        Some(Lacking::Time) | None => format!("for less than {}", Spoken(limits.broken_after)),
    };
    format!(
        "{}: new connections failed ({}: {}) and none got through since; not confirmed: {lacking}",
        names::of_family(case.family),
        listed(streak.services.keys()),
        Cause::of(streak.commonest()),
    )
}

pub(super) fn suspect_stale(case: &Case<'_>, tracks: &[&Track]) -> String {
    format!(
        "{}: new connections failed ({}: {}) and none got through since; not confirmed",
        names::of_family(case.family),
        labels(tracks),
        Cause::Stale,
    )
}

pub(super) fn proven(case: &Case<'_>, path: SourceClass, at: Mono) -> String {
    let client = match path {
        SourceClass::Pod => "a pod of this node",
        SourceClass::Host => "the node itself",
        SourceClass::External => "outside the node",
    };
    format!(
        "{}: a new connection from {client} got through {} ago",
        names::of_family(case.family),
        Spoken(case.now.since(at)),
    )
}

pub(super) fn starting(case: &Case<'_>) -> String {
    let mut text = format!(
        "{}: nothing is proven yet, {} after boot",
        names::of_family(case.family),
        Spoken(case.now.since(case.inputs.boot.booted)),
    );
    if let Some((lane, ledger)) = case.never_worked() {
        let _ = write!(text, "; {}", lane_words::never_worked(lane, ledger));
    }
    text
}

pub(super) fn nothing_known(case: &Case<'_>, why: Why) -> String {
    let sentinel = case.ledger.sentinel();
    let probed = match why {
        Why::NothingProven => case
            .never_worked()
            .map(|(lane, ledger)| lane_words::never_worked(lane, ledger)),
        Why::Inconclusive => case
            .void_lane()
            .map(|(lane, ledger)| lane_words::void(case, lane, ledger)),
        Why::DatapathChanged => sentinel
            .changed_hands(case.family)
            .map(|owners| lane_words::changed_hands(case, owners)),
        _ => None,
    };
    let off = match why {
        Why::NothingProven | Why::Idle => lane_words::off(case),
        _ => None,
    };
    probed.unwrap_or_else(|| {
        let mut text = format!("{}: {}", names::of_family(case.family), unknown(case, why));
        if let Some(off) = off {
            // Writing to a String cannot fail.
            let _ = write!(text, "; {off}");
        }
        text
    })
}

fn unknown(case: &Case<'_>, why: Why) -> String {
    let limits = case.ledger.limits();
    let age = Spoken(limits.proof_age);
    match why {
        Why::EvidenceTooOld => {
            format!("connections failed, but not within {age}, and none was seen since")
        }
        Why::Inconclusive => {
            format!("new connections came within {age}, but none whose outcome says anything")
        }
        Why::NothingProven => {
            format!(
                "nothing was proven within {} after boot",
                Spoken(limits.boot_deadline)
            )
        }
        Why::SentinelAltered => match &case.ledger.sentinel().view().altered {
            Some(altered) => format!("the sentinel is not as pathproof made it: {altered}"),
            None => "the sentinel is not as pathproof made it".to_owned(),
        },
        Why::DatapathChanged => "the datapath changed hands".to_owned(),
        Why::Idle
        | Why::ObserverBlind
        | Why::NotSampled
        | Why::ViewNotSynced
        | Why::NothingExpected => format!("no new connection to a Service within {age}"),
    }
}

/// Where nothing can be judged at all.
pub(super) fn blind(why: Why, ledger: &Ledger, now: Mono) -> String {
    match why {
        Why::ObserverBlind => match ledger.observer().reasons.first() {
            Some(reason) => format!("nothing is observed: {reason}"),
            None => "nothing is observed: no device has the observer's hooks".to_owned(),
        },
        Why::NotSampled => match ledger.sampled() {
            Some(at) => format!(
                "the observer was not read for {}; the agent was stopped or starved",
                Spoken(now.since(at))
            ),
            None => "the observer was not read yet".to_owned(),
        },
        Why::ViewNotSynced => "the cluster view was never complete: which connections are owed \
                               what is not known"
            .to_owned(),
        _ => "no Service has a TCP frontend on this node: there is nothing to prove".to_owned(),
    }
}
