//! The rules of the verdict: docs/behaviour.md in a sentence each, with their numbers.

use crate::limits::Limits;
use crate::time::Spoken;
use crate::verdict::finding::{Evidence, Finding, LaneLacking, Rule};

/// The rule that gave a family its state.
pub fn rule(finding: &Finding, limits: &Limits) -> String {
    let probes = limits.probe_failures;
    match finding.rule {
        Rule::BrokenByProbes => broken_by_probes(finding, limits),
        Rule::BrokenByConnections => format!("{}.", broken_by_connections(limits)),
        Rule::StaleByProbes => format!(
            "Probes of a path that stands for the node pass, but met an old generation of the \
             sentinel's endpoint for at least {} after this node received a newer one.",
            Spoken(limits.lag_after)
        ),
        Rule::StaleByConnections => format!(
            "New connections of pods still go to an endpoint that left its slice more than {} \
             before.",
            Spoken(limits.stale_after)
        ),
        Rule::DegradedUnheard => {
            "Answers leave, but several clients asked again as if they had not heard them; the \
             node itself forwards."
                .to_owned()
        }
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
             generation of the sentinel's endpoint for at least {}.",
            Spoken(limits.lag_after)
        ),
        Rule::SuspectByProbes => match &finding.evidence {
            Evidence::Unconfirmed {
                lacking: LaneLacking::Failures,
                ..
            } => format!("Probes failed, fewer than the {probes} in a row that it takes."),
            Evidence::Unconfirmed {
                lacking: LaneLacking::Pod | LaneLacking::Connection,
                ..
            } => {
                "Probes failed, but a filter of the sentinel's own addresses would look the same: \
                  that takes a real connection that fails beside them."
                    .to_owned()
            }
            _ => "Probes failed, but pathproof's own devices or the sentinel may be the reason."
                .to_owned(),
        },
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
         {} clients or more, a pod of this node among them",
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
    let probes = format!(
        "At least {} probes in a row failed on {path}, {how}",
        limits.probe_failures
    );
    match real {
        true => {
            let rule = broken_by_connections(limits).replacen("Every", "every", 1);
            format!("{probes}. Real connections say the same: {rule}.")
        }
        false => format!("{probes}."),
    }
}
