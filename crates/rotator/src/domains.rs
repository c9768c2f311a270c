//! Counts of failure domains: groups of nodes with the same value of a label, such as a zone or a node pool. Of
//! such a group a load balancer may lose most nodes while few of the cluster fail.

use std::collections::BTreeMap;
use std::sync::Arc;

use pathproof_facts::fleet_report::{DOMAIN_LABELS, FLEET_LENGTH, FleetReport};

/// Length of a report to which a domain may still be added: longer ones have no room for
/// [`FleetReport::rest`].
const ROOM: usize = FLEET_LENGTH - 40;

/// A node's failure domains: labels with their values.
pub type Labels = Box<[(Arc<str>, Box<str>)]>;

/// Failing and all nodes, by label and value.
type Domains<'a> = BTreeMap<&'a str, BTreeMap<&'a str, (u32, u32)>>;

/// Counts nodes, of which each has these labels and fails (`true`) or not.
pub(super) fn count<'a>(nodes: impl Iterator<Item = (&'a Labels, bool)>) -> Domains<'a> {
    let mut domains = Domains::new();
    for (labels, fails) in nodes {
        for (label, value) in labels.iter() {
            let of_label = domains.entry(&**label).or_default();
            let (unsound, nodes) = of_label.entry(&**value).or_default();
            *unsound += u32::from(fails);
            *nodes += 1;
        }
    }
    domains
}

/// Adds domains to a report: those with failing nodes, of which the fullest come first, as long as agents read
/// the text.
pub(super) fn list(report: &mut FleetReport, counted: &Domains<'_>) {
    for label in counted.keys().take(DOMAIN_LABELS) {
        let label = (*label).to_owned();
        report.domains.insert(label.clone(), BTreeMap::new());
        if report.text().len() > ROOM {
            report.domains.remove(&label);
        }
    }
    let all = counted.iter().flat_map(|(label, values)| {
        let values = values.iter();
        values.map(move |(value, count)| (*label, *value, *count))
    });
    // A node that is alone in its domain may always fail.
    let mut failing: Vec<_> = all
        .filter(|(label, _, (unsound, nodes))| {
            *unsound > 0 && *nodes > 1 && report.domains.contains_key(*label)
        })
        .collect();
    // Each agent leaves its own node out, so the first failing node of a domain limits nobody.
    let share = |(unsound, nodes): (u32, u32)| u64::from(unsound - 1) * 10_000 / u64::from(nodes);
    failing.sort_by_key(|(label, value, count)| (u64::MAX - share(*count), *label, *value));
    for (label, value, count) in failing {
        let Some(listed) = report.domains.get_mut(label) else {
            continue;
        };
        listed.insert(value.to_owned(), count);
        if report.text().len() > ROOM {
            if let Some(listed) = report.domains.get_mut(label) {
                listed.remove(value);
            }
            report.rest = Some(count);
            break;
        }
    }
}

/// Whether more nodes of a domain fail than before, at least two and a tenth of it. That does not wait for
/// more nodes, because it may be few nodes of the cluster.
pub(super) fn rise(before: &FleetReport, after: &FleetReport) -> bool {
    after.domains.iter().any(|(label, domains)| {
        let known = before.domains.get(label);
        domains.iter().any(|(value, (unsound, nodes))| {
            // A domain without a place in the list had at most the count of the fullest one left out.
            let before = known
                .and_then(|known| known.get(value))
                .or(before.rest.as_ref());
            let more = unsound.saturating_sub(before.map_or(0, |count| count.0));
            *unsound > 1 && more >= (nodes / 10).max(1)
        })
    })
}

#[cfg(test)]
mod tests;
