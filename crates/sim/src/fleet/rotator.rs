//! Rotators of a simulated fleet: the real count and the real plan of writes, at the pace of
//! agent/src/rotate.rs. The scenario decides who leads.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use pathproof_facts::cluster::Protocol;
use pathproof_facts::fleet_report::{FleetReport, Published};
use pathproof_facts::freshness::FIRST_GENERATION;
use pathproof_facts::time::Mono;
use pathproof_report::condition::Status;
use pathproof_rotator::ConditionSeen;
use pathproof_rotator::census::Census;
use pathproof_rotator::rotation::{
    INTERVAL, LEASE, Rotation, SliceSeen, SliceSpec, Write, slice_name,
};
use pathproof_wire::service::Family;

use super::agent::ReportedCondition;
use super::{FAN_OUT, LATENCY, Run, Task, wall};
use crate::{BEGIN, ms};

/// As in agent/src/rotate.rs.
const LOOK: Duration = Duration::from_secs(5);
const EARLY: Duration = Duration::from_secs(1);
/// Delay until a new leader has listed all nodes.
const LIST: (Duration, Duration) = (ms(100), ms(1_000));

/// Label of pools, and its values outside and in the one that a scenario is about.
const POOL: &str = "pool";
const POOLS: [&str; 2] = ["workers", "ingress"];

const SENTINEL: &str = "sentinel";
const ECHO: &str = "198.18.0.2";

/// The sentinel's slice at the API server.
#[derive(Clone, Debug)]
pub(super) struct Slice {
    version: u32,
    generation: u16,
    fleet: String,
    /// As read by nodes outside the pool and in it.
    read: [Option<Published>; 2],
}

impl Slice {
    /// A slice on which all nodes are healthy.
    pub(super) fn of(nodes: u32) -> Self {
        let healthy = FleetReport {
            nodes,
            leaving: Some(0),
            written: wall(BEGIN).0 / 1_000_000_000,
            ..FleetReport::default()
        };
        Self::with(0, FIRST_GENERATION, healthy.text())
    }

    fn with(version: u32, generation: u16, fleet: String) -> Self {
        let report = FleetReport::parse(&fleet).ok();
        let read = POOLS.map(|pool| published(report.as_ref()?, pool == POOLS[1]));
        Self {
            version,
            generation,
            fleet,
            read,
        }
    }

    pub(super) fn count(&self, in_pool: bool) -> Option<Published> {
        self.read[usize::from(in_pool)]
    }

    fn seen(&self) -> SliceSeen {
        SliceSeen {
            name: slice_name(SENTINEL, Family::V4),
            version: self.version.to_string(),
            family: Some(Family::V4),
            is_labelled: true,
            endpoints: (vec![ECHO.to_owned()], true),
            ports: vec![("tcp".to_owned(), Protocol::Tcp, self.generation)],
            fleet: Some(self.fleet.clone()),
        }
    }
}

/// Result of an evaluation: the slice to write if it still has this version.
#[derive(Debug)]
pub(super) struct Plan {
    version: u32,
    generation: Option<u16>,
    fleet: Option<String>,
}

#[derive(Debug)]
pub(super) struct Rotator {
    /// Delay of its watch of the nodes.
    pub(super) behind: Duration,
    leads: bool,
    census: Census,
    rotation: Rotation,
    /// Whether its watch is broken because of an outage of the API server.
    is_deaf: bool,
    /// Whether a node started or stopped failing since the last evaluation.
    news: bool,
    /// Number of the next evaluation, and the earliest time of an early one; `None` during an evaluation.
    turn: u32,
    early: Option<Mono>,
}

impl Rotator {
    pub(super) fn new(behind: Duration) -> Self {
        Self {
            behind,
            leads: false,
            census: Census::default(),
            rotation: Rotation::new(INTERVAL),
            is_deaf: false,
            news: false,
            turn: 0,
            early: None,
        }
    }
}

impl Run {
    pub(super) fn lead(&mut self, number: usize) {
        let rotator = &mut self.rotators[number];
        rotator.leads = true;
        if self.now > BEGIN {
            rotator.rotation.seized(self.now);
        }
        self.soon(LIST, Task::Relist(number));
        self.rest(number);
    }

    /// Ends a rotator without notice. The next one leads after the lease has expired.
    pub(super) fn kill(&mut self, number: usize) {
        self.rotators[number].leads = false;
        self.push(self.now.plus(LEASE + LOOK), Task::Lead(number + 1));
    }

    pub(super) fn relist(&mut self, number: usize) {
        let rotator = &mut self.rotators[number];
        rotator.is_deaf = false;
        rotator.census.begin_list();
        for (node, reported) in self.conditions.iter().enumerate() {
            put(&mut rotator.census, node, *reported, self.now);
            assign(&mut rotator.census, node, self.pool.as_ref());
        }
        rotator.census.end_list();
        self.news(number);
    }

    pub(super) fn report(&mut self, number: usize, node: usize, reported: ReportedCondition) {
        let rotator = &mut self.rotators[number];
        // A rotator with a broken watch gets this condition with its next list.
        if rotator.is_deaf {
            return;
        }
        let changes = put(&mut rotator.census, node, reported, self.now);
        assign(&mut rotator.census, node, self.pool.as_ref());
        if changes {
            self.news(number);
        }
    }

    fn news(&mut self, number: usize) {
        let rotator = &mut self.rotators[number];
        if std::mem::replace(&mut rotator.news, true) {
            return;
        }
        if let Some(early) = rotator.early {
            let turn = rotator.turn;
            self.push(early, Task::Look(number, turn));
        }
    }

    /// Plans the next evaluation: early after a change, otherwise later.
    fn rest(&mut self, number: usize) {
        let early = self.now.plus(EARLY);
        let rotator = &mut self.rotators[number];
        rotator.early = Some(early);
        let (turn, news) = (rotator.turn, rotator.news);
        self.push(self.now.plus(LOOK), Task::Look(number, turn));
        if news {
            self.push(early, Task::Look(number, turn));
        }
    }

    pub(super) fn look(&mut self, number: usize, turn: u32) {
        let (now, away) = (self.now, self.is_away());
        let rotator = &mut self.rotators[number];
        if !rotator.leads || rotator.turn != turn {
            return;
        }
        (rotator.turn, rotator.early, rotator.news) = (turn + 1, None, false);
        rotator.is_deaf |= away;
        if away {
            rotator.rotation.failed(now);
            return self.rest(number);
        }
        rotator.rotation.answered(now);
        let nodes = rotator.census.nodes();
        let rotates = rotator.rotation.is_due(nodes, now);
        let census = &mut rotator.census;
        let counted = census.publish(rotator.is_deaf, rotates, wall(now), now);
        let wanted = wanted(counted.map(FleetReport::text));
        let plan = rotator
            .rotation
            .plan(&wanted, &[self.slice.seen()], nodes, now);
        let generation = match plan.writes.first() {
            None => return self.rest(number),
            Some(Write::Update { generation, .. }) => Some(*generation),
            Some(_) => None,
        };
        let plan = Plan {
            version: self.slice.version,
            generation,
            fleet: wanted.fleet,
        };
        self.soon(LATENCY, Task::Write(number, plan));
    }

    pub(super) fn write_slice(&mut self, number: usize, plan: Plan) {
        let away = self.is_away();
        let rotator = &mut self.rotators[number];
        if rotator.leads && !away && plan.version == self.slice.version {
            if let Some(generation) = plan.generation {
                rotator.rotation.wrote(generation, true, self.now);
                self.writes.0 += 1;
            } else {
                self.writes.1 += 1;
            }
            let generation = plan.generation.unwrap_or(self.slice.generation);
            let fleet = plan.fleet.unwrap_or_else(|| self.slice.fleet.clone());
            self.slice = Slice::with(plan.version + 1, generation, fleet);
            self.spread();
            if self.fatal && plan.generation.is_none() && self.now > self.onset {
                self.fatal = false;
                return self.kill(number);
            }
        }
        self.rest(number);
    }

    fn spread(&mut self) {
        for node in 0..self.agents.len() {
            let slice = self.slice.clone();
            self.soon(FAN_OUT, Task::Hear(node, slice));
        }
    }
}

fn wanted(fleet: Option<String>) -> SliceSpec {
    let echo = [ECHO, "2001:2::2"].map(|ip| ip.parse().expect("an address"));
    SliceSpec {
        service: SENTINEL.to_owned(),
        families: vec![Family::V4],
        ports: vec![("tcp".to_owned(), Protocol::Tcp)],
        echo,
        fleet,
    }
}

/// The count as a node outside the pool or in it reads it; `None` without nodes.
pub(super) fn published(report: &FleetReport, in_pool: bool) -> Option<Published> {
    let value_of = |label: &str| (label == POOL).then_some(POOLS[usize::from(in_pool)]);
    Some(report.published(value_of)).filter(|published| published.count.nodes > 0)
}

/// Gives a node its label, if the fleet has a pool.
pub(super) fn assign(census: &mut Census, node: usize, pool: Option<&Range<usize>>) {
    if let Some(pool) = pool {
        let value = POOLS[usize::from(pool.contains(&node))];
        let domain = (Arc::<str>::from(POOL), Box::<str>::from(value));
        census.set_domains(&format!("node-{node}"), Box::new([domain]));
    }
}

pub(super) fn put(
    census: &mut Census,
    node: usize,
    reported: ReportedCondition,
    now: Mono,
) -> bool {
    let reason = match reported.status {
        Status::False => "DatapathBrokenLeaked",
        _ => "DatapathProven",
    };
    let seen = ConditionSeen {
        status: reported.status,
        reason: reason.to_owned(),
        message: String::new(),
        transition: None,
        heartbeat: Some(reported.heartbeat),
    };
    census.put(&format!("node-{node}"), Some(&seen), wall(now), now)
}
