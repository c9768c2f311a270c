//! All histories of a small fleet: which nodes fail, in which order requests and events arrive, and what breaks
//! meanwhile.
//!
//! The deciding parts are real: [`Brake`], [`Census`](pathproof_rotator::census::Census) and [`Rotation`]. Evidence,
//! watches and the API server are models. Time passes in steps, and everything between two steps may happen in
//! any order. A step waits for all requests and events that are on their way, unless [`Fault::Late`] is spent.
//! The [`election`](super::election) shows that one rotator leads at a time, so there is only one here.

mod action;
mod state;

use std::time::Duration;

pub use action::Action;
use pathproof_facts::fleet_report::{Count, Published};
use pathproof_facts::time::Mono;
use pathproof_judge::brake::{Brake, BrakeMemory, BrakeReason};
use pathproof_rotator::rotation::{INTERVAL, Rotation};
pub use state::FleetState;
use state::{Leader, Node};

use super::explore::{Model, hash};
use super::wall;
use crate::BEGIN;

/// A step of time, in which a condition is written and counted, and the count received.
pub const STEP: Duration = Duration::from_secs(5);
/// A long step. In it the Lease and all timers of the brake expire, except the one for a silent rotator.
pub const LEAP: Duration = Duration::from_secs(155);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A step or a count does not wait for something that is on its way: a write was lost, or a watch is slow.
    Late,
    /// The rotator is killed. Another one leads after the Lease has expired.
    RotatorDies,
    /// An agent restarts without its memory.
    AgentRestarts,
    /// The API server is unreachable until after the next step, and all agents notice it.
    ServerAway,
}

/// Maximum numbers in one history.
#[derive(Clone, Copy, Debug, Hash)]
pub struct Bounds {
    /// Failures of nodes.
    pub failures: u8,
    /// Repairs of nodes.
    pub repairs: u8,
    pub faults: u8,
    /// Steps of time, the long ones included.
    pub steps: u8,
    pub leaps: u8,
}

/// Whether a 503 is answered, given the brake's reason to hold it back.
pub type Permits = fn(Option<BrakeReason>) -> bool;

#[derive(Clone, Debug)]
pub struct FleetModel {
    pub nodes: u32,
    /// Number of nodes that are a pool, from the first on; `None` if no domains are counted.
    pub pool: Option<usize>,
    /// Each node's brake, without memory.
    pub brake: Brake,
    /// Causes of failures: certain (`true`) or not.
    pub causes: &'static [bool],
    pub faults: &'static [Fault],
    pub bounds: Bounds,
    pub permits: Permits,
}

type Found = Vec<(Action, FleetState)>;

/// A copy of a state, changed.
fn changed(state: &FleetState, change: impl FnOnce(&mut FleetState, Mono)) -> FleetState {
    let mut next = state.clone();
    change(&mut next, state.now);
    next
}

impl FleetModel {
    /// A fleet with a limit of `percent`, in which two nodes may fail for uncertain causes. `delay` is the brakes'
    /// for these, in milliseconds below 10 s.
    pub fn new(nodes: u32, percent: u32, delay: Duration) -> Self {
        let named = |number: u32| {
            let name = format!("node-{number}");
            Brake::restore(Some(percent), &name, BrakeMemory::default())
        };
        let brake = (0..).map(named).find(|brake| brake.stagger() == delay);
        Self {
            nodes,
            pool: None,
            brake: brake.expect("a name with this delay"),
            causes: &[false],
            faults: &[],
            bounds: Bounds {
                failures: 2,
                repairs: 0,
                faults: 0,
                steps: 3,
                leaps: 1,
            },
            permits: |held| held.is_none(),
        }
    }

    fn may(&self, state: &FleetState, fault: Fault) -> bool {
        state.left.faults > 0 && self.faults.contains(&fault)
    }

    fn evidence_changes(&self, state: &FleetState, node: usize, found: &mut Found) {
        if state.nodes[node].can_fail() && state.left.failures > 0 {
            found.extend(self.causes.iter().map(|certain| {
                let next = changed(state, |next, now| {
                    next.left.failures -= 1;
                    next.nodes[node].turn(Some(*certain), self.permits, now);
                });
                (Action::Fail(node, *certain), next)
            }));
        }
        if state.nodes[node].fails.is_some() && state.left.repairs > 0 {
            let next = changed(state, |next, now| {
                next.left.repairs -= 1;
                next.nodes[node].turn(None, self.permits, now);
            });
            found.push((Action::Repair(node), next));
        }
    }

    /// The API server takes a node's condition, or a node receives a count.
    fn messages_arrive(&self, state: &FleetState, node: usize, found: &mut Found) {
        let known = &state.nodes[node];
        let fails = known.fails.is_some();
        if known.reported != fails {
            let next = changed(state, |next, _| next.nodes[node].reported = fails);
            found.push((Action::Report(node, fails), next));
        }
        if let Some((next, _)) = known.inbox.first() {
            let action = Action::Receive(node, next.count.unsound);
            let receive = |next: &mut FleetState, now| next.nodes[node].receive(self.permits, now);
            found.push((action, changed(state, receive)));
        }
        if known.is_deaf {
            let next = changed(state, |next, now| {
                next.nodes[node].rejoin(&state.slice, self.permits, now);
            });
            found.push((Action::Rejoin(node), next));
        }
    }

    fn agent_restarts(&self, state: &FleetState, node: usize, found: &mut Found) {
        if self.may(state, Fault::AgentRestarts) {
            let next = changed(state, |next, now| {
                next.left.faults -= 1;
                next.nodes[node].restart(self.brake.clone(), &state.slice, now);
            });
            found.push((Action::Restart(node), next));
        }
    }

    /// `count` is the state after the rotator's next count, if it writes one.
    fn rotators_act(&self, state: &FleetState, count: Option<FleetState>, found: &mut Found) {
        let is_late = state.nodes.iter().any(|node| !node.inbox.is_empty());
        if let Some(mut next) = count
            && (!is_late || self.may(state, Fault::Late))
        {
            next.left.faults -= u8::from(is_late);
            found.push((Action::Count(next.slice[0].count.unsound, is_late), next));
        }
        if state.leader.is_some() && self.may(state, Fault::RotatorDies) {
            let next = changed(state, |next, now| {
                next.left.faults -= 1;
                (next.leader, next.vacant) = (None, Some(now));
            });
            found.push((Action::Die, next));
        }
        if state.can_lead() {
            let next = changed(state, |next, now| {
                let mut rotation = Rotation::new(INTERVAL);
                rotation.seized(now);
                next.leader = Some(Leader::new(rotation, false, self.nodes, now));
                next.vacant = None;
            });
            found.push((Action::Lead, next));
        }
    }

    fn server_acts(&self, state: &FleetState, found: &mut Found) {
        if state.away.is_none() && self.may(state, Fault::ServerAway) {
            let next = changed(state, |next, now| {
                next.left.faults -= 1;
                next.away = Some(now);
                if let Some(leader) = &mut next.leader {
                    leader.rotation.failed(now);
                }
                for node in &mut next.nodes {
                    node.lose_server(self.permits, now);
                }
            });
            found.push((Action::GoAway, next));
        }
        if state.away.is_some_and(|since| state.now > since) {
            let next = changed(state, |next, now| {
                next.away = None;
                if let Some(leader) = &mut next.leader {
                    leader.rotation.answered(now);
                }
            });
            found.push((Action::ComeBack, next));
        }
    }

    fn time_passes(&self, state: &FleetState, is_late: bool, found: &mut Found) {
        let left = state.left;
        if left.steps == 0 || (is_late && !self.may(state, Fault::Late)) {
            return;
        }
        let leaps = !is_late && left.leaps > 0;
        let leap = leaps.then_some(LEAP);
        for span in [STEP].into_iter().chain(leap) {
            let next = changed(state, |next, now| {
                next.now = now.plus(span);
                next.left.steps -= 1;
                next.left.leaps -= u8::from(span == LEAP);
                next.left.faults -= u8::from(is_late);
                for node in &mut next.nodes {
                    node.next_step(self.permits, next.now);
                }
            });
            found.push((Action::Pass(span, is_late), next));
        }
    }
}

impl Model for FleetModel {
    type State = FleetState;
    type Action = Action;

    fn begin(&self) -> FleetState {
        let (now, nodes) = (BEGIN, self.nodes);
        let slice = [Published {
            count: Count { unsound: 0, nodes },
            written: wall(now).0 / 1_000_000_000,
            ..Published::default()
        }; 2];
        let node = |number| {
            let in_pool = self.pool.is_some_and(|pool| number < pool);
            Node::new(self.brake.clone(), in_pool, &slice, now)
        };
        FleetState {
            now,
            nodes: (0..nodes as usize).map(node).collect(),
            pool: self.pool.map(|pool| 0..pool),
            leader: Some(Leader::new(Rotation::new(INTERVAL), true, nodes, now)),
            vacant: None,
            away: None,
            slice,
            left: self.bounds,
        }
    }

    fn next(&self, state: &FleetState) -> Found {
        let mut found = Vec::new();
        let (count, is_there) = (state.after_count(), state.away.is_none());
        let behind = state.nodes.iter().any(Node::is_behind);
        let is_late = is_there && (behind || count.is_some() || state.can_lead());
        for node in 0..state.nodes.len() {
            self.evidence_changes(state, node, &mut found);
            if is_there {
                self.messages_arrive(state, node, &mut found);
                self.agent_restarts(state, node, &mut found);
            }
        }
        self.rotators_act(state, count, &mut found);
        self.server_acts(state, &mut found);
        self.time_passes(state, is_late, &mut found);
        found
    }

    /// Nodes differ by their letters and their pool, so their order does not matter.
    fn fingerprint(&self, state: &FleetState) -> u64 {
        let mut nodes: Vec<u64> = state.nodes.iter().map(hash).collect();
        nodes.sort_unstable();
        let times = (state.now, state.vacant, state.away);
        hash(&(nodes, times, &state.leader, state.slice, state.left))
    }
}
