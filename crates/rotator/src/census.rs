//! Counts the nodes that fail by their own evidence, from their conditions, and decides when to
//! publish a new count. Nothing here reads a cluster.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use pathproof_facts::fleet_report::FleetReport;
use pathproof_facts::time::{Mono, Wall};
use pathproof_report::condition::Status;

use super::domains::{self, Labels};
use super::withdrawal::Excluded;
use super::{ConditionSeen, OUT_OF_DATE, age};

/// A change of less than one node in this many waits for [`SMALL`], because each write is sent to
/// every node.
const ONE_IN: u32 = 50;
/// Pause before a small change of the number of unsound nodes is published.
const SMALL: Duration = Duration::from_secs(10);
/// Minimum time between two counts that are published for [`domains::rise`] alone. The first one is not
/// delayed: it stops the further nodes of its domain.
const RISES: Duration = Duration::from_secs(3);
/// Pause before any other change is published, for example of the number of nodes.
const OTHER: Duration = Duration::from_secs(60);
/// Interval of writing an unchanged count: it shows agents that the rotator is alive.
pub const BEAT: Duration = Duration::from_secs(300);

/// The nodes of a cluster, from a watch.
#[derive(Debug, Default)]
pub struct Census {
    pub(super) nodes: HashMap<Box<str>, Member>,
    list: u32,
    /// Whether a complete list of nodes was read.
    pub(super) is_whole: bool,
    published: Option<PublishedCount>,
}

/// A published count.
#[derive(Debug)]
struct PublishedCount {
    report: FleetReport,
    written: Mono,
    /// When this count was first published.
    changed: Mono,
    /// When a rise in a domain was last published.
    rose: Option<Mono>,
    /// Labels of counted nodes for which it has no room: there are too many, or they are too long.
    left_out: BTreeSet<String>,
}

#[derive(Debug)]
pub(super) struct Member {
    heartbeat: Option<Wall>,
    /// When the rotator saw the heartbeat change, because clocks of nodes differ. Only a node's first
    /// heartbeat is dated by its timestamp.
    changed: Mono,
    /// Reason of a condition with status False.
    pub(super) failing: Option<Box<str>>,
    /// A mark beyond KEP-3836 makes the node leave.
    leaving: bool,
    /// When the rotator saw the node begin or stop failing.
    pub(super) since: Mono,
    pub(super) excluded: Excluded,
    /// The object's version.
    pub(super) version: Box<str>,
    /// How the node uses the sentinel's addresses, as a sentence.
    in_use: Option<Box<str>>,
    domains: Labels,
    list: u32,
}

impl Member {
    /// Whether the node's agent wrote recently.
    pub(super) fn is_counted(&self, now: Mono) -> bool {
        self.heartbeat.is_some() && now.since(self.changed) <= OUT_OF_DATE
    }
}

impl Census {
    pub fn begin_list(&mut self) {
        self.list = self.list.wrapping_add(1);
    }

    /// The list is complete: nodes that were not in it are gone.
    pub fn end_list(&mut self) {
        self.nodes.retain(|_, member| member.list == self.list);
        self.is_whole = true;
    }

    /// Records a node with its condition. Returns whether it began or stopped failing.
    pub fn put(
        &mut self,
        node: &str,
        condition: Option<&ConditionSeen>,
        wall: Wall,
        now: Mono,
    ) -> bool {
        let failing = condition.filter(|condition| condition.status == Status::False);
        let heartbeat = condition.and_then(|condition| condition.heartbeat);
        let known = self.nodes.get(node);
        let changed = match known {
            Some(known) if known.heartbeat == heartbeat => known.changed,
            Some(_) => now,
            None => now.minus(heartbeat.map_or(Duration::ZERO, |at| age(at, wall))),
        };
        let fails = failing.is_some();
        let same = known.filter(|known| known.failing.is_some() == fails);
        let member = Member {
            heartbeat,
            changed,
            failing: failing.map(|condition| condition.reason.as_str().into()),
            leaving: known.is_some_and(|known| known.leaving),
            since: same.map_or(now, |known| known.since),
            excluded: Excluded::No,
            version: "".into(),
            in_use: None,
            domains: Box::default(),
            list: self.list,
        };
        let before = self.nodes.insert(node.into(), member);
        before.is_some_and(|before| before.failing.is_some()) != fails
    }

    /// Records whether the node has the label, at this version of the object.
    pub fn exclude(&mut self, node: &str, excluded: Excluded, version: &str) {
        if let Some(member) = self.nodes.get_mut(node) {
            (member.excluded, member.version) = (excluded, version.into());
        }
    }

    /// Records whether the node leaves because of a mark beyond KEP-3836. Returns whether that changed.
    pub fn set_leaving(&mut self, node: &str, leaving: bool) -> bool {
        let member = self.nodes.get_mut(node);
        member.is_some_and(|member| std::mem::replace(&mut member.leaving, leaving) != leaving)
    }

    /// Records how the node uses the sentinel's addresses.
    pub fn set_in_use(&mut self, node: &str, in_use: Option<String>) {
        if let Some(member) = self.nodes.get_mut(node) {
            member.in_use = in_use.map(String::into_boxed_str);
        }
    }

    pub fn set_domains(&mut self, node: &str, domains: Labels) {
        if let Some(member) = self.nodes.get_mut(node) {
            member.domains = domains;
        }
    }

    pub fn remove(&mut self, node: &str) {
        self.nodes.remove(node);
    }

    pub fn nodes(&self) -> u32 {
        u32::try_from(self.nodes.len()).unwrap_or(u32::MAX)
    }

    /// The count at `now`. Nodes whose agent has not written for long do not count.
    pub fn count(&self, wall: Wall, now: Mono) -> FleetReport {
        let members = self.nodes.values();
        let in_use = members
            .clone()
            .filter_map(|member| member.in_use.as_deref());
        let counted = members.filter(|member| member.is_counted(now));
        let mut unsound: BTreeMap<String, u32> = BTreeMap::new();
        for reason in counted.clone().filter_map(|member| member.failing.as_ref()) {
            *unsound.entry(reason.to_string()).or_default() += 1;
        }
        let leaving = counted.clone().filter(|member| member.leaving).count();
        let mut report = FleetReport {
            nodes: counted.clone().count() as u32,
            unsound,
            leaving: Some(leaving as u32),
            written: wall.0 / 1_000_000_000,
            // Always the same sentence: a different one would count as a change.
            in_use: in_use.min().map(str::to_owned),
            ..FleetReport::default()
        };
        let counted = counted.map(|member| (&member.domains, member.failing.is_some()));
        domains::list(&mut report, &domains::count(counted));
        report
    }

    /// Labels of counted nodes for which the published count has no room.
    pub fn left_out(&self) -> impl Iterator<Item = &str> {
        let last = self.published.iter();
        last.flat_map(|last| last.left_out.iter().map(String::as_str))
    }

    fn lacking(&self, report: &FleetReport, now: Mono) -> BTreeSet<String> {
        let members = self.nodes.values().filter(|member| member.is_counted(now));
        let labels = members.flat_map(|member| member.domains.iter().map(|(label, _)| &**label));
        let lacking = labels.filter(|label| !report.domains.contains_key(*label));
        lacking.map(str::to_owned).collect()
    }

    /// The count that the sentinel's slices should have now. `None` leaves the slices as they are: before
    /// all nodes are known, or while the watch of Nodes is `silent`. `anyway` means that the slices are
    /// about to be written for another reason.
    pub fn publish(
        &mut self,
        silent: bool,
        anyway: bool,
        wall: Wall,
        now: Mono,
    ) -> Option<&FleetReport> {
        if !self.is_whole || silent {
            return None;
        }
        let counted = self.count(wall, now);
        let is_same = |last: &PublishedCount| last.report.is_same(&counted);
        let rises = |last: &PublishedCount| domains::rise(&last.report, &counted);
        let due = |last: &PublishedCount| {
            let (before, after) = (last.report.count().unsound, counted.count().unsound);
            let leaving_of = |report: &FleetReport| report.leaving.unwrap_or_default();
            let leaving = leaving_of(&last.report).abs_diff(leaving_of(&counted));
            let (since, pause) = match before.abs_diff(after).max(leaving) {
                _ if last.report.in_use != counted.in_use => (last.changed, Duration::ZERO),
                0 if is_same(last) => (last.written, BEAT),
                0 => (last.changed, OTHER),
                change if change >= 1.max(counted.nodes / ONE_IN) => (last.changed, Duration::ZERO),
                _ => (last.changed, SMALL),
            };
            let rested = last.rose.is_none_or(|at| now.since(at) >= RISES);
            now.since(since) >= pause || rested && rises(last)
        };
        if anyway || self.published.as_ref().is_none_or(due) {
            // A rotation that writes the same count again does not delay the next change.
            let same = self.published.as_ref().filter(|last| is_same(last));
            let last = self.published.as_ref();
            let rose = last.filter(|last| rises(last)).map(|_| now);
            self.published = Some(PublishedCount {
                changed: same.map_or(now, |last| last.changed),
                rose: rose.or_else(|| last?.rose),
                left_out: self.lacking(&counted, now),
                written: now,
                report: counted,
            });
        }
        self.published.as_ref().map(|last| &last.report)
    }
}

#[cfg(test)]
mod tests;
