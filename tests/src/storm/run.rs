//! Plays a storm: does what the plan says at its time, and keeps what was seen meanwhile.

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::action::{Injector, SmallDisk};
use super::api::ApiServer;
use super::judge::{self, Answered, Dialled, Findings, Seen, Spell, Violation};
use super::plan::{Action, AgentFault, Plan, Source};
use super::tenants::{self, Tenants};
use super::worlds::Worlds;
use crate::detect::{Load, Stage};
use crate::little_memory::MemoryGroup;
use crate::rules::Backend;
use crate::traffic::Ended;
use crate::usage;
use crate::watch::{Codes, Watch};

/// How often the load balancer asks.
const EVERY: Duration = Duration::from_millis(50);
/// How often the clients' results are collected.
const TICK: Duration = Duration::from_millis(100);
/// Time for everything that is still on its way when the last action is over.
const ECHO: Duration = Duration::from_secs(8);

/// Memory that the agent's container may have (deploy/base), in KiB.
const MEMORY: u64 = 128 * 1024;

/// A storm to be played.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The agent.
    pub binary: PathBuf,
    /// Who does the node's NAT.
    pub backend: Backend,
    /// Where the agent reads the cluster.
    pub source: Source,
    /// What decides everything.
    pub seed: u64,
    /// How long.
    pub length: Duration,
    /// Added to what is promised.
    pub slack: Duration,
}

impl Settings {
    /// The actions to come.
    pub fn plan(&self) -> Plan {
        Plan::of(self.seed, self.length, self.source)
    }
}

/// A moment of the plan.
#[derive(Clone, Copy, Debug)]
enum Moment {
    Begin(Action),
    End(Action),
}

/// Plays it, telling what happens, and judges.
pub fn storm(settings: &Settings) -> Result<Findings> {
    let plan = settings.plan();
    let mut injector = build(settings)?;
    let watch = Watch::start(&injector.stage.world, EVERY)?;
    watch.wait(ECHO, |codes| codes.healthz == 200)?;
    let mut record = Record::new();
    for (at, moment) in moments(&plan) {
        record.sleep_until(at, &injector.stage);
        injector.check()?;
        record.act(&mut injector, moment)?;
    }
    let end = record.start.elapsed() + ECHO;
    record.sleep_until(end, &injector.stage);
    let peak_kib = record.peak_kib;
    let seen = record.seen(&watch);
    let mut findings = judge::judge(&seen, settings.slack);
    findings.peak_kib = peak_kib;
    if peak_kib > MEMORY {
        findings.violations.push(Violation {
            at: end,
            what: format!("the agent held {peak_kib} KiB of memory, and may have {MEMORY}"),
        });
    }
    findings.connections = seen.dialled.len();
    findings.failed = seen.dialled.iter().filter(|one| !one.ok).count();
    if let Err(error) = injector.stage.settle() {
        findings.violations.push(Violation {
            at: end,
            what: format!("everything is mended, and it is not proven again: {error:#}"),
        });
    }
    let sound = |codes: Codes| codes.healthz == 200 && codes.livez == 200;
    if let Err(error) = watch.wait(ECHO, sound) {
        findings.violations.push(Violation {
            at: end,
            what: format!("everything is mended, and 200 is not answered again: {error:#}"),
        });
    }
    drop(watch);
    if !findings.violations.is_empty() {
        let file = std::env::temp_dir().join(format!("storm-{}.pathproof", settings.seed));
        let path = file.to_string_lossy().into_owned();
        let agent = injector
            .stage
            .world
            .node
            .command(&settings.binary)
            .args(["record", "--output", &path])
            .status();
        if agent.is_ok_and(|status| status.success()) {
            println!("recorded: pathproof replay {path}");
        }
        let log = file.with_extension("log");
        fs::write(&log, injector.stage.agent.log())?;
        println!("the agent's log: {}", log.display());
        println!("what was answered at /healthz and /livez:");
        for one in &seen.answered {
            let from = one.from.as_secs_f64();
            println!("{from:>7.1} s  {} {}", one.healthz, one.livez);
        }
    }
    Ok(findings)
}

fn build(settings: &Settings) -> Result<Injector> {
    // Beside the worlds' own folders, which end with the world.
    let state = SmallDisk::mount(
        std::env::temp_dir().join(format!("pathproof-storm-{}", std::process::id())),
    )?;
    let mut options: Vec<String> = [
        "--flap-dwell",
        "0",
        "--log-filter",
        "info",
        "--state-dir",
        &state.place().to_string_lossy(),
    ]
    .map(str::to_owned)
    .to_vec();
    let memory = MemoryGroup::new();
    if let Err(error) = &memory {
        println!("memory is never tight: {error:#}");
    }
    let (binary, mut api) = (settings.binary.clone(), None);
    let mut stage = Stage::build_with(
        &binary,
        settings.backend,
        Load::Busy,
        true,
        |world, manifests| {
            if settings.source == Source::ApiServer {
                let server = api.insert(ApiServer::start(world, manifests)?);
                let file = server.kubeconfig().to_string_lossy().into_owned();
                options.extend(["--kubeconfig".to_owned(), file]);
            }
            Ok(options.clone())
        },
    )?;
    let worlds = Worlds::prepare(&mut stage)?;
    let tenants = Tenants::prepare(&mut stage)?;
    if let Some(api) = &api {
        api.announce(tenants::SERVICES_FILE)?;
    }
    let mut injector = Injector::new(stage, binary, options);
    injector.worlds = Some(worlds);
    injector.tenants = Some(tenants);
    injector.state = Some(state);
    injector.memory = memory.ok();
    injector.api = api;
    // The one that stays is started in the group: servers, started before it, are not to be in there.
    injector.begin(Action::Agent(AgentFault::Killed))?;
    injector.end(Action::Agent(AgentFault::Killed))?;
    injector.stage.settle()?;
    Ok(injector)
}

/// Beginnings and ends in their order.
fn moments(plan: &Plan) -> Vec<(Duration, Moment)> {
    let both = plan.steps.iter().flat_map(|step| {
        [
            (step.at, Moment::Begin(step.action)),
            (step.at + step.lasts, Moment::End(step.action)),
        ]
    });
    let mut moments: Vec<_> = both.collect();
    moments.sort_by_key(|(at, _)| *at);
    moments
}

/// What was done and felt so far.
struct Record {
    start: Instant,
    spells: Vec<Spell>,
    /// Actions that last.
    lasting: Vec<(Action, Duration)>,
    dialled: Vec<Dialled>,
    /// Memory that an agent held at most, in KiB.
    peak_kib: u64,
}

impl Record {
    fn new() -> Self {
        Self {
            start: Instant::now(),
            spells: Vec::new(),
            lasting: Vec::new(),
            dialled: Vec::new(),
            peak_kib: 0,
        }
    }

    /// Since the start.
    fn since(&self, at: Instant) -> Duration {
        at.saturating_duration_since(self.start)
    }

    fn act(&mut self, injector: &mut Injector, moment: Moment) -> Result<()> {
        let from = self.start.elapsed();
        match moment {
            Moment::Begin(action) => {
                println!("{:>7.1} s  {action}", from.as_secs_f64());
                injector.begin(action)?;
                self.lasting.push((action, from));
            }
            Moment::End(action) => {
                injector.end(action)?;
                let to = self.start.elapsed();
                println!("{:>7.1} s  {action}: over", to.as_secs_f64());
                if let Some(place) = self.lasting.iter().position(|(one, _)| *one == action) {
                    let (action, from) = self.lasting.remove(place);
                    self.spells.push(Spell { action, from, to });
                }
            }
        }
        Ok(())
    }

    fn sleep_until(&mut self, at: Duration, stage: &Stage) {
        loop {
            self.collect(stage);
            let left = at.saturating_sub(self.start.elapsed());
            if left.is_zero() {
                return;
            }
            thread::sleep(left.min(TICK));
        }
    }

    fn collect(&mut self, stage: &Stage) {
        let ended = stage.clients.iter().flat_map(|client| client.take_ended());
        let new: Vec<Ended> = ended.collect();
        let dialled = new.into_iter().map(|one| Dialled {
            begun: self.since(one.begun),
            ok: one.ok,
        });
        let dialled: Vec<Dialled> = dialled.collect();
        self.dialled.extend(dialled);
        // One that was just killed holds nothing.
        let memory = usage::memory(stage.agent.pid()).unwrap_or_default();
        self.peak_kib = self.peak_kib.max(memory.peak_kib);
    }

    fn seen(mut self, watch: &Watch) -> Seen {
        self.dialled.sort_by_key(|one| one.begun);
        let changes = watch.changes();
        let now = self.start.elapsed();
        let ends = changes.iter().skip(1).map(|change| self.since(change.at));
        let answered = changes
            .iter()
            .zip(ends.chain([now]))
            .map(|(change, to)| Answered {
                from: self.since(change.at),
                to,
                healthz: change.codes.healthz,
                livez: change.codes.livez,
            });
        Seen {
            answered: answered.collect(),
            spells: self.spells,
            dialled: self.dialled,
        }
    }
}
