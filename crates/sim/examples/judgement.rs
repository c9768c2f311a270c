//! Plays every use of a node with every fault and every innocent world, and prints the tables of
//! docs/internal/judgement.md as Markdown, after a line of progress for each seed. Started by
//! `cargo xtask bench judgement`, which may pass the number of seeds.

use std::time::Duration;

use pathproof_facts::cause::State;
use pathproof_sim::cells::{Expected, FAULTS, Happens, Played, USES, WORLDS, play_all, with_seed};

const SEEDS: u64 = 5;
const THREADS: usize = 2;

fn main() {
    let named = std::env::args().nth(1).and_then(|seeds| seeds.parse().ok());
    let seeds = named.unwrap_or(SEEDS);
    let mut played: Vec<Played> = Vec::new();
    for seed in 1..=seeds {
        let more = play_all(&with_seed(seed), THREADS);
        for wrong in more.iter().filter_map(Played::wrong) {
            eprintln!("wrong: {wrong}");
        }
        match played.is_empty() {
            true => played = more,
            false => add(&mut played, more),
        }
        eprintln!("seed {seed} of {seeds} is played");
    }
    let wrong = played.iter().filter(|cell| cell.wrong().is_some()).count();
    println!(
        "Seconds to 503, or the state at 200: the worst of {seeds} seeds with each choice of families. –: nobody \
         feels it. Unseen: no hook sees it whole. **Bold** is wrong: {wrong} cells.\n"
    );
    faults(&played);
    println!();
    worlds(&played);
}

/// Adds the runs of another seed, whose cells have the same order.
fn add(played: &mut [Played], more: Vec<Played>) {
    for (known, new) in played.iter_mut().zip(more) {
        known.runs.extend(new.runs);
    }
}

/// Worst time to 503 of every use with every fault.
fn faults(played: &[Played]) {
    header("fault", &["limit"]);
    for row in &FAULTS {
        print!("|{}|{}|", row.name, row.within.as_secs_f64());
        for used in &USES {
            print!("{}|", cell(played, (row.name, used.name), fault));
        }
        println!();
    }
}

/// Worst state of every use in every innocent world, and the explanation that covers the world.
fn worlds(played: &[Played]) {
    header("innocent world", &["covered by"]);
    for row in &WORLDS {
        print!("|{}|{}|", row.name, row.covered_by);
        for used in &USES {
            print!("{}|", cell(played, (row.name, used.name), world));
        }
        println!();
    }
}

fn header(first: &str, more: &[&str]) {
    let uses = USES.map(|used| used.name).join("|");
    println!("|{first}|{}|{uses}|", more.join("|"));
    println!("|---|{}", "---|".repeat(more.len() + USES.len()));
}

/// Text of a table cell; empty if the world affects no client of this use.
fn cell(played: &[Played], name: (&str, &str), words: fn(&Played) -> String) -> String {
    let found = played.iter().find(|played| played.cell.name() == name);
    match found {
        Some(played) if played.wrong().is_some() => format!("**{}**", words(played)),
        Some(played) => words(played),
        None => String::new(),
    }
}

fn fault(played: &Played) -> String {
    let outcomes = || played.runs.iter().map(|(_, outcome)| outcome);
    let slowest = outcomes()
        .map(|outcome| outcome.failed)
        .max_by_key(|after| after.unwrap_or(Duration::MAX));
    let answer = match slowest.flatten() {
        Some(after) => format!("{:.1}", after.as_secs_f64()),
        None => mildest(played).name().to_owned(),
    };
    match outcomes().next().and_then(|outcome| outcome.expected) {
        Some(Expected::NotFelt) => "–".to_owned(),
        Some(Expected::Unseen) => "unseen".to_owned(),
        _ => answer,
    }
}

/// The mildest of the worst states of all runs.
fn mildest(played: &Played) -> State {
    let states = played.runs.iter().map(|(_, outcome)| outcome.worst);
    states.min().unwrap_or(State::Unknown)
}

fn world(played: &Played) -> String {
    let Happens::World(_) = played.cell.happens else {
        return String::new();
    };
    let failed = played
        .runs
        .iter()
        .any(|(_, outcome)| outcome.wrong.is_some());
    let worst = played.runs.iter().map(|(_, outcome)| outcome.worst).max();
    match failed {
        true => "503".to_owned(),
        false => worst.unwrap_or(State::Unknown).name().to_owned(),
    }
}
