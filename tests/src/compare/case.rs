//! Cases: a use of the judgement tables with a fault or an innocent world, as the simulator plays it on the
//! Services and clients of `stage`. Nothing here touches the kernel.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use pathproof_sim::cells::{FAULTS, Happens, USES, Use, WORLDS};
use pathproof_sim::{BEGIN, Client, Dice, ServiceSpec, SimNode, Span, Stack, Stream, World};
use pathproof_wire::service::Family;

use super::history::{History, Moment};
use super::pairs::paired;
use super::pods::{LOCAL, NAMESPACES, PROBES, REMOTE};

/// Source addresses of clients outside. Uses with more clients share these.
const OUTSIDERS: u8 = 3;

/// Families in which a fault happens: both, or one.
const ONLY: [Option<Family>; 3] = [None, Some(Family::V4), Some(Family::V6)];
/// Number of simulations of a case: enough for most orders in which clients, probes and samples can meet.
const SEEDS: u64 = 32;
/// Time from the agent's start to the event, as in the tables. Failures of the node itself count only after 2 min.
const WARM: Span = (Duration::from_secs(20), Duration::from_secs(22));
pub(super) const WARM_FOR_HOST: Span = (Duration::from_secs(124), Duration::from_secs(126));
/// Time after the limit of a fault.
const SPARE: Duration = Duration::from_secs(5);
/// Minimum time to watch a fault.
const WATCHED: Duration = Duration::from_secs(20);
/// Time to watch an innocent world. Parts of some begin after 10 s.
const INNOCENT: Duration = Duration::from_secs(25);

/// A case, by its indices in the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Case {
    /// Index in [`USES`].
    used: usize,
    /// Index in [`FAULTS`], and after these in [`WORLDS`].
    row: usize,
    /// Index in [`ONLY`].
    only: usize,
}

impl Case {
    /// All cases that the namespaces can play.
    pub fn all() -> Vec<Self> {
        let rows = FAULTS.len() + WORLDS.len();
        let mut all = Vec::new();
        for used in 0..USES.len() {
            for row in 0..rows {
                all.extend((0..ONLY.len()).map(|only| Self { used, row, only }));
            }
        }
        all.retain(Self::is_playable);
        all
    }

    /// This number of cases. None of them repeats before all were drawn.
    pub fn draw(seed: u64, number: usize) -> Vec<Self> {
        let mut all = Self::all();
        fastrand::Rng::with_seed(seed).shuffle(&mut all);
        all.into_iter().cycle().take(number).collect()
    }

    /// The case with these names of the tables, in both families.
    pub fn named(used: &str, happening: &str) -> Option<Self> {
        let mut all = Self::all().into_iter();
        all.find(|case| case.only == 0 && (case.used().name, case.happening()) == (used, happening))
    }

    fn used(&self) -> &'static Use {
        &USES[self.used]
    }

    fn happens(&self) -> Happens {
        match self.row.checked_sub(FAULTS.len()) {
            None => Happens::Fault(&FAULTS[self.row]),
            Some(world) => Happens::World(&WORLDS[world]),
        }
    }

    fn happening(&self) -> &'static str {
        match self.happens() {
            Happens::Fault(row) => row.name,
            Happens::World(row) => row.name,
        }
    }

    /// Use, fault or world, and the family if there is one.
    pub fn name(&self) -> String {
        let family =
            ONLY[self.only].map_or_else(String::new, |family| format!(", {family:?} alone"));
        format!("{} / {}{family}", self.used().name, self.happening())
    }

    /// Whether the tables have the case, and the namespaces have everything in it: the row changes nothing but
    /// what clients do, and each of its acts has a pair.
    fn is_playable(&self) -> bool {
        let exists = match self.happens() {
            Happens::Fault(row) => self.only == 0 || row.is_of_family(),
            Happens::World(row) => self.only == 0 && row.touches(self.used()),
        };
        let (before, after) = (scene(self.used()), self.world(Duration::ZERO));
        exists
            && is_same_scene(&before, &after)
            && after.acts.iter().all(|(_, act)| paired(act).is_some())
    }

    /// The simulated world, in which the event happens at this time.
    pub(super) fn world(&self, at: Duration) -> World {
        let scene = scene(self.used());
        let mut world = match self.happens() {
            Happens::Fault(row) => row.begin(scene, at, ONLY[self.only]),
            Happens::World(row) => row.begin(scene, at),
        };
        world.acts.sort_by_key(|(at, _)| *at);
        world
    }

    /// Whether the node itself dials.
    pub(super) fn has_host(&self) -> bool {
        let streams = scene(self.used()).streams;
        streams.iter().any(|stream| stream.client == Client::Host)
    }

    /// Time from the event to the end of both histories.
    pub(super) fn watched(&self) -> Duration {
        match self.happens() {
            Happens::Fault(row) => WATCHED.max(row.within + SPARE),
            Happens::World(_) => INNOCENT,
        }
    }

    /// The histories that the simulator has for the case.
    pub fn simulated(&self) -> Vec<History> {
        (0..SEEDS).map(|seed| self.simulate(seed)).collect()
    }

    fn simulate(&self, seed: u64) -> History {
        let warm = if self.has_host() { WARM_FOR_HOST } else { WARM };
        let at = Dice::new(seed).between(warm);
        let mut node = SimNode::new(0, self.world(at), seed);
        node.run(at + self.watched());
        let answers = node.answers();
        let begin = BEGIN.plus(at);
        let first = answers.iter().rposition(|answer| answer.at <= begin);
        let answers = answers.iter().skip(first.unwrap_or_default());
        History::of(answers.map(|answer| Moment {
            state: answer.state,
            livez: answer.livez,
            cause: answer.cause,
        }))
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.used, self.row, self.only)
    }
}

impl FromStr for Case {
    type Err = String;

    /// Reads the text that `Display` writes.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut all = Self::all().into_iter();
        let found = all.find(|case| case.to_string() == text);
        found.ok_or_else(|| format!("{text} is no case that namespaces can play, such as 0.0.0"))
    }
}

/// The world of a use with the Services and clients of `stage`: nobody rotates the sentinel, and pods of other
/// nodes are behind the uplink.
fn scene(used: &Use) -> World {
    let world = used.world(Stack::Dual);
    let mut free: Vec<usize> = (0..NAMESPACES.len()).collect();
    let mut places = Vec::new();
    for namespace in used.services {
        let found = free
            .iter()
            .position(|place| NAMESPACES[*place] == *namespace);
        places.push(free.remove(found.expect("Services for every use")));
    }
    // The pod probe's Service is the last one.
    places.push(NAMESPACES.len());
    let services = NAMESPACES.map(|namespace| ServiceSpec::new(namespace, LOCAL, REMOTE));
    let probe = used
        .pod_probe
        .then(|| ServiceSpec::pod_probe(PROBES.len() - 1));
    let mut streams: Vec<Stream> = Vec::new();
    for mut stream in world.streams {
        stream.service = places[stream.service];
        if let Client::Outsider(number) = stream.client {
            stream.client = Client::Outsider(number % OUTSIDERS);
        }
        let is_same = |other: &&mut Stream| {
            (other.client, other.service, other.family)
                == (stream.client, stream.service, stream.family)
        };
        match streams.iter_mut().find(is_same) {
            Some(other) => other.every = together(other.every, stream.every),
            None => streams.push(stream),
        }
    }
    World {
        services: services.into_iter().chain(probe).collect(),
        streams,
        rotation: None,
        overlay: false,
        ..world
    }
}

/// Interval of one stream with the rate of two.
fn together(one: Duration, other: Duration) -> Duration {
    let rate = 1.0 / one.as_secs_f64() + 1.0 / other.as_secs_f64();
    Duration::from_secs_f64(1.0 / rate)
}

/// Whether a row left everything as it was except acts, and clients that it may have removed.
fn is_same_scene(before: &World, after: &World) -> bool {
    let rest = |world: &World| {
        let world = World {
            acts: Vec::new(),
            streams: Vec::new(),
            ..world.clone()
        };
        format!("{world:?}")
    };
    rest(before) == rest(after) && after.streams.len() <= before.streams.len()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn rate(streams: &[Stream]) -> f64 {
        let rates = streams.iter();
        rates.map(|stream| 1.0 / stream.every.as_secs_f64()).sum()
    }

    #[test]
    fn fewer_addresses_dial_as_often() {
        for used in &USES {
            let (table, scene) = (used.world(Stack::Dual), scene(used));
            let difference = rate(&table.streams) - rate(&scene.streams);
            assert!(difference.abs() < 1e-3, "{}", used.name);
            let places = scene.services.len();
            assert!(scene.streams.iter().all(|stream| stream.service < places));
        }
    }

    /// docs/internal/simulation.md lists the faults and worlds that are not played.
    #[test]
    fn most_faults_and_worlds_without_new_objects_are_played() {
        let rows: BTreeSet<usize> = Case::all().iter().map(|case| case.row).collect();
        let faults = rows.iter().filter(|row| **row < FAULTS.len()).count();
        assert_eq!((faults, rows.len() - faults), (13, 24));
        let uses: BTreeSet<usize> = Case::all().iter().map(|case| case.used).collect();
        assert_eq!(uses.len(), USES.len());
        assert_eq!(Case::named("idle", "conntrack full"), None);
    }

    #[test]
    fn a_case_is_read_as_it_is_written() {
        for case in Case::draw(3, 50) {
            assert_eq!(case.to_string().parse::<Case>(), Ok(case));
        }
        let case = Case::named("many", "rules flushed").expect("a case");
        assert_eq!(case.name(), "many / rules flushed");
        assert!("99.0.0".parse::<Case>().is_err());
    }

    #[test]
    fn a_seed_draws_each_case_once() {
        let all = Case::all().len();
        let drawn = Case::draw(1, all);
        assert_eq!(drawn.iter().collect::<BTreeSet<_>>().len(), all);
        assert_eq!(Case::draw(1, 20), drawn[..20]);
        assert_ne!(Case::draw(2, 20), drawn[..20]);
    }
}
