//! What an image says of itself: name, version, revision, and the one time in it, the commit's.

use std::collections::HashMap;
use std::env;
use std::process::Command;

use anyhow::{Context, Result};
use jiff::Timestamp;
use oci_spec::image::{
    ANNOTATION_CREATED, ANNOTATION_DESCRIPTION, ANNOTATION_LICENSES, ANNOTATION_REVISION,
    ANNOTATION_TITLE, ANNOTATION_VERSION,
};

use crate::run;

/// Name of the image, as deploy/base asks for it.
pub(crate) const NAME: &str = "pathproof";
/// How container runtimes complete a name without a registry: what kubelet asks containerd for.
const COMPLETED: &str = "docker.io/library/";

/// Facts about a build of the image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Facts {
    /// Of the package pathproof.
    pub(crate) version: String,
    /// One sentence, the package's.
    pub(crate) description: String,
    /// SPDX expression of everything of ours in it, and of the C library. Those of the libraries
    /// are in the SBOM; deny.toml allows permissive ones alone.
    pub(crate) licenses: String,
    /// The commit, with `-dirty` behind it where files differ from it; none outside a clone.
    pub(crate) revision: Option<String>,
    /// Time of the commit.
    pub(crate) created: Timestamp,
}

impl Facts {
    /// Of this repository as it lies here.
    pub(crate) fn read() -> Result<Self> {
        let packages = Packages::read()?;
        let agent = packages.find("pathproof")?;
        let kernel_side = packages.find("agent-ebpf")?;
        Ok(Facts {
            version: agent.version.clone(),
            description: agent.description.clone().unwrap_or_default(),
            licenses: licenses(&agent.license, &kernel_side.license),
            revision: revision(),
            created: created()?,
        })
    }

    /// Name and tag, as people write them.
    pub(crate) fn reference(&self) -> String {
        format!("{NAME}:{}", self.version)
    }

    /// [`Facts::reference`] as containerd stores it.
    pub(crate) fn full_reference(&self) -> String {
        format!("{COMPLETED}{}", self.reference())
    }

    /// Labels of the configuration, annotations of the manifest. There is no URL, source or vendor
    /// among them: none could be named that is certain to be there.
    pub(crate) fn labels(&self) -> HashMap<String, String> {
        let mut labels = HashMap::from([
            (ANNOTATION_TITLE.to_owned(), NAME.to_owned()),
            (ANNOTATION_DESCRIPTION.to_owned(), self.description.clone()),
            (ANNOTATION_VERSION.to_owned(), self.version.clone()),
            (ANNOTATION_LICENSES.to_owned(), self.licenses.clone()),
            (ANNOTATION_CREATED.to_owned(), self.created.to_string()),
        ]);
        if let Some(revision) = &self.revision {
            labels.insert(ANNOTATION_REVISION.to_owned(), revision.clone());
        }
        labels
    }
}

/// The agent, the eBPF object in it, and glibc, which is linked into the program.
fn licenses(agent: &str, kernel_side: &str) -> String {
    format!("({agent}) AND ({kernel_side}) AND LGPL-2.1-or-later")
}

/// What `cargo metadata --no-deps` says of the workspace.
#[derive(Debug, serde::Deserialize)]
struct Packages {
    packages: Vec<Package>,
}

#[derive(Debug, serde::Deserialize)]
struct Package {
    name: String,
    version: String,
    description: Option<String>,
    #[serde(default)]
    license: String,
}

impl Packages {
    fn read() -> Result<Self> {
        let mut metadata = run::cargo();
        metadata.args(["metadata", "--no-deps", "--format-version", "1"]);
        Ok(serde_json::from_slice(&run::output(&mut metadata)?)?)
    }

    fn find(&self, name: &str) -> Result<&Package> {
        let found = self.packages.iter().find(|package| package.name == name);
        found.with_context(|| format!("the workspace has no package {name}"))
    }
}

/// The commit that is checked out, or none outside a clone.
fn revision() -> Option<String> {
    let commit = git(&["rev-parse", "HEAD"])?;
    let clean = git(&["status", "--porcelain"]).is_some_and(|changed| changed.is_empty());
    Some(if clean {
        commit
    } else {
        format!("{commit}-dirty")
    })
}

/// `SOURCE_DATE_EPOCH` where it is set (reproducible-builds.org), else the commit's time, else the
/// beginning of all times: never now.
fn created() -> Result<Timestamp> {
    let said = env::var("SOURCE_DATE_EPOCH").ok();
    let seconds = said.or_else(|| git(&["log", "-1", "--format=%ct"]));
    let seconds = seconds.as_deref().unwrap_or("0");
    seconds
        .parse()
        .ok()
        .and_then(|seconds| Timestamp::from_second(seconds).ok())
        .with_context(|| format!("{seconds:?} is no time in seconds; look at SOURCE_DATE_EPOCH"))
}

fn git(arguments: &[&str]) -> Option<String> {
    let root = run::root();
    let output = Command::new("git")
        .current_dir(&root)
        // A clone that belongs to another user is still this clone: CI often runs as root.
        .arg("-c")
        .arg(format!("safe.directory={}", root.display()))
        .args(arguments)
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

/// Facts for tests.
#[cfg(test)]
pub(super) fn example() -> Facts {
    Facts {
        version: "1.2.3".to_owned(),
        description: "Proves things".to_owned(),
        licenses: licenses("Apache-2.0 OR MIT", "GPL-2.0-only OR MIT"),
        revision: Some("0123456789abcdef0123456789abcdef01234567".to_owned()),
        created: Timestamp::from_second(1_700_000_000).unwrap(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_repository_has_all_facts() {
        let facts = Facts::read().unwrap();
        assert_eq!(facts.version, env!("CARGO_PKG_VERSION"));
        assert!(facts.description.contains("Kubernetes"), "{facts:?}");
        assert_eq!(
            facts.licenses,
            "(Apache-2.0 OR MIT) AND (GPL-2.0-only OR MIT) AND LGPL-2.1-or-later"
        );
    }

    #[test]
    fn no_label_is_empty_and_an_unknown_revision_is_none() {
        let facts = example();
        assert_eq!(facts.labels().len(), 6);
        assert!(facts.labels().values().all(|value| !value.is_empty()));
        assert_eq!(facts.labels()[ANNOTATION_CREATED], "2023-11-14T22:13:20Z");
        let nowhere = Facts {
            revision: None,
            ..facts
        };
        assert!(!nowhere.labels().contains_key(ANNOTATION_REVISION));
    }

    #[test]
    fn the_objects_of_deploy_ask_for_this_image() {
        let file = run::root().join("deploy/base/agent.yaml");
        let text = std::fs::read_to_string(file).unwrap();
        let line = format!("image: {}", Facts::read().unwrap().reference());
        assert!(text.lines().any(|l| l.trim() == line), "no line {line:?}");
    }
}
