//! Hours of simulated nodes, to find false 503s and missed faults in combinations that no table lists. A node
//! lives from the agent's start through the events of `rates`, with an innocent world of the tables, to a fault of the
//! tables. Pairs of a world and a fault that did not occur yet are preferred.
//!
//! The node is stepped like a shipped agent, whose probes, samples and checks would notice a gap. A stretch
//! without events is stepped until the judge keeps nothing about the last one that still matters. The rest is
//! skipped: the node's clock does not pass it.

mod rates;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::iter::repeat_n;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use pathproof_facts::limits::{FAILURES_COUNT_FOR, IN_USE_FOR};
use pathproof_node::Node;

use super::expected::{Expected, Felt, expected};
use super::play::Watch;
use super::worlds::QUIET;
use super::{FAMILIES, FAULTS, Families, FaultRow, USES, Use, WORLDS, WorldRow};
use crate::{Act, BEGIN, Claim, Dice, SimNode, World};

const ROWS: (&[WorldRow], &[FaultRow]) = (&WORLDS, &FAULTS);
const STEP: Duration = Duration::from_secs(1);
/// Time after the start until all witnesses count, including the node itself.
const BOOTED: Duration = Duration::from_secs(150);
/// Time for which endpoints that moved matter: proxies are up to 45 s late here, and removed endpoints serve for
/// 30 s more.
const MOVED: Duration = Duration::from_secs(120);
/// One of this many idle stretches is stepped for over an hour: then the judge also forgets what was in use.
const LONG: usize = 64;

/// A node from the agent's start to its fault. It follows from these numbers alone, so it can be played again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// Index in [`WORLDS`].
    world: usize,
    /// Index in [`FAULTS`].
    fault: usize,
    seed: u64,
}

struct Plan {
    used: &'static Use,
    families: Families,
    world: World,
    /// When the fault begins, on the node's clock.
    at: Duration,
    skipped: Duration,
    required: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Found {
    /// A required 503 within the fault's limit.
    InTime,
    /// No 503 within the limit, although it was required.
    Missed,
    /// No 503 before the fault, which needs none in this world.
    NotRequired,
    /// 503 before the fault.
    False503,
}

/// Result of a life.
pub struct Ended {
    pub life: Life,
    pub found: Found,
    /// World, fault, use, families, and what is wrong.
    pub text: String,
    /// Time on the node's clock, and idle time that was skipped.
    pub time: [Duration; 2],
    /// The last minutes as a recording; empty unless the node records.
    pub recording: Vec<u8>,
}

impl Life {
    /// Reads the text that `Display` writes.
    pub fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.splitn(3, '.').map(str::parse::<u64>);
        let mut next = || numbers.next()?.ok();
        let (world, fault, seed) = (next()? as usize, next()? as usize, next()?);
        let known = world < WORLDS.len() && fault < FAULTS.len();
        known.then_some(Self { world, fault, seed })
    }

    fn rows(&self) -> (&'static WorldRow, &'static FaultRow) {
        (&ROWS.0[self.world], &ROWS.1[self.fault])
    }

    /// Length of the life, and the dice after this first draw.
    fn begin(&self) -> (Duration, Dice) {
        let mut dice = Dice::new(!self.seed);
        (dice.between(rates::LIFE), dice)
    }

    fn plan(&self) -> Plan {
        let (end, mut dice) = self.begin();
        let (row, fault) = self.rows();
        let uses = USES.iter().zip(rates::USE_SHARES);
        let used = pick(uses.filter(|(used, _)| row.touches(used)), &mut dice);
        let families = FAMILIES.into_iter().zip(rates::FAMILY_SHARES);
        let may = |families: &Families| families.only.is_none() || fault.is_of_family();
        let families = pick(families.filter(|(families, _)| may(families)), &mut dice);
        let mut world = used.world(families.stack);
        let varied = dice.below(rates::VARIED) == 0;
        if varied {
            rates::vary(&mut world, &mut dice);
        }
        let mut world = row.begin(world, dice.between((end / 2, end * 3 / 4)));
        // Pods that are bridged to the uplink have no bridge between.
        world.bridged &= !world.flat;
        let required = matches!(expected(fault, used), Expected::Fails(_))
            && holds_beside(row, fault.felt, &world, varied);
        rates::draw_events(&mut world, used.services.len(), end, &mut dice);
        let mut world = fault.begin(world, end, families.only);
        let skipped = skip_idle(&mut world.acts, &mut dice);
        let at = end - skipped;
        Plan {
            used,
            families,
            world,
            at,
            skipped,
            required,
        }
    }

    /// Plays the life on a node that `prepare` may change.
    pub fn play(&self, prepare: impl FnOnce(SimNode) -> SimNode) -> Ended {
        let plan = self.plan();
        let (row, fault) = self.rows();
        let acts = plan.world.acts.clone();
        let mut node = prepare(SimNode::new(0, plan.world, self.seed));
        let at = BEGIN.plus(plan.at);
        while node.now() < at && node.failed_after(BEGIN).is_none() {
            node.run(STEP.min(at.since(node.now())));
        }
        let early = node.failed_after(BEGIN);
        let mut watch = Watch { node, at };
        let (found, why) = if let Some(after) = early {
            let last = acts.iter().rfind(|(at, _)| *at <= after);
            let last = last.map(|(at, act)| format!("503 {:.1?} after {act:?}", after - *at));
            (Found::False503, last.unwrap_or_default() + &watch.cause())
        } else {
            match watch.fault(fault, expected(fault, plan.used)).wrong {
                _ if !plan.required => (Found::NotRequired, String::new()),
                Some(why) => (Found::Missed, why),
                None => (Found::InTime, String::new()),
            }
        };
        let skipped = early.map_or(plan.skipped, |_| Duration::ZERO);
        let (used, families) = (plan.used.name, plan.families.name);
        Ended {
            life: *self,
            found,
            text: format!("{} / {} / {used} / {families}: {why}", row.name, fault.name),
            time: [watch.node.now().since(BEGIN), skipped],
            recording: watch.node.node().map_or_else(Vec::new, Node::recording),
        }
    }
}

impl fmt::Display for Life {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.world, self.fault, self.seed)
    }
}

impl Found {
    pub fn is_wrong(self) -> bool {
        matches!(self, Found::Missed | Found::False503)
    }
}

/// One of these, each as often as its share.
fn pick<T: Copy>(shares: impl Iterator<Item = (T, usize)>, dice: &mut Dice) -> T {
    let each = shares.flat_map(|(one, share)| repeat_n(one, share));
    let all: Vec<T> = each.collect();
    all[dice.below(all.len())]
}

/// Whether the fault's limit also holds beside this world. Probes show a fault whatever happens to users, if the
/// world leaves the sentinel alone. Other faults have limits only for the nodes of the tables, where nothing fails.
fn holds_beside(row: &WorldRow, felt: Felt, world: &World, varied: bool) -> bool {
    use Act::{BreakIn, FilterSentinel as Filter, InspectSentinel as Inspect, RejectSentinel};
    let disturbs = |act: &Act| matches!(act, Filter | Inspect | RejectSentinel | BreakIn(..));
    let mut claims = world.services.iter().flat_map(|service| &service.claims);
    match felt {
        Felt::ByProbes if claims.any(|claim| *claim == Claim::Sentinel) => false,
        Felt::ByProbes => !world.acts.iter().any(|(_, act)| disturbs(act)),
        _ => row.covered_by == QUIET && !varied,
    }
}

/// Time for which an act matters to the judge, apart from what was in use.
fn settles(act: &Act) -> Duration {
    match act {
        Act::Roll(..) | Act::Replace(..) => MOVED,
        Act::Silence { span, .. } => FAILURES_COUNT_FOR + *span,
        _ => FAILURES_COUNT_FOR,
    }
}

/// Takes idle time before the last act out of the times of all acts. Returns its length.
fn skip_idle(acts: &mut [(Duration, Act)], dice: &mut Dice) -> Duration {
    acts.sort_by_key(|(at, _)| *at);
    let (mut settled, mut skipped) = (BOOTED, Duration::ZERO);
    for (at, act) in acts {
        let is_long = dice.below(LONG) == 0;
        let stepped = if is_long {
            IN_USE_FOR + FAILURES_COUNT_FOR
        } else {
            Duration::ZERO
        };
        skipped += at.saturating_sub(settled + stepped);
        settled = settled.max(*at + settles(act));
        *at = at.saturating_sub(skipped);
    }
    skipped
}

/// Counts of lives.
#[derive(Clone, Debug)]
pub struct Tally {
    /// Sums of [`Ended::time`].
    pub time: [Duration; 2],
    pub found: BTreeMap<Found, usize>,
    /// Worlds and faults that did not occur together.
    pub unseen: BTreeSet<(&'static str, &'static str)>,
}

impl Default for Tally {
    fn default() -> Self {
        let faults = || FAULTS.iter().map(|row| row.name);
        let pairs = WORLDS
            .iter()
            .flat_map(|row| faults().map(move |fault| (row.name, fault)));
        Self {
            time: Default::default(),
            found: BTreeMap::new(),
            unseen: pairs.collect(),
        }
    }
}

impl Tally {
    pub fn add(&mut self, ended: &Ended) {
        for (sum, time) in self.time.iter_mut().zip(ended.time) {
            *sum += time;
        }
        *self.found.entry(ended.found).or_default() += 1;
        let (row, fault) = ended.life.rows();
        if ended.found != Found::False503 {
            self.unseen.remove(&(row.name, fault.name));
        }
    }

    pub fn is_right(&self) -> bool {
        !self.found.keys().any(|found| found.is_wrong())
    }
}

/// Deals lives until they have the wanted length together. They follow from the seed alone, whatever the number
/// of threads is.
struct Dealer {
    dice: Dice,
    left: Duration,
    /// Pairs of a world and a fault that were not dealt yet.
    fresh: Vec<(usize, usize)>,
}

impl Dealer {
    fn new(length: Duration, seed: u64) -> Self {
        let pairs = (0..WORLDS.len() * FAULTS.len()).map(|n| (n / FAULTS.len(), n % FAULTS.len()));
        Self {
            dice: Dice::new(seed),
            left: length,
            fresh: pairs.collect(),
        }
    }

    /// Two of three lives have a fresh pair. Of the others, half have a world in which nothing happens, where all
    /// limits hold.
    fn deal(&mut self) -> Option<Life> {
        if self.left.is_zero() {
            return None;
        }
        let is_fresh = self.dice.below(3) > 0 && !self.fresh.is_empty();
        let (world, fault) = if is_fresh {
            let place = self.dice.below(self.fresh.len());
            self.fresh.swap_remove(place)
        } else {
            let world = self.dice.below(2) * self.dice.below(WORLDS.len());
            (world, self.dice.below(FAULTS.len()))
        };
        let seed = self.dice.word() >> 32;
        let life = Life { world, fault, seed };
        self.left = self.left.saturating_sub(life.begin().0);
        Some(life)
    }
}

/// Plays lives of this length together, or a little more, on `jobs` threads. Calls `each` after each life.
pub fn play_hours(
    length: Duration,
    seed: u64,
    jobs: usize,
    each: impl FnMut(&Tally, &Ended) + Send,
) -> Tally {
    let shared = Mutex::new((Dealer::new(length, seed), Tally::default(), each));
    let lock = || shared.lock().unwrap_or_else(PoisonError::into_inner);
    let work = || {
        loop {
            let Some(life) = lock().0.deal() else { return };
            let ended = life.play(|node| node);
            let mut guard = lock();
            let (_, tally, each) = &mut *guard;
            tally.add(&ended);
            each(tally, &ended);
        }
    };
    thread::scope(|scope| (0..jobs.max(1)).for_each(|_| drop(scope.spawn(work))));
    let (_, tally, _) = shared.into_inner().unwrap_or_else(PoisonError::into_inner);
    tally
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stretch_is_skipped_once_the_last_act_is_settled() {
        let s = Duration::from_secs;
        let mut acts = [
            (s(36_000), Act::Create(0)),
            (s(7_205), Act::Roll(0, s(30))),
            (s(7_200), Act::FreezeProxy),
        ];
        let skipped = skip_idle(&mut acts, &mut Dice::new(1));
        // Settled 150 s after boot, and 300 s after the first act.
        assert_eq!(acts.map(|(at, _)| at), [s(150), s(155), s(450)]);
        assert_eq!(skipped, s(36_000 - 450));
    }
}
