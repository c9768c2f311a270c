//! Runs of cells: the families and seeds of each cell, and many runs on all processors. `play` defines what
//! a run does.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::{Cell, Families, Outcome, fault_cells, play, world_cells};

#[derive(Clone, Copy, Debug)]
pub struct Run {
    pub cell: Cell,
    pub families: Families,
    pub seed: u64,
}

/// A cell with the outcomes of all its runs.
#[derive(Clone, Debug)]
pub struct Played {
    pub cell: Cell,
    pub runs: Vec<(Run, Outcome)>,
}

impl Played {
    /// Description of the first unexpected run.
    pub fn wrong(&self) -> Option<String> {
        let mut runs = self.runs.iter();
        runs.find_map(|(run, outcome)| {
            let wrong = outcome.wrong.as_ref()?;
            let families = run.families.name;
            Some(format!("{wrong} ({families}, seed {})", run.seed))
        })
    }
}

/// Every cell with every choice of families, with this seed.
pub fn with_seed(seed: u64) -> Vec<Run> {
    let cells = fault_cells().chain(world_cells());
    let runs = cells.flat_map(|cell| {
        cell.families().map(move |families| Run {
            cell,
            families,
            seed,
        })
    });
    runs.collect()
}

/// A subset that takes half a minute: every cell with five seeds, each with another choice of families.
pub fn dealt() -> Vec<Run> {
    let cells = fault_cells().chain(world_cells());
    let runs = cells.flat_map(|cell| {
        let families: Vec<Families> = cell.families().collect();
        (1..=5_u64)
            .zip(families.into_iter().cycle())
            .map(move |(seed, families)| Run {
                cell,
                families,
                seed,
            })
    });
    runs.collect()
}

/// Plays runs on `threads` threads and returns the outcomes grouped by cell.
pub fn play_all(runs: &[Run], threads: usize) -> Vec<Played> {
    let next = AtomicUsize::new(0);
    let outcomes: Vec<OnceLock<Outcome>> = runs.iter().map(|_| OnceLock::new()).collect();
    let work = || {
        loop {
            let place = next.fetch_add(1, Ordering::Relaxed);
            let (Some(run), Some(outcome)) = (runs.get(place), outcomes.get(place)) else {
                return;
            };
            outcome.get_or_init(|| play(run));
        }
    };
    thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(work);
        }
    });
    let mut played: Vec<Played> = Vec::new();
    for (run, outcome) in runs.iter().zip(outcomes) {
        let Some(outcome) = outcome.into_inner() else {
            continue;
        };
        let known = played
            .iter_mut()
            .find(|other| other.cell.name() == run.cell.name());
        match known {
            Some(known) => known.runs.push((*run, outcome)),
            None => played.push(Played {
                cell: run.cell,
                runs: vec![(*run, outcome)],
            }),
        }
    }
    played
}
