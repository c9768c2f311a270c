//! What is shipped for clusters, rendered as users render it: the chart by helm, the folders by
//! kubectl's kustomize. Objects come back as values, to be compared and looked at.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::built;
use crate::built::versions::{HELM, KUBERNETES};
use crate::cluster::documents;

/// The four profiles, by the names of the chart's value and of the overlays.
pub const PROFILES: [&str; 4] = ["beside-kube-proxy", "cilium", "rke1", "standalone"];

/// The repository's folder `deploy`.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy")
}

/// A program of target/tools that renders or checks what is shipped.
#[derive(Clone, Copy, Debug)]
pub enum Tool {
    /// Installs charts.
    Helm,
    /// Renders kustomizations.
    Kubectl,
    /// Tests alerts.
    Promtool,
}

impl Tool {
    /// Where it lies: what its variable says, else this clone's target/tools.
    pub fn find(self) -> Option<PathBuf> {
        let (variable, built) = match self {
            Self::Helm => ("PATHPROOF_HELM", built::folder("helm", HELM).join("helm")),
            Self::Kubectl => (
                "PATHPROOF_KUBECTL",
                built::folder("kubernetes", KUBERNETES).join("kubectl"),
            ),
            Self::Promtool => (
                "PATHPROOF_PROMTOOL",
                built::folder("debian", "").join("promtool"),
            ),
        };
        let file = std::env::var_os(variable).map_or(built, PathBuf::from);
        file.is_file().then_some(file)
    }

    /// Whether the test must be skipped for want of it. Says so loudly.
    pub fn skip_without(self, test: &str) -> bool {
        let missing = self.find().is_none();
        if missing {
            let name = format!("{self:?}").to_lowercase();
            eprintln!("SKIPPED: {test} needs {name} (run `cargo xtask setup-cluster --all`)");
        }
        missing
    }

    pub fn command(self) -> Result<Command> {
        let file = self.find().with_context(|| format!("no {self:?}"))?;
        Ok(Command::new(file))
    }
}

/// One rendering of the chart.
#[derive(Clone, Debug)]
pub struct Chart {
    values: Value,
    namespace: String,
    kubernetes: String,
}

impl Default for Chart {
    fn default() -> Self {
        Self {
            values: json!({}),
            namespace: "pathproof".to_owned(),
            kubernetes: KUBERNETES.to_owned(),
        }
    }
}

impl Chart {
    /// With these values over the chart's own.
    pub fn with(values: Value) -> Self {
        Self {
            values,
            ..Self::default()
        }
    }

    /// Into another namespace than `pathproof`.
    pub fn into_namespace(mut self, name: &str) -> Self {
        name.clone_into(&mut self.namespace);
        self
    }

    /// For another release of Kubernetes.
    pub fn kubernetes(mut self, version: &str) -> Self {
        version.clone_into(&mut self.kubernetes);
        self
    }

    /// The objects.
    ///
    /// # Errors
    /// What helm says, where the values are refused.
    pub fn render(&self) -> Result<Vec<Value>> {
        documents(&self.run(&["template"])?)
    }

    /// What helm finds wrong with the chart.
    ///
    /// # Errors
    /// That.
    pub fn lint(&self) -> Result<String> {
        self.run(&["lint", "--strict"])
    }

    fn run(&self, verb: &[&str]) -> Result<String> {
        let dir = tempfile::tempdir()?;
        let values = dir.path().join("values.json");
        fs::write(&values, self.values.to_string())?;
        let mut command = Tool::Helm.command()?;
        let release = (verb[0] != "lint").then_some("pathproof");
        command
            .args(verb)
            .args(release)
            .arg(folder().join("chart"))
            .args(["--namespace", &self.namespace, "--values"])
            .arg(values)
            .args(["--kube-version", &self.kubernetes])
            .env("HELM_CACHE_HOME", dir.path())
            .env("HELM_CONFIG_HOME", dir.path())
            .env("HELM_DATA_HOME", dir.path())
            .env("KUBECONFIG", dir.path().join("none"));
        said(&mut command)
    }
}

/// What `kubectl kustomize` makes of a folder.
///
/// # Errors
/// What it says.
pub fn kustomize(folder: impl AsRef<OsStr>) -> Result<Vec<Value>> {
    let mut command = Tool::Kubectl.command()?;
    command.arg("kustomize").arg(folder.as_ref());
    documents(&said(&mut command)?)
}

/// An overlay together with components, as a user's kustomization puts them together.
///
/// # Errors
/// What kustomize says.
pub fn overlay(profile: &str, components: &[&str]) -> Result<Vec<Value>> {
    let overlay = folder().join("overlays").join(profile);
    if components.is_empty() {
        return kustomize(overlay);
    }
    kustomize(overlay_folder(profile, components)?.path())
}

/// The folder of such a kustomization.
///
/// # Errors
/// It cannot be written.
pub fn overlay_folder(profile: &str, components: &[&str]) -> Result<TempDir> {
    // Resources outside of a kustomization's folder are named by relative paths.
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target");
    let dir = tempfile::tempdir_in(target)?;
    let components: Vec<String> = components
        .iter()
        .map(|name| format!("../../deploy/components/{name}"))
        .collect();
    let text = json!({
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [format!("../../deploy/overlays/{profile}")],
        "components": components,
    });
    fs::write(dir.path().join("kustomization.yaml"), text.to_string())?;
    Ok(dir)
}

/// Standard output of a command that succeeds.
///
/// # Errors
/// Its standard error, where it does not.
pub fn said(command: &mut Command) -> Result<String> {
    let output = command
        .output()
        .with_context(|| format!("run {command:?}"))?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        let words = String::from_utf8_lossy(&output.stdout);
        bail!("{}{}", words, errors);
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// What names an object: kind, namespace and name.
pub fn identity(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let metadata = &object["metadata"];
    format!(
        "{} {}/{}",
        text(&object["kind"]),
        text(&metadata["namespace"]),
        text(&metadata["name"])
    )
}
