//! The sentences of a verdict: what was observed, for whom, for how long, and where to look.
//! Platform engineers read them in `/verdict`, in the log and in `pathproof status`. No other
//! module renders a finding, a lane or a cause.

mod accusation;
mod lanes;
mod remedies;
mod stages;
mod texts;

use std::cmp::Reverse;

pub use accusation::{eliminated, rule};
pub use lanes::{is_explained, lane_label, meaning, path_label, sentence};
use pathproof_facts::cause::{Cause, State};
use pathproof_facts::limits::Limits;
use pathproof_facts::names;
use pathproof_facts::time::{HumanDuration, Mono};
use pathproof_wire::service::SourceClass;
use pathproof_witness::conntrack::Table;
use pathproof_witness::drops;
pub use remedies::{Remedy, next, of_why};
pub use stages::{Interfaces, ShownStage, Step, steps};

use crate::verdict::finding::{BrokenServices, Evidence, Finding, Named, Rule, Scope, Uncounted};
use crate::verdict::{FamilyVerdict, Verdict};

impl Verdict {
    /// The reason for the node's state, in one sentence.
    pub fn reason(&self) -> String {
        reason(&self.finding, self)
    }

    pub fn reason_of(&self, family: &FamilyVerdict) -> String {
        reason(&family.finding, self)
    }

    /// Reasons of the other findings in both families, most severe first and without duplicates. Findings
    /// that only report success or a lack of evidence are omitted. Suspicions in a failing family are omitted
    /// too: each explains why it does not accuse the node, while another finding does.
    pub fn also(&self) -> Vec<String> {
        let counts = |finding: &&Finding, family: State| match finding.rule.state() {
            State::Suspect => !family.fails(),
            state => state > State::Proven,
        };
        let found = self.families.iter().flat_map(|family| {
            let found = family.findings.iter();
            found.filter(move |finding| counts(finding, family.state))
        });
        let mut all: Vec<&Finding> = found.collect();
        // The sort is stable: IPv4 stays first among equals.
        all.sort_by_key(|finding| Reverse(finding.rule.state()));
        let mut reasons = vec![self.reason()];
        for finding in all {
            let reason = reason(finding, self);
            if !reasons.contains(&reason) {
                reasons.push(reason);
            }
        }
        reasons.split_off(1)
    }
}

/// A finding of the verdict in one sentence.
pub fn reason(finding: &Finding, verdict: &Verdict) -> String {
    if let Evidence::Uncounted { finding, because } = &finding.evidence {
        let because = uncounted(finding, *because, verdict.at);
        return format!("{}; {because}", reason(finding, verdict));
    }
    let words = Words {
        finding,
        limits: &verdict.limits,
        now: verdict.at,
    };
    let sentence = words.lane().unwrap_or_else(|| match finding.family {
        Some(family) => format!("{}: {}", names::of_family(family), words.sentence()),
        None => words.sentence(),
    });
    let is_full = finding.cause == Some(Cause::ConntrackFull);
    let table = verdict.conntrack.table.filter(|_| is_full);
    let advice = table.map(|Table { entries, limit, .. }| {
        format!(
            "{entries} of {limit} entries are in use: raise net.netfilter.nf_conntrack_max, or \
             find the client that opens them"
        )
    });
    match advice.or_else(|| dropped(finding, verdict)) {
        Some(detail) => format!("{sentence}; {detail}"),
        None => sentence,
    }
}

/// Why a failing family does not take the node out.
fn uncounted(finding: &Finding, because: Uncounted, now: Mono) -> String {
    let family = finding.family.map_or("this family", names::of_family);
    let since = match because {
        Uncounted::OtherWorks => {
            return format!("{family} does not count (--families=any): another family works");
        }
        Uncounted::Unused(Some(at)) => format!("for {}", HumanDuration(now.since(at))),
        Uncounted::Unused(None) => "in this boot, as far as was observed".to_owned(),
    };
    format!(
        "{family} does not count (--families=used): no pod and no client outside used it {since}, and another \
         family is used"
    )
}

/// The kernel's drop reason for the losses of a finding. Example: `the kernel's drop reason is XDP: an XDP program
/// drops it`.
fn dropped(finding: &Finding, verdict: &Verdict) -> Option<String> {
    let is_loss = matches!(
        finding.cause,
        Some(
            Cause::Lost
                | Cause::ForwardingOff
                | Cause::AnswerLost
                | Cause::NoData
                | Cause::AnswerNotDelivered
                | Cause::Overlay
        )
    );
    let main = verdict.drops.main(finding.family, verdict.at);
    let reason = &main.filter(|_| is_loss)?.reason;
    let meaning = drops::meaning(reason).map_or_else(String::new, |text| format!(": {text}"));
    Some(format!("the kernel's drop reason is {reason}{meaning}"))
}

/// A finding, and the numbers for its sentence.
struct Words<'a> {
    finding: &'a Finding,
    limits: &'a Limits,
    now: Mono,
}

impl Words<'_> {
    fn ago(&self, at: Mono) -> HumanDuration {
        HumanDuration(self.now.since(at))
    }

    /// The sentence about a family or the node.
    fn sentence(&self) -> String {
        match &self.finding.evidence {
            Evidence::Connections {
                services,
                since,
                lacking,
                clients,
                failures,
                last_success,
            } => {
                let (listed, since) = (listed(services), self.ago(*since));
                let cause = self.finding.cause.map_or("", cause);
                if self.finding.rule.state().fails() {
                    let success = match last_success {
                        Some(at) => format!("nothing succeeded since {} ago", self.ago(*at)),
                        None => "nothing succeeded in that time".to_owned(),
                    };
                    let from = from_clients(clients);
                    let every = match self.finding.rule {
                        Rule::BrokenByConnections => "every Service with new connections",
                        Rule::BrokenByRules => "every Service that was dialled",
                        _ => "connections",
                    };
                    format!(
                        "{every} failed for {since} ({failures} connections {from}to {listed}: \
                         {cause}); {success}"
                    )
                } else {
                    let lacking = lacking.map(|lacking| format!(": {}", self.lacking(lacking)));
                    format!(
                        "new connections failed ({listed}: {cause}) and none succeeded since; not \
                         confirmed{}",
                        lacking.unwrap_or_default()
                    )
                }
            }
            Evidence::Data {
                services,
                since,
                clients,
                connections,
                last_success,
                lacking,
            } => {
                let success = match last_success {
                    Some(at) => format!("data last went both ways {} ago", self.ago(*at)),
                    None => "data went both ways on no other".to_owned(),
                };
                let lacking =
                    lacking.map(|lacking| format!("; not confirmed: {}", self.lacking(lacking)));
                format!(
                    "connections are made, but their data is not forwarded ({connections} {}to {} \
                     in the last {}); {success}{}",
                    from_clients(clients),
                    listed(services),
                    self.ago(*since),
                    lacking.unwrap_or_default()
                )
            }
            Evidence::Routes {
                connections,
                since,
                clients,
            } => format!(
                "{connections} connections {}left by another interface than connections to the same endpoints \
                 need and were not answered in the last {}; nothing succeeded since over these routes: the \
                 routes to pods are missing or wrong",
                from_clients(clients),
                self.ago(*since)
            ),
            Evidence::LeftEndpoint {
                services,
                age,
                destination,
                clients,
            } => {
                let destination = destination.map(|at| format!(" ({at})"));
                format!(
                    "new connections {}to {} still go to an endpoint that was removed {} \
                     earlier{}, and nothing that changed since is on the wire",
                    from_clients(clients),
                    listed(services),
                    HumanDuration(*age),
                    destination.unwrap_or_default(),
                )
            }
            Evidence::Services {
                broken,
                more,
                last_success,
            } => {
                let services = broken_services(broken, *more);
                match last_success {
                    Some(at) => format!(
                        "connections fail to {services}; others succeed, the last {} ago",
                        self.ago(*at)
                    ),
                    None => format!(
                        "connections fail to {services}, and no real connection succeeded since"
                    ),
                }
            }
            Evidence::AnswerNotDelivered { services, clients } => {
                let suffix = match services.first.is_empty() {
                    true => String::new(),
                    false => format!(" of {}", listed(services)),
                };
                format!(
                    "answers{suffix} leave the node, but {clients} clients repeat their SYN; the \
                     network behind the uplink may be broken"
                )
            }
            Evidence::Obstacle {
                failures,
                since,
                clients,
            } => format!(
                "{failures} connections {}failed in {} and none succeeded: {}",
                from_clients(&[*clients]),
                self.ago(*since),
                match (self.finding.cause, self.finding.family) {
                    (Some(Cause::ForwardingOff), Some(family)) => lanes::forwarding_off(family),
                    (Some(cause), _) if cause.is_looked_up() => self::cause(cause),
                    _ =>
                        "Cilium's program that translates incoming traffic is not attached to an \
                         uplink",
                },
            ),
            Evidence::Network { said } => {
                format!("the Node's condition reports that its pods have no network: {said}")
            }
            Evidence::LargeTransferFailures { transfers, since } => format!(
                "{transfers} large transfers of the pod probe failed in the last {}, and its small \
                 ones passed",
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
                    true => "some other nodes have not answered",
                    false => "no other node has answered",
                };
                let contrast = match (others_answer, near_answers) {
                    (true, _) => "; other nodes answer, so check the silent nodes first",
                    (false, true) => "; endpoints on this node answer",
                    (false, false) => "",
                };
                format!(
                    "{what} pods of this node for {} ({}: {connections} connections to {} sent and \
                     not answered){contrast}",
                    self.ago(*since),
                    listed(nodes),
                    listed(services),
                )
            }
            Evidence::Connection { path, at } => {
                let (client, ago) = (client(*path), self.ago(*at));
                format!("a new connection from {client} succeeded {ago} ago")
            }
            Evidence::Boot { at, .. } if self.finding.rule == Rule::StartingPods => format!(
                "no connection from a pod succeeded yet, {} after boot: waiting for the pod probe",
                self.ago(*at)
            ),
            Evidence::Boot { at, never } => {
                let never = never
                    .as_ref()
                    .map(|never| format!("; {}", self.never(never)));
                let (boot, never) = (self.ago(*at), never.unwrap_or_default());
                format!("no connection or probe succeeded yet, {boot} after boot{never}")
            }
            Evidence::Owners { owners } => {
                let owners = owners.listed(" and ");
                let owners = owners.as_deref().unwrap_or("unknown");
                format!(
                    "another proxy translates Service traffic now ({owners}), and no probe \
                     passed since"
                )
            }
            evidence => self.unknown(evidence),
        }
    }

    fn unknown(&self, evidence: &Evidence) -> String {
        let said = match evidence {
            Evidence::Sentinel { said } => said.as_deref(),
            _ => None,
        };
        match (self.finding.rule, evidence) {
            (Rule::NotSampled, Evidence::Read { at: Some(at) }) => {
                return format!(
                    "the agent has not read the observer for {}: it was stopped or got no CPU time",
                    self.ago(*at)
                );
            }
            (Rule::ObserverBlind, Evidence::Unseen { loss: Some(loss) }) => {
                return format!("nothing is observed: {loss}");
            }
            (Rule::SentinelAltered, _) => {
                let how = said.map_or(String::new(), |how| format!(": {how}"));
                return format!("the sentinel's Service or EndpointSlices were changed{how}");
            }
            _ => {}
        }
        let text = texts::one("unknown", self.finding.rule.name());
        let text = texts::with_limits(text, self.limits);
        match said {
            Some(off) => format!("{text}; {}", lanes::off(off)),
            None => text,
        }
    }
}

/// Example: `from pods of this node and from clients outside `; empty if the clients are unknown.
fn from_clients(clients: &[Scope]) -> String {
    let client = |scope: &Scope| texts::one("clients", scope.name());
    match clients {
        [] => String::new(),
        _ => format!(
            "from {} ",
            clients.iter().map(client).collect::<Vec<_>>().join(" and ")
        ),
    }
}

fn broken_services(broken: &[BrokenServices], more: usize) -> String {
    let alike = |alike: &BrokenServices| {
        let (services, cause) = (listed(&alike.services), cause(alike.cause));
        format!("{services} ({cause}; {} failed so far)", alike.failures)
    };
    let first = broken.iter().map(alike).collect();
    listed(&Named { first, more })
}

fn client(path: SourceClass) -> &'static str {
    texts::one("client", names::of_path(path))
}

/// Example: `a, b, c and 4 more`.
fn listed(names: &Named) -> String {
    let first = names.first.join(", ");
    match names.more {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

pub fn cause(cause: Cause) -> &'static str {
    texts::one("cause", cause.name())
}

/// A name from metrics or `/verdict`, with spaces: for example `no data`.
pub fn label(name: &str) -> String {
    name.replace('_', " ")
}
