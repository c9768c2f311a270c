//! What is shipped for clusters, rendered as users render it: the chart by helm, the folders by
//! kubectl's kustomize. Objects come back as values, to be compared and looked at.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::built::versions::KUBERNETES;
use crate::cluster::documents;
use crate::real_node;
use crate::skip;

/// The four profiles, by the names of the chart's value and of the overlays.
pub const PROFILES: [&str; 4] = ["beside-kube-proxy", "cilium", "rke1", "standalone"];

/// The repository's folder `deploy`.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy")
}

/// A program that renders or checks what is shipped.
#[derive(Clone, Copy, Debug)]
pub enum Tool {
    /// Installs charts.
    Helm,
    /// Renders kustomizations.
    Kubectl,
    /// Evaluates alerts.
    Prometheus,
    /// Tests alerts.
    Promtool,
}

impl Tool {
    /// Its file, where `cargo xtask setup-cluster --all` puts it.
    pub fn find(self) -> Result<PathBuf> {
        real_node::find(&format!("{self:?}").to_lowercase())
    }

    /// Whether the test must be skipped for want of it. Says so loudly.
    pub fn skip_without(self, test: &str) -> bool {
        skip::needed(test, self.find()).is_none()
    }

    pub fn command(self) -> Result<Command> {
        self.find().map(Command::new)
    }
}

/// One rendering of the chart.
#[derive(Clone, Debug, Default)]
pub struct Chart {
    values: Value,
    /// Options of helm; the last one of a name counts.
    options: Vec<&'static str>,
}

impl Chart {
    /// With these values over the chart's own.
    pub fn with(values: Value) -> Self {
        let options = Vec::new();
        Self { values, options }
    }

    /// With a further option of helm.
    pub fn option(mut self, name: &'static str, value: &'static str) -> Self {
        self.options.extend([name, value]);
        self
    }

    /// For another release of Kubernetes.
    pub fn kubernetes(self, kubernetes: &'static str) -> Self {
        self.option("--kube-version", kubernetes)
    }

    /// The objects.
    ///
    /// # Errors
    /// What helm says, where the values are refused.
    pub fn render(&self) -> Result<Vec<Value>> {
        documents(&self.run(["template", "pathproof"])?)
    }

    /// What helm finds wrong with the chart.
    ///
    /// # Errors
    /// That.
    pub fn lint(&self) -> Result<String> {
        self.run(["lint", "--strict"])
    }

    fn run(&self, words: [&str; 2]) -> Result<String> {
        let dir = tempfile::tempdir()?;
        let values = dir.path().join("values.json");
        fs::write(&values, self.values.to_string())?;
        let mut command = Tool::Helm.command()?;
        command
            .args(words)
            .arg(folder().join("chart"))
            .args(["--namespace", "pathproof", "--kube-version", KUBERNETES])
            .arg("--values")
            .arg(values)
            .args(&self.options)
            // The user who tests may have plugins, repositories and a cluster.
            .env_clear()
            .env("HOME", dir.path());
        said(&mut command)
    }
}

/// Objects that kustomize makes of an overlay together with components, as a user's kustomization puts them
/// together.
///
/// # Errors
/// What kustomize says.
pub fn overlay(profile: &str, components: &[&str]) -> Result<Vec<Value>> {
    let dir = overlay_folder(profile, components)?;
    let mut command = Tool::Kubectl.command()?;
    documents(&said(command.arg("kustomize").arg(dir.path()))?)
}

/// The folder of such a kustomization.
///
/// # Errors
/// It cannot be written.
pub fn overlay_folder(profile: &str, components: &[&str]) -> Result<TempDir> {
    // Resources outside of a kustomization's folder are named by relative paths.
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target");
    let dir = tempfile::tempdir_in(target)?;
    let component = |name: &&str| format!("../../deploy/components/{name}");
    let components: Vec<String> = components.iter().map(component).collect();
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
/// The command, its status and its output, where it does not.
pub fn said(command: &mut Command) -> Result<String> {
    let output = command
        .output()
        .with_context(|| format!("run {command:?}"))?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        let words = String::from_utf8_lossy(&output.stdout);
        bail!("{command:?}: {}: {errors}{words}", output.status);
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// What names an object: kind, namespace and name.
pub fn identity(object: &Value) -> String {
    let paths = ["/kind", "/metadata/namespace", "/metadata/name"];
    let text = |path| object.pointer(path).and_then(Value::as_str);
    let [kind, namespace, name] = paths.map(|path| text(path).unwrap_or_default());
    format!("{kind} {namespace}/{name}")
}
