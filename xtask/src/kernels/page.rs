//! docs/kernels.md: what the runs found, kernel by kernel. Written on demand; otherwise what it says
//! of features is held against what was found.

use std::fmt::Write as _;
use std::fs;

use anyhow::{Context as _, Result};

use super::package::Kernel;
use super::page_file;
use super::selection::{Choice, Program};
use crate::tally::Tally;

/// A feature that was tried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Feature {
    name: String,
    there: bool,
    /// Reason it is not there.
    why: String,
}

impl Feature {
    /// A line of `kernel-features`: name, yes or no, why.
    pub(super) fn of(line: &str) -> Option<Self> {
        let mut parts = line.split('\t');
        let (name, there) = (parts.next()?, parts.next()?);
        Some(Self {
            name: name.to_owned(),
            there: there == "yes",
            why: parts.next().unwrap_or_default().to_owned(),
        })
    }
}

/// Findings of a run on one kernel.
#[derive(Debug, Clone)]
pub(super) struct Found {
    pub(super) kernel: Kernel,
    pub(super) package: String,
    pub(super) version: String,
    pub(super) features: Vec<Feature>,
    pub(super) tally: Tally,
    pub(super) skipped: Vec<String>,
    /// MiB in use at the end.
    pub(super) memory: u32,
    pub(super) seconds: f64,
}

/// Writes the page.
pub(super) fn write(found: &[Found]) -> Result<()> {
    let date = jiff::Zoned::now().date().to_string();
    let file = page_file();
    fs::write(&file, render(found, &date)).with_context(|| format!("write {}", file.display()))
}

/// Differences of the page, in words.
pub(super) fn differences(found: &[Found]) -> Result<Vec<String>> {
    let file = page_file();
    let page = fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
    Ok(missing(&page, found))
}

fn missing(page: &str, found: &[Found]) -> Vec<String> {
    let rows = feature_rows(found)
        .into_iter()
        .chain(lost(found))
        .chain(test_rows());
    rows.filter(|row| !page.lines().any(|line| line == row))
        .map(|row| format!("the page lacks the line `{row}`"))
        .collect()
}

fn render(found: &[Found], date: &str) -> String {
    let mut page = format!(
        "# Kernels\n\n\
         On which kernels was pathproof tried, and what is missing on each?\n\n\
         `cargo xtask test --kernels --write-docs` wrote this page on {date}. The nightly run repeats the tests and fails if the results differ.\n\
         The kernels are Debian's, in virtual machines with an emulated processor ([ADR 20](adr/0020-kernels-in-machines.md)).\n\n\
         | kernel | package | version |\n|---|---|---|\n"
    );
    for one in found {
        let _ = writeln!(
            page,
            "| {} | {} | {} |",
            one.kernel.name, one.package, one.version
        );
    }
    page.push_str(
        "\nKernels before 6.1 and those between 6.1 and 6.12 were not tried. Statements about them elsewhere are from the kernel's sources.\n\
         On arm64 the agent is the static program of the image.\n\n\
         ## Kernel features that pathproof uses\n\n\
         The agent's own code tried each of them (`tests/src/bin/kernel-features.rs`).\n\n",
    );
    let heads: Vec<&str> = found.iter().map(|one| one.kernel.name).collect();
    let _ = writeln!(page, "| feature | {} |", heads.join(" | "));
    let _ = writeln!(page, "|---|{}", "---|".repeat(heads.len()));
    for row in feature_rows(found) {
        let _ = writeln!(page, "{row}");
    }
    page.push_str(
        "\nNot used, and therefore not tried: fentry, fexit, kprobes, XDP, BPF LSM, programs at cgroups, netkit's own hooks.\n\n\
         ## What is missing\n\n",
    );
    for line in lost(found) {
        let _ = writeln!(page, "{line}");
    }
    page.push_str(
        "\n## Tests\n\nAn emulated processor is too slow for all tests. The others run on the kernel of the machine that runs them.\n\n\
         | tests | kernels | show |\n|---|---|---|\n",
    );
    for row in test_rows() {
        let _ = writeln!(page, "{row}");
    }
    page
}

/// One row for each choice of tests.
fn test_rows() -> impl Iterator<Item = String> {
    let row = |program: Program, choice: &Choice| {
        let (name, tests) = (program.name(), choice.tests);
        let kernels = choice.kernels();
        format!("| tests/{name}, `{tests}` | {kernels} | {} |", choice.shows)
    };
    let rows = move |program: Program| program.chosen().iter().map(move |one| row(program, one));
    Program::ALL.into_iter().flat_map(rows)
}

/// One row for each feature.
fn feature_rows(found: &[Found]) -> Vec<String> {
    let names = found.first().map(|one| &one.features);
    let row = |feature: &Feature| {
        let cell = |one: &Found| match find(one, &feature.name) {
            Some(Feature { there: true, .. }) => "yes",
            Some(_) => "no",
            None => "not tried",
        };
        let cells: Vec<&str> = found.iter().map(cell).collect();
        format!("| {} | {} |", feature.name, cells.join(" | "))
    };
    names.into_iter().flatten().map(row).collect()
}

fn find<'a>(found: &'a Found, name: &str) -> Option<&'a Feature> {
    found.features.iter().find(|feature| feature.name == name)
}

/// Cost of a missing feature.
const COSTS: [(&str, &str); 9] = [
    (
        "the verifier accepts the observer",
        "nothing is observed: the verdict is Unknown",
    ),
    (
        "the verifier accepts the sentinel",
        "no probes: an idle node is Unknown",
    ),
    (
        "TCX links",
        "clsact filters are used. They are not pinned, stay after a crash until the next agent or `pathproof cleanup`, and their order is that of their priorities",
    ),
    ("clsact filters", "nothing, while there is TCX"),
    (
        "being first at a hook, with confirmation",
        "packets that another program drops first are not observed",
    ),
    (
        "port steering (sk_lookup)",
        "the agent listens on the healthz port itself, which must be free",
    ),
    (
        "maps read and emptied many elements at a time",
        "lost connections are not reported",
    ),
    ("pins in bpffs", "a restart is a gap in observation"),
    ("IPVS", "kube-proxy's ipvs mode cannot run"),
];

fn lost(found: &[Found]) -> Vec<String> {
    let mut lines = Vec::new();
    for one in found {
        for feature in one.features.iter().filter(|feature| !feature.there) {
            let cost = COSTS.iter().find(|(name, _)| *name == feature.name);
            let cost = cost.map_or("", |(_, cost)| cost);
            lines.push(format!(
                "- {}: no {}: {cost}.",
                one.kernel.name, feature.name
            ));
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

    fn found(tcx: bool) -> Found {
        let line = if tcx {
            "TCX links\tyes\t"
        } else {
            "TCX links\tno\tEINVAL"
        };
        Found {
            kernel: package::chosen(&[]).unwrap()[0],
            package: "linux-image-6.1.0-56-cloud-amd64".to_owned(),
            version: "6.1.181-1".to_owned(),
            features: Feature::of(line).into_iter().collect(),
            tally: Tally::PASSED,
            skipped: vec!["a::b: needs TCX".to_owned()],
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
        // Another date and package are no difference; another feature is.
        let other = Found {
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
        assert!(!feature.there && feature.why == "not in this kernel");
    }
}
