//! `cargo xtask test --kernels`: tests on a real kernel again, on other kernels, each in a small
//! virtual machine (docs/adr/0020-kernels-in-machines.md).
//!
//! A test that fails there fails here. A machine that never came to its first program is tried once
//! more, and then an error of this task.

mod control_plane;
mod initramfs;
mod machine;
mod package;
mod page;
mod payload;
mod selection;
mod userland;

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::image::Arch;
use crate::tally::{Counted, Reader, Tally};
use machine::{End, Line, Machine};
use package::{Kernel, Unpacked};
use page::{Feature, Found};
use payload::{FEATURES, Payload};

/// MiB of a machine; the archives lie in it, twice while they are unpacked.
const MEMORY: u32 = 1280;
/// Maximum run time of one machine.
const PATIENCE: Duration = Duration::from_secs(1800);
/// The same with a whole Kubernetes.
const MEMORY_OF_KUBERNETES: u32 = 4096;
const PATIENCE_FOR_KUBERNETES: Duration = Duration::from_secs(3600);
/// The kernel for it: cgroup version 2 is all that it has of memory.
const OF_KUBERNETES: &str = "6.12-cloud";

/// The requested run.
#[derive(Debug, Default)]
pub(crate) struct Wanted<'a> {
    /// Names of kernels; none stands for the usual ones.
    pub(crate) kernels: &'a [String],
    /// Run only tests whose name contains this, whether chosen or not.
    pub(crate) filter: Option<&'a str>,
    /// Writes docs/kernels.md instead of holding it against what was found.
    pub(crate) write_page: bool,
    /// A whole Kubernetes in each machine, and the tests on that alone.
    pub(crate) install: bool,
}

/// Runs it: the sum, and the tests that were skipped with their reasons.
pub(crate) fn run(wanted: &Wanted<'_>) -> Result<(Tally, Vec<String>)> {
    let kernels = match wanted.kernels {
        [] if wanted.install => package::chosen(&[OF_KUBERNETES.to_owned()])?,
        names => package::chosen(names)?,
    };
    let arches: BTreeSet<Arch> = kernels.iter().map(|kernel| kernel.arch).collect();
    let arches: Vec<Arch> = arches.into_iter().collect();
    initramfs::install_packages(&arches)?;
    let payloads: Vec<Payload> = arches
        .into_iter()
        .map(|arch| payload::build(arch, wanted.install))
        .collect::<Result<_>>()?;
    let kernels: Vec<Unpacked> = kernels
        .into_iter()
        .map(Kernel::ready)
        .collect::<Result<_>>()?;
    // Side by side: each waits for packets much of the time.
    let found: Vec<Found> = thread::scope(|scope| {
        let runs: Vec<_> = kernels
            .iter()
            .map(|kernel| {
                let of_arch = |payload: &&Payload| payload.arch == kernel.kernel.arch;
                let payload = payloads.iter().find(of_arch);
                scope.spawn(move || {
                    let payload = payload.context("programs of each architecture")?;
                    on(kernel, payload, wanted.filter)
                })
            })
            .collect();
        let ended = runs.into_iter().map(|run| {
            run.join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        ended.collect::<Result<_>>()
    })?;
    let mut sum = Tally::default();
    let mut skipped = Vec::new();
    for one in &found {
        println!(
            "[{}] {}: {:.0} s, {} MiB, {}",
            one.kernel.name, one.package, one.seconds, one.memory, one.tally
        );
        let name = one.kernel.name;
        sum += one.tally;
        skipped.extend(one.skipped.iter().map(|line| format!("[{name}] {line}")));
    }
    if wanted.filter.is_none() && wanted.kernels.is_empty() && !wanted.install {
        sum += page(&found, wanted.write_page)?;
    }
    Ok((sum, skipped))
}

/// The page written, or held against what was found, which counts as a test.
fn page(found: &[Found], write: bool) -> Result<Tally> {
    if write {
        page::write(found)?;
        return Ok(Tally::default());
    }
    Ok(match page::differences(found)?.as_slice() {
        [] => Tally::PASSED,
        differences => {
            for difference in differences {
                println!("docs/kernels.md: {difference}");
            }
            println!("if that is right: cargo xtask test --kernels --write-docs");
            Tally::FAILED
        }
    })
}

/// One kernel; a boot that comes to nothing is tried twice.
fn on(kernel: &Unpacked, payload: &Payload, filter: Option<&str>) -> Result<Found> {
    let control_plane = payload.control_plane(kernel.kernel, filter)?;
    let mut machine = Machine {
        kernel,
        archives: vec![
            initramfs::base(kernel, &payload.userland)?,
            payload.jobs(kernel, filter, control_plane.as_ref())?,
        ],
        disk: None,
        namespace: control_plane.as_ref().map(|one| one.namespace.clone()),
        memory: MEMORY,
        patience: PATIENCE,
    };
    match payload.install {
        true => {
            machine.disk = Some(payload.archive.clone());
            machine.memory = MEMORY_OF_KUBERNETES;
            machine.patience = PATIENCE_FOR_KUBERNETES;
        }
        false => machine.archives.push(payload.archive.clone()),
    }
    for _ in 0..2 {
        if let Some(mut found) = once(&machine)? {
            let skipped = payload.skipped(kernel.kernel, filter)?;
            found.tally.skipped += skipped.len();
            found.skipped.extend(skipped);
            return Ok(found);
        }
        let name = kernel.kernel.name;
        eprintln!("[{name}] came to no program:\n{}", machine.last_words());
    }
    bail!("the kernel {} does not boot", kernel.kernel.name)
}

/// One run; nothing if it came to no program.
fn once(machine: &Machine<'_>) -> Result<Option<Found>> {
    let kernel = machine.kernel;
    let name = kernel.kernel.name;
    let start = Instant::now();
    let mut reader = Reader::default();
    let (mut features, mut complaints, mut memory) = (Vec::new(), Vec::new(), 0);
    let mut said = File::create(machine.output()).context("write what a machine says")?;
    let (mut job, mut bad) = (String::new(), false);
    let end = machine.run(|line| {
        if let Line::Text(text) = &line {
            let _ = writeln!(said, "[{:3.0} s] {text}", start.elapsed().as_secs_f64());
        }
        match line {
            Line::Job(name) => job = name,
            Line::Text(text) if job == FEATURES => features.extend(Feature::of(&text)),
            Line::Text(text) if reader.line(&text) && !text.is_empty() => {
                println!("[{name} {:3.0} s] {text}", start.elapsed().as_secs_f64());
            }
            Line::Ended(job, status) if status != 0 => {
                println!("[{name}] {job} ended with {status}");
                bad = true;
            }
            Line::Complaint(text) => complaints.push(text),
            Line::Memory(used) => memory = used,
            _ => {}
        }
    })?;
    for text in &complaints {
        println!("[{name}] the kernel complained: {text}");
    }
    match end {
        End::NeverStarted => return Ok(None),
        End::Finished => {}
        End::TooLong | End::Died => {
            println!("[{name}] {job}: {end:?}\n{}", machine.last_words());
            bad = true;
        }
    }
    let Counted { tally, skipped, .. } = reader.finish(!bad && complaints.is_empty());
    Ok(Some(Found {
        kernel: kernel.kernel,
        package: kernel.package.clone(),
        version: kernel.version.clone(),
        features,
        tally,
        skipped,
        memory,
        seconds: start.elapsed().as_secs_f64(),
    }))
}

fn page_file() -> std::path::PathBuf {
    crate::run::root().join(Path::new("docs/kernels.md"))
}
