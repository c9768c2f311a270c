//! agent/ebpf/provenance.json: the tools and sources that built the checked-in object.

use std::fs;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use super::sources::{self, PROVENANCE, REBUILD, STALE};
use super::toolchain::Way;
use crate::run;

/// Written with one field on each line, because the agent's build script reads it without a JSON parser.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Provenance {
    pub(crate) object_sha256: String,
    /// Hash of its sources (agent/build/sources.rs).
    pub(crate) sources_sha256: String,
    pub(crate) way: Way,
    /// Output of `rustc --version`.
    pub(crate) rustc: String,
    /// Name to install with rustup, or Debian's package.
    pub(crate) toolchain: String,
    /// Output of `bpf-linker --version`.
    pub(crate) linker: String,
    /// LLVM of the linker and of llvm-objcopy.
    pub(crate) llvm: String,
}

impl Provenance {
    pub(crate) fn read() -> Result<Self> {
        let text = fs::read_to_string(run::root().join(PROVENANCE))
            .with_context(|| format!("cannot read {PROVENANCE}; run: {REBUILD}"))?;
        serde_json::from_str(&text)
            .with_context(|| format!("{PROVENANCE} is damaged; run: {REBUILD}"))
    }

    /// Refuses an object that was not built from the current sources.
    pub(crate) fn insist_on_sources(&self) -> Result<()> {
        let current = sources::hash(&run::root())?;
        ensure!(self.sources_sha256 == current, "{STALE}; run: {REBUILD}");
        Ok(())
    }

    /// Writes the file, with a final newline.
    pub(crate) fn write(&self) -> Result<()> {
        let text = serde_json::to_string_pretty(self)? + "\n";
        fs::write(run::root().join(PROVENANCE), text)
            .with_context(|| format!("cannot write {PROVENANCE}"))
    }

    /// Tools that differ from those of `other`, as lines "name: recorded -> here". The compiler is
    /// always the recorded one, so it is excluded.
    pub(crate) fn tool_changes(&self, other: &Self) -> Vec<String> {
        [
            ("linker", &self.linker, &other.linker),
            ("LLVM", &self.llvm, &other.llvm),
        ]
        .into_iter()
        .filter(|(_, recorded, here)| recorded != here)
        .map(|(name, recorded, here)| format!("{name}: {recorded} recorded, {here} here"))
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn provenance() -> Provenance {
        Provenance {
            object_sha256: "aa".to_owned(),
            sources_sha256: "bb".to_owned(),
            way: Way::Rustup,
            rustc: "rustc 1.97.0-nightly (e50aa6fba 2026-05-19)".to_owned(),
            toolchain: "nightly-2026-05-20".to_owned(),
            linker: "bpf-linker 0.13.0".to_owned(),
            llvm: "22.1.8".to_owned(),
        }
    }

    #[test]
    fn every_field_has_a_line_of_its_own_for_the_build_script() {
        let text = serde_json::to_string_pretty(&provenance()).unwrap();
        for line in [
            "\"object_sha256\": \"aa\",",
            "\"sources_sha256\": \"bb\",",
            "\"rustc\": \"rustc 1.97.0-nightly (e50aa6fba 2026-05-19)\",",
        ] {
            assert!(
                text.lines().any(|l| l.trim() == line),
                "{line} is missing in {text}"
            );
        }
    }

    /// A debug build accepts an object of other sources, so only this check keeps it from a real kernel.
    #[test]
    fn an_object_of_other_sources_is_refused() {
        let error = provenance().insist_on_sources().expect_err("other sources");
        let text = error.to_string();
        assert!(text.contains(STALE) && text.contains(REBUILD), "{text}");
        let fresh = Provenance {
            sources_sha256: sources::hash(&run::root()).expect("the sources"),
            ..provenance()
        };
        fresh.insist_on_sources().expect("its own sources");
    }

    #[test]
    fn only_tools_that_differ_are_named() {
        let here = Provenance {
            llvm: "22.1.9".to_owned(),
            ..provenance()
        };
        assert_eq!(
            provenance().tool_changes(&here),
            ["LLVM: 22.1.8 recorded, 22.1.9 here"]
        );
        assert!(here.tool_changes(&here).is_empty());
    }
}
