//! Data of real connections as a witness: handshakes succeed, and the data that follows is not forwarded.
//!
//! An application that hangs does not cause that, since its data is forwarded. A program that inspects payloads can,
//! in the scope of its policy: only breadth distinguishes it from a fault. Nothing here decides.

use std::collections::BTreeSet;

use super::case::{Case, Found};
use super::finding::{Evidence, MissingCriterion, Named, Scope};
use crate::cause::Cause;
use crate::ledger::DataLoss;

impl Case<'_> {
    /// Connections whose data was not forwarded, and the criterion that keeps them from accusing the node.
    pub(super) fn lost_data(&self) -> Option<(Found, Option<MissingCriterion>)> {
        let limits = self.limits();
        let lost = self.evidence.data.lost.as_ref()?;
        let spread = lost.last.since(lost.since) >= limits.service_spread;
        if lost.connections < limits.service_failures
            || !spread
            || !self.is_within_proof_age(lost.last)
        {
            return None;
        }
        let lacking = self.lacking_of_data(lost);
        let scopes = [
            (lost.of_pods, Scope::Pods),
            (lost.of_outsiders, Scope::Outside),
        ];
        let clients = scopes.into_iter().filter(|(of, _)| *of);
        let evidence = Evidence::Data {
            services: Named::of(lost.labels.iter()),
            since: lost.since,
            clients: clients.map(|(_, scope)| scope).collect(),
            connections: lost.connections,
            last_success: self.evidence.data.last_answered(),
            lacking,
        };
        Some(((Some(Cause::NoData), evidence), lacking))
    }

    fn lacking_of_data(&self, lost: &DataLoss) -> Option<MissingCriterion> {
        let limits = self.limits();
        let object = |label: &String| {
            label
                .rsplit_once(':')
                .map_or(label.clone(), |(of, _)| of.to_owned())
        };
        let objects: BTreeSet<String> = lost.labels.iter().map(object).collect();
        let namespaces = lost
            .labels
            .iter()
            .filter_map(|label| label.split('/').next());
        let namespaces: BTreeSet<&str> = namespaces.collect();
        if objects.len() < limits.broken_services {
            Some(MissingCriterion::Services)
        } else if namespaces.len() < limits.broken_namespaces.min(self.namespaces_in_use()) {
            Some(MissingCriterion::Namespaces)
        } else if lost.clients.len() < limits.broken_sources {
            Some(MissingCriterion::Sources)
        } else {
            (!self.lasted(lost.since, lost.last)).then_some(MissingCriterion::Time)
        }
    }

    /// Data of single Services is not forwarded, or not long enough yet.
    pub(super) fn degraded_by_data(&self) -> Option<Found> {
        let (found, lacking) = self.lost_data()?;
        lacking.map(|_| found)
    }
}
