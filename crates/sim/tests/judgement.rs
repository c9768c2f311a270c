//! The two tables of docs/internal/judgement.md: each use of a node with each fault, and with each healthy
//! world. The simulations know the truth.
//!
//! The normal run plays a part of the runs. With `PATHPROOF_SEEDS=200` each cell is played with each choice
//! of families and 200 seeds, which takes hours without `--release`.

mod parts {
    pub(crate) mod known_wrong;
}

use std::collections::BTreeSet;

use parts::known_wrong::KNOWN_WRONG;
use pathproof_sim::cells::{Played, all, dealt, play_all};

const THREADS: usize = 2;

fn played() -> Vec<Played> {
    let seeds = std::env::var("PATHPROOF_SEEDS").ok();
    let runs = match seeds.map(|seeds| seeds.parse()) {
        Some(Ok(seeds)) => all(seeds),
        Some(Err(error)) => panic!("PATHPROOF_SEEDS is no number: {error}"),
        None => dealt(),
    };
    play_all(&runs, THREADS)
}

#[test]
fn every_cell_is_right_except_the_known_wrong_ones() {
    let known: BTreeSet<_> = KNOWN_WRONG
        .iter()
        .flat_map(|(row, uses)| uses.iter().map(move |used| (*row, *used)))
        .collect();
    let (mut wrong, mut mended, mut met) = (Vec::new(), Vec::new(), BTreeSet::new());
    for cell in played() {
        let name @ (row, used) = cell.cell.name();
        met.insert(name);
        match (cell.wrong(), known.contains(&name)) {
            (Some(why), false) => wrong.push(format!("{row} / {used}: {why}")),
            (None, true) => mended.push(format!("{row} / {used}")),
            _ => {}
        }
    }
    let no_cells: Vec<_> = known.difference(&met).collect();
    assert!(
        wrong.is_empty() && mended.is_empty() && no_cells.is_empty(),
        "{} cells are wrong:\n  {}\n{} cells are right now, remove them from KNOWN_WRONG:\n  {}\nno such cells: {no_cells:?}",
        wrong.len(),
        wrong.join("\n  "),
        mended.len(),
        mended.join("\n  "),
    );
}
