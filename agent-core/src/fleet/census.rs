//! Counts the nodes that fail by their own evidence, from their conditions, and says when a new count is
//! worth a write. Nothing here reads a cluster.

use std::collections::HashMap;
use std::time::Duration;

use super::withdrawal::Excluded;
use super::{ConditionSeen, OUT_OF_DATE, age};
use crate::brake::FleetReport;
use crate::condition::Status;
use crate::time::{Mono, Wall};

/// A change of fewer nodes than one in so many waits for [`SMALL`]: each write goes to every node.
const ONE_IN: u32 = 50;
/// The pause between small changes of the number of unsound nodes...
const SMALL: Duration = Duration::from_secs(10);
/// ...and between changes of all else, as where nodes come and go.
const OTHER: Duration = Duration::from_secs(60);
/// Without a change the count is written anew this often: agents tell from it that somebody counts.
pub const BEAT: Duration = Duration::from_secs(300);

/// The nodes of a cluster, as their watch tells of them.
#[derive(Debug, Default)]
pub struct Census {
    pub(super) nodes: HashMap<Box<str>, Member>,
    /// Number of the list that is under way, or was last.
    list: u32,
    /// A list came to its end.
    pub(super) is_whole: bool,
    said: Option<Said>,
}

/// A count to be published on the slices.
#[derive(Debug)]
struct Said {
    report: FleetReport,
    written: Mono,
    /// When this count was first reported.
    changed: Mono,
}

#[derive(Debug)]
pub(super) struct Member {
    heartbeat: Option<Wall>,
    /// When the heartbeat was seen to change; the first one is as old as it says. Clocks of nodes differ.
    changed: Mono,
    /// The condition's reason, where its status is False.
    pub(super) failing: Option<Box<str>>,
    /// When it was seen to begin or to cease to fail.
    pub(super) since: Mono,
    pub(super) excluded: Excluded,
    /// The object's version.
    pub(super) version: Box<str>,
    list: u32,
}

impl Member {
    /// Whether its agent has written lately.
    pub(super) fn is_counted(&self, now: Mono) -> bool {
        self.heartbeat.is_some() && now.since(self.changed) <= OUT_OF_DATE
    }
}

impl Census {
    /// The nodes that follow are all that there are.
    pub fn begin_list(&mut self) {
        self.list = self.list.wrapping_add(1);
    }

    /// Those were all: nodes that the list did not have are gone.
    pub fn end_list(&mut self) {
        self.nodes.retain(|_, member| member.list == self.list);
        self.is_whole = true;
    }

    /// A node is there, with this condition. Returns whether it fails now and did not, or the other way
    /// round.
    pub fn put(
        &mut self,
        node: &str,
        condition: Option<&ConditionSeen>,
        wall: Wall,
        now: Mono,
    ) -> bool {
        let failing = condition.filter(|condition| condition.status == Status::False);
        let heartbeat = condition.and_then(|condition| condition.heartbeat);
        let changed = match self.nodes.get(node) {
            Some(known) if known.heartbeat == heartbeat => known.changed,
            Some(_) => now,
            None => now.minus(heartbeat.map_or(Duration::ZERO, |at| age(at, wall))),
        };
        let fails = failing.is_some();
        let known = self.nodes.get(node);
        let same = known.filter(|known| known.failing.is_some() == fails);
        let member = Member {
            heartbeat,
            changed,
            failing: failing.map(|condition| condition.reason.as_str().into()),
            since: same.map_or(now, |known| known.since),
            excluded: Excluded::No,
            version: "".into(),
            list: self.list,
        };
        match self.nodes.get_mut(node) {
            Some(known) => std::mem::replace(known, member).failing.is_some() != fails,
            None => {
                self.nodes.insert(node.into(), member);
                fails
            }
        }
    }

    /// Whether the node has the label that withdraws it, at this version of the object.
    pub fn exclude(&mut self, node: &str, excluded: Excluded, version: &str) {
        if let Some(member) = self.nodes.get_mut(node) {
            (member.excluded, member.version) = (excluded, version.into());
        }
    }

    /// A node is gone.
    pub fn remove(&mut self, node: &str) {
        self.nodes.remove(node);
    }

    /// Nodes of the cluster, with an agent or without.
    pub fn nodes(&self) -> u32 {
        u32::try_from(self.nodes.len()).unwrap_or(u32::MAX)
    }

    /// Counts, as of `now`. An agent that has not written for long is not counted.
    pub fn count(&self, wall: Wall, now: Mono) -> FleetReport {
        let mut report = FleetReport {
            written: wall.0 / 1_000_000_000,
            ..FleetReport::default()
        };
        for member in self.nodes.values() {
            if !member.is_counted(now) {
                continue;
            }
            report.nodes += 1;
            if let Some(reason) = &member.failing {
                *report.unsound.entry(reason.to_string()).or_default() += 1;
            }
        }
        report
    }

    /// The count that the sentinel's slices should hold now; nothing before all nodes are known, or
    /// while `silent`: then what they hold stays. `anyway`: they are about to be written.
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
        let is_same = |said: &Said| said.report.is_same(&counted);
        let due = |said: &Said| {
            let (before, after) = (said.report.count().unsound, counted.count().unsound);
            let (since, pause) = match before.abs_diff(after) {
                0 if is_same(said) => (said.written, BEAT),
                0 => (said.changed, OTHER),
                change if change >= 1.max(counted.nodes / ONE_IN) => (said.changed, Duration::ZERO),
                _ => (said.changed, SMALL),
            };
            now.since(since) >= pause
        };
        if anyway || self.said.as_ref().is_none_or(due) {
            // A rotation writes the same count again: the next change need not wait for that.
            let same = self.said.as_ref().filter(|said| is_same(said));
            self.said = Some(Said {
                changed: same.map_or(now, |said| said.changed),
                written: now,
                report: counted,
            });
        }
        self.said.as_ref().map(|said| &said.report)
    }
}

#[cfg(test)]
mod tests;
