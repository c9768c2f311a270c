//! The state of a small fleet: nodes with the real [`Brake`], and a leader with the real [`Rotation`] and
//! [`Census`].

use std::ops::Range;
use std::time::Duration;

use pathproof_facts::fleet_report::Published;
use pathproof_facts::freshness::FIRST_GENERATION;
use pathproof_facts::time::Mono;
use pathproof_judge::brake::Brake;
use pathproof_report::condition::Status;
use pathproof_rotator::census::Census;
use pathproof_rotator::rotation::{LEASE, Rotation};

use super::super::agent::ReportedCondition;
use super::super::rotator::{assign, published, put};
use super::super::wall;
use super::{Bounds, Permits};

/// Time between events of one node within a step, because the brake compares their times.
const MOMENT: Duration = Duration::from_nanos(1);

#[derive(Clone, Debug, Hash)]
pub(super) struct Node {
    brake: Brake,
    /// `Some` if the evidence shows a failure: whether its cause is certain.
    pub(super) fails: Option<bool>,
    /// When the failure began or ended.
    since: Mono,
    /// Whether it answers 503.
    refuses: bool,
    /// Whether the condition at the API server is False.
    pub(super) reported: bool,
    /// Whether the last count that was written includes the present failure.
    written: bool,
    /// Counts that the watch has not delivered yet, and whether each includes the present failure.
    pub(super) inbox: Vec<(Published, bool)>,
    /// Whether the count received last includes the present failure.
    counted: bool,
    /// Whether it was repaired or restarted in this step, and cannot fail before the next one.
    is_fresh: bool,
    /// Whether its watch is broken.
    pub(super) is_deaf: bool,
    in_pool: bool,
}

/// A count, as read by nodes outside the pool and in it.
pub(super) type Slice = [Published; 2];

impl Node {
    /// A healthy node with this brake, which received this count.
    pub(super) fn new(brake: Brake, in_pool: bool, slice: &Slice, now: Mono) -> Self {
        let mut node = Self {
            brake,
            fails: None,
            since: now,
            refuses: false,
            reported: false,
            written: false,
            inbox: Vec::new(),
            counted: false,
            is_fresh: false,
            is_deaf: false,
            in_pool,
        };
        let slice = slice[usize::from(in_pool)];
        node.brake.record(slice, wall(now), now);
        node
    }

    pub(super) fn can_fail(&self) -> bool {
        self.fails.is_none() && !self.is_fresh
    }

    /// The evidence begins or ceases to show a failure. No count includes that yet.
    pub(super) fn turn(&mut self, fails: Option<bool>, permits: Permits, now: Mono) {
        (self.fails, self.since, self.is_fresh) = (fails, now, fails.is_none());
        (self.written, self.counted) = (false, false);
        self.inbox.iter_mut().for_each(|count| count.1 = false);
        let moments = if fails.is_some() { 1 } else { 2 };
        self.judge(permits, now.plus(moments * MOMENT));
    }

    /// The agent restarts without its memory and evidence, and reads the slice.
    pub(super) fn restart(&mut self, brake: Brake, slice: &Slice, now: Mono) {
        let reported = self.reported;
        *self = Self::new(brake, self.in_pool, slice, now);
        (self.reported, self.is_fresh) = (reported, true);
    }

    /// The watch delivers the next count.
    pub(super) fn receive(&mut self, permits: Permits, now: Mono) {
        let (count, includes) = self.inbox.remove(0);
        self.record(count, includes, permits, now);
    }

    pub(super) fn lose_server(&mut self, permits: Permits, now: Mono) {
        self.is_deaf = true;
        self.inbox.clear();
        self.brake.source(true, now);
        self.judge(permits, now.plus(2 * MOMENT));
    }

    pub(super) fn rejoin(&mut self, slice: &Slice, permits: Permits, now: Mono) {
        self.is_deaf = false;
        let at = self.received(now);
        self.brake.source(false, at);
        let slice = slice[usize::from(self.in_pool)];
        self.record(slice, self.written, permits, now);
    }

    fn record(&mut self, count: Published, includes: bool, permits: Permits, now: Mono) {
        let at = self.received(now);
        self.brake.record(count, wall(at), at);
        self.counted = includes;
        self.judge(permits, at);
    }

    /// Time of an event that it receives: after its failure or repair in the same step.
    fn received(&self, now: Mono) -> Mono {
        match self.fails.is_some() || self.is_fresh {
            true => now.plus(2 * MOMENT),
            false => now,
        }
    }

    pub(super) fn next_step(&mut self, permits: Permits, now: Mono) {
        self.is_fresh = false;
        self.judge(permits, now);
    }

    fn judge(&mut self, permits: Permits, now: Mono) {
        let fails = self.fails.is_some();
        let held = self.brake.step(fails, self.fails == Some(true), now);
        self.refuses = fails && permits(held);
    }

    /// Whether something from or to this node is on its way.
    pub(super) fn is_behind(&self) -> bool {
        self.reported != self.fails.is_some() || !self.inbox.is_empty() || self.is_deaf
    }
}

/// The rotator's last count.
#[derive(Clone, Copy, Debug, Hash)]
pub(super) struct LastCount {
    /// Failing nodes outside the pool and in it.
    unsound: [u32; 2],
    written: Mono,
    /// When this number was first written.
    changed: Mono,
}

#[derive(Clone, Debug, Hash)]
pub(super) struct Leader {
    pub(super) rotation: Rotation,
    last: Option<LastCount>,
}

impl Leader {
    /// A leader from now on. `counted`: it has just counted that no node fails.
    pub(super) fn new(mut rotation: Rotation, counted: bool, nodes: u32, now: Mono) -> Self {
        // The interval to the first rotation starts here.
        rotation.is_due(nodes, now);
        let last = counted.then_some(LastCount {
            unsound: [0; 2],
            written: now,
            changed: now,
        });
        Self { rotation, last }
    }

    /// Counts nodes by their conditions. Returns the count that the slice should have.
    pub(super) fn count(
        &mut self,
        nodes: &[Node],
        pool: Option<&Range<usize>>,
        now: Mono,
    ) -> Option<Slice> {
        let number = u32::try_from(nodes.len()).unwrap_or(u32::MAX);
        let rotates = self.rotation.is_due(number, now);
        let mut census = self.census(nodes.len(), pool);
        list(
            &mut census,
            nodes.iter().map(|node| node.reported),
            pool,
            now,
        );
        let report = census.publish(false, rotates, wall(now), now)?;
        let slice = [published(report, false)?, published(report, true)?];
        let [all, of_pool] = [slice[1].count.unsound, slice[1].domains[0].unsound];
        let unsound = [all - of_pool, of_pool];
        let same = self.last.filter(|last| last.unsound == unsound);
        self.last = Some(LastCount {
            unsound,
            written: now,
            changed: same.map_or(now, |last| last.changed),
        });
        if rotates {
            self.rotation.wrote(FIRST_GENERATION, true, now);
        }
        Some(slice)
    }

    /// The census as it was after the last count.
    fn census(&self, nodes: usize, pool: Option<&Range<usize>>) -> Census {
        let mut census = Census::default();
        if let Some(last) = self.last {
            let first = pool.map_or(0, |pool| pool.len());
            let [others, of_pool] = last.unsound.map(|number| number as usize);
            let fails = |node| node < of_pool || (first..first + others).contains(&node);
            list(&mut census, (0..nodes).map(fails), pool, last.changed);
            for at in [last.changed, last.written] {
                census.publish(false, true, wall(at), at);
            }
        }
        census
    }
}

/// Lists all nodes, of which some fail.
fn list(
    census: &mut Census,
    fails: impl Iterator<Item = bool>,
    pool: Option<&Range<usize>>,
    now: Mono,
) {
    census.begin_list();
    for (node, fails) in fails.enumerate() {
        let status = if fails { Status::False } else { Status::True };
        let heartbeat = wall(now);
        put(census, node, ReportedCondition { status, heartbeat }, now);
        assign(census, node, pool);
    }
    census.end_list();
}

#[derive(Clone, Debug)]
pub struct FleetState {
    pub(super) now: Mono,
    pub(super) nodes: Vec<Node>,
    pub(super) pool: Option<Range<usize>>,
    pub(super) leader: Option<Leader>,
    /// When the leader died.
    pub(super) vacant: Option<Mono>,
    /// When the API server went away.
    pub(super) away: Option<Mono>,
    /// The count at the API server.
    pub(super) slice: Slice,
    pub(super) left: Bounds,
}

impl FleetState {
    /// The state after the rotator's check, if the rotator writes a count.
    pub(super) fn after_count(&self) -> Option<Self> {
        let mut leader = self.leader.clone().filter(|_| self.away.is_none())?;
        let slice = leader.count(&self.nodes, self.pool.as_ref(), self.now)?;
        if slice == self.slice {
            return None;
        }
        let mut next = self.clone();
        (next.leader, next.slice) = (Some(leader), slice);
        for node in &mut next.nodes {
            node.written = node.reported;
            if !node.is_deaf {
                let count = slice[usize::from(node.in_pool)];
                node.inbox.push((count, node.reported));
            }
        }
        Some(next)
    }

    pub(super) fn can_lead(&self) -> bool {
        let vacant = self.vacant.filter(|_| self.away.is_none());
        vacant.is_some_and(|at| self.now.since(at) >= LEASE)
    }

    /// Number of nodes that answer 503 for an uncertain cause.
    pub fn uncertain(&self) -> usize {
        self.refusing(|node| node.fails == Some(false))
    }

    /// Number of nodes that answer 503 and are included in the count that they received last.
    pub fn counted(&self) -> usize {
        self.refusing(|node| node.counted)
    }

    /// The same of nodes in the pool.
    pub fn counted_in_pool(&self) -> usize {
        self.refusing(|node| node.counted && node.in_pool)
    }

    /// Number of nodes that answer 503 and have failed for at least this time.
    pub fn failing_for(&self, span: Duration) -> usize {
        self.refusing(|node| self.now.since(node.since) >= span)
    }

    fn refusing(&self, which: impl Fn(&Node) -> bool) -> usize {
        let refusing = |node: &&Node| node.refuses && which(node);
        self.nodes.iter().filter(refusing).count()
    }
}
