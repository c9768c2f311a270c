//! `cargo xtask test --kernels`: runs tests on other kernels, each in a small virtual machine
//! (docs/internal/design/building.md#kernels).
//!
//! A test that fails in a machine fails the task. A machine that does not reach its first program is
//! started once more. If that fails too, the task ends with an error.

mod control_plane;
mod initramfs;
mod machine;
mod package;
mod page;
mod payload;
mod selection;
mod userland;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write as _;
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use machine::{End, Line, Machine};
use package::{Kernel, Unpacked};
use page::{Feature, KernelRun};
use payload::{FEATURES, Payload};

use crate::image::Arch;
use crate::tally::{Counted, Reader, Tally};
use crate::test::Args;

/// The kernel for a whole Kubernetes: it supports memory control only by cgroup v2.
const OF_KUBERNETES: &str = "6.12-cloud";

/// Runs the tests on these kernels, by default on the usual ones.
pub(crate) fn run(names: &[String], args: &Args) -> Result<Counted> {
    let kernels = match names {
        [] if args.install => package::chosen(&[OF_KUBERNETES.to_owned()])?,
        names => package::chosen(names)?,
    };
    let arches: BTreeSet<Arch> = kernels.iter().map(|kernel| kernel.arch).collect();
    initramfs::install_packages(&arches)?;
    let payloads = arches.into_iter();
    let payloads = payloads.map(|arch| Ok((arch, payload::build(arch, args.install)?)));
    let payloads: BTreeMap<Arch, Payload> = payloads.collect::<Result<_>>()?;
    let kernels = kernels.into_iter().map(Kernel::ready);
    let kernels: Vec<Unpacked> = kernels.collect::<Result<_>>()?;
    // In parallel: each waits for packets much of the time.
    let found: Vec<KernelRun> = thread::scope(|scope| {
        let runs = kernels.iter().map(|kernel| {
            let payload = &payloads[&kernel.kernel.arch];
            scope.spawn(move || on(kernel, payload, args.filter.as_deref()))
        });
        let runs: Vec<_> = runs.collect();
        let ended = runs.into_iter().map(|run| {
            run.join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        ended.collect::<Result<_>>()
    })?;
    let mut sum = Counted::default();
    for one in &found {
        let name = one.kernel.name;
        println!(
            "[{name}] {}: {:.0} s, {} MiB, {}",
            one.package, one.seconds, one.memory, one.counted.tally
        );
        sum.tally += one.counted.tally;
        let skipped = one.counted.skipped.iter();
        sum.skipped
            .extend(skipped.map(|line| format!("[{name}] {line}")));
    }
    if args.filter.is_none() && names.is_empty() && !args.install {
        sum.tally += page(&found, args.write_docs)?;
    }
    Ok(sum)
}

/// Writes the page, or compares it with the results, which counts as a test.
fn page(found: &[KernelRun], write: bool) -> Result<Tally> {
    if write {
        page::write(found)?;
        return Ok(Tally::default());
    }
    let differences = page::differences(found)?;
    if differences.is_empty() {
        return Ok(Tally::PASSED);
    }
    for difference in differences {
        println!("docs/internal/kernels.md: {difference}");
    }
    println!("if that is right: cargo xtask test --kernels --write-docs");
    Ok(Tally::FAILED)
}

/// Runs the tests on one kernel; a failed boot is retried once.
fn on(kernel: &Unpacked, payload: &Payload, filter: Option<&str>) -> Result<KernelRun> {
    let wanted = payload.wanted(kernel.kernel, filter)?;
    let control_plane = payload.control_plane(&wanted)?;
    let jobs = payload.jobs(&wanted, control_plane.is_some());
    let base = initramfs::base(kernel, &payload.userland, &jobs, control_plane.as_ref())?;
    let tests = payload.archive.clone();
    let (archives, disk) = match payload.install {
        true => (vec![base], Some(tests)),
        false => (vec![base, tests], None),
    };
    let machine = Machine {
        kernel,
        archives,
        disk,
        namespace: control_plane.as_ref().map(|one| one.namespace.clone()),
    };
    for _ in 0..2 {
        if let Some(mut found) = once(&machine)? {
            found.counted += Counted::skips(payload.skipped(&wanted));
            return Ok(found);
        }
        let name = kernel.kernel.name;
        eprintln!("[{name}] came to no program:\n{}", machine.last_words());
    }
    bail!("the kernel {} does not boot", kernel.kernel.name)
}

/// One run; `None` if no program started.
fn once(machine: &Machine<'_>) -> Result<Option<KernelRun>> {
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
    Ok(Some(KernelRun {
        kernel: kernel.kernel,
        package: kernel.package.clone(),
        version: kernel.version.clone(),
        features,
        counted: reader.finish(!bad && complaints.is_empty()),
        memory,
        seconds: start.elapsed().as_secs_f64(),
    }))
}
