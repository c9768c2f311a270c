//! Contents of the machines of an architecture: the compiled tests, the agent, and the list of jobs
//! for the first process.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, anyhow, ensure};

use super::control_plane::{ControlPlane, Servers};
use super::initramfs::Tree;
use super::package::Kernel;
use super::selection::{self, PROGRAMS, asks_api_server};
use super::userland::Userland;
use crate::image::{self, Arch};
use crate::{ebpf, run, setup_cluster};

/// Name of the job that tests features.
pub(super) const FEATURES: &str = "features";
/// Factor by which the guest is assumed to be slower than a workstation.
const SLOWER: u32 = 4;
/// The same factor for a machine with a whole Kubernetes, which is always busy.
const SLOWER_WITH_KUBERNETES: u32 = 10;

/// Archive of the programs of one architecture, and the names of their tests.
pub(super) struct Payload {
    /// The archive, or a disk if it contains a whole Kubernetes.
    pub(super) archive: PathBuf,
    pub(super) install: bool,
    pub(super) userland: Userland,
    tests: Vec<(&'static str, Vec<String>)>,
    /// Programs for tests with an API server, or the reason why there are none.
    servers: Result<Servers>,
}

pub(super) fn build(arch: Arch, install: bool) -> Result<Payload> {
    let folder = run::root().join("target/kernels");
    std::fs::create_dir_all(&folder)?;
    let userland = Userland::ready(arch)?;
    let scratch = tempfile::tempdir_in(&folder)?;
    let tree = Tree::new(scratch.path(), &userland);
    tree.stripped(&agent(arch, install)?, "tests/pathproof")?;
    let probe = "kernel-features";
    let probe = run::build_for(arch, &["build", "--bin", probe], probe)?;
    tree.stripped(&probe, "tests/kernel-features")?;
    let mut tests = Vec::new();
    let servers = match arch.is_here() {
        true => Servers::ready(),
        false => Err(anyhow!(
            "kube-proxy is built for this machine's architecture alone"
        )),
    };
    for program in PROGRAMS
        .into_iter()
        .filter(|one| (*one == "install") == install)
    {
        if asks_api_server(program) && !arch.is_here() {
            continue;
        }
        // Names come from a build for this machine, which can run only its own programs. The tests are the
        // same.
        let what = ["test", "--no-run", "--test", program];
        let build = |arch| run::build_for(arch, &what, program);
        tests.push((program, names(&build(Arch::here()?)?)?));
        tree.stripped(&build(arch)?, &format!("tests/{program}"))?;
    }
    if let Ok(servers) = &servers {
        tree.program(&servers.folder.join("kube-proxy"), "tests/kube-proxy")?;
        // The tests search for these files at paths below tests/.., so the folder tests must exist too.
        for part in ["deploy/base", "tests/Cargo.toml"] {
            let part = run::root().join(part);
            tree.folder(&part, &part)?;
        }
    }
    let mut archive = folder.join(format!("tests-{}.cpio", arch.name()));
    if install {
        archive.set_extension("disk");
        kubernetes(&tree)?;
        tree.disk(&archive)?;
    } else {
        tree.pack(&archive)?;
    }
    Ok(Payload {
        archive,
        install,
        userland,
        tests,
        servers,
    })
}

/// Adds the rest of Kubernetes, for a machine with kubelet and containerd.
fn kubernetes(tree: &Tree<'_>) -> Result<()> {
    let servers = setup_cluster::real_node()?;
    for name in "kubelet kube-controller-manager kube-scheduler kubectl".split(' ') {
        tree.program(&servers.join(name), &format!("tests/{name}"))?;
    }
    // The tests expect these at the same paths as on this machine.
    let node = setup_cluster::node()?;
    let mut files = vec![setup_cluster::chart_tools()?, node.runc];
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
    // Without this file buildah writes no image.
    let policy = br#"{ "default": [{ "type": "insecureAcceptAnything" }] }"#;
    tree.file("etc/containers/policy.json", policy, false)
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().context("a path in UTF-8")
}

/// The agent under test. For another architecture it is the image's program, which no other test runs.
/// Under kubelet it is the image's program too, because an agent without optimisation needs minutes to
/// start there.
fn agent(arch: Arch, install: bool) -> Result<PathBuf> {
    if arch.is_here() && !install {
        return ebpf::agent("dev");
    }
    ebpf::insist_on_sources()?;
    image::program_for(arch)
}

type Tests<'a> = (&'static str, Vec<&'a str>);

impl Payload {
    /// The tests that run on a kernel. With a filter: tests with that name, selected or not.
    pub(super) fn wanted(&self, kernel: Kernel, filter: Option<&str>) -> Result<Vec<Tests<'_>>> {
        let wanted = self.tests.iter().map(|(program, names)| {
            let tests = match filter {
                Some(part) => having(names, part),
                None => chosen(names, program, kernel)?,
            };
            Ok((*program, tests))
        });
        let wanted = wanted.collect::<Result<Vec<_>>>()?.into_iter();
        Ok(wanted.filter(|(_, tests)| !tests.is_empty()).collect())
    }

    /// An API server for one machine, if a test needs one.
    pub(super) fn control_plane(&self, wanted: &[Tests<'_>]) -> Result<Option<ControlPlane>> {
        let is_wanted = wanted.iter().any(|(program, _)| asks_api_server(program));
        match &self.servers {
            Ok(servers) if is_wanted => servers.start().map(Some),
            _ => Ok(None),
        }
    }

    pub(super) fn skipped(&self, wanted: &[Tests<'_>]) -> Vec<String> {
        let Err(error) = &self.servers else {
            return Vec::new();
        };
        let cluster = wanted
            .iter()
            .filter(|(program, _)| asks_api_server(program));
        let names = cluster.flat_map(|(_, tests)| tests);
        names.map(|name| format!("{name}: {error:#}")).collect()
    }

    /// The list of jobs for a kernel.
    pub(super) fn jobs(&self, wanted: &[Tests<'_>], with_server: bool) -> String {
        let slower = match self.install {
            true => SLOWER_WITH_KUBERNETES,
            false => SLOWER,
        };
        let mut jobs = format!(
            "export PATHPROOF_AGENT=/tests/pathproof PATHPROOF_TEST_PATIENCE={slower} PATHPROOF_TEST_OWN_CLOCK=yes\n"
        );
        if !self.install {
            jobs += &format!("job {FEATURES} /tests/kernel-features\n");
        }
        if with_server {
            jobs += "export PATHPROOF_CLUSTER_SERVERS=/tests PATHPROOF_TEST_API_CA=/tests/ca.crt\n\
                     uplink\n";
        }
        for (program, tests) in wanted {
            if asks_api_server(program) && !with_server {
                continue;
            }
            // The guest has two processors: two agents that started at once were not ready within minutes.
            let threads = if *program == "kernel" { 2 } else { 1 };
            let tests = tests.join(" ");
            jobs += &format!(
                "job {program} /tests/{program} --exact --show-output --test-threads {threads} {tests}\n"
            );
        }
        jobs
    }
}

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

/// The tests selected for a kernel. A choice without tests is an error: the test was renamed, and
/// its absence would go unnoticed.
fn chosen<'a>(names: &'a [String], program: &str, kernel: Kernel) -> Result<Vec<&'a str>> {
    let mut tests = Vec::new();
    for choice in selection::chosen(program) {
        let found = having(names, choice.tests);
        ensure!(
            !found.is_empty(),
            "no test of tests/{program} is named {}: put its new name into xtask/src/kernels/selection.txt",
            choice.tests
        );
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
        let all = selection::chosen("kernel");
        let mut names: Vec<String> = all.map(|one| format!("a::{}::b", one.tests)).collect();
        let kernel = package::chosen(&["6.1".to_owned()]).unwrap()[0];
        let found = chosen(&names, "kernel", kernel).unwrap();
        assert_eq!(found.len(), names.len());
        let lost = names.remove(0);
        let error = chosen(&names, "kernel", kernel).unwrap_err().to_string();
        let part = lost.trim_start_matches("a::").trim_end_matches("::b");
        assert!(error.contains(part), "{error}");
    }
}
