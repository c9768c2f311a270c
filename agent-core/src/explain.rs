//! The words of a verdict: what was seen, for whom, for how long, and where to look. A platform
//! engineer reads them in `/verdict`, in the log and in `pathproof status`. Nothing else renders a
//! finding, a lane or a cause.

mod lanes;
mod remedies;
mod stages;
#[cfg(test)]
mod tests;

use agent_common::service::SourceClass;

use crate::cause::Cause;
use crate::conntrack::Table;
use crate::drops;
use crate::ledger::Lacking;
use crate::limits::Limits;
use crate::names;
use crate::time::{Mono, Spoken};
use crate::verdict::finding::{BrokenServices, Evidence, Finding, Named, Rule};
use crate::verdict::{FamilyVerdict, Verdict};
pub use lanes::{is_explained, lane_label, meaning, path_label, sentence};
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
    let sentence = match words.lane() {
        Some(sentence) => sentence,
        None => {
            let sentence = words.sentence();
            match finding.family {
                Some(family) => format!("{}: {sentence}", names::of_family(family)),
                None => sentence,
            }
        }
    };
    match verdict.conntrack.table {
        Some(table) if finding.cause == Some(Cause::ConntrackFull) => {
            format!("{sentence}; {}", conntrack(&table))
        }
        _ => match dropped(finding, verdict) {
            Some(reason) => format!("{sentence}; {reason}"),
            None => sentence,
        },
    }
}

/// The kernel's reason for what a finding says is lost.
fn dropped(finding: &Finding, verdict: &Verdict) -> Option<String> {
    let is_loss = matches!(
        finding.cause,
        Some(
            Cause::Lost
                | Cause::ForwardingOff
                | Cause::AnswerLost
                | Cause::NoData
                | Cause::Unheard
                | Cause::Overlay
        )
    );
    let main = verdict.drops.main(finding.family, verdict.at);
    let dropped = main.filter(|_| is_loss)?;
    Some(drop_reason(&dropped.reason))
}

/// `the kernel's drop reason is NO_SOCKET: nothing listens there`.
fn drop_reason(reason: &str) -> String {
    let meaning = drops::meaning(reason).map_or_else(String::new, |text| format!(": {text}"));
    format!("the kernel's drop reason is {reason}{meaning}")
}

/// Of a full table.
fn conntrack(table: &Table) -> String {
    format!(
        "{} of {} entries of the connection table are in use and new connections are dropped: raise \
         net.netfilter.nf_conntrack_max, or find the client that opens them",
        table.entries, table.limit
    )
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

    /// The sentence about a family, or about the node.
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
            Evidence::Obstacle { failures, since } => format!(
                "{failures} connections from outside failed in {} and none got through: {}",
                self.ago(*since),
                match (self.finding.cause, self.finding.family) {
                    (Some(Cause::ForwardingOff), Some(family)) => lanes::forwarding_off(family),
                    _ =>
                        "Cilium's program that translates what comes in by an uplink is not attached",
                },
            ),
            Evidence::Network { said } => {
                format!("the Node says that its pods have no network: {said}")
            }
            Evidence::Cuts { transfers, since } => format!(
                "{transfers} large transfers of the pod probe failed since {} ago, and its small ones \
                 passed",
                self.ago(*since),
            ),
            Evidence::Peers {
                nodes,
                services,
                connections,
                since,
                others_answer,
                near_answers,
            } => {
                let what = match others_answer {
                    true => "some other nodes do not answer",
                    false => "no other node answers",
                };
                let contrast = match (others_answer, near_answers) {
                    (true, _) => "; others do, so look at the silent nodes first",
                    (false, true) => ", while an endpoint of this node does",
                    (false, false) => "",
                };
                format!(
                    "{what} pods of this node since {} ago ({}: {connections} connections to {} \
                     sent and not answered){contrast}",
                    self.ago(*since),
                    listed(nodes),
                    listed(services),
                )
            }
            Evidence::Connection { path, at } => {
                let (client, ago) = (client(*path), self.ago(*at));
                format!("a new connection from {client} got through {ago} ago")
            }
            Evidence::Boot { at, .. } if self.finding.rule == Rule::StartingPods => format!(
                "no connection of a pod got through yet, {} after boot: the pod probe is waited for",
                self.ago(*at)
            ),
            Evidence::Boot { at, never } => {
                let never = never
                    .as_ref()
                    .map(|never| format!("; {}", self.never(never)));
                let (boot, never) = (self.ago(*at), never.unwrap_or_default());
                format!("nothing is proven yet, {boot} after boot{never}")
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
            Lacking::Services => format!("fewer than {} Services failed", limits.broken_services),
            Lacking::Endpoints => format!(
                "there are fewer than {} endpoints behind them",
                limits.broken_endpoints
            ),
            Lacking::Pod => "no pod of this node is among the clients".to_owned(),
            Lacking::New => "no Service that worked before failed".to_owned(),
            Lacking::Referee => "the sentinel's probes pass, so a policy may deny them".to_owned(),
            Lacking::Claimed => {
                "other Services claim what the sentinel's probes dial, so that nothing \
                                 tells a fault from a policy"
                    .to_owned()
            }
            Lacking::Namespaces => "all are of one namespace, and others are in use".to_owned(),
            Lacking::Sources => {
                format!(
                    "seen from fewer than {} pods of this node",
                    limits.broken_sources
                )
            }
            Lacking::Time => format!("for less than {}", Spoken(limits.broken_after)),
        }
    }

    fn unknown(&self, evidence: &Evidence) -> String {
        let age = Spoken(self.limits.proof_age);
        let said = match evidence {
            Evidence::Sentinel { said } => said.as_deref(),
            _ => None,
        };
        let text = match (self.finding.rule, evidence) {
            (Rule::NotSampled, Evidence::Read { at: Some(at) }) => format!(
                "the observer was not read for {}; the agent was stopped or starved",
                self.ago(*at)
            ),
            (Rule::NotSampled, _) => "the observer was not read yet".to_owned(),
            (Rule::ObserverBlind, Evidence::Unseen { loss: Some(loss) }) => {
                format!("nothing is observed: {loss}")
            }
            (Rule::ObserverBlind, _) => {
                "nothing is observed: no device has the observer's hooks".to_owned()
            }
            (Rule::ViewNotSynced, _) => {
                "the cluster view was never complete: which connections are \
                                    owed what is not known"
                    .to_owned()
            }
            (Rule::NothingExpected, _) => {
                "no Service has a TCP frontend on this node: there is nothing to prove".to_owned()
            }
            (Rule::EvidenceTooOld, _) => {
                format!("connections failed, but not within {age}, and none was seen since")
            }
            (Rule::Inconclusive, _) => {
                format!("new connections came within {age}, but none whose outcome says anything")
            }
            (Rule::NothingProven, _) => format!(
                "nothing was proven within {} after boot",
                Spoken(self.limits.boot_deadline)
            ),
            (Rule::SentinelAltered, _) => {
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
    let first = broken.iter().map(alike).collect();
    let services = listed(&Named { first, more });
    format!("connections get through, but not to {services}")
}

/// Origin of a real connection, in words.
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

/// Short description of a cause.
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
        Cause::ConntrackFull => "conntrack full, the kernel has no room to track it",
        Cause::Overlay => "overlay, sent to other nodes and not answered",
        Cause::Mtu => "mtu, large packets lost between nodes",
        Cause::Cni => "cni, pods have no network",
        Cause::ProgramMissing => "program missing, Cilium translates nothing at an uplink",
    }
}

/// `no data`: a name of metrics and `/verdict` with blanks.
pub fn label(name: &str) -> String {
    name.replace('_', " ")
}

/// The rule by which a family takes the node out: docs/behaviour.md in a sentence, with its numbers.
/// The reason of a family that does not names what is lacking.
pub fn rule(finding: &Finding, limits: &Limits) -> Option<String> {
    let (lag, stale) = (Spoken(limits.lag_after), Spoken(limits.stale_after));
    Some(match (finding.rule, &finding.evidence) {
        (Rule::BrokenByProbes, _) if finding.cause == Some(Cause::ConntrackFull) => format!(
            "At least {} probes were lost on a path that worked before, each within {} of the one \
             before, while the kernel dropped connections for want of room. Probes that find room \
             meanwhile do not end it.",
            limits.probe_failures,
            Spoken(limits.probe_gap),
        ),
        (Rule::BrokenByProbes, evidence) => {
            let how = match evidence {
                Evidence::Probes { lanes, .. } if lanes.iter().all(|lane| !lane.clear) => {
                    "and real connections that arrived after the first of them failed as well"
                }
                _ => "in a way that no filter of the sentinel's own addresses explains",
            };
            let probes = limits.probe_failures;
            format!("At least {probes} probes in a row failed on a path that worked before, {how}.")
        }
        (Rule::BrokenByConnections, _) => format!(
            "Every Service with new connections failed for at least {}. Among them were at least {} \
             Services that had worked before, of {} namespaces where as many are in use, and at least \
             {} pods of this node met it.",
            Spoken(limits.broken_after),
            limits.broken_services,
            limits.broken_namespaces,
            limits.broken_sources,
        ),
        (Rule::BrokenByObstacle, _) => format!(
            "An obstacle was read from the kernel (forwarding is off, or a program is missing), and at \
             least {} connections from outside failed, to Services that had worked for clients outside. \
             None got through since.",
            limits.service_failures,
        ),
        (Rule::StaleByProbes, _) => format!(
            "Probes of a path that stands for the node pass, but met an old generation of the \
             sentinel's endpoint for at least {lag} after this node received a newer one."
        ),
        (Rule::StaleByConnections, _) => {
            format!("Pods still reach an endpoint that left its slice more than {stale} before.")
        }
        _ => return None,
    })
}
