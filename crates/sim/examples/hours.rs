//! Plays hours of simulated nodes, and prints what was wrong and the counts. Started by `cargo xtask sim`, which
//! documents the options.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;
use std::{env, fs};

use pathproof_sim::SimNode;
use pathproof_sim::cells::hours::{Ended, Found, Life, Tally, play_hours};

/// Maximum number of lines of progress, and of names of pairs.
const LINES: usize = 20;

fn main() -> ExitCode {
    let number = |name| option(name).and_then(|number| number.parse::<u64>().ok());
    let (hours, seed) = (number("hours").unwrap_or(1), number("seed").unwrap_or(1));
    let jobs = number("jobs").unwrap_or(1) as usize;
    let mut printed = 0;
    let mut tally = Tally::default();
    match option("case").map(|case| Life::parse(&case).ok_or(case)) {
        Some(Ok(life)) => {
            let ended = life.play(SimNode::recorded);
            tally.add(&ended);
            print_life(&ended);
        }
        Some(Err(case)) => {
            eprintln!("{case} is not a case, such as 0.0.1");
            return ExitCode::FAILURE;
        }
        None => {
            let length = Duration::from_secs(hours.saturating_mul(3_600));
            tally = play_hours(length, seed, jobs, |tally, ended| {
                if ended.found.is_wrong() {
                    print_life(&ended.life.play(SimNode::recorded));
                }
                let part = (node_hours(tally) / hours as f64 * LINES as f64) as usize;
                if part > printed {
                    printed = part;
                    eprintln!("{}", speed(tally));
                }
            });
        }
    }
    print_tally(&tally);
    ExitCode::from(u8::from(!tally.is_right()))
}

/// Value of the option `--NAME=VALUE`.
fn option(name: &str) -> Option<String> {
    let begin = format!("--{name}=");
    env::args().find_map(|word| Some(word.strip_prefix(&begin)?.to_owned()))
}

/// Prints a life, and writes its recording if a folder is named.
fn print_life(ended: &Ended) {
    println!("{:?}: {}", ended.found, ended.text);
    println!("  alone: cargo xtask sim --case {}", ended.life);
    if let Some(folder) = option("keep") {
        let file = Path::new(&folder).join(format!("{}.pathproof", ended.life));
        match fs::create_dir_all(&folder).and_then(|()| fs::write(&file, &ended.recording)) {
            Ok(()) => println!("  recording: {}", file.display()),
            Err(error) => eprintln!("cannot write {}: {error}", file.display()),
        }
    }
}

fn node_hours(tally: &Tally) -> f64 {
    tally.time.iter().sum::<Duration>().as_secs_f64() / 3_600.0
}

fn speed(tally: &Tally) -> String {
    let (all, processor) = (node_hours(tally), processor_seconds());
    let stepped = tally.time[0].as_secs_f64() / 3_600.0;
    let each = all / processor.max(0.01);
    format!(
        "{all:.0} node-hours ({stepped:.1} stepped) in {processor:.0} processor-seconds: {each:.1} in one"
    )
}

fn print_tally(tally: &Tally) {
    let count = |found| tally.found.get(&found).copied().unwrap_or_default();
    let (in_time, missed) = (count(Found::InTime), count(Found::Missed));
    let faults = in_time + missed + count(Found::NotRequired);
    println!("{}", speed(tally));
    println!("faults: {faults}; 503 within the limit: {in_time}; missed: {missed}");
    println!("false 503s: {}", count(Found::False503));
    let (all, unseen) = (Tally::default().unseen.len(), tally.unseen.len());
    println!(
        "pairs of world and fault: {} of {all} seen, not yet:",
        all - unseen
    );
    for (world, fault) in tally.unseen.iter().take(LINES) {
        println!("  {world} / {fault}");
    }
}

/// Processor time of this process. Linux counts it in hundredths of a second.
fn processor_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The program's name is in parentheses and may contain spaces.
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let times = fields.split_whitespace().skip(11).take(2);
    times
        .filter_map(|time| time.parse::<f64>().ok())
        .sum::<f64>()
        / 100.0
}
