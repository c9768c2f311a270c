//! The two tables of docs/internal/judgement.md: each use of a node with each fault, and with each healthy
//! world. The simulations know the truth.
//!
//! The normal run plays a part of the runs. With `PATHPROOF_SEEDS=200` each cell is played with each choice
//! of families and 200 seeds, which takes hours without `--release`.

use pathproof_sim::cells::{Played, dealt, play_all, with_seed};

const THREADS: usize = 2;

fn played() -> Vec<Played> {
    let seeds = std::env::var("PATHPROOF_SEEDS").ok();
    let runs = match seeds.map(|seeds| seeds.parse()) {
        Some(Ok(seeds)) => (1..=seeds).flat_map(with_seed).collect(),
        Some(Err(error)) => panic!("PATHPROOF_SEEDS is no number: {error}"),
        None => dealt(),
    };
    play_all(&runs, THREADS)
}

#[test]
fn every_cell_is_right() {
    let wrong: Vec<String> = (played().iter())
        .filter_map(|cell| {
            let (row, used) = cell.cell.name();
            Some(format!("{row} / {used}: {}", cell.wrong()?))
        })
        .collect();
    assert!(
        wrong.is_empty(),
        "{} cells are wrong:\n  {}",
        wrong.len(),
        wrong.join("\n  "),
    );
}
