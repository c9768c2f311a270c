//! docs/internal/kernels.md: the results of test runs on each kernel. A run writes the page only on request.
//! Other runs check that the page still lists the features that they found.

use std::fs;

use anyhow::{Context as _, Result};

use super::package::Kernel;
use crate::run;
use crate::tally::Counted;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Feature {
    name: String,
    there: bool,
}

impl Feature {
    /// Parses a line of `kernel-features`: name, yes or no, the reason.
    pub(super) fn of(line: &str) -> Option<Self> {
        let (name, there) = line.split_once('\t')?;
        let there = there.split('\t').next() == Some("yes");
        Some(Self {
            name: name.to_owned(),
            there,
        })
    }
}

/// Results of a run on one kernel.
#[derive(Debug)]
pub(super) struct KernelRun {
    pub(super) kernel: Kernel,
    pub(super) package: String,
    pub(super) version: String,
    pub(super) features: Vec<Feature>,
    pub(super) counted: Counted,
    /// MiB in use at the end.
    pub(super) memory: u32,
    pub(super) seconds: f64,
}

const PAGE: &str = "docs/internal/kernels.md";

pub(super) fn write(found: &[KernelRun]) -> Result<()> {
    let date = jiff::Zoned::now().date().to_string();
    fs::write(run::root().join(PAGE), render(found, &date)).with_context(|| format!("write {PAGE}"))
}

/// A sentence for each line that the results need and the page lacks.
pub(super) fn differences(found: &[KernelRun]) -> Result<Vec<String>> {
    let page = fs::read_to_string(run::root().join(PAGE));
    let page = page.with_context(|| format!("read {PAGE}"))?;
    Ok(missing(&page, found))
}

fn missing(page: &str, found: &[KernelRun]) -> Vec<String> {
    let rows = [feature_rows(found), lost(found)].concat();
    let missing = rows
        .iter()
        .filter(|row| page.lines().all(|line| line != *row));
    missing
        .map(|row| format!("the page lacks the line `{row}`"))
        .collect()
}

fn render(found: &[KernelRun], date: &str) -> String {
    let kernel = |one: &KernelRun| {
        format!(
            "| {} | {} | {} |",
            one.kernel.name, one.package, one.version
        )
    };
    let kernels: Vec<String> = found.iter().map(kernel).collect();
    let heads: Vec<&str> = found.iter().map(|one| one.kernel.name).collect();
    format!(
        "# Kernels\n\n\
         On which kernels was pathproof tried, and what is missing on each?\n\n\
         `cargo xtask test --kernels --write-docs` wrote this page on {date}. The nightly run repeats the tests and fails if the results differ.\n\
         The kernels are Debian's, in virtual machines with an emulated processor ([kernels](design/building.md#kernels)).\n\n\
         | kernel | package | version |\n|---|---|---|\n{}\n\n\
         Kernels before 6.1 and those between 6.1 and 6.12 were not tried. Statements about them elsewhere are from the kernel's sources.\n\
         On arm64 the agent is the static program of the image.\n\n\
         ## Kernel features that pathproof uses\n\n\
         The agent's own code tried each of them (`tests/src/bin/kernel-features.rs`).\n\n\
         | feature | {} |\n|---|{}\n{}\n\n\
         Not used, and therefore not tried: fentry, fexit, kprobes, XDP, BPF LSM, programs at cgroups, netkit's own hooks.\n\n\
         ## What is missing\n\n{}\n\n\
         ## Tests\n\nAn emulated processor is too slow for all tests: [selection.txt](../../xtask/src/kernels/selection.txt) lists \
         those that ran, and what they show. The others run on the kernel of the machine that runs them.\n",
        kernels.join("\n"),
        heads.join(" | "),
        "---|".repeat(heads.len()),
        feature_rows(found).join("\n"),
        lost(found).join("\n"),
    )
}

fn feature_rows(found: &[KernelRun]) -> Vec<String> {
    let names = found.first().map(|one| &one.features);
    let row = |feature: &Feature| {
        let cell = |one: &KernelRun| match find(one, &feature.name) {
            Some(Feature { there: true, .. }) => "yes",
            Some(_) => "no",
            None => "not tried",
        };
        let cells: Vec<&str> = found.iter().map(cell).collect();
        format!("| {} | {} |", feature.name, cells.join(" | "))
    };
    names.into_iter().flatten().map(row).collect()
}

fn find<'a>(found: &'a KernelRun, name: &str) -> Option<&'a Feature> {
    found.features.iter().find(|feature| feature.name == name)
}

/// For each feature, what does not work on a kernel without it.
const COSTS: &str = "
    the verifier accepts the observer | nothing is observed: the verdict is Unknown
    the verifier accepts the sentinel | no probes: an idle node is Unknown
    TCX links | clsact filters are used. They are not pinned, stay after a crash until the next agent or \
`pathproof cleanup`, and their order is that of their priorities. An interface that comes while the agent runs, and may \
be a pod's, is observed 15 to 20 s later, so that plugins such as `bandwidth` can add their qdisc; one with an `ingress` \
qdisc is not observed ([known issues](../known-issues.md#coverage))
    clsact filters | nothing, while there is TCX
    being first at a hook, with confirmation | packets that another program drops first are not observed
    port steering (sk_lookup) | the agent listens on the healthz port itself, which must be free
    maps read and emptied many elements at a time | lost connections are not reported
    pins in bpffs | a restart is a gap in observation
    IPVS | kube-proxy's ipvs mode cannot run
";

fn lost(found: &[KernelRun]) -> Vec<String> {
    let mut lines = Vec::new();
    for one in found {
        for Feature { name, .. } in one.features.iter().filter(|feature| !feature.there) {
            let cost = run::rows(COSTS).find(|row| row[0] == name);
            let cost = cost.map_or("", |row| row[1]);
            lines.push(format!("- {}: no {name}: {cost}.", one.kernel.name));
        }
    }
    if lines.is_empty() {
        lines.push("Nothing, on these kernels.".to_owned());
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::package;

    fn found(tcx: bool) -> KernelRun {
        let line = if tcx {
            "TCX links\tyes\t"
        } else {
            "TCX links\tno\tEINVAL"
        };
        KernelRun {
            kernel: package::chosen(&[]).unwrap()[0],
            package: "linux-image-6.1.0-56-cloud-amd64".to_owned(),
            version: "6.1.181-1".to_owned(),
            features: Feature::of(line).into_iter().collect(),
            counted: Counted::default(),
            memory: 300,
            seconds: 1.0,
        }
    }

    #[test]
    fn a_page_says_what_was_found_and_nothing_else() {
        let page = render(&[found(false)], "2026-11-22");
        assert!(page.contains("| TCX links | no |"), "{page}");
        assert!(page.contains("- 6.1-cloud: no TCX links: clsact"), "{page}");
        assert_eq!(missing(&page, &[found(false)]), Vec::<String>::new());
        // The date and the package may differ from the page, but the features may not.
        let other = KernelRun {
            package: "linux-image-6.1.0-57-cloud-amd64".to_owned(),
            ..found(false)
        };
        assert_eq!(missing(&page, &[other]), Vec::<String>::new());
        assert_eq!(missing(&page, &[found(true)]).len(), 2);
    }

    #[test]
    fn lines_that_are_no_features_are_none() {
        assert_eq!(Feature::of("Error: run as root"), None);
        let feature = Feature::of("IPVS\tno\tnot in this kernel").unwrap();
        assert!(feature.name == "IPVS" && !feature.there);
    }
}
