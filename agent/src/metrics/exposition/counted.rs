//! Connections and datagrams by outcome.

use std::fmt;

use super::*;
use crate::metrics::connections::{self, Connections, SHOWN, outcome_name};
use crate::metrics::datagrams::Datagrams;

/// Outcomes that datagrams do not have: what refuses them, and who did not hear an answer, is not
/// known.
const NOT_OF_DATAGRAMS: [&str; 2] = ["refused", "unheard"];

impl Page<'_, '_> {
    pub(super) fn connections(&mut self, counted: &Connections) -> fmt::Result {
        let mut nodes = self.family(define::CONNECTIONS)?;
        of_node(&mut nodes, counted, |_| true)?;
        let mut services = self.family(define::SERVICE_CONNECTIONS)?;
        of_services(&mut services, counted, |_| true)
    }

    pub(super) fn datagrams(&mut self, datagrams: &Datagrams) -> fmt::Result {
        let shown = |outcome: &str| !NOT_OF_DATAGRAMS.contains(&outcome);
        let mut nodes = self.family(define::DATAGRAMS)?;
        of_node(&mut nodes, &datagrams.counted, shown)?;
        let mut services = self.family(define::SERVICE_DATAGRAMS)?;
        of_services(&mut services, &datagrams.counted, shown)?;
        let mut answers = self.family(define::DNS_ANSWER)?;
        for (family, delays) in Family::ALL.into_iter().zip(&datagrams.dns) {
            let labels = [("family", names::of_family(family))];
            histogram(&mut answers, &labels, delays)?;
        }
        Ok(())
    }
}

fn of_node(
    nodes: &mut Family_<'_>,
    counted: &Connections,
    shown: impl Fn(&str) -> bool,
) -> fmt::Result {
    for (family, sums) in Family::ALL.into_iter().zip(&counted.nodes) {
        for (path, outcomes) in connections::paths(sums) {
            for (index, count) in outcomes.iter().enumerate() {
                if !shown(outcome_name(index)) {
                    continue;
                }
                let labels = [
                    ("family", names::of_family(family)),
                    ("path", path),
                    ("outcome", outcome_name(index)),
                ];
                nodes.counter(&labels, *count)?;
            }
        }
    }
    Ok(())
}

fn of_services(
    services: &mut Family_<'_>,
    counted: &Connections,
    shown: impl Fn(&str) -> bool,
) -> fmt::Result {
    for tally in counted.services.values() {
        let name = (&*tally.name.namespace, &*tally.name.name, &*tally.port);
        for (path, outcomes) in connections::paths(&tally.sums) {
            service_path(services, name, (tally.family, path), outcomes, &shown)?;
        }
    }
    for (family, sums) in Family::ALL.into_iter().zip(&counted.others) {
        for (path, outcomes) in connections::paths(sums) {
            let name = ("", "other", "");
            service_path(services, name, (family, path), outcomes, &shown)?;
        }
    }
    Ok(())
}

fn service_path(
    services: &mut Family_<'_>,
    (namespace, service, port): (&str, &str, &str),
    (family, path): (Family, &str),
    outcomes: &[u64; SHOWN],
    shown: &impl Fn(&str) -> bool,
) -> fmt::Result {
    if outcomes.iter().all(|count| *count == 0) {
        return Ok(());
    }
    for (index, count) in outcomes.iter().enumerate() {
        let outcome = outcome_name(index);
        if !shown(outcome) || (*count == 0 && !connections::is_always_shown(index)) {
            continue;
        }
        let labels = [
            ("namespace", namespace),
            ("service", service),
            ("port", port),
            ("family", names::of_family(family)),
            ("path", path),
            ("outcome", outcome),
        ];
        services.counter(&labels, *count)?;
    }
    Ok(())
}
