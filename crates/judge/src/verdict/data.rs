//! Data of real connections as a witness: handshakes succeed, but the data after them is not forwarded.
//!
//! An application that hangs does not cause this, since its data is forwarded. A program that inspects
//! payloads can cause it, but only where its policy applies. So only losses of several Services and clients
//! show a fault. Nothing here decides.

use std::collections::BTreeSet;

use pathproof_facts::cause::Cause;
use pathproof_facts::time::Mono;
use pathproof_witness::ledger::DataLoss;

use super::case::{Case, Grounds};
use super::finding::{Evidence, MissingCriterion, Named, Scope};

impl Case<'_> {
    /// Connections whose data was not forwarded, and the criterion that they lack to accuse the node.
    pub(super) fn lost_data(&self) -> Option<(Grounds, Option<MissingCriterion>)> {
        let limits = self.limits();
        let counts = |lost: &&DataLoss| {
            lost.connections >= limits.service_failures
                && lost.last.since(lost.since) >= limits.service_spread
                && self.is_within_proof_age(lost.last)
        };
        let lost = |scope: Scope| {
            let lost = self.evidence.data.lost(scope.class()).filter(counts);
            lost.map(|lost| (scope, lost))
        };
        let lost = [Scope::Pods, Scope::Outside].into_iter().filter_map(lost);
        let (clients, lost): (Vec<Scope>, Vec<&DataLoss>) = lost.unzip();
        let since = lost.iter().map(|loss| loss.since).min()?;
        let lacking = self.lacking_of_data(&lost, since);
        let labels: BTreeSet<&String> = lost.iter().flat_map(|loss| &loss.labels).collect();
        let evidence = Evidence::Data {
            services: Named::of(labels.into_iter()),
            since,
            clients,
            connections: lost.iter().map(|loss| loss.connections).sum(),
            last_success: self.evidence.data.latest().map(|(_, at)| at),
            lacking,
        };
        Some(((Some(Cause::NoData), evidence), lacking))
    }

    fn lacking_of_data(&self, lost: &[&DataLoss], since: Mono) -> Option<MissingCriterion> {
        let limits = self.limits();
        let labels = || lost.iter().flat_map(|loss| &loss.labels);
        let objects = labels().map(|label| {
            label
                .rsplit_once(':')
                .map_or(label.as_str(), |(object, _)| object)
        });
        let objects: BTreeSet<&str> = objects.collect();
        let namespaces = labels().filter_map(|label| label.split('/').next());
        let namespaces: BTreeSet<&str> = namespaces.collect();
        let clients: BTreeSet<_> = lost.iter().flat_map(|loss| &loss.clients).collect();
        let of_known: u32 = lost.iter().map(|loss| loss.of_known).sum();
        let last = lost.iter().map(|loss| loss.last).max()?;
        if objects.len() < limits.broken_services {
            Some(MissingCriterion::Services)
        } else if namespaces.len() < limits.broken_namespaces.min(self.namespaces_in_use()) {
            Some(MissingCriterion::Namespaces)
        } else if clients.len() < limits.broken_sources || of_known < limits.service_failures {
            Some(MissingCriterion::Sources)
        } else {
            (!self.lasted(since, last)).then_some(MissingCriterion::Time)
        }
    }

    /// Data is not forwarded for single Services, or not for long enough to accuse the node.
    pub(super) fn degraded_by_data(&self) -> Option<Grounds> {
        let (found, lacking) = self.lost_data()?;
        lacking.map(|_| found)
    }
}
