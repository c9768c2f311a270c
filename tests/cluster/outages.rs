//! Total outages that kube-proxy's health server does not report, with a real kube-proxy and API server.
//! There are three faults for each kind of users. Each must be answered with 503 within its limit
//! (docs/internal/judgement.md), and explained by `pathproof why`. The negative controls are in `controls`.

use std::fmt;

use node_tests::cluster::Process;
use node_tests::outage::{Explanation, Felt, Words};
use node_tests::prelude::*;

use crate::scene::{PATIENCE, Scene};
use crate::uses::{AtWork, Use, rotator};

/// Additional time that a busy machine may need.
const SPARE: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// A filter in front of kube-proxy's rules drops everything that the node forwards.
    ForwardDropped,
    /// The node's routes to all local and remote pods are removed.
    RoutesRemoved,
    /// kube-proxy is frozen, and an endpoint whose pod is dead is replaced in the API.
    ProxyFrozen,
}

impl Fault {
    const ALL: [Self; 3] = [Self::ForwardDropped, Self::RoutesRemoved, Self::ProxyFrozen];

    /// Maximum time to 503, counted from the first connection that fails.
    fn limit(self) -> Duration {
        Duration::from_secs(match self {
            Self::ForwardDropped => 4,
            Self::RoutesRemoved => 5,
            Self::ProxyFrozen => 25,
        })
    }

    /// Injects the fault. Returns the routes that the repair has to restore.
    fn inject(self, scene: &mut Scene) -> Vec<String> {
        match self {
            Self::ForwardDropped => scene.world.block_forwarding(true).expect("a filter"),
            Self::RoutesRemoved => return scene.world.cut_pod_routes().expect("cut routes"),
            Self::ProxyFrozen => {
                scene.proxy().freeze();
                scene.replace("api", "api-1", "spare");
                scene.servers.remove("api-1");
                // In iptables mode the pod is removed with its device. In nftables mode only its server ends.
                if scene.mode == Mode::Iptables {
                    scene.world.remove_pod("api-1").expect("remove a pod");
                }
            }
        }
        Vec::new()
    }

    fn repair(self, scene: &Scene, cut: &[String]) {
        match self {
            Self::ForwardDropped => scene.world.block_forwarding(false).expect("no filter"),
            Self::RoutesRemoved => scene.world.mend_pod_routes(cut).expect("mend routes"),
            Self::ProxyFrozen => scene.proxy().thaw(),
        }
    }

    fn restore(self, scene: &mut Scene) {
        if self == Self::ProxyFrozen {
            if scene.mode == Mode::Iptables {
                scene.world.add_pod("api-1", Place::Local).expect("a pod");
            }
            scene.serve("api-1");
            scene.replace("api", "spare", "api-1");
        }
    }

    /// Parts that the explanation by `why` must contain, with alternative words for each.
    fn words(self, users: Use) -> Vec<Words> {
        const PAGE: [Words; 2] = [&["/healthz answers 503"], &[" ago", " for ", "since"]];
        const OUTSIDE: Words = &["outside"];
        const NOTHING: Words = &["succeeded since"];
        let mut words = PAGE.to_vec();
        match self {
            Self::ForwardDropped => words.extend([&["forward", "lost", "dropped"], NOTHING]),
            Self::RoutesRemoved => words.extend([&["misrouted", "route", "device"], NOTHING]),
            Self::ProxyFrozen => words.push(&["stale", "removed"]),
        }
        words.push(&["demo/api"]);
        if self != Self::ProxyFrozen {
            words.push(&["demo/web"]);
        }
        words.push(OUTSIDE);
        match users {
            Use::PodProbe if self != Self::ProxyFrozen => {
                words.push(&["pod probe", "pathproof-echo"])
            }
            Use::OnePod if self != Self::ProxyFrozen => words.push(&["pod"]),
            _ => {}
        }
        words
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ForwardDropped => "everything forwarded is dropped",
            Self::RoutesRemoved => "routes to pods removed",
            Self::ProxyFrozen => "kube-proxy frozen, an endpoint replaced",
        })
    }
}

/// One outage and how it was judged.
struct Cell {
    name: String,
    limit: Duration,
    /// Time from the first failed connection to 503.
    seen: Option<Duration>,
    felt: Felt,
    why: Explanation,
}

struct Outages {
    watch: Watch,
    _rotator: Process,
    scene: Scene,
}

impl Outages {
    fn start(mode: Mode) -> Needed<Self> {
        let scene = Scene::proven(mode, &["--flap-dwell", "0"])?;
        let rotator = rotator(&scene);
        thread::sleep(settled());
        Ok(Self {
            watch: scene.watch_healthy(),
            _rotator: rotator,
            scene,
        })
    }

    /// Injects and repairs one fault while these users connect.
    fn run(&mut self, users: Use, at_work: &AtWork, fault: Fault) -> Cell {
        at_work.users.wait_served();
        self.scene.wait_proven();
        wait_answers(&self.watch, 200);
        let name = format!("{}, {users}: {fault}", self.scene.mode.name());
        let limit = fault.limit();

        let since = Instant::now();
        let cut = fault.inject(&mut self.scene);
        let is_503 = self.watch.wait(limit + SPARE, |codes| codes.healthz == 503);
        let why = || self.scene.agent().command(&["why"]);
        let why = Explanation::read(why, &fault.words(users));
        let felt = at_work.users.felt(since);
        let begun = felt.first_failure.unwrap_or(since);
        let cell = Cell {
            name,
            limit,
            seen: is_503.ok().map(|at| at.saturating_duration_since(begun)),
            felt,
            why,
        };
        if cell.seen.is_none() {
            let name = cell.name.replace([' ', ',', ':'], "-");
            self.scene.agent().keep_recording_as(&name);
        }

        fault.repair(&self.scene, &cut);
        let repaired = Instant::now();
        let is_200 = self.watch.wait(PATIENCE, |codes| codes.healthz == 200);
        let back =
            is_200.unwrap_or_else(|error| panic!("{}: never 200 again: {error:#}", cell.name));
        fault.restore(&mut self.scene);
        cell.print(back.saturating_duration_since(repaired));
        cell
    }
}

impl Cell {
    fn print(&self, back: Duration) {
        let limit = self.limit.as_secs();
        let seen = match self.seen {
            Some(seen) => format!("503 after {:.1} s", seen.as_secs_f64()),
            None => "200 throughout".to_owned(),
        };
        eprintln!(
            "MEASURED {}: {seen}, limit {limit} s; users {}; 200 after {:.1} s from the repair",
            self.name,
            self.felt,
            back.as_secs_f64(),
        );
    }

    /// Describes an error in the agent's verdict or explanation, if there is one.
    fn wrong(&self) -> Option<String> {
        let Self {
            name, seen, why, ..
        } = self;
        let (page, missing) = (&why.page, &why.missing);
        if seen.is_none_or(|seen| seen > scaled(self.limit) + SPARE) {
            return Some(format!("{name}: 503 after {seen:?}\n{page}"));
        }
        (!missing.is_empty()).then(|| format!("{name}: why names none of {missing:?}\n{page}"))
    }
}

/// Causes these outages one after another in one world.
fn assert_outages(mode: Mode, cells: &[(Use, &[Fault])]) {
    let mut outages = needs!(Outages::start(mode));
    let mut all = Vec::new();
    for (users, faults) in cells {
        let at_work = AtWork::start(&mut outages.scene, *users);
        // Wait, because failures of a client count only after the node has known the client for some time.
        thread::sleep(Duration::from_secs(3));
        all.extend(
            faults
                .iter()
                .map(|fault| outages.run(*users, &at_work, *fault)),
        );
    }
    for cell in &all {
        assert!(cell.felt.all > 0, "{}: nobody dialled", cell.name);
        assert!(
            cell.felt.percent() < 75.0,
            "{}: users {}",
            cell.name,
            cell.felt
        );
    }
    let wrong: Vec<String> = all.iter().filter_map(Cell::wrong).collect();
    assert!(
        wrong.is_empty(),
        "{} of {}:\n{}",
        wrong.len(),
        all.len(),
        wrong.join("\n")
    );
}

#[test]
fn forwarding_dropped_and_a_frozen_proxy_are_503() {
    let cells: [(Use, &[Fault]); 2] = [
        (Use::Outside, &[Fault::ForwardDropped]),
        (Use::OnePod, &[Fault::ProxyFrozen]),
    ];
    assert_outages(Mode::Nftables, &cells);
}

#[test]
fn removed_routes_are_503() {
    let cells: [(Use, &[Fault]); 1] = [(Use::PodProbe, &[Fault::RoutesRemoved])];
    assert_outages(Mode::Iptables, &cells);
}

/// `cargo xtask test --uses` runs this.
mod nightly {
    use super::*;

    #[rstest]
    #[case::nftables(Mode::Nftables)]
    #[case::iptables(Mode::Iptables)]
    fn each_fault_is_503_to_each_user(#[case] mode: Mode) {
        let cells = Use::ALL.map(|users| (users, &Fault::ALL[..]));
        assert_outages(mode, &cells);
    }
}
