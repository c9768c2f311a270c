//! Every rule with all kinds of its evidence.
//!
//! Length: one table of all rules.

use std::fmt::Write as _;
use std::time::Duration;

use pathproof_facts::cause::{Cause, ProbeCause};
use pathproof_facts::owners::{DatapathOwners, Owner};
use pathproof_facts::testing::{assert_words, in_json};
use pathproof_facts::trace::{ProbePath, Transport};
use pathproof_judge::explain;
use pathproof_judge::explain::*;
use pathproof_judge::verdict::finding::{
    BrokenServices, ConcurrentFailures, Evidence, FailedLane, Finding, LaneLacking,
    MissingCriterion, Named, NeverWorked, Rule, Scope, Uncounted, VoidCause,
};
use pathproof_wire::service::{Family, SourceClass};
use pathproof_witness::evidence::CoverageLoss;
use pathproof_witness::probes::VoidReason;

use crate as sample;
use crate::ago;

const LACKING: [MissingCriterion; 11] = [
    MissingCriterion::Filtered,
    MissingCriterion::New,
    MissingCriterion::ProbesPass,
    MissingCriterion::SentinelConflict,
    MissingCriterion::Unprobed,
    MissingCriterion::Namespaces,
    MissingCriterion::Services,
    MissingCriterion::Endpoints,
    MissingCriterion::Pod,
    MissingCriterion::Sources,
    MissingCriterion::Time,
];

fn lane(path: ProbePath, transport: Transport, cause: ProbeCause) -> FailedLane {
    FailedLane {
        path,
        transport,
        cause,
        failures: 8,
        refusal_clear: path == ProbePath::NodePort,
        client: Some("198.18.0.1".parse().unwrap()),
    }
}

fn outside() -> FailedLane {
    lane(
        ProbePath::OffCluster,
        Transport::Tcp,
        ProbeCause::LostBeforeLeaving,
    )
}

fn leaked(path: ProbePath) -> FailedLane {
    lane(path, Transport::Tcp, ProbeCause::Leaked)
}

fn named(names: &[&str], more: usize) -> Named {
    let first = names.iter().map(|name| (*name).to_owned()).collect();
    Named { first, more }
}

fn web() -> Named {
    named(&["shop/web:http"], 0)
}

fn owned(owners: &[Owner]) -> DatapathOwners {
    owners.iter().copied().collect()
}

/// Every kind of evidence of a rule.
fn evidence(rule: Rule) -> Vec<Evidence> {
    let many = || named(&["shop/web:http", "shop/cart:grpc", "shop/api"], 4);
    let connections = |services, lacking| Evidence::Connections {
        services,
        since: ago(4_200),
        lacking,
        clients: Vec::new(),
        failures: 0,
        last_success: None,
    };
    let felt = |clients: &[Scope], last_success| Evidence::Connections {
        services: many(),
        since: ago(4_200),
        lacking: None,
        clients: clients.to_vec(),
        failures: 2_320,
        last_success,
    };
    let data = |lacking| Evidence::Data {
        services: many(),
        since: ago(4_200),
        clients: vec![Scope::Outside],
        connections: 120,
        last_success: Some(ago(4_300)),
        lacking,
    };
    let left = |destination: Option<&str>| Evidence::LeftEndpoint {
        services: web(),
        age: Duration::from_secs(16),
        destination: destination.map(|at| at.parse().unwrap()),
        clients: vec![Scope::Outside],
    };
    let late = |owners: &[Owner], generation, wanted| Evidence::Late {
        path: ProbePath::NodePort,
        transport: Transport::Udp,
        owners: owned(owners),
        late: Duration::from_secs(130),
        generation,
        wanted,
    };
    let peers = |(others_answer, near_answers)| Evidence::Peers {
        nodes: named(&["node-2", "node-3", "node-4"], 1),
        services: web(),
        connections: 12,
        since: ago(4_200),
        others_answer,
        near_answers,
    };
    let kube_proxy = &[Owner::KubeProxyIptables, Owner::Cilium];
    match rule {
        Rule::BrokenByProbes => {
            let probes = |lanes| Evidence::Probes {
                lanes,
                beside: None,
            };
            vec![
                probes(vec![leaked(ProbePath::OffCluster)]),
                probes(vec![
                    leaked(ProbePath::OffCluster),
                    leaked(ProbePath::NodePort),
                ]),
            ]
        }
        Rule::BrokenByConnections => vec![felt(&[Scope::Pods, Scope::Outside], Some(ago(4_300)))],
        Rule::BrokenByTwoScopes => {
            let beside = |clients: &[Scope], last_success, others_succeed| Evidence::Probes {
                lanes: vec![outside()],
                beside: Some(ConcurrentFailures {
                    clients: clients.to_vec(),
                    services: many(),
                    failures: 120,
                    since: ago(4_200),
                    last_success,
                    others_succeed,
                }),
            };
            vec![
                felt(&[Scope::Pods, Scope::PodProbe], Some(ago(4_300))),
                beside(&[Scope::Pods, Scope::Outside], Some(ago(4_300)), false),
                beside(&[Scope::PodProbe], Some(ago(4_300)), true),
                beside(&[Scope::Outside], None, false),
                beside(&[Scope::Outside], None, true),
            ]
        }
        Rule::BrokenByData => vec![data(None)],
        Rule::DegradedByData => vec![data(Some(MissingCriterion::Services))],
        Rule::BrokenByRules => vec![felt(&[Scope::Outside], None)],
        Rule::BrokenByRoutes => {
            let routes = |clients: &[Scope]| Evidence::Routes {
                connections: 40,
                since: ago(4_200),
                clients: clients.to_vec(),
            };
            vec![routes(&[Scope::Pods, Scope::Outside]), routes(&[])]
        }
        Rule::StaleByConnections => vec![left(Some("10.244.3.9:8080")), left(None)],
        Rule::SuspectByStale => vec![connections(web(), None)],
        Rule::StaleByProbes | Rule::DegradedByLag => vec![
            late(kube_proxy, Some(20_001), Some(20_004)),
            late(&[], None, None),
        ],
        Rule::DegradedServices => {
            let broken = |services, cause, failures| BrokenServices {
                cause,
                services,
                failures,
            };
            let one = broken(web(), Cause::Refused, 3);
            let two = broken(many(), Cause::Stale, 40);
            let services = |broken, more| Evidence::Services {
                broken,
                more,
                last_success: Some(ago(300)),
            };
            let silent = Evidence::Services {
                broken: vec![one.clone()],
                more: 0,
                last_success: None,
            };
            vec![
                services(vec![one.clone()], 0),
                services(vec![one, two], 2),
                silent,
            ]
        }
        Rule::DegradedAnswerNotDelivered => vec![
            Evidence::AnswerNotDelivered {
                services: web(),
                clients: 3,
            },
            Evidence::AnswerNotDelivered {
                services: named(&[], 0),
                clients: 3,
            },
        ],
        Rule::BrokenByObstacle => vec![Evidence::Obstacle {
            failures: 12,
            since: ago(4_000),
            clients: Scope::Outside,
        }],
        Rule::DegradedByLargeTransfers => vec![Evidence::LargeTransferFailures {
            transfers: 4,
            since: ago(12_000),
        }],
        Rule::DegradedByNode => vec![Evidence::Network {
            said: "NetworkPluginNotReady: cni plugin not initialized".into(),
        }],
        Rule::DegradedByPeers => [(true, false), (false, false), (false, true)]
            .map(peers)
            .to_vec(),
        Rule::DegradedContradicted => SourceClass::ALL
            .map(|path| Evidence::Contradicted {
                lane: outside(),
                path,
                at: ago(700),
            })
            .to_vec(),
        Rule::DegradedFiltered | Rule::DegradedSecondaryPath => {
            let of = |path, transport| Evidence::Probe {
                lane: lane(path, transport, ProbeCause::LostBeforeLeaving),
            };
            vec![
                of(ProbePath::OffCluster, Transport::Tcp),
                of(ProbePath::Host, Transport::Tcp),
                of(ProbePath::NodePort, Transport::Udp),
            ]
        }
        Rule::DegradedUncounted => {
            let because = [
                Uncounted::Unused(Some(ago(3_599_000))),
                Uncounted::Unused(None),
                Uncounted::OtherWorks,
            ];
            let rule = Rule::BrokenByProbes;
            let of = |because| Evidence::Uncounted {
                finding: Box::new(Finding {
                    rule,
                    family: Some(Family::V6),
                    cause: Some(Cause::Leaked),
                    evidence: evidence(rule).swap_remove(0),
                }),
                because,
            };
            because.map(of).to_vec()
        }
        Rule::SuspectByProbes => {
            let lacking = [
                LaneLacking::Failures,
                LaneLacking::Off("CAP_NET_RAW is missing".to_owned()),
                LaneLacking::Void(VoidReason::Damaged),
                LaneLacking::DeviceCheck,
                LaneLacking::Others,
                LaneLacking::Breadth(MissingCriterion::Pod),
                LaneLacking::Breadth(MissingCriterion::ProbesPass),
                LaneLacking::Breadth(MissingCriterion::Services),
                LaneLacking::Connection,
            ];
            let of = |lacking| Evidence::Unconfirmed {
                lane: FailedLane {
                    failures: 3,
                    ..outside()
                },
                lacking,
            };
            lacking.map(of).to_vec()
        }
        Rule::SuspectByConnections => {
            let lacking = LACKING.map(Some).into_iter().chain([None]);
            lacking.map(|lacking| connections(web(), lacking)).collect()
        }
        Rule::ProvenByConnection => SourceClass::ALL
            .map(|path| Evidence::Connection { path, at: ago(40) })
            .to_vec(),
        Rule::ProvenByProbe => {
            let of = |path| {
                Transport::ALL.map(|transport| Evidence::Pass {
                    path,
                    transport,
                    at: ago(1_900),
                })
            };
            ProbePath::ALL.into_iter().flat_map(of).collect()
        }
        Rule::StartingPods => vec![Evidence::Boot {
            at: ago(20_000),
            never: None,
        }],
        Rule::Starting => {
            let at = ago(90_000);
            let never = Some(never(Some(ProbeCause::Refused)));
            vec![
                Evidence::Boot { at, never: None },
                Evidence::Boot { at, never },
            ]
        }
        Rule::NotSampled => vec![
            Evidence::Read { at: None },
            Evidence::Read {
                at: Some(ago(12_000)),
            },
        ],
        Rule::ObserverBlind => {
            let why = "the agent needs CAP_BPF".to_owned();
            let loss = Some(CoverageLoss::NotLoaded { why });
            vec![Evidence::Unseen { loss }, Evidence::Unseen { loss: None }]
        }
        Rule::DatapathChanged => vec![
            Evidence::Owners {
                owners: owned(kube_proxy),
            },
            Evidence::Owners {
                owners: DatapathOwners::default(),
            },
        ],
        Rule::NeverWorked => {
            let causes = ProbeCause::ALL.map(Some).into_iter().chain([None]);
            causes.map(|cause| Evidence::Never(never(cause))).collect()
        }
        Rule::Inconclusive => {
            let of = |why| Evidence::Void {
                path: ProbePath::OffCluster,
                transport: Transport::Tcp,
                why,
            };
            let why = [
                VoidCause::Damage("pathproof-c0 is gone".to_owned()),
                VoidCause::Unsent("permission denied".to_owned()),
                VoidCause::Probe(VoidReason::EndedLate),
                VoidCause::Former,
            ];
            let mut all = vec![Evidence::Nothing];
            all.extend(why.map(of));
            all
        }
        Rule::SentinelAltered | Rule::NothingProven | Rule::Idle | Rule::EvidenceTooOld => {
            let said = match rule {
                Rule::SentinelAltered => "Service pathproof/pathproof-sentinel has no port 80",
                _ => "CAP_NET_RAW is missing",
            };
            [None, Some(said.to_owned())]
                .map(|said| Evidence::Sentinel { said })
                .to_vec()
        }
        Rule::ViewNotSynced | Rule::NothingExpected => vec![Evidence::Nothing],
    }
}

fn never(cause: Option<ProbeCause>) -> NeverWorked {
    NeverWorked {
        path: ProbePath::OffCluster,
        transport: Transport::Tcp,
        cause,
        client: Some("198.18.0.1".parse().unwrap()),
    }
}

#[test]
fn every_finding_has_its_sentence() {
    let mut verdict = sample::proven().verdict;
    let mut text = String::new();
    for rule in Rule::ALL {
        let why = rule.why().map(|why| format!(" ({})", why.name()));
        let (state, why) = (rule.state().name(), why.unwrap_or_default());
        assert_eq!(rule.name(), in_json(rule));
        let _ = writeln!(text, "{}: {state}{why}", rule.name());
        for evidence in evidence(rule) {
            let accuses = rule.state() > pathproof_facts::cause::State::Proven;
            verdict.finding = Finding {
                rule,
                family: Some(Family::V4),
                cause: accuses.then_some(Cause::Refused),
                evidence,
            };
            let _ = writeln!(text, "  {}", verdict.reason());
            let rule = explain::rule(&verdict.finding, &verdict.limits);
            assert_eq!(rule.is_some(), eliminated(&verdict.finding).is_some());
            if let Some(rule) = rule {
                let _ = writeln!(text, "    {rule}");
            }
            if let Some(eliminated) = eliminated(&verdict.finding) {
                let _ = writeln!(text, "    Ruled out: {eliminated}.");
            }
        }
    }
    assert_words("findings", &text);
}

/// A finding that prevents any judgement names no family, but a finding of one family does.
#[test]
fn a_sentence_is_of_its_family() {
    let mut verdict = sample::proven().verdict;
    let of = |family| Finding {
        family,
        ..Finding::new(Rule::NothingExpected, Evidence::Nothing)
    };
    let words = "no Service has a TCP frontend on this node";
    verdict.finding = of(None);
    verdict.families[1].finding = of(Some(Family::V6));
    assert_eq!(verdict.reason(), words);
    let sixth = verdict.families[1].clone();
    assert_eq!(verdict.reason_of(&sixth), format!("IPv6: {words}"));
    // Sentences about lanes already name the family.
    verdict.finding.evidence = Evidence::Pass {
        path: ProbePath::Host,
        transport: Transport::Tcp,
        at: ago(40),
    };
    verdict.finding.family = Some(Family::V6);
    assert_eq!(
        verdict.reason(),
        "IPv6 cluster IPs from the node itself: a sentinel probe passed 40 ms ago"
    );
}

#[test]
fn other_findings_are_listed_once_without_successes() {
    let mut verdict = sample::broken().verdict;
    let also = verdict.also();
    assert_eq!(also.len(), 2, "{also:?}");
    assert!(
        also[0].contains("nothing succeeded since 8.9 s ago"),
        "{also:?}"
    );
    assert!(also.iter().all(|text| *text != verdict.reason()));
    // Repeated and successful findings, and those without evidence, are omitted.
    let family = &mut verdict.families[0];
    family.findings.extend(family.findings.clone());
    let proven = verdict.families[1].finding.clone();
    verdict.families[0].findings.push(proven);
    let idle = Finding::new(Rule::Idle, Evidence::Nothing);
    verdict.families[1].finding = idle.clone();
    verdict.families[1].findings = vec![idle];
    assert_eq!(verdict.also(), also);
    // Findings of the other family are included, most severe first.
    let mut other = verdict.families[0].findings[1].clone();
    other.family = Some(Family::V6);
    verdict.families[1].findings.push(other);
    assert!(
        verdict.also()[1].starts_with("IPv6: every Service"),
        "{:?}",
        verdict.also()
    );
    assert_eq!(verdict.also().len(), 3);
}

#[test]
fn every_cause_and_loss_has_its_words() {
    let mut text = String::new();
    for cause in Cause::ALL {
        let (words, label) = (explain::cause(cause), label(cause.name()));
        let _ = writeln!(text, "{label}: {words}");
    }
    let device = || "eth0".to_owned();
    let why = || "permission denied".to_owned();
    let losses = [
        CoverageLoss::NotLoaded { why: why() },
        CoverageLoss::Detached {
            device: device(),
            why: why(),
        },
        CoverageLoss::Detached {
            device: device(),
            why: String::new(),
        },
        CoverageLoss::LeftOut { devices: 2 },
        CoverageLoss::NotFirst { device: device() },
        CoverageLoss::FrontendsFull { missing: 7 },
        CoverageLoss::EndpointsFull { missing: 7 },
        CoverageLoss::SourcesFull { missing: 7 },
        CoverageLoss::ServicesFull { missing: 7 },
        CoverageLoss::PendingFull { missed: 7 },
        CoverageLoss::OverBudget { missed: 7 },
        CoverageLoss::FirstSynUncertain,
        CoverageLoss::Settling,
        CoverageLoss::NoPins { why: why() },
        CoverageLoss::SourceSilent,
        CoverageLoss::NotRead { why: why() },
    ];
    for loss in losses {
        let _ = writeln!(text, "{}: {loss}", loss.name());
    }
    assert_words("causes", &text);
}
