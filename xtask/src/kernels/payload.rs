//! Contents of the machines of an architecture: the compiled tests, the agent, and the list of jobs that the first
//! process reads.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use super::control_plane::{ControlPlane, Servers};
use super::initramfs::Tree;
use super::package::{Kernel, Unpacked};
use super::selection::Program;
use super::userland::Userland;
use crate::image::{self, Arch};
use crate::{ebpf, run};

/// Name of the job that tries features.
pub(super) const FEATURES: &str = "features";
/// Factor by which the guest is taken to be slower than a desk.
const SLOWER: u32 = 4;

/// The archive of programs of one architecture, and the names of their tests.
pub(super) struct Payload {
    pub(super) arch: Arch,
    pub(super) archive: PathBuf,
    pub(super) userland: Userland,
    tests: Vec<(Program, Vec<String>)>,
    /// Programs for tests/cluster, or the reason there are none.
    servers: Result<Servers>,
}

/// Builds and packs the programs.
pub(super) fn build(arch: Arch) -> Result<Payload> {
    let folder = run::root().join("target/kernels");
    std::fs::create_dir_all(&folder)?;
    let userland = Userland::ready(arch)?;
    let scratch = tempfile::tempdir_in(&folder)?;
    let tree = Tree::new(scratch.path(), &userland);
    tree.stripped(&agent(arch)?, "tests/pathproof")?;
    let probe = run::build_program_for(arch, "node-tests", "kernel-features", "dev")?;
    tree.stripped(&probe, "tests/kernel-features")?;
    let mut tests = Vec::new();
    let servers = servers(arch);
    let without_cluster = Arch::here()? != arch;
    for program in Program::ALL {
        if without_cluster && program == Program::Cluster {
            continue;
        }
        // This machine runs its own programs alone: they have the same tests.
        let build = |arch| run::build_test_for(arch, "node-tests", program.name(), "dev");
        tests.push((program, names(&build(Arch::here()?)?)?));
        tree.stripped(&build(arch)?, &format!("tests/{}", program.name()))?;
    }
    if let Ok(servers) = &servers {
        tree.program(&servers.folder.join("kube-proxy"), "tests/kube-proxy")?;
        // The tests find these at tests/.., so that folder must be there too.
        for part in ["deploy/base", "tests/Cargo.toml"] {
            let part = run::root().join(part);
            tree.folder(&part, &part)?;
        }
    }
    let archive = folder.join(format!("tests-{}.cpio", arch.name()));
    tree.pack(&archive)?;
    drop(scratch);
    Ok(Payload {
        arch,
        archive,
        userland,
        tests,
        servers,
    })
}

/// The agent under test. For another architecture it is the image's own: nothing else runs that one.
fn agent(arch: Arch) -> Result<PathBuf> {
    if Arch::here()? == arch {
        return ebpf::agent("dev");
    }
    ebpf::insist_on_sources()?;
    image::program_for(arch)
}

fn servers(arch: Arch) -> Result<Servers> {
    if Arch::here()? != arch {
        bail!("kube-proxy is built for this machine's architecture alone");
    }
    Servers::ready()
}

impl Payload {
    /// The tests that run on a kernel. With a filter: those of that name, whether chosen or not.
    fn wanted(&self, kernel: Kernel, filter: Option<&str>) -> Result<Vec<(Program, Vec<&str>)>> {
        let mut wanted = Vec::new();
        for (program, names) in &self.tests {
            let tests = match filter {
                Some(part) => having(names, part),
                None => chosen(names, *program, kernel)?,
            };
            if !tests.is_empty() {
                wanted.push((*program, tests));
            }
        }
        Ok(wanted)
    }

    /// An API server for one machine, if a test wants one.
    pub(super) fn control_plane(
        &self,
        kernel: Kernel,
        filter: Option<&str>,
    ) -> Result<Option<ControlPlane>> {
        let wanted = self.wanted(kernel, filter)?;
        let is_wanted = wanted
            .iter()
            .any(|(program, _)| *program == Program::Cluster);
        match &self.servers {
            Ok(servers) if is_wanted => servers.start().map(Some),
            _ => Ok(None),
        }
    }

    /// Tests that cannot run, with the reason.
    pub(super) fn skipped(&self, kernel: Kernel, filter: Option<&str>) -> Result<Vec<String>> {
        let Err(error) = &self.servers else {
            return Ok(Vec::new());
        };
        let wanted = self.wanted(kernel, filter)?.into_iter();
        let cluster = wanted.filter(|(program, _)| *program == Program::Cluster);
        let names = cluster.flat_map(|(_, tests)| tests);
        Ok(names.map(|name| format!("{name}: {error:#}")).collect())
    }

    /// A small archive with the list of jobs for a kernel.
    pub(super) fn jobs(
        &self,
        kernel: &Unpacked,
        filter: Option<&str>,
        control_plane: Option<&ControlPlane>,
    ) -> Result<PathBuf> {
        let scratch = tempfile::tempdir_in(&kernel.folder)?;
        let tree = Tree::new(scratch.path(), &self.userland);
        let mut jobs = format!(
            "export PATHPROOF_AGENT=/tests/pathproof PATHPROOF_TEST_PATIENCE={SLOWER} PATHPROOF_TEST_OWN_CLOCK=yes\n\
             job {FEATURES} /tests/kernel-features\n"
        );
        if let Some(control_plane) = control_plane {
            tree.file("tests/ca.crt", &std::fs::read(&control_plane.ca)?, false)?;
            jobs.push_str(
                "export PATHPROOF_CLUSTER_SERVERS=/tests PATHPROOF_TEST_API_CA=/tests/ca.crt\n\
                 uplink\n",
            );
        }
        for (program, tests) in self.wanted(kernel.kernel, filter)? {
            if program == Program::Cluster && control_plane.is_none() {
                continue;
            }
            let (name, threads) = (program.name(), program.threads());
            let _ = writeln!(
                jobs,
                "job {name} /tests/{name} --exact --show-output --test-threads {threads} {}",
                tests.join(" ")
            );
        }
        tree.file("tests/jobs", jobs.as_bytes(), false)?;
        let archive = kernel.folder.join("jobs.cpio");
        tree.pack(&archive)?;
        Ok(archive)
    }
}

/// Names of a program's tests.
fn names(file: &Path) -> Result<Vec<String>> {
    let output = run::output(Command::new(file).args(["--list", "--format", "terse"]))?;
    let text = String::from_utf8(output).context("names of tests")?;
    let names = text.lines().filter_map(|line| line.strip_suffix(": test"));
    Ok(names.map(str::to_owned).collect())
}

fn having<'a>(names: &'a [String], part: &str) -> Vec<&'a str> {
    let all = names.iter().map(String::as_str);
    all.filter(|name| name.contains(part)).collect()
}

/// The tests that were chosen for a kernel. A choice that names none is a mistake: the test was
/// renamed, and nobody would miss it.
fn chosen(names: &[String], program: Program, kernel: Kernel) -> Result<Vec<&str>> {
    let mut tests = Vec::new();
    for choice in program.chosen() {
        let found = having(names, choice.tests);
        if found.is_empty() {
            bail!(
                "no test of tests/{} is named {}: put its new name into xtask/src/kernels/selection.rs",
                program.name(),
                choice.tests
            );
        }
        if choice.is_for(kernel) {
            tests.extend(found);
        }
    }
    Ok(tests)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::package;

    #[test]
    fn a_choice_that_names_no_test_is_refused() {
        let all = Program::Kernel.chosen().iter();
        let mut names: Vec<String> = all.map(|one| format!("a::{}::b", one.tests)).collect();
        let kernel = package::chosen(&["6.1".to_owned()]).unwrap()[0];
        let found = chosen(&names, Program::Kernel, kernel).unwrap();
        assert_eq!(found.len(), names.len());
        let lost = names.remove(0);
        let error = chosen(&names, Program::Kernel, kernel)
            .unwrap_err()
            .to_string();
        let part = lost.trim_start_matches("a::").trim_end_matches("::b");
        assert!(error.contains(part), "{error}");
    }
}
