//! Runs a storm: performs the planned actions on time, records all observations, and reports the result.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use jiff::Timestamp;

use super::action::Injector;
use super::attackers::{Attackers, judge_health_port};
use super::judge::{Answered, Entry, Findings, Seen, findings_of, judge_journal};
use super::latency::{Asked, Latency};
use super::plan::{Action, Harmless, Step, Users, plan, seed_of_the_day};
use super::soak::{Soak, is_churn};
use crate::detect::Stage;
use crate::little_memory::MemoryGroup;
use crate::prelude::*;
use crate::promises::Missed;
use crate::usage;
use crate::watch::Change;

/// Interval between polls of /healthz and /livez.
const EVERY: Duration = Duration::from_millis(50);
/// Interval between collections of the clients' results.
const TICK: Duration = Duration::from_millis(100);
/// Time after the last action until all connections and answers in flight have completed.
const ECHO: Duration = Duration::from_secs(8);

/// Memory limit of the agent's container (deploy/base), in KiB.
const MEMORY: u64 = 128 * 1024;

/// A storm of faults, judged by what real clients felt
#[derive(Parser)]
#[command(args_override_self = true)]
pub struct Settings {
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
    pub(super) api: bool,
    /// Backend that does the node's NAT
    #[arg(long, default_value = "nftables")]
    pub(super) backend: Backend,
    /// Clients that use the node
    #[arg(long, default_value = "everybody")]
    pub(super) users: Users,
    /// An action that the seed has to draw, such as `Agent(Killed)`
    #[arg(long, value_name = "ACTION")]
    draws: Vec<String>,
    /// Play only what every cluster does every day, and report what the agent holds: nothing may grow
    #[arg(long)]
    soak: bool,
    /// Attackers beside all actions: abusive clients of health ports, crafted packets from outside, and a
    /// tenant whose slices claim foreign addresses
    #[arg(long)]
    attackers: bool,
    /// Write the agent's journal there; `pathproof report --from` reads the journals of several storms
    #[arg(long, value_name = "FILE")]
    journal: Option<PathBuf>,
}

/// Runs the storm, reports its course, and judges the answers.
pub fn storm(settings: &Settings) -> Result<ExitCode> {
    let seed = settings.seed;
    let seed = seed.unwrap_or_else(|| seed_of_the_day(Timestamp::now()));
    let length = Duration::try_from_secs_f64(settings.minutes * 60.0)?;
    let mut steps = plan(seed, length, settings.api);
    if settings.soak {
        steps.retain(|step| is_churn(step.action));
    }
    if settings.users != Users::Everybody {
        // Omit the tenant's actions: the tenant's pods would be additional users.
        steps.retain(|step| !matches!(step.action, Action::Tenant(_)));
    }
    let memory = MemoryGroup::new();
    if let Err(error) = &memory {
        println!("memory is never tight: {error:#}");
        steps.retain(|step| step.action != Action::Harmless(Harmless::MemoryTight));
    }
    for wanted in &settings.draws {
        let draws = |step: &Step| format!("{:?}", step.action) == *wanted;
        ensure!(
            steps.iter().any(draws),
            "seed {seed} does not draw {wanted} in this time"
        );
    }
    println!("seed {seed}: the same storm again by these options and `--seed {seed}`");
    let mut injector = Injector::build(settings, memory.ok())?;
    let attackers = settings.attackers;
    let attackers = attackers.then(|| Attackers::start(&mut injector, settings.users));
    let attackers = attackers.transpose()?;
    let watch = Watch::start(&injector.stage.world, EVERY)?;
    watch.wait(ECHO, |codes| codes.healthz == 200)?;
    let mut record = Record {
        start: Instant::now(),
        began: Timestamp::now(),
        soak: settings.soak.then(Soak::default),
        dialled: Vec::new(),
        peak_kib: 0,
    };
    record.play(&mut steps, &mut injector)?;
    let end = record.start.elapsed().max(length) + ECHO;
    record.pass(end, &injector.stage)?;
    let seen = Seen {
        steps,
        answered: record.answered(&watch),
        dialled: std::mem::take(&mut record.dialled),
        slack: Duration::try_from_secs_f64(settings.slack)?,
        users: settings.users,
    };
    let mut findings = findings_of(&seen);
    let latency = Latency::of(&seen, &record.asked(&watch));
    if let Some(attackers) = &attackers {
        let answered = record.answered(&attackers.health_port);
        judge_health_port(&seen, answered, &mut findings);
        latency.accuse(&mut findings);
    }
    let held = record.peak_kib;
    if held > MEMORY {
        let what = format!("the agent held {held} KiB of memory, and may have {MEMORY}");
        findings.accuse(end, what);
    }
    let sound = |codes: Codes| codes.healthz == 200 && codes.livez == 200;
    // While the tenant's clients dial, their Service is named as misrouted, and the node is degraded at 200.
    drop(attackers);
    let settled = injector.stage.settle();
    if let Err(error) = settled.and_then(|()| watch.wait(ECHO, sound)) {
        let what = format!("everything is mended, and not sound again: {error:#}");
        findings.accuse(end, what);
    }
    let entries = journal(settings, &injector.stage, record.began)?;
    judge_journal(&seen, &entries, &mut findings);
    if !findings.violations.is_empty() {
        keep(seed, &injector.stage, &seen.answered)?;
    }
    let mut missed = report(&findings, &seen);
    let entries = entries.len();
    println!("{entries} episodes in the journal");
    println!("{held} KiB of memory held at most");
    println!("{latency}");
    if let Some(soak) = &record.soak {
        soak.report(&injector.stage, length, &mut missed);
    }
    Ok(missed.close())
}

struct Record {
    start: Instant,
    /// The same moment by the wall clock, as in the journal.
    began: Timestamp,
    soak: Option<Soak>,
    /// Connections: when each began, and whether it was answered.
    dialled: Vec<(Duration, bool)>,
    /// Maximum memory of any agent, in KiB.
    peak_kib: u64,
}

impl Record {
    /// Performs the planned actions, and replaces their planned times by the actual ones.
    fn play(&mut self, steps: &mut [Step], injector: &mut Injector) -> Result<()> {
        let ends =
            |(number, step): (usize, &Step)| [(step.from, number, false), (step.to, number, true)];
        let mut moments: Vec<_> = steps.iter().enumerate().flat_map(ends).collect();
        moments.sort();
        let lasts: Vec<Duration> = steps.iter().map(|step| step.to - step.from).collect();
        for (at, number, is_over) in moments {
            let step = &mut steps[number];
            // An action that began late, because the one before it took long, still lasts its full time: a
            // fault that is repaired early cannot be judged.
            let at = match is_over {
                true => at.max(step.from + lasts[number]),
                false => at,
            };
            self.pass(at, &injector.stage)?;
            injector.check()?;
            let word = match is_over {
                true => {
                    injector.end(step.action)?;
                    step.to = self.start.elapsed();
                    "over"
                }
                false => {
                    step.from = self.start.elapsed();
                    injector.begin(step.action)?;
                    "begun"
                }
            };
            let now = self.start.elapsed().as_secs_f64();
            println!("{now:>7.1} s  {:?}: {word}", step.action);
        }
        Ok(())
    }

    /// Waits until this time and records observations meanwhile.
    fn pass(&mut self, until: Duration, stage: &Stage) -> Result<()> {
        loop {
            let ended = stage.clients.iter().flat_map(Client::take_ended);
            let start = self.start;
            let dialled = ended.map(|one| (one.begun.saturating_duration_since(start), one.ok));
            self.dialled.extend(dialled);
            // An agent that was just killed reports no memory; count it as zero.
            let memory = usage::memory(stage.agent.pid()).unwrap_or_default();
            self.peak_kib = self.peak_kib.max(memory.peak_kib);
            if let Some(soak) = &mut self.soak {
                soak.look(self.start.elapsed(), stage)?;
            }
            let left = until.saturating_sub(self.start.elapsed());
            if left.is_zero() {
                return Ok(());
            }
            thread::sleep(left.min(TICK));
        }
    }

    /// The poller's requests since the start of the storm.
    fn asked(&self, watch: &Watch) -> Vec<Asked> {
        let requests = watch.requests().into_iter();
        let begun = requests.filter(|request| request.sent >= self.start);
        let since = |sent: Instant| sent.saturating_duration_since(self.start);
        begun.map(|one| (since(one.sent), one.took)).collect()
    }

    fn answered(&self, watch: &Watch) -> Vec<Answered> {
        let changes = watch.changes();
        let since = |change: &Change| change.at.saturating_duration_since(self.start);
        let ends = changes
            .iter()
            .skip(1)
            .map(since)
            .chain([self.start.elapsed()]);
        let answered = changes.iter().zip(ends);
        let answered = answered.map(|(change, to)| {
            let (from, codes) = (since(change), change.codes);
            Answered { from, to, codes }
        });
        answered.collect()
    }
}

/// The episodes of the agent's journal, which is also written to the file that the settings name.
fn journal(settings: &Settings, stage: &Stage, began: Timestamp) -> Result<Vec<Entry>> {
    let mut report = stage.agent.command(&["report", "--output", "json"]);
    let text = report.output().context("run `pathproof report`")?.stdout;
    if let Some(file) = &settings.journal {
        fs::write(file, &text).with_context(|| format!("write {}", file.display()))?;
    }
    let journals: Value = serde_json::from_slice(&text).context("`pathproof report`")?;
    Entry::all(&journals[0], began)
}

/// Saves the recording, the log and the answers, by which wrong answers can be explained.
fn keep(seed: u64, stage: &Stage, answered: &[Answered]) -> Result<()> {
    let file = std::env::temp_dir().join(format!("storm-{seed}.pathproof"));
    let path = file.to_string_lossy();
    let mut record = stage.agent.command(&["record", "--output", &path]);
    if record.status().is_ok_and(|status| status.success()) {
        println!("recorded: pathproof replay {path}");
    }
    let log = file.with_extension("log");
    fs::write(&log, stage.agent.log())?;
    println!("the agent's log: {}", log.display());
    println!("what was answered at /healthz and /livez:");
    for Answered { from, codes, .. } in answered {
        println!("{from:>9.1?}  {} {}", codes.healthz, codes.livez);
    }
    Ok(())
}

fn report(findings: &Findings, seen: &Seen) -> Missed {
    let failed = seen.dialled.iter().filter(|(_, ok)| !ok).count();
    let all = seen.dialled.len();
    println!("\n{all} connections, {failed} of them failed");
    let (detected, told) = (&findings.detected, findings.detected.count());
    let [median, longest] = [50, 100].map(|percent| detected.rank(percent).unwrap_or_default());
    println!("{told} faults told by 503, after {median:.2?} (median) and {longest:.2?} (longest)");
    let unjudged = listed("faults could not be judged", &findings.unjudged);
    let wrong = listed("wrong answers", &findings.violations);
    let mut missed = Missed::default();
    missed.record(format!("no wrong answer ({wrong})"), wrong.is_empty());
    missed.record(
        format!("80 % of the faults judged ({unjudged})"),
        !findings.are_blind(),
    );
    let alert = format!(
        "503 at /livez wrong for 40 % of the time ({} %)",
        findings.alert
    );
    println!("{alert}");
    missed.record(alert, findings.were_alert());
    missed
}

/// Prints these entries under a heading with their number, and returns them as one line.
fn listed(name: &str, moments: &[(Duration, String)]) -> String {
    println!("{} {name}", moments.len());
    let line = |(at, what): &(Duration, String)| format!("at {at:.1?}: {what}");
    let lines: Vec<String> = moments.iter().map(line).collect();
    lines.iter().for_each(|line| println!("  {line}"));
    lines.join("; ")
}
