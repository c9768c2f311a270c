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
use crate::{ebpf, run, setup_cluster};

/// Name of the job that tries features.
pub(super) const FEATURES: &str = "features";
/// Factor by which the guest is taken to be slower than a desk.
const SLOWER: u32 = 4;
/// The same where a machine is busy with Kubernetes all the time.
const SLOWER_WITH_KUBERNETES: u32 = 10;

/// The archive of programs of one architecture, and the names of their tests.
pub(super) struct Payload {
    pub(super) arch: Arch,
    /// The archive; with a whole Kubernetes a disk.
    pub(super) archive: PathBuf,
    pub(super) install: bool,
    pub(super) userland: Userland,
    tests: Vec<(Program, Vec<String>)>,
    /// Programs for tests at an API server, or the reason there are none.
    servers: Result<Servers>,
}

/// Builds and packs the programs.
pub(super) fn build(arch: Arch, install: bool) -> Result<Payload> {
    let folder = run::root().join("target/kernels");
    std::fs::create_dir_all(&folder)?;
    let userland = Userland::ready(arch)?;
    let scratch = tempfile::tempdir_in(&folder)?;
    let tree = Tree::new(scratch.path(), &userland);
    tree.stripped(&agent(arch, install)?, "tests/pathproof")?;
    let probe = run::build_program_for(arch, "node-tests", "kernel-features", "dev")?;
    tree.stripped(&probe, "tests/kernel-features")?;
    let mut tests = Vec::new();
    let servers = servers(arch);
    let without_cluster = Arch::here()? != arch;
    for program in Program::of_machine(install) {
        if without_cluster && program.asks_api_server() {
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
    let archive = match install {
        true => archive.with_extension("disk"),
        false => archive,
    };
    if install {
        kubernetes(&tree)?;
        tree.disk(&archive)?;
    } else {
        tree.pack(&archive)?;
    }
    drop(scratch);
    Ok(Payload {
        arch,
        archive,
        install,
        userland,
        tests,
        servers,
    })
}

/// The rest of a Kubernetes, for a machine with kubelet and containerd.
fn kubernetes(tree: &Tree<'_>) -> Result<()> {
    let servers = setup_cluster::real_node()?;
    for name in [
        "kubelet",
        "kube-controller-manager",
        "kube-scheduler",
        "kubectl",
    ] {
        tree.program(&servers.join(name), &format!("tests/{name}"))?;
    }
    // The tests find these where they are on this machine.
    let helm = setup_cluster::chart_tools()?.helm;
    let node = setup_cluster::node()?;
    let mut files = vec![helm, node.runc];
    for folder in [node.containerd, node.cni] {
        for entry in std::fs::read_dir(folder)? {
            files.push(entry?.path());
        }
    }
    for file in files {
        tree.program(&file, text(&file)?)?;
    }
    let pod = run::build_program("node-tests", "pod", "dev")?;
    tree.stripped(&pod, text(&pod)?)?;
    let deploy = run::root().join("deploy");
    tree.folder(&deploy, &deploy)?;
    for name in ["buildah", "ldd", "mount", "nsenter", "umount", "unshare"] {
        tree.program(&tree.userland.program(name)?, &format!("usr/sbin/{name}"))?;
    }
    // Without it buildah writes no image.
    let policy = br#"{ "default": [{ "type": "insecureAcceptAnything" }] }"#;
    tree.file("etc/containers/policy.json", policy, false)
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().context("a path in UTF-8")
}

/// The agent under test. For another architecture it is the image's own: nothing else runs that one. So it
/// is below kubelet: one without optimisation takes minutes there before it listens.
fn agent(arch: Arch, install: bool) -> Result<PathBuf> {
    if Arch::here()? == arch && !install {
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
        let is_wanted = wanted.iter().any(|(program, _)| program.asks_api_server());
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
        let cluster = wanted.filter(|(program, _)| program.asks_api_server());
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
        let slower = match self.install {
            true => SLOWER_WITH_KUBERNETES,
            false => SLOWER,
        };
        let mut jobs = format!(
            "export PATHPROOF_AGENT=/tests/pathproof PATHPROOF_TEST_PATIENCE={slower} PATHPROOF_TEST_OWN_CLOCK=yes\n"
        );
        if !self.install {
            let _ = writeln!(jobs, "job {FEATURES} /tests/kernel-features");
        }
        if let Some(control_plane) = control_plane {
            tree.file("tests/ca.crt", &std::fs::read(&control_plane.ca)?, false)?;
            jobs.push_str(
                "export PATHPROOF_CLUSTER_SERVERS=/tests PATHPROOF_TEST_API_CA=/tests/ca.crt\n\
                 uplink\n",
            );
        }
        for (program, tests) in self.wanted(kernel.kernel, filter)? {
            if program.asks_api_server() && control_plane.is_none() {
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
