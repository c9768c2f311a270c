//! The words of a verdict: what was seen, for whom, for how long, and where to look. A platform
//! engineer reads them in `/verdict`, in the log and in `pathproof status`. Nothing else renders a
//! finding, a lane or a cause.

mod lanes;
mod remedies;
mod stages;

use std::fmt::Write as _;

use agent_common::service::SourceClass;

use crate::cause::Cause;
use crate::ledger::Lacking;
use crate::limits::Limits;
use crate::names;
use crate::time::{Mono, Spoken};
use crate::verdict::finding::{BrokenServices, Evidence, Finding, Named, Rule};
use crate::verdict::{FamilyVerdict, Verdict};
pub use lanes::{is_explained, lane_label, meaning, path_label, sentence, state_label};
pub use remedies::{Remedy, next, of_why};
pub use stages::{Interfaces, Stage, Step, steps};

impl Verdict {
    /// One sentence: why the node is in its state.
    pub fn reason(&self) -> String {
        reason(&self.finding, self)
    }

    /// The same of one of its families.
    pub fn reason_of(&self, family: &FamilyVerdict) -> String {
        reason(&family.finding, self)
    }
}

fn reason(finding: &Finding, verdict: &Verdict) -> String {
    let words = Words {
        finding,
        limits: &verdict.limits,
        now: verdict.at,
    };
    match words.lane() {
        Some(sentence) => sentence,
        None => {
            let sentence = words.sentence();
            match finding.family {
                Some(family) => format!("{}: {sentence}", names::of_family(family)),
                None => sentence,
            }
        }
    }
}

/// A finding, and what its sentence is measured by.
struct Words<'a> {
    finding: &'a Finding,
    limits: &'a Limits,
    now: Mono,
}

impl Words<'_> {
    fn ago(&self, at: Mono) -> Spoken {
        Spoken(self.now.since(at))
    }

    /// What is said of a family, or of the node.
    fn sentence(&self) -> String {
        match &self.finding.evidence {
            Evidence::Connections {
                services,
                since,
                lacking,
            } => self.connections(services, *since, *lacking),
            Evidence::LeftEndpoint {
                services,
                age,
                destination,
            } => {
                let destination = destination.map(|at| format!(" ({at})"));
                format!(
                    "new connections of pods to {} still go to an endpoint that left its slice {} \
                     before{}",
                    listed(services),
                    Spoken(*age),
                    destination.unwrap_or_default(),
                )
            }
            Evidence::Services { broken, more } => broken_services(broken, *more),
            Evidence::Unheard { services, clients } => {
                let of = match services.first.is_empty() {
                    true => String::new(),
                    false => format!(" of {}", listed(services)),
                };
                format!(
                    "answers{of} leave, but {clients} clients asked again as if they had not heard \
                     them; the way out may be broken"
                )
            }
            Evidence::Connection { path, at } => {
                let (client, ago) = (client(*path), self.ago(*at));
                format!("a new connection from {client} got through {ago} ago")
            }
            Evidence::Boot { at, never } => {
                let boot = self.ago(*at);
                let mut text = format!("nothing is proven yet, {boot} after boot");
                if let Some(never) = never {
                    let _ = write!(text, "; {}", self.never(never));
                }
                text
            }
            Evidence::Owners { owners } => {
                let owners = match owners.is_empty() {
                    true => "nobody's".to_owned(),
                    false => lanes::owners(*owners),
                };
                format!("the datapath changed hands (now {owners}), and no probe got through since")
            }
            evidence => self.unknown(evidence),
        }
    }

    fn connections(&self, services: &Named, since: Mono, lacking: Option<Lacking>) -> String {
        let listed = listed(services);
        let cause = self.finding.cause.map_or("", cause);
        if self.finding.rule == Rule::BrokenByConnections {
            return format!(
                "every Service with new connections failed for {} ({listed}: {cause}); no \
                 connection got through meanwhile",
                self.ago(since),
            );
        }
        let lacking = lacking.map(|lacking| format!(": {}", self.lacking(lacking)));
        format!(
            "new connections failed ({listed}: {cause}) and none got through since; not \
             confirmed{}",
            lacking.unwrap_or_default()
        )
    }

    fn lacking(&self, lacking: Lacking) -> String {
        let limits = self.limits;
        match lacking {
            Lacking::Services if limits.broken_services == 2 => {
                "a single Service does not accuse the node".to_owned()
            }
            Lacking::Services => format!(
                "fewer than {} Services do not accuse the node",
                limits.broken_services
            ),
            Lacking::Endpoints => format!(
                "there are fewer than {} endpoints behind them",
                limits.broken_endpoints
            ),
            Lacking::Pod => "no pod of this node is among the clients".to_owned(),
            Lacking::Sources => format!("seen from fewer than {} clients", limits.broken_sources),
            Lacking::Time => format!("for less than {}", Spoken(limits.broken_after)),
        }
    }

    fn unknown(&self, evidence: &Evidence) -> String {
        let limits = self.limits;
        let age = Spoken(limits.proof_age);
        let said = match evidence {
            Evidence::Sentinel { said } => said.as_deref(),
            _ => None,
        };
        let text = match self.finding.rule {
            Rule::NotSampled => match evidence {
                Evidence::Read { at: Some(at) } => format!(
                    "the observer was not read for {}; the agent was stopped or starved",
                    self.ago(*at)
                ),
                _ => "the observer was not read yet".to_owned(),
            },
            Rule::ObserverBlind => match evidence {
                Evidence::Unseen { loss: Some(loss) } => format!("nothing is observed: {loss}"),
                _ => "nothing is observed: no device has the observer's hooks".to_owned(),
            },
            Rule::ViewNotSynced => "the cluster view was never complete: which connections are \
                                    owed what is not known"
                .to_owned(),
            Rule::NothingExpected => {
                "no Service has a TCP frontend on this node: there is nothing to prove".to_owned()
            }
            Rule::EvidenceTooOld => {
                format!("connections failed, but not within {age}, and none was seen since")
            }
            Rule::Inconclusive => {
                format!("new connections came within {age}, but none whose outcome says anything")
            }
            Rule::NothingProven => format!(
                "nothing was proven within {} after boot",
                Spoken(limits.boot_deadline)
            ),
            Rule::SentinelAltered => {
                let how = said.map_or(String::new(), |how| format!(": {how}"));
                return format!("the sentinel is not as pathproof made it{how}");
            }
            _ => format!("no new connection to a Service within {age}"),
        };
        match said {
            Some(off) => format!("{text}; {}", lanes::off(off)),
            None => text,
        }
    }
}

fn broken_services(broken: &[BrokenServices], more: usize) -> String {
    let alike = |alike: &BrokenServices| {
        let (services, cause) = (listed(&alike.services), cause(alike.cause));
        format!("{services} ({cause}; {} failed so far)", alike.failures)
    };
    let broken: Vec<String> = broken.iter().map(alike).collect();
    let more = match more {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!(
        "connections get through, but not to {}{more}",
        broken.join(", ")
    )
}

/// Where a real connection came from.
fn client(path: SourceClass) -> &'static str {
    match path {
        SourceClass::Pod => "a pod of this node",
        SourceClass::Host => "the node itself",
        SourceClass::External => "outside the node",
    }
}

/// `a, b, c and 4 more`.
fn listed(names: &Named) -> String {
    let first = names.first.join(", ");
    match names.more {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

/// What goes wrong, in short.
pub fn cause(cause: Cause) -> &'static str {
    match cause {
        Cause::Leaked => "leaked, VIP left untranslated",
        Cause::Refused => "refused by the node itself",
        Cause::Misrouted => "misrouted, sent where no endpoint is",
        Cause::Lost => "lost, arrived and not seen again",
        Cause::Stale => "misrouted, still sent to an endpoint that left its slice",
        Cause::Unheard => "unheard, the answers do not reach the clients",
        Cause::NoData => "no data, connections are made but carry none",
        Cause::ForwardingOff => "forwarding off, the kernel sends nothing on",
        Cause::NotMasqueraded => "not masqueraded, sent on with the client's own address",
        Cause::AnswerLost => "answer lost, it came back into the node and no further",
    }
}

/// `no data`: a name of metrics and `/verdict` with blanks.
pub fn label(name: &str) -> String {
    name.replace('_', " ")
}

/// The rule that gave a family its state: docs/behaviour.md in a sentence, with its numbers.
pub fn rule(finding: &Finding, limits: &Limits) -> String {
    let (probes, lag) = (limits.probe_failures, Spoken(limits.lag_after));
    match finding.rule {
        Rule::BrokenByProbes => broken_by_probes(finding, limits),
        Rule::BrokenByConnections => broken_by_connections(limits),
        Rule::StaleByProbes => format!(
            "Probes of a path that stands for the node pass, but met an old generation of the \
             sentinel's endpoint for at least {lag} after this node received a newer one."
        ),
        Rule::StaleByConnections => format!(
            "New connections of pods still go to an endpoint that left its slice more than {} \
             before.",
            Spoken(limits.stale_after)
        ),
        Rule::DegradedUnheard => "Answers leave, but several clients asked again as if they had \
                                  not heard them; the node itself forwards."
            .to_owned(),
        Rule::DegradedServices => "The family is proven, and single Services are not: that takes \
                                   no node out of service."
            .to_owned(),
        Rule::DegradedContradicted | Rule::DegradedFiltered => format!(
            "At least {probes} probes in a row failed, but a real connection of the same path, or \
             the pods' own probes, came through meanwhile: a filter of the sentinel's addresses."
        ),
        Rule::DegradedAside => format!(
            "At least {probes} probes in a row failed on a path that does not stand for the node \
             (the node's own, or UDP), while the others pass."
        ),
        Rule::DegradedByLag => format!(
            "Probes of a path that does not stand for the node (the node's own, or UDP) met an old \
             generation of the sentinel's endpoint for at least {lag}."
        ),
        // The family's sentence says what is lacking.
        Rule::SuspectByProbes => format!(
            "Probes failed, which is not confirmed: that takes {probes} in a row that nothing of \
             pathproof's own explains."
        ),
        Rule::SuspectByConnections | Rule::SuspectByStale => {
            "Connections failed and none got through after them, which is not confirmed.".to_owned()
        }
        Rule::ProvenByConnection | Rule::ProvenByProbe => format!(
            "A new connection or a probe came through within the last {}.",
            Spoken(limits.proof_age)
        ),
        Rule::Starting => format!(
            "Nothing is proven yet, and the node booted less than {} ago.",
            Spoken(limits.boot_deadline)
        ),
        _ => "No rule applies: nothing that was seen says anything.".to_owned(),
    }
}

fn broken_by_connections(limits: &Limits) -> String {
    format!(
        "Every Service with new connections failed for at least {}, {} Services at least, seen by \
         {} clients or more, a pod of this node among them.",
        Spoken(limits.broken_after),
        limits.broken_services,
        limits.broken_sources,
    )
}

fn broken_by_probes(finding: &Finding, limits: &Limits) -> String {
    let (clear, real) = match &finding.evidence {
        Evidence::Probes { lanes, real } => (lanes.iter().any(|lane| lane.clear), *real),
        _ => (true, false),
    };
    let how = match clear {
        true => "in a way that no filter of the sentinel's own addresses explains",
        false => "and real connections that arrived after the first of them failed as well",
    };
    let path = match limits.assume_armed {
        true => "a path",
        false => "a path that worked before",
    };
    let probes = limits.probe_failures;
    let rule = format!("At least {probes} probes in a row failed on {path}, {how}.");
    match real {
        true => format!(
            "{rule} Real connections say the same. {}",
            broken_by_connections(limits)
        ),
        false => rule,
    }
}
