//! `cargo xtask storm`: faults, harmless things, worlds of other software and trouble for the agent at
//! the random moments of a seed, and whether the answers were right all the while.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::{Parser, ValueEnum};
use node_tests::detect::nearest_rank;
use node_tests::rules::Backend;
use node_tests::storm::{Findings, Settings, Source, seed_of_the_day, storm};
use node_tests::world::agent_binary;

/// A storm of faults, judged by what real clients felt
#[derive(Parser)]
struct Args {
    /// Seed that decides every action and its moment; default: the UTC date, as yyyymmdd
    #[arg(long)]
    seed: Option<u64>,
    /// Duration
    #[arg(long, default_value_t = 5.0, value_name = "MINUTES")]
    minutes: f64,
    /// Seconds that are added to every promise, for machines that do much else
    #[arg(long, default_value_t = 1.0, value_name = "SECONDS")]
    slack: f64,
    /// The agent reads an API server, to which its way is troubled at times
    #[arg(long)]
    api: bool,
    /// Who does the node's NAT
    #[arg(long, default_value = "nftables")]
    backend: WhichBackend,
    /// Faults that have to be told by 503: a storm in which none can be judged shows little
    #[arg(long, default_value_t = 0, value_name = "NUMBER")]
    told: usize,
    /// Words of an action that the seed has to draw, such as `agent: SIGKILL`
    #[arg(long, value_name = "ACTION")]
    draws: Vec<String>,
    /// The agent's binary; default: built beside this one
    #[arg(long)]
    agent: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum WhichBackend {
    Nftables,
    IptablesLegacy,
    IptablesNft,
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    let seed = args.seed;
    let seed = seed.unwrap_or_else(|| seed_of_the_day(jiff::Timestamp::now()));
    let settings = Settings {
        binary: args.agent.clone().map_or_else(agent_binary, Ok)?,
        backend: match args.backend {
            WhichBackend::Nftables => Backend::Nftables,
            WhichBackend::IptablesLegacy => Backend::IptablesLegacy,
            WhichBackend::IptablesNft => Backend::IptablesNft,
        },
        source: if args.api {
            Source::ApiServer
        } else {
            Source::Folder
        },
        seed,
        length: Duration::try_from_secs_f64(args.minutes * 60.0)?,
        slack: Duration::try_from_secs_f64(args.slack)?,
    };
    let drawn = settings.plan().actions();
    if let Some(missing) = args.draws.iter().find(|one| !drawn.contains(*one)) {
        bail!("seed {seed} does not draw `{missing}` in this time; it draws {drawn:?}");
    }
    let api = if args.api { " --api" } else { "" };
    let backend = args.backend.to_possible_value();
    let again = format!(
        "cargo xtask storm --seed {seed} --minutes {} --slack {} --backend {}{api}",
        args.minutes,
        args.slack,
        backend
            .as_ref()
            .map_or("nftables", |value| value.get_name()),
    );
    println!("seed {seed}: the same storm again by `{again}`");
    let findings = storm(&settings)?;
    tell(&findings);
    let told = findings.detected.len();
    if told < args.told {
        println!(
            "{told} faults were told by 503, and {} were wanted",
            args.told
        );
    } else if findings.are_blind() {
        println!("too few faults were judged: 80 % of them have to be");
    } else if findings.violations.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    println!("play it again: {again}");
    Ok(ExitCode::FAILURE)
}

fn tell(findings: &Findings) {
    let mut detected = findings.detected.clone();
    detected.sort();
    let seconds = |percent| {
        let rank = nearest_rank(&detected, percent);
        rank.map_or_else(
            || "-".to_owned(),
            |time| format!("{:.2}", time.as_secs_f64()),
        )
    };
    println!(
        "\n{} connections, {} of them failed",
        findings.connections, findings.failed
    );
    println!(
        "{} faults told by 503, after {} s (median) and {} s (longest); {} could not be judged",
        detected.len(),
        seconds(50),
        seconds(100),
        findings.unjudged.len()
    );
    for (at, why) in &findings.unjudged {
        println!("  at {:.1} s: {why}", at.as_secs_f64());
    }
    println!("{} KiB of memory held at most", findings.peak_kib);
    println!("{} wrong answers", findings.violations.len());
    for violation in &findings.violations {
        println!("  {violation}");
    }
}
