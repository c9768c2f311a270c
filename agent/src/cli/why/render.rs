//! The chain as a page: what is answered, the rule behind it, what was seen, where to look.

use std::time::Duration;

use super::super::lanes;
use super::super::paper::{Ink, Paper, counted, grouped, sentence};
use super::chain::{Chain, FamilyStep, ServiceStep};
use super::stages::{LaneStep, Step};
use agent_core::cause::{Cause, State};
use agent_core::explain::{self, Stage};
use agent_core::names;
use agent_core::report::SentinelState;
use agent_core::time::Spoken;

/// Where the text of a section begins.
const TEXT: usize = 16;
/// Where the sentence of a stage begins.
const STAGE: usize = 30;
/// Services told of.
const SERVICES_SHOWN: usize = 8;
/// Losses of coverage told of.
const LOSSES_SHOWN: usize = 6;

/// The page.
pub fn render(chain: &Chain, colour: bool) -> String {
    let mut page = Page {
        paper: Paper::new(colour),
        chain,
    };
    page.head();
    page.rules();
    page.probes();
    page.services();
    page.sentinel();
    page.next();
    page.coverage();
    page.paper.finish()
}

struct Page<'a> {
    paper: Paper,
    chain: &'a Chain,
}

impl Page<'_> {
    fn head(&mut self) {
        let chain = self.chain;
        self.paper
            .badge(Ink::of(chain.state), &chain.state.name().to_uppercase())
            .put(Ink::Plain, "  ")
            .put(Ink::Heading, &chain.node)
            .put(Ink::Faint, &format!("  for {}", spoken(chain.for_s)))
            .line();
        self.paper
            .wrapped(Ink::Plain, 0, &format!("{}.", chain.answered));
        self.paper.line();
        if !chain.eligible {
            self.paper
                .section(TEXT, "leaving", Ink::Warn, &sentence(&chain.eligibility));
            self.paper.line();
        }
    }

    fn rules(&mut self) {
        let chain = self.chain;
        if chain.families.is_empty() {
            self.paper
                .section(TEXT, "because", Ink::Plain, &sentence(&chain.reason));
        }
        for (index, family) in chain.families.iter().enumerate() {
            let told = chain.families[..index]
                .iter()
                .any(|other| other.state == family.state && other.reason == family.reason);
            let same_rule = |other: &FamilyStep| other.rule == family.rule;
            let ruled = chain.families[..index].iter().any(same_rule);
            self.rule(index, family, told, ruled);
        }
        self.paper.line();
    }

    fn rule(&mut self, index: usize, family: &FamilyStep, told: bool, ruled: bool) {
        let title = if index == 0 { "because" } else { "" };
        self.paper
            .put(Ink::Heading, title)
            .to(TEXT)
            .put(Ink::Plain, names::of_family(family.family))
            .put(Ink::Plain, " is ")
            .put(Ink::of(family.state), family.state.name());
        if told {
            self.paper.put(Ink::Plain, ", likewise.").line();
            return;
        }
        self.paper.put(Ink::Plain, ". ");
        self.paper
            .wrapped(Ink::Plain, TEXT, &sentence(&family.reason));
        // What is sound beside what is not needs no grounds.
        if !ruled && (family.state != State::Proven || self.chain.state == State::Proven) {
            self.paper.to(TEXT);
            self.paper.wrapped(Ink::Faint, TEXT, &family.rule);
        }
    }

    /// Lanes that fail alike are told once.
    fn probes(&mut self) {
        let chain = self.chain;
        let mut groups: Vec<Vec<&LaneStep>> = Vec::new();
        for lane in &chain.lanes {
            let alike = |other: &&LaneStep| {
                let of_path = (other.family, other.path) == (lane.family, lane.path);
                let of_cause = other.cause.is_some()
                    && (other.cause, other.counts) == (lane.cause, lane.counts)
                    && stopped(other) == stopped(lane);
                let is_like = if lane.explained { of_path } else { of_cause };
                is_like && !other.explained && other.state == lane.state
            };
            let group = groups.iter_mut().find(|group| group.iter().any(&alike));
            match group {
                Some(group) => group.push(lane),
                None => groups.push(vec![lane]),
            }
        }
        for group in groups {
            if let [first, others @ ..] = group.as_slice() {
                self.lane(first, others);
            }
        }
    }

    fn lane(&mut self, lane: &LaneStep, others: &[&LaneStep]) {
        let (title, ink) = match (lane.cause, lane.never_worked()) {
            (Some(cause), false) => (explain::cause_label(cause), Ink::Bad),
            (Some(_), true) => ("never worked".to_owned(), Ink::Warn),
            (None, _) => ("says nothing".to_owned(), Ink::Warn),
        };
        self.paper.put(ink, &title).to(TEXT);
        if lane.cause.is_none() {
            self.paper
                .wrapped(Ink::Plain, TEXT, &sentence(&lane.sentence));
            self.paper.line();
            return;
        }
        let text = sent(lane);
        self.paper.wrapped(Ink::Plain, TEXT, &text);
        for step in &lane.steps {
            self.step(step);
        }
        let meaning = meaning(lane);
        self.paper.to(TEXT);
        self.paper.wrapped(Ink::Heading, TEXT, &meaning);
        if !others.is_empty() {
            let others: Vec<String> = others.iter().map(|lane| lane.label()).collect();
            self.paper.to(TEXT);
            self.paper.wrapped(
                Ink::Plain,
                TEXT,
                &format!("The same on {}.", others.join(", ")),
            );
        }
        if !lane.counts {
            let said = "It never worked in this boot, so it accuses nobody.";
            self.paper.to(TEXT).put(Ink::Faint, said).line();
        }
        self.paper.line();
    }

    fn step(&mut self, step: &Step) {
        let (mark, ink) = match step.reached {
            true => ("✔ ", Ink::Good),
            false => ("✘ ", Ink::Bad),
        };
        self.paper.to(TEXT).put(ink, mark);
        self.paper.put(Ink::Plain, step.stage.name()).to(STAGE);
        let mut text = step.sentence.clone();
        if let Some(after) = step.after_ns {
            text = format!("{text}, after {}", lanes::fine(Duration::from_nanos(after)));
        }
        let ink = if step.reached { Ink::Faint } else { Ink::Bad };
        self.paper.wrapped(ink, STAGE, &text);
    }

    fn services(&mut self) {
        let chain = self.chain;
        for (index, service) in chain.services.iter().take(SERVICES_SHOWN).enumerate() {
            let title = if index == 0 { "services" } else { "" };
            self.paper.put(Ink::Heading, title).to(TEXT);
            self.service(service);
        }
        let more =
            chain.services.len().saturating_sub(SERVICES_SHOWN) + chain.services_omitted as usize;
        if more > 0 {
            let text = format!("and {} more in trouble", grouped(more as u64));
            self.paper.to(TEXT).put(Ink::Faint, &text).line();
        }
        if !chain.services.is_empty() {
            self.paper.line();
        }
    }

    fn service(&mut self, service: &ServiceStep) {
        let trouble = &service.trouble;
        let ink = if trouble.confirmed {
            Ink::Bad
        } else {
            Ink::Warn
        };
        let counts: Vec<String> = trouble
            .failures
            .iter()
            .map(|(failure, count)| format!("{} {}", grouped(*count), Cause::of(*failure).name()))
            .collect();
        let confirmed = match trouble.confirmed {
            true => "",
            false => "; not confirmed",
        };
        let text = format!(
            "on {}: {} in {}, the last {} ago; {}{confirmed}",
            names::of_family(trouble.family),
            counts.join(", "),
            spoken(service.for_s),
            spoken(service.last_s),
            counted(u64::from(trouble.endpoints), "endpoint"),
        );
        self.paper.put(ink, &trouble.service).put(Ink::Plain, " ");
        self.paper.wrapped(Ink::Plain, TEXT + 2, &text);
        if let Some(example) = &trouble.example {
            self.paper.to(TEXT + 2);
            self.paper.wrapped(Ink::Faint, TEXT + 2, example);
        }
    }

    /// Only where it says why probes do not help.
    fn sentinel(&mut self) {
        let sentinel = &self.chain.sentinel;
        let ink = match sentinel.state {
            SentinelState::Probing => return,
            SentinelState::Off | SentinelState::Altered => Ink::Warn,
            SentinelState::Absent | SentinelState::Disabled => Ink::Plain,
        };
        let text = format!(
            "There are no probes, the sentinel is {}: {}",
            sentinel.state.name(),
            sentinel.sentence
        );
        self.paper.section(TEXT, "sentinel", ink, &sentence(&text));
        if sentinel.state == SentinelState::Off {
            self.paper
                .to(TEXT)
                .put(Ink::Faint, "docs/operations.md#the-sentinel-is-off")
                .line();
        }
        self.paper.line();
    }

    fn next(&mut self) {
        let chain = self.chain;
        if chain.next.is_empty() {
            let said = match chain.state {
                State::Proven => "Nothing to do.",
                _ => "Nothing more is known.",
            };
            self.paper.section(TEXT, "look next", Ink::Faint, said);
        }
        self.paper.remedies(&chain.next, TEXT);
        if !chain.coverage.is_empty() {
            self.paper.line();
        }
    }

    fn coverage(&mut self) {
        let losses = &self.chain.coverage;
        self.paper.losses(losses, TEXT, LOSSES_SHOWN);
        if losses.len() > LOSSES_SHOWN {
            let more = format!("and {} more", losses.len() - LOSSES_SHOWN);
            self.paper.to(TEXT).put(Ink::Faint, &more).line();
        }
    }
}

/// The stage at which a lane's probes end.
fn stopped(lane: &LaneStep) -> Option<Stage> {
    lane.steps.last().map(|step| step.stage)
}

/// What was sent: from where to where, how many, when.
fn sent(lane: &LaneStep) -> String {
    let mut text = format!("Probes of {}", lane.label());
    match (lane.from, lane.to) {
        (Some(from), Some(to)) => text.push_str(&format!(", from {from} to {to}")),
        (None, Some(to)) => text.push_str(&format!(", to {to}")),
        _ => {}
    }
    match (lane.failures, lane.since_s) {
        (1, _) => text.push_str(": the last one failed"),
        (failures, Some(since)) if failures > 1 => text.push_str(&format!(
            ": {} in a row failed, the first {} ago",
            grouped(u64::from(failures)),
            spoken(since),
        )),
        _ => text.push_str(": none came through yet"),
    }
    if let Some(last) = lane.last_s {
        text.push_str(&format!(", the last {} ago", spoken(last)));
    }
    text.push('.');
    text
}

fn meaning(lane: &LaneStep) -> String {
    let meaning = lane.meaning.as_deref().unwrap_or_default();
    match lane.never_worked() {
        true => format!("Most likely {meaning}."),
        false => format!("That means: {meaning}."),
    }
}

fn spoken(seconds: f64) -> Spoken {
    Spoken(Duration::try_from_secs_f64(seconds).unwrap_or_default())
}
